"""Folds trace events to the story that the charts tell: Fold knows the state, this adds what is past.

The state (tables, reference counts, queues) comes from Fold. What Fold forgets is kept here for the window of the
charts: what each request did in which step, how every step was planned and computed, and how full the pool was.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from micro_vllm.errors import TraceLawError
from micro_vllm.trace import (
    BlockCached,
    BlockEvicted,
    BlocksAllocated,
    BlocksFreed,
    BlocksReferenced,
    EngineStarted,
    Fold,
    PrefixLookup,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    StepExecuted,
    StepFailed,
    StepPlanned,
    TokensSampled,
    TraceEvent,
)
from ui.story.pool import PoolMap
from ui.story.prefix import PrefixTree
from ui.story.steps import Steps
from ui.story.tracks import Tracks
from ui.view import WINDOW_STEPS, EngineView, Owner, StepUsage


class Story:
    """Feed it events in order (``apply``), ask for ``view()``; ``copy()`` it to go on from the same event twice.

    Events before the first EngineStarted or Snapshot tell nothing and are skipped; another EngineStarted begins a new
    story. Raises TraceLawError, or KeyError and IndexError, for events that do not fit what came before them.
    """

    def __init__(self) -> None:
        self.fold = Fold()
        self.executed_step = 0
        """The newest step that was computed."""
        self.time = 0.0
        self._pool = PoolMap(0, 1)
        self._prefix = PrefixTree()
        self._tracks = Tracks()
        self._usage: deque[StepUsage] = deque(maxlen=WINDOW_STEPS)
        self._steps = Steps()
        self._closed_step = 0
        self._peak_blocks = 0
        self._view: EngineView | None = None

    def copy(self) -> Story:
        """Another story at the same event. Costs time and memory in proportion to the pool and the window."""
        other = copy.copy(self)
        other.fold = self.fold.copy()
        other._pool = self._pool.copy()
        other._prefix = self._prefix.copy()
        other._tracks = self._tracks.copy()
        other._usage = self._usage.copy()
        other._steps = self._steps.copy()
        other._view = None
        return other

    @property
    def has_begun(self) -> bool:
        return self.fold.info is not None

    def arrival_of(self, request_id: str) -> int | None:
        return self._tracks.arrival_of(request_id)

    # ------------------------------------------------------------ folding

    def apply(self, event: TraceEvent) -> None:
        if isinstance(event, EngineStarted):
            self.__init__()  # type: ignore[misc]  # nothing of an older engine holds
        elif not self.has_begun:
            if isinstance(event, Snapshot):
                self._restore(event)
            return
        elif event.step > self.fold.step > self._closed_step:
            self._close_step()
        if isinstance(event, RequestFinished | RequestAborted):
            self._tracks.ended(event, self.fold)
        self.fold.apply(event)
        if isinstance(event, EngineStarted):
            self._pool = PoolMap(event.info.num_blocks, event.info.block_size)
        tell = self._TELL.get(type(event))
        if tell is not None:
            tell(self, event)
        self.time = event.time
        self._view = None

    def _restore(self, event: Snapshot) -> None:
        _check(event)
        self.fold.apply(event)
        self._pool = PoolMap(event.info.num_blocks, event.info.block_size)
        self._pool.restore(self.fold)
        self._prefix.restore(self.fold)
        self._tracks.restore(event)
        self.executed_step = event.step
        self.time = event.time

    def _close_step(self) -> None:
        """All events of the newest step are in: note the pool, and forget what the window no longer shows."""
        self._closed_step = self.fold.step
        if self.executed_step:
            usage = self._count_usage()
            self._usage.append(usage)
            self._peak_blocks = max(self._peak_blocks, usage.used + usage.cached)
        self._tracks.forget_before(self.fold.step - WINDOW_STEPS)

    # ------------------------------------------------------------ requests and steps

    def _tell_lookup(self, event: PrefixLookup) -> None:
        if event.num_hit_tokens:
            self._tracks.hit(event.request_id, event.step, event.num_hit_tokens)
            self._steps.num_hit_tokens += event.num_hit_tokens

    def _tell_preempted(self, event: RequestPreempted) -> None:
        self._tracks.preempted(event)
        self._steps.num_preempted += 1

    def _tell_executed(self, event: StepExecuted) -> None:
        self.executed_step = event.step
        plan = self._steps.ended(event)
        written: set[int] = set()
        size = self._pool.block_size
        for row in plan.rows if plan else ():
            self._tracks.computed(row, event.step)
            first, stop = row.start // size, row.start + row.count
            for table in self.fold.requests[row.request_id].tables:
                for index in range(first, -(-stop // size)):
                    if block := table[index]:
                        written.add(block)
                        self._pool.write(block, min(stop - index * size, size))
        self._pool.computed(written)

    def _tell_sampled(self, event: TokensSampled) -> None:
        for token in event.tokens:
            self._tracks.sampled(token.request_id, event.time)

    # ------------------------------------------------------------ blocks

    def _tell_taken(self, event: BlocksReferenced | BlocksAllocated) -> None:
        for index, block in enumerate(event.block_ids, start=event.logical_start):
            if isinstance(event, BlocksReferenced):
                self._prefix.hit(self._pool.keys[block], event.step)
            self._pool.take(block, Owner(event.request_id, event.group, index), self.fold)

    def _tell_freed(self, event: BlocksFreed) -> None:
        for block in event.block_ids:
            self._pool.release(block, event.request_id, event.group)

    def _tell_cached(self, event: BlockCached) -> None:
        key = self._prefix.cached(event, self._tracks.arrival_of(event.request_id))
        self._pool.cached(event.block_id, key)

    def _tell_evicted(self, event: BlockEvicted) -> None:
        key = f"{event.group}:{event.hash}"
        self._pool.evicted(event.block_id, key)
        self._prefix.evicted(key, self.fold)
        self._steps.num_evicted += 1

    _TELL: ClassVar[dict[type[TraceEvent], Callable[[Story, Any], object]]] = {
        RequestQueued: lambda self, event: self._tracks.queued(event),
        RequestAdmitted: lambda self, event: self._tracks.admitted(event),
        RequestPreempted: _tell_preempted,
        PrefixLookup: _tell_lookup,
        StepPlanned: lambda self, event: self._steps.planned(event, self.fold),
        StepExecuted: _tell_executed,
        StepFailed: lambda self, event: self._steps.ended(event),
        TokensSampled: _tell_sampled,
        BlocksReferenced: _tell_taken,
        BlocksAllocated: _tell_taken,
        BlocksFreed: _tell_freed,
        BlockCached: _tell_cached,
        BlockEvicted: _tell_evicted,
    }

    # ------------------------------------------------------------ the view

    def view(self, *, is_sample: bool = False) -> EngineView | None:
        """The state after the last event fed, None before the first. The same object until another event comes."""
        if self._view is None and self.has_begun:
            self._view = self._make_view(is_sample)
        return self._view

    def _make_view(self, is_sample: bool) -> EngineView:
        fold = self.fold
        assert fold.info is not None
        assert fold.last_seq is not None
        usage = list(self._usage)
        if usage and usage[-1].step == fold.step:
            usage.pop()
        usage.append(now := self._count_usage())
        return EngineView(
            seq=fold.last_seq,
            step=fold.step,
            info=fold.info,
            blocks=self._pool.draw(fold.ref_counts),
            requests=self._tracks.draw(fold, self.executed_step),
            usage=tuple(usage),
            executed_step=self.executed_step,
            peak_blocks=max(self._peak_blocks, now.used + now.cached),
            num_running=len(fold.running),
            num_waiting=len(fold.requests) - len(fold.running),
            is_sample=is_sample,
            time=self.time,
            steps=self._steps.draw(),
            prefix=self._prefix.draw(fold, self._pool),
        )

    def _count_usage(self) -> StepUsage:
        fold, pool = self.fold, self._pool
        return StepUsage(
            step=fold.step,
            used=pool.num_used,
            cached=pool.num_reusable,
            free=pool.num_blocks - pool.num_used - pool.num_reusable,
            prefix_queries=fold.prefix_queries,
            prefix_hits=fold.prefix_hits,
            filled_slots=pool.num_filled,
        )


def _check(event: Snapshot) -> None:
    """A snapshot is taken at its word, so its blocks must be those of its pool. Raises TraceLawError."""
    state, num_blocks = event.state, event.info.num_blocks
    tables = (table for request in state.requests.values() for table in request.tables)
    named = {block for blocks in (*tables, *state.hash_table.values(), state.free) for block in blocks}
    if len(state.ref_counts) != num_blocks + 1 or not named <= set(range(num_blocks + 1)):
        raise TraceLawError(
            f"it counts {len(state.ref_counts):,} blocks, up to block {max(named, default=0):,}, but the pool has "
            f"{num_blocks:,} and the null block"
        )
