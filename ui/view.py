"""What the page knows of an engine at one moment: frozen values, made by ``ui.replay``, drawn by ``ui.charts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from micro_vllm.trace import EngineInfo

BlockState = Literal["null", "free", "cached", "used"]
SpanKind = Literal["waiting", "prefill", "decode"]

WINDOW_STEPS = 120
"""Engine steps that the charts look back."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One request's claim on a block."""

    request_id: str
    group: int
    logical_index: int
    """Which block of the request's table it is, from 0."""


@dataclass(frozen=True, slots=True)
class BlockCell:
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

    @property
    def label(self) -> str:
        return request_label(self.arrival)


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

    @property
    def hit_rate(self) -> float:
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0


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

    @property
    def num_used(self) -> int:
        return self.usage[-1].used if self.usage else 0

    @property
    def first_step(self) -> int:
        """Left edge of the window."""
        return max(0, self.step - WINDOW_STEPS + 1)

    def request(self, request_id: str) -> RequestTrack | None:
        return next((r for r in self.requests if r.request_id == request_id), None)


def request_label(arrival: int) -> str:
    """a, b, ... z, aa, ab, ...: the short name of the arrival-th request of an engine."""
    label = ""
    number = arrival + 1
    while number > 0:
        number, letter = divmod(number - 1, 26)
        label = chr(ord("a") + letter) + label
    return label
