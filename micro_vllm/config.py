"""EngineConfig, and the frozen configs derived from it. A leaf: no torch, no other room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from micro_vllm.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from micro_vllm.trace import TraceSink

NULL_BLOCK = 0
"""Block 0 backs no token: padding of tables, and what fell out of a sliding window."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
POLICIES = ("fcfs", "priority")
EXECUTIONS = ("eager", "native")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What a caller may choose about an engine. Names and meaning are vLLM's where vLLM has them.

    ``num_gpu_blocks_override`` fixes the number of usable KV blocks (the null block is not counted); without
    it the pool gets ``kv_cache_memory_bytes``. ``trace`` is the one switch of the trace: with ``None``
    no event object is ever built.
    """

    model: str = "SmolLM2-135M-Instruct"
    max_model_len: int | None = None
    """Most tokens of prompt and answer together; None takes the model's own limit, at most 8,192."""
    block_size: int = 16
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    dtype: str = "auto"
    attention: str = "auto"
    device: str = "cpu"
    execution: Literal["eager", "native"] = "eager"
    """``native``: int8 weights and the kernels of ``micro_vllm.native``, on CPUs that have what they need."""
    prepack_weights: bool = True
    """Lay bfloat16 weights out for the CPU's kernels when an LLM loads them; False computes with the plain ones."""
    seed: int = 0
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int = 512 * 1024 * 1024
    snapshot_interval: int = 200
    """Engine steps between two Snapshot events."""
    trace: TraceSink | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> EngineConfig:
        # Before dataclass's own __init__ turns a typo into a bare TypeError.
        if args:
            raise ConfigError(
                f"{len(args)} engine settings have no name; name each, as in EngineConfig(block_size=16)."
            )
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                raise ConfigError(unknown_name("engine setting", name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        _at_least("snapshot_interval", self.snapshot_interval, 1)
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)
        if self.num_gpu_blocks_override is not None:
            _at_least("num_gpu_blocks_override", self.num_gpu_blocks_override, 1)
        for name in ("enable_prefix_caching", "enable_chunked_prefill", "prepack_weights"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} is neither True nor False.")
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("execution", self.execution, EXECUTIONS)
        for name in ("model", "attention", "device"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name}={getattr(self, name)!r} is not a string; pass a name.")
        if self.trace is not None and not callable(getattr(self.trace, "emit", None)):
            raise ConfigError(
                f"trace={self.trace!r} has no emit(event); pass a sink such as TraceLog(), or None."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"seed={self.seed!r} is not a whole number.")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_num_seqs="
                f"{self.max_num_seqs}: not every running request could get a token. "
                "Raise max_num_batched_tokens or lower max_num_seqs."
            )


# ---------------------------------------------------------------- derived


@dataclass(frozen=True)
class CacheGroup:
    """Layers with the same visibility that share one block table.

    ``layer_ids[k]`` is the model layer whose keys and values live in cache tensor k; -1 pads the
    last group of a kind. Every group has equally many entries, so a block id costs one group's bytes.
    """

    group_id: int
    window: int | None
    """Tokens a query sees, itself included; None sees all."""
    layer_ids: tuple[int, ...]


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache as core sees it: ids and counts only."""

    block_size: int
    num_blocks: int
    """Usable blocks: ids 1..num_blocks. The null block 0 comes on top."""
    groups: tuple[CacheGroup, ...]
    enable_prefix_caching: bool = True


@dataclass(frozen=True)
class SchedulerConfig:
    """Budgets and policy as the scheduler sees them."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True


def form_cache_groups(layer_windows: Sequence[int | None]) -> tuple[CacheGroup, ...]:
    """Cut the layers into groups of one visibility and equal size.

    ``layer_windows[i]`` is what layer i sees. Where the kinds differ in number, the larger kind is cut into
    several groups of the smaller count and its last group is padded with -1. The full group, if there
    is one, comes first. Source: vLLM's hybrid KV cache manager.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(layer_windows):
        kinds.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in kinds.values())
    groups: list[CacheGroup] = []
    for window, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0)):
        for start in range(0, len(layers), size):
            part = layers[start : start + size]
            padded = (*part, *[-1] * (size - len(part)))
            groups.append(CacheGroup(group_id=len(groups), window=window, layer_ids=padded))
    return tuple(groups)


def describe_config(config: EngineConfig) -> Mapping[str, Any]:
    """The settings as plain JSON values, for the trace and for the page."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name != "trace"}


def _at_least(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name}={value!r} is out of range; allowed: a whole number, {low} or more.")


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; allowed: {', '.join(allowed)}.")
