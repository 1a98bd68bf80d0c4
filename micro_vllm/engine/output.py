"""What a caller gets back. vLLM's names: RequestOutput holds CompletionOutputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from micro_vllm.trace.events import RequestMetrics

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """Raw log-probability of one candidate (before temperature and penalties) and its 1-based rank."""

    logprob: float
    rank: int
    decoded_token: str | None = None


class CompletionOutput(msgspec.Struct, frozen=True, gc=False):
    """One answer, as far as it has come."""

    index: int
    text: str
    """Only whole characters, and never a part of a stop string."""
    token_ids: Sequence[int]
    """Every token generated, also those of a stop string or EOS that ``text`` leaves out."""
    cumulative_logprob: float | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    """One dict a token: the sampled token and the most likely ones."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or the stop string that ended it; None for EOS and length."""
    error: str | None = None
    """Why, when ``finish_reason`` is error."""

    def finished(self) -> bool:
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct, frozen=True, gc=False):
    """A request's cumulative output after some step."""

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: Sequence[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    metrics: RequestMetrics = RequestMetrics()
    prompt_logprobs: None = None


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of an engine. Prefix cache numbers are tokens since the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    kv_cache_usage: float = 0.0
    """Share of the blocks that running requests hold, 0 to 1."""
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
