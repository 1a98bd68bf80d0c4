"""What a teacher may choose about the engine: ten settings with their ranges, and what a pool costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from micro_vllm.attention.operators.registry import operators_available
from micro_vllm.config import POLICIES, EngineConfig
from micro_vllm.engine.served_model import DEFAULT_MAX_MODEL_LEN
from micro_vllm.errors import ConfigError
from micro_vllm.trace import TraceSink

MIB = 1024 * 1024
MAX_PACE_SECONDS = 2.0
"""Longest pause between two steps that the page offers; an eye needs about one."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """One setting as the page shows it. ``low`` and ``high`` are None where there is a choice instead of a number."""

    name: str
    elem_id: str
    label: str
    hint: str
    help: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()


NUMBERS = (
    OptionField(
        "num_blocks",
        "num-blocks",
        "KV blocks",
        "1 to 8,192",
        "Blocks in the pool of the KV cache. All requests share them: with few of them, requests wait or are "
        "preempted, and the prefix cache forgets sooner.",
        1,
        8192,
    ),
    OptionField(
        "block_size",
        "block-size",
        "block size",
        "1 to 256",
        "Token slots in one block. Small blocks waste less and share more of a prefix; large ones need shorter "
        "tables. Only full blocks can be found by the prefix cache.",
        1,
        256,
    ),
    OptionField(
        "max_model_len",
        "context-length",
        "context length",
        "tokens",
        "Most tokens that prompt and answer of one request may have together. A model was made for a longest "
        "context; up to that you may choose.",
        2,
        131_072,
    ),
    OptionField(
        "max_num_batched_tokens",
        "token-budget",
        "token budget",
        "1 to 8,192",
        "Most tokens computed in one step, over all requests. A long prompt is read in chunks of at most so "
        "many tokens: a small budget keeps steps short for those who are being answered.",
        1,
        8192,
    ),
    OptionField(
        "max_num_seqs",
        "max-num-seqs",
        "seats",
        "1 to 256",
        "Most requests that run at the same time, in one batch; others wait. Not more than the token budget, "
        "since each running request needs a token a step.",
        1,
        256,
    ),
)
CHOICES = (
    OptionField(
        "scheduling_policy",
        "policy",
        "policy",
        "",
        "Who goes first: fcfs, first come, first served; or priority, the lower number first (chats have 0).",
        choices=POLICIES,
    ),
    OptionField(
        "attention",
        "attention",
        "attention",
        "",
        "The operator that computes attention over the blocks. They agree in what they compute: reference is the "
        "slow and obvious one, auto takes the fastest.",
        choices=("auto", *operators_available()),
    ),
    OptionField(
        "execution",
        "execution",
        "kernels",
        "",
        "auto: int8 weights and kernels compiled for this machine, where it can run them and attention is auto. "
        "eager: PyTorch, with the weights as the model has them.",
        choices=("auto", "eager"),
    ),
)
SWITCHES = (
    OptionField(
        "enable_prefix_caching",
        "prefix-caching",
        "prefix cache",
        "",
        "Keep full blocks of finished requests, so that a prompt which begins the same way need not compute them "
        "again.",
    ),
    OptionField(
        "enable_chunked_prefill",
        "chunked-prefill",
        "chunked prefill",
        "",
        "Read long prompts in chunks beside the answers of others. Without it, a prompt must fit into the token "
        "budget as a whole.",
    ),
)
FIELDS = (*NUMBERS, *CHOICES, *SWITCHES)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The settings of one engine. Always in range: wrong values raise ConfigError in the words of the page."""

    num_blocks: int | None = 256
    """None: as many as the memory set apart for them holds."""
    block_size: int = 16
    max_model_len: int | None = None
    """None: the model's own, at most 8,192."""
    max_num_batched_tokens: int = 256
    """Smaller than the engine's own default: on two cores a step stays short enough for others' tokens to flow."""
    max_num_seqs: int = 32
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    attention: str = "auto"
    execution: Literal["auto", "eager"] = "auto"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        for field in NUMBERS:
            value = getattr(self, field.name)
            if value is not None or field.name not in ("num_blocks", "max_model_len"):
                _check_number(field, value)
        for field in CHOICES:
            if getattr(self, field.name) not in field.choices:
                raise ConfigError(
                    f"{field.label}={getattr(self, field.name)!r} is unknown; allowed: {', '.join(field.choices)}."
                )
        for field in SWITCHES:
            if not isinstance(getattr(self, field.name), bool):
                raise ConfigError(f"{field.label}={getattr(self, field.name)!r} is neither on nor off.")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"seats={self.max_num_seqs} is more than the token budget ({self.max_num_batched_tokens}): every "
                "running request needs a token a step. Lower the seats or raise the token budget."
            )

    def check_model(self, model: str, longest: int) -> None:
        """Against the longest context that a model was made for.

        Raises:
            ConfigError: with both numbers.
        """
        length = self.context_length(longest)
        if length > longest:
            raise ConfigError(
                f"context length={length:,} is more than {model} was made for; allowed: 2 to {longest:,}."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < length:
            raise ConfigError(
                f"without chunked prefill a whole prompt must fit into one step, but the token budget is "
                f"{self.max_num_batched_tokens:,} and the context length {length:,}. Raise the budget, lower the "
                "context length, or switch chunked prefill on."
            )

    def context_length(self, longest: int) -> int:
        """Tokens of context that an engine gets from these options, over a model made for ``longest``."""
        return self.max_model_len or min(longest, DEFAULT_MAX_MODEL_LEN)

    def for_model(self, longest: int) -> EngineOptions:
        """The same for another model: a context length was chosen for the one before."""
        if self.enable_chunked_prefill:
            return replace(self, max_model_len=None)
        return replace(self, max_model_len=min(longest, self.max_num_batched_tokens))

    def to_config(self, model: str, memory_bytes: int, trace: TraceSink) -> EngineConfig:
        """``memory_bytes``: the pool's, where ``num_blocks`` is None."""
        return EngineConfig(
            model=model,
            num_gpu_blocks_override=self.num_blocks,
            kv_cache_memory_bytes=memory_bytes,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            scheduling_policy=self.scheduling_policy,
            attention=self.attention,
            enable_prefix_caching=self.enable_prefix_caching,
            enable_chunked_prefill=self.enable_chunked_prefill,
            trace=trace,
        )


def pool_bytes(num_blocks: int, block_size: int, bytes_per_token: int) -> int:
    """Bytes of the KV cache, with the null block."""
    return (num_blocks + 1) * block_size * bytes_per_token


def check_memory(options: EngineOptions, bytes_per_token: int, limit: int | None) -> None:
    """Before anything is allocated: Linux gives memory on credit, and ends the process when it is used.

    Raises:
        ConfigError: the pool is larger than ``limit`` bytes; with both sizes, and how many blocks fit.
    """
    if limit is None or options.num_blocks is None:
        return
    needed = pool_bytes(options.num_blocks, options.block_size, bytes_per_token)
    if needed > limit:
        fit = limit // (options.block_size * bytes_per_token) - 1
        raise ConfigError(
            f"{options.num_blocks:,} blocks of {options.block_size} slots need {in_mb(needed)} of memory, and this "
            f"machine has {in_mb(limit)}: at most {max(0, fit):,} such blocks fit. Lower KV blocks or block size."
        )


def in_mb(num_bytes: int) -> str:
    """In MB or GB of a million or a billion bytes, as disks and downloads are told."""
    if num_bytes >= 1_000_000_000:
        return f"{num_bytes / 1e9:,.1f} GB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 100_000_000 else f"{num_bytes / 1e6:,.0f} MB"


def check_pace(seconds: Any) -> float:
    """Least seconds a step. Raises ConfigError with the range."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= MAX_PACE_SECONDS
    ):
        raise ConfigError(
            f"pace={_shown(seconds)} is out of range; allowed: 0 to {MAX_PACE_SECONDS:g} seconds a step (0 is full "
            "speed)."
        )
    return float(seconds)


def pace_words(seconds: float) -> str:
    """ "20 steps a second at most" """
    if seconds <= 0:
        return "full speed"
    if seconds < 1:
        return f"{1 / seconds:.2g} steps a second at most"
    return "a step a second at most" if seconds == 1 else f"a step every {seconds:g} s at most"


def _check_number(field: OptionField, value: Any) -> None:
    span = f"{field.low:,} to {field.high:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{field.label}={_shown(value)} is not a whole number; allowed: {span}.")
    assert field.low is not None
    assert field.high is not None
    if not field.low <= value <= field.high:
        raise ConfigError(f"{field.label}={_shown(value)} is out of range; allowed: {span}.")


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "(empty)"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else repr(value)
    )
