"""One device's worker: how much cache fits, and the model runner that uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from micro_vllm.attention.attention import PagedKVCache
from micro_vllm.attention.operators.registry import get_operator
from micro_vllm.config import CacheGroup, EngineConfig
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.errors import ConfigError, EngineClosedError
from micro_vllm.memory import memory_limit
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.worker.memory import check_pool_fits, check_rows_fit
from micro_vllm.worker.model_runner import ModelRunner

if TYPE_CHECKING:
    from micro_vllm.native.prepare import NativeParts


class Worker:
    """Holds a LoadedModel that others may hold too, and a cache of its own."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> None:
        """
        Raises:
            ConfigError: ``config.attention`` names no operator, or the model has another dtype or lies on another
                device than the settings say.
        """
        get_operator(config.attention)  # an unknown name is told now, not after the cache was allocated
        device = next(loaded.model.parameters()).device
        if device.type != config.device.partition(":")[0]:
            raise ConfigError(
                f"device={config.device!r}, but the model was loaded on {str(device)!r}; "
                f"load it with device={config.device!r} or set device={str(device)!r}."
            )
        dtype = str(loaded.dtype).removeprefix("torch.")
        if config.dtype not in ("auto", dtype):
            raise ConfigError(
                f"dtype={config.dtype!r}, but the model was loaded as {dtype!r}; "
                f"load it with dtype={config.dtype!r} or leave dtype at 'auto'."
            )
        self._loaded = loaded
        self._device = device
        self._config = config
        self._max_model_len = max_model_len
        self._runner: ModelRunner | None = None

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        """Bytes of one KV block (keys and values, one group's layers)."""
        model = self._loaded.config
        return PagedKVCache.block_bytes(
            groups, block_size, model.num_kv_heads, model.head_dim, self._loaded.dtype
        )

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        """Usable blocks in ``memory_bytes``, beside the null block; 0 if not even that one fits."""
        return max(0, memory_bytes // self.block_bytes(groups, block_size) - 1)

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        """Allocate a fresh cache; an earlier one and its rows are dropped first.

        Raises:
            ConfigError: more blocks or seats than the memory holds.
        """
        self._runner = None
        block_bytes, limit = self.block_bytes(groups, block_size), memory_limit()
        check_pool_fits(num_blocks, block_size, block_bytes, self._device, limit)
        check_rows_fit(self._config.max_num_seqs, self._max_model_len, block_size, len(groups), limit)
        try:
            self._runner = ModelRunner(
                self._loaded,
                self._config.attention,
                groups=groups,
                block_size=block_size,
                num_blocks=num_blocks,
                max_num_seqs=self._config.max_num_seqs,
                max_model_len=self._max_model_len,
                max_num_batched_tokens=self._config.max_num_batched_tokens,
            )
        except (RuntimeError, MemoryError) as error:  # RuntimeError: what torch raises
            raise ConfigError(
                f"{num_blocks:,} KV blocks of {block_bytes:,} bytes cannot be allocated: {error}. "
                "Lower num_gpu_blocks_override or kv_cache_memory_bytes."
            ) from error

    def use_native(self, parts: NativeParts) -> None:
        """See :meth:`ModelRunner.use_native`. Raises EngineClosedError when there is no cache."""
        self._open_runner().use_native(parts)

    def execute(self, plan: ExecutionPlan) -> StepResult:
        """Compute one step; see :meth:`ModelRunner.execute`.

        Raises:
            EngineClosedError: there is no cache: never initialised, or closed.
        """
        return self._open_runner().execute(plan)

    def _open_runner(self) -> ModelRunner:
        if self._runner is None:
            raise EngineClosedError("this worker has no KV cache: call initialize_cache first.")
        return self._runner

    def close(self) -> None:
        """Release the cache. The weights belong to the LoadedModel and stay."""
        self._runner = None
