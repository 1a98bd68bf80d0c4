"""The executor that runs its one worker in the caller's process and thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from micro_vllm.config import CacheGroup, EngineConfig
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.worker.worker import Worker

if TYPE_CHECKING:
    from micro_vllm.native.prepare import NativeParts


class SingleProcessExecutor:
    """Implements :class:`micro_vllm.executor.base.Executor`. Several may share one LoadedModel."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> None:
        """
        Raises:
            ConfigError: the settings name an unknown attention operator or another device than the model's.
        """
        self._worker = Worker(loaded, config, max_model_len)

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        """Bytes of one KV block (keys and values, one group's layers)."""
        return self._worker.block_bytes(groups, block_size)

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        """Usable blocks (null block not counted) that ``memory_bytes`` hold."""
        return self._worker.num_blocks_that_fit(groups, block_size, memory_bytes)

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        """Allocate the physical cache: ``num_blocks`` usable blocks and the null block."""
        self._worker.initialize_cache(groups, block_size, num_blocks)

    def execute(self, plan: ExecutionPlan) -> StepResult:
        """Compute one step."""
        return self._worker.execute(plan)

    def use_native(self, parts: NativeParts) -> None:
        """From the next step on compute natively; see :class:`micro_vllm.native.decoder.NativeDecoder`."""
        self._worker.use_native(parts)

    def close(self) -> None:
        """Release the cache."""
        self._worker.close()
