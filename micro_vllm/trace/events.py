"""The kinds of events. Frozen msgspec structs: ``kind`` on the wire is the class name.

Every event has ``seq`` (gapless per engine), ``engine`` (its id), ``step`` and ``time`` (monotonic seconds). What
happens between two steps (an add, an abort) carries the number of the next step. Readers skip kinds they do not know.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TRACE_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of an event."""


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="kind", gc=False):
    """What all events have.

    ``gc=False``: a log holds hundreds of thousands of events, none of which can be part of a cycle; the garbage
    collector would halt the engine for tenths of a second to look through them.
    """

    seq: int
    engine: str
    step: int
    time: float

    @property
    def kind(self) -> str:
        return type(self).__name__


# ---------------------------------------------------------------- engine


class GroupInfo(_Record, frozen=True, kw_only=True):
    """One cache group: ``window`` tokens are visible (None: all); ``num_layers`` real layers."""

    window: int | None
    num_layers: int


class EngineInfo(_Record, frozen=True, kw_only=True):
    """What does not change while an engine lives."""

    model: str
    config: dict[str, Any]
    groups: tuple[GroupInfo, ...]
    num_blocks: int
    """Usable blocks, ids 1..num_blocks; block 0 is the null block."""
    block_size: int
    bytes_per_block: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str


class EngineStarted(TraceEvent, frozen=True, kw_only=True):
    """The first event of an engine (step 0). ``wall_time`` is Unix time at this event's ``time``."""

    format: int
    wall_time: float
    info: EngineInfo


class RequestState(_Record, frozen=True, kw_only=True):
    """One live request. ``tables[g][i]`` is the block of logical index i in group g (0: null block)."""

    request_id: str
    status: Literal["waiting", "running"]
    priority: int
    arrival: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    tables: tuple[tuple[int, ...], ...]


class EngineState(_Record, frozen=True, kw_only=True):
    """The whole logical state after a step: what the law of the trace is about."""

    step: int
    waiting: tuple[str, ...]
    """In the order of the queue."""
    running: tuple[str, ...]
    """In the order of planning."""
    requests: dict[str, RequestState]
    ref_counts: tuple[int, ...]
    """Per block id, the null block's always 0."""
    free: tuple[int, ...]
    """In the order in which blocks will be handed out."""
    hash_table: dict[str, tuple[int, ...]]
    """``"group:hash"`` -> blocks that hold that content, oldest registration first."""
    parents: dict[str, str]
    """``"group:hash"`` -> hash of the block before it in its chain, "" for a first block."""
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache so far."""
    prefix_hits: int = 0
    """Tokens found there."""


class Snapshot(TraceEvent, frozen=True, kw_only=True):
    """The state after ``step``; whoever comes late folds from here."""

    wall_time: float
    info: EngineInfo
    state: EngineState


# ---------------------------------------------------------------- requests


class RequestMetrics(_Record, frozen=True, kw_only=True):
    """Seconds since arrival unless said otherwise; None where it did not come to it."""

    queue_time: float | None = None
    """Until it was first admitted."""
    ttft: float | None = None
    """Time to first token."""
    tpot: float | None = None
    """Seconds per output token after the first."""
    e2e: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0


class RequestQueued(TraceEvent, frozen=True, kw_only=True):
    """Added to the waiting queue, which is ordered by (priority under the priority policy, arrival)."""

    request_id: str
    priority: int
    arrival: int
    num_prompt_tokens: int
    max_tokens: int
    """Most output tokens, after the caps of context and pool."""
    prompt_token_ids: tuple[int, ...] = ()


class RequestAdmitted(TraceEvent, frozen=True, kw_only=True):
    """From waiting to the end of running; its first ``num_computed_tokens`` tokens came from the prefix cache."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    is_resumed: bool


class RequestPreempted(TraceEvent, frozen=True, kw_only=True):
    """From running back to waiting; all blocks freed, ``num_computed_tokens`` will be computed again."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    beneficiary: str
    """The request that needed the blocks."""


class RequestFinished(TraceEvent, frozen=True, kw_only=True):
    """Done: ``reason`` is stop, length or error."""

    request_id: str
    reason: str
    num_prompt_tokens: int
    num_output_tokens: int
    metrics: RequestMetrics
    detail: str = ""


class RequestAborted(TraceEvent, frozen=True, kw_only=True):
    """Given up by its caller."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    metrics: RequestMetrics


class PrefixLookup(TraceEvent, frozen=True, kw_only=True):
    """Asked when a request is admitted. ``group_hits`` are tokens each group alone would have given."""

    request_id: str
    num_tokens: int
    num_hit_tokens: int
    group_hits: tuple[int, ...]


# ---------------------------------------------------------------- steps


class ScheduledRow(_Record, frozen=True, kw_only=True):
    """``count`` tokens of one request, from index ``start``."""

    request_id: str
    phase: Literal["prefill", "decode"]
    start: int
    count: int


class StepPlanned(TraceEvent, frozen=True, kw_only=True):
    """What the step will compute, and why no more."""

    rows: tuple[ScheduledRow, ...]
    num_tokens: int
    token_budget: int
    num_seats: int
    max_num_seqs: int
    waiting: tuple[str, ...]
    """The head of the queue, at most ``WAITING_SHOWN`` ids."""
    num_waiting: int
    stopped_by: Literal["nothing_waits", "budget", "seats", "blocks", "preemption"]


WAITING_SHOWN = 64


class StepExecuted(TraceEvent, frozen=True, kw_only=True):
    """Computed. Seconds for each part; the batch's shape; the attention operator."""

    schedule_seconds: float
    build_seconds: float
    forward_seconds: float
    sample_seconds: float
    num_requests: int
    num_tokens: int
    num_decodes: int
    operator: str


class StepFailed(TraceEvent, frozen=True, kw_only=True):
    """The executor raised; ``request_ids`` end with reason error."""

    error: str
    request_ids: tuple[str, ...]


class SampledToken(_Record, frozen=True, kw_only=True):
    """``alternatives`` are (token id, raw logprob), best first, if the request asked for logprobs."""

    request_id: str
    token_id: int
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


class TokensSampled(TraceEvent, frozen=True, kw_only=True):
    """One new token for each of these requests."""

    tokens: tuple[SampledToken, ...]


# ---------------------------------------------------------------- blocks


class BlocksReferenced(TraceEvent, frozen=True, kw_only=True):
    """Prefix hit: these cached blocks now also belong to the request (and leave the free list if they were on it).

    ``logical_start`` is the index of the first; indices before it in this group are the null block.
    """

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    logical_start: int


class BlocksAllocated(TraceEvent, frozen=True, kw_only=True):
    """Taken from the head of the free list in this order, appended to the request's table."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    logical_start: int


class BlocksNulled(TraceEvent, frozen=True, kw_only=True):
    """Fell out of the window: table entries from ``logical_start`` become the null block.

    The references are dropped by the BlocksFreed that follows.
    """

    request_id: str
    group: int
    block_ids: tuple[int, ...]
    logical_start: int


class BlocksFreed(TraceEvent, frozen=True, kw_only=True):
    """The request drops its reference to each; one that reaches 0 is appended to the free list, in this order."""

    request_id: str
    group: int
    block_ids: tuple[int, ...]


class BlockCached(TraceEvent, frozen=True, kw_only=True):
    """A full block was registered in the prefix cache under ``hash`` (hex); ``parent`` is "" for a first block."""

    block_id: int
    group: int
    hash: str
    parent: str
    request_id: str
    logical_index: int


class BlockEvicted(TraceEvent, frozen=True, kw_only=True):
    """The block is handed out again; its old content is no longer a hit."""

    block_id: int
    group: int
    hash: str


AnyEvent = (
    EngineStarted
    | Snapshot
    | RequestQueued
    | RequestAdmitted
    | RequestPreempted
    | RequestFinished
    | RequestAborted
    | PrefixLookup
    | StepPlanned
    | StepExecuted
    | StepFailed
    | TokensSampled
    | BlocksReferenced
    | BlocksAllocated
    | BlocksNulled
    | BlocksFreed
    | BlockCached
    | BlockEvicted
)
