"""What the page knows of an engine at one moment: frozen values, made by ``ui.replay``, drawn by ``ui.charts``.

Of the small ones there are thousands in a view. They are msgspec structs, which are made five times as fast as frozen
dataclasses and which the garbage collector need not look through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from micro_vllm.trace import EngineInfo

BlockState = Literal["null", "free", "cached", "used"]
SpanKind = Literal["waiting", "prefill", "decode"]
JumpKind = Literal["preempted", "hit", "evicted", "failed"]
"""What the step cursor can jump to."""
JUMP_KINDS: tuple[JumpKind, ...] = ("preempted", "hit", "evicted", "failed")

WINDOW_STEPS = 120
"""Engine steps that the charts look back."""


class Owner(msgspec.Struct, frozen=True, gc=False):
    """One request's claim on a block."""

    request_id: str
    group: int
    logical_index: int
    """Which block of the request's table it is, from 0."""


class BlockCell(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One KV block."""

    block_id: int
    state: BlockState
    owners: tuple[Owner, ...] = ()
    tokens: int = 0
    """Slots that hold a token, 0 to block_size."""
    ref_count: int = 0
    hashes: tuple[str, ...] = ()
    """``"group:hash"`` under which it can be hit."""
    is_written: bool = False
    """The newest executed step wrote into it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps ``start .. stop - 1`` that a request spent in one way; ``tokens`` computed in them."""

    kind: SpanKind
    start: int
    stop: int
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a request in one step."""

    kind: Literal["hit", "preempted", "finished", "aborted", "failed"]
    step: int
    tokens: int = 0
    """hit: tokens found in the prefix cache; preempted: tokens to compute again; else output tokens."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When things happened to a request, in seconds of the engine's clock (``EngineView.time``); None: not yet."""

    queued: float | None = None
    admitted: float | None = None
    """The first time."""
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTrack:
    """One request's life as far as the window shows it."""

    request_id: str
    arrival: int
    """Counts all requests of this engine; label and colour follow from it."""
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    status: Literal["waiting", "running", "done"]
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    num_cached_tokens: int = 0
    """Tokens that the prefix cache gave when it was first admitted."""
    num_preemptions: int = 0
    priority: int = 0
    finish_reason: str = ""
    """stop, length, error or abort; "" while it lives."""
    times: RequestTimes = field(default_factory=RequestTimes)
    tables: tuple[tuple[int, ...], ...] = ()
    """``tables[group][logical index]`` is a block id (0: null block): its own while it lives, the last ones after."""

    @property
    def label(self) -> str:
        return request_label(self.arrival)

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def queue_time(self) -> float | None:
        """Seconds until it was first admitted."""
        return _between(self.times.queued, self.times.admitted)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return _between(self.times.queued, self.times.first_token)

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None with fewer than two."""
        span = _between(self.times.first_token, self.times.last_token)
        return (
            span / (self.num_output_tokens - 1) if span is not None and self.num_output_tokens > 1 else None
        )


def _between(start: float | None, stop: float | None) -> float | None:
    return stop - start if start is not None and stop is not None else None


@dataclass(frozen=True, slots=True)
class StepUsage:
    """The pool after one step; used + cached + free = num_blocks."""

    step: int
    used: int
    cached: int
    free: int
    prefix_queries: int
    """Tokens looked up in the prefix cache since the engine started."""
    prefix_hits: int
    filled_slots: int = 0
    """Slots of the blocks in use that hold a token; ``used * block_size - filled_slots`` are waste."""

    @property
    def hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """What one request computed in a step: ``count`` tokens from index ``start``."""

    request_id: str
    arrival: int
    phase: Literal["prefill", "decode"]
    start: int
    count: int


class StepRecord(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One step as it was planned and, once that is over, computed. What is said of it is made once, and found by it."""

    step: int
    time: float
    """When it was planned, in seconds of the engine's clock."""
    rows: tuple[StepRow, ...]
    num_tokens: int
    token_budget: int
    num_seats: int
    """Requests in the batch, of at most ``max_num_seqs``."""
    max_num_seqs: int
    num_waiting: int
    stopped_by: str
    """Why no more was planned: nothing_waits, budget, seats, blocks or preemption."""
    is_executed: bool = False
    schedule_seconds: float = 0.0
    build_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    num_preempted: int = 0
    num_evicted: int = 0
    num_hit_tokens: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.schedule_seconds + self.build_seconds + self.forward_seconds + self.sample_seconds


class PrefixNode(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One block content in the prefix cache; nodes form chains from the beginnings of prompts."""

    key: str
    """``"group:hash"``"""
    parent: str
    """Key of the block before it in its chain; "" for a first block. May name a node that was evicted."""
    group: int
    depth: int
    """Index of the block in the prompts that hold it, from 0; of an orphan, as far as it is known."""
    block_ids: tuple[int, ...]
    """Blocks that hold it, oldest first."""
    num_hits: int = 0
    """How often a later request found it."""
    last_hit_step: int | None = None
    owners: tuple[str, ...] = ()
    """Live requests that hold it now."""
    first_arrival: int | None = None
    """The request that computed it."""
    is_evictable: bool = False
    """No request holds it: its block is on the free list."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """Everything the charts and the header need. ``seq`` is the last event it holds."""

    seq: int
    step: int
    info: EngineInfo
    blocks: tuple[BlockCell, ...]
    """By block id; index 0 is the null block."""
    requests: tuple[RequestTrack, ...]
    """In order of arrival."""
    usage: tuple[StepUsage, ...]
    """One a step, the newest last."""
    executed_step: int
    """The newest step that was computed; ``step`` may be one that is being planned."""
    peak_blocks: int
    """Most blocks that held anything at the end of a step so far, in use or kept for reuse."""
    num_running: int
    num_waiting: int
    is_sample: bool = False
    time: float = 0.0
    """Seconds on the engine's clock (monotonic) of the last event it holds."""
    steps: tuple[StepRecord, ...] = ()
    """One a step of the window, the newest last."""
    prefix: tuple[PrefixNode, ...] = ()
    """The prefix cache, parents before children, in the order in which they were first cached."""

    @property
    def num_used(self) -> int:
        return self.usage[-1].used if self.usage else 0

    @property
    def first_step(self) -> int:
        """Left edge of the window."""
        return max(0, self.step - WINDOW_STEPS + 1)

    def request(self, request_id: str) -> RequestTrack | None:
        return next((r for r in self.requests if r.request_id == request_id), None)


@dataclass(frozen=True, slots=True)
class Clock:
    """The steps that the cursor can reach, and where something happened."""

    first_step: int
    last_step: int
    marks: Mapping[JumpKind, tuple[int, ...]] = field(default_factory=dict)
    """Steps, ascending."""


def request_label(arrival: int) -> str:
    """a, b, ... z, aa, ab, ...: the short name of the arrival-th request of an engine."""
    label = ""
    number = arrival + 1
    while number > 0:
        number, letter = divmod(number - 1, 26)
        label = chr(ord("a") + letter) + label
    return label
