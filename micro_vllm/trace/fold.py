"""The law of the trace, executable: fold events into the engine's logical state.

Knows nothing of the engine's code; it is a second, independent account of what the events mean. A test
folds randomised runs and compares with the engine after every step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from micro_vllm.errors import TraceLawError
from micro_vllm.trace.events import (
    BlockCached,
    BlockEvicted,
    BlocksAllocated,
    BlocksFreed,
    BlocksNulled,
    BlocksReferenced,
    EngineInfo,
    EngineStarted,
    EngineState,
    PrefixLookup,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    RequestState,
    ScheduledRow,
    Snapshot,
    StepExecuted,
    StepPlanned,
    TokensSampled,
    TraceEvent,
)


@dataclass
class _Request:
    priority: int
    arrival: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int = 0
    is_running: bool = False
    tables: list[list[int]] = field(default_factory=list)

    def copy(self) -> _Request:
        other = copy.copy(self)
        other.tables = [list(table) for table in self.tables]
        return other


class Fold:
    """Feed it events in order; read ``info`` and ``state()`` whenever a step is complete.

    Events before the first EngineStarted or Snapshot are skipped, so any cut of a log can be fed.
    """

    def __init__(self, events: Iterable[TraceEvent] = ()) -> None:
        self.info: EngineInfo | None = None
        self.step = 0
        """The last step planned; what came between two steps counts to the state after the former."""
        self.last_seq: int | None = None
        self.requests: dict[str, _Request] = {}
        self.running: dict[str, None] = {}
        self.ref_counts: list[int] = []
        self.free: dict[int, None] = {}
        self.hash_table: dict[str, tuple[int, ...]] = {}
        self.parents: dict[str, str] = {}
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._planned: tuple[ScheduledRow, ...] = ()
        for event in events:
            self.apply(event)

    def copy(self) -> Fold:
        """Another fold at the same event, which goes its own way: flat values only, so it costs O(blocks) copying."""
        other = copy.copy(self)
        other.requests = {request_id: request.copy() for request_id, request in self.requests.items()}
        other.running = dict(self.running)
        other.ref_counts = list(self.ref_counts)
        other.free = dict(self.free)
        other.hash_table = dict(self.hash_table)
        other.parents = dict(self.parents)
        return other

    # ------------------------------------------------------------ reading

    def state(self) -> EngineState:
        """The state after the last event fed; exact at step boundaries."""
        waiting = [r for r, request in self.requests.items() if not request.is_running]
        waiting.sort(key=lambda r: self._queue_key(self.requests[r]))
        return EngineState(
            step=self.step,
            waiting=tuple(waiting),
            running=tuple(self.running),
            requests={
                request_id: RequestState(
                    request_id=request_id,
                    status="running" if r.is_running else "waiting",
                    priority=r.priority,
                    arrival=r.arrival,
                    num_prompt_tokens=r.num_prompt_tokens,
                    num_tokens=r.num_tokens,
                    num_computed_tokens=r.num_computed_tokens,
                    tables=tuple(map(tuple, r.tables)),
                )
                for request_id, r in self.requests.items()
            },
            ref_counts=tuple(self.ref_counts),
            free=tuple(self.free),
            hash_table=dict(self.hash_table),
            parents=dict(self.parents),
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
        )

    def _queue_key(self, request: _Request) -> tuple[int, int]:
        by_priority = self.info is not None and self.info.policy == "priority"
        return (request.priority if by_priority else 0, request.arrival)

    # ------------------------------------------------------------ folding

    def apply(self, event: TraceEvent) -> None:
        if isinstance(event, EngineStarted):
            self._start(event)
        elif self.info is None:
            if isinstance(event, Snapshot):
                self._restore(event)
        else:
            if self.last_seq is not None and event.seq != self.last_seq + 1:
                raise TraceLawError(f"event {event.seq} follows {self.last_seq}: events are missing")
            self._fold(event)
        self.last_seq = event.seq

    def _start(self, event: EngineStarted) -> None:
        self.__init__()  # type: ignore[misc]  # a new engine in the same log: nothing of the old one holds
        self.info = event.info
        self.ref_counts = [0] * (event.info.num_blocks + 1)
        self.free = dict.fromkeys(range(1, event.info.num_blocks + 1))

    def _restore(self, event: Snapshot) -> None:
        state = event.state
        self.info = event.info
        self.step = event.step
        for request_id, r in state.requests.items():
            self.requests[request_id] = _Request(
                priority=r.priority,
                arrival=r.arrival,
                num_prompt_tokens=r.num_prompt_tokens,
                num_tokens=r.num_tokens,
                num_computed_tokens=r.num_computed_tokens,
                is_running=r.status == "running",
                tables=[list(table) for table in r.tables],
            )
        self.running = dict.fromkeys(state.running)
        self.ref_counts = list(state.ref_counts)
        self.free = dict.fromkeys(state.free)
        self.hash_table = dict(state.hash_table)
        self.parents = dict(state.parents)
        self.prefix_queries = state.prefix_queries
        self.prefix_hits = state.prefix_hits

    def _fold(self, event: TraceEvent) -> None:
        match event:
            case RequestQueued():
                self.requests[event.request_id] = _Request(
                    event.priority,
                    event.arrival,
                    event.num_prompt_tokens,
                    event.num_prompt_tokens,
                    tables=self._empty_tables(),
                )
            case PrefixLookup():
                self.prefix_queries += event.num_tokens
                self.prefix_hits += event.num_hit_tokens
            case RequestAdmitted():
                request = self.requests[event.request_id]
                request.is_running = True
                request.num_computed_tokens = event.num_computed_tokens
                self.running[event.request_id] = None
            case RequestPreempted():
                request = self.requests[event.request_id]
                request.is_running = False
                request.num_computed_tokens = 0
                request.tables = self._empty_tables()
                del self.running[event.request_id]
            case RequestFinished() | RequestAborted():
                del self.requests[event.request_id]
                self.running.pop(event.request_id, None)
            case StepPlanned():
                self.step = event.step
                self._planned = event.rows
            case StepExecuted():
                for row in self._planned:
                    if row.request_id in self.requests:
                        self.requests[row.request_id].num_computed_tokens = row.start + row.count
            case TokensSampled():
                for token in event.tokens:
                    self.requests[token.request_id].num_tokens += 1
            case _:
                self._fold_blocks(event)

    def _fold_blocks(self, event: TraceEvent) -> None:
        match event:
            case BlocksReferenced() | BlocksAllocated():
                table = self.requests[event.request_id].tables[event.group]
                table.extend([0] * (event.logical_start - len(table)))
                for block_id in event.block_ids:
                    if isinstance(event, BlocksAllocated) and block_id != next(iter(self.free), None):
                        raise TraceLawError(f"block {block_id} was not at the head of the free list")
                    self.free.pop(block_id, None)
                    self.ref_counts[block_id] += 1
                    table.append(block_id)
            case BlocksNulled():
                table = self.requests[event.request_id].tables[event.group]
                for index in range(event.logical_start, event.logical_start + len(event.block_ids)):
                    table[index] = 0
            case BlocksFreed():
                for block_id in event.block_ids:
                    self.ref_counts[block_id] -= 1
                    if self.ref_counts[block_id] < 0:
                        raise TraceLawError(f"block {block_id} was freed more often than taken")
                    if self.ref_counts[block_id] == 0:
                        self.free[block_id] = None
            case BlockCached():
                key = f"{event.group}:{event.hash}"
                self.hash_table[key] = (*self.hash_table.get(key, ()), event.block_id)
                self.parents[key] = event.parent
            case BlockEvicted():
                key = f"{event.group}:{event.hash}"
                held = self.hash_table.get(key, ())
                if event.block_id not in held:
                    raise TraceLawError(f"block {event.block_id} is evicted, but does not hold {key}")
                self.hash_table[key] = tuple(block_id for block_id in held if block_id != event.block_id)
                if not self.hash_table[key]:
                    del self.hash_table[key], self.parents[key]
            case _:
                pass  # Snapshot, StepFailed: change nothing

    def _empty_tables(self) -> list[list[int]]:
        assert self.info is not None
        return [[] for _ in self.info.groups]
