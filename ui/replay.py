"""Folds trace events to an immutable EngineView: ``micro_vllm.trace.Fold`` knows the state, this adds the story.

The state (tables, refcounts, queues) comes from Fold and from nowhere else. What Fold forgets, because it is past, is
kept here for the window of the charts: what each request did in which step, and how full the pool was.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from micro_vllm.trace import (
    EngineStarted,
    Fold,
    PrefixLookup,
    RequestAborted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    StepExecuted,
    StepPlanned,
    TraceEvent,
)
from ui.view import (
    WINDOW_STEPS,
    BlockCell,
    BlockState,
    EngineView,
    Mark,
    Owner,
    RequestTrack,
    Span,
    SpanKind,
    StepUsage,
)


class EventSource(Protocol):
    """A TraceLog, or anything that answers like it."""

    def since(self, seq: int = -1) -> Sequence[TraceEvent]: ...


@dataclass
class _Track:
    arrival: int
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int = 0
    status: Literal["waiting", "running", "done"] = "waiting"
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    last_step: int = 0
    waits_since: int | None = None

    def extend(self, kind: SpanKind, step: int, tokens: int) -> None:
        """Add ``step``; decodes in a row make one span, each prefill chunk stays its own."""
        self.end_waiting(step)
        last = self.spans[-1] if self.spans else None
        if kind == "decode" and last and last.kind == "decode" and last.stop == step:
            self.spans[-1] = Span(kind, last.start, step + 1, last.tokens + tokens)
        else:
            self.spans.append(Span(kind, step, step + 1, tokens))
        self.last_step = step

    def end_waiting(self, step: int) -> None:
        if self.waits_since is not None and step > self.waits_since:
            self.spans.append(Span("waiting", self.waits_since, step))
        self.waits_since = None

    def forget_before(self, step: int) -> None:
        if self.spans and self.spans[0].stop <= step:
            self.spans = [span for span in self.spans if span.stop > step]
        if self.marks and self.marks[0].step < step:
            self.marks = [mark for mark in self.marks if mark.step >= step]


class Replay:
    """Feed it events in order (``apply`` / ``follow``) and ask for ``view()``. Any thread may ask."""

    def __init__(self, *, is_sample: bool = False) -> None:
        self.is_sample = is_sample
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._fold = Fold()
        self._tracks: dict[str, _Track] = {}
        self._usage: deque[StepUsage] = deque(maxlen=WINDOW_STEPS)
        self._rows: StepPlanned | None = None
        self._written: frozenset[int] = frozenset()
        self._executed_step = 0
        self._peak_blocks = 0
        self._view: EngineView | None = None

    # ------------------------------------------------------------ feeding

    def follow(self, source: EventSource) -> EngineView | None:
        """Catch up with ``source``; the newest view, or None while it has not even started."""
        with self._lock:
            seq = -1 if self._fold.last_seq is None else self._fold.last_seq
            events = source.since(seq)
            if events and self._has_gap(events[0]):
                self._reset()  # events were dropped while nobody looked: fold on from the oldest Snapshot held
            self._apply_all(events)
            return self._current()

    def apply(self, events: Iterable[TraceEvent]) -> None:
        with self._lock:
            self._apply_all(events)

    def view(self) -> EngineView | None:
        """The state after the last event fed; None before the first EngineStarted or Snapshot."""
        with self._lock:
            return self._current()

    def arrival_of(self, request_id: str) -> int | None:
        """Number of a request that the window still holds: its label and colour follow from it."""
        with self._lock:
            track = self._tracks.get(request_id)
            return track.arrival if track else None

    @property
    def has_steps(self) -> bool:
        """Whether the engine has computed anything yet."""
        return self._executed_step > 0

    def _has_gap(self, first: TraceEvent) -> bool:
        last = self._fold.last_seq
        return last is not None and first.seq != last + 1 and not isinstance(first, EngineStarted)

    def _apply_all(self, events: Iterable[TraceEvent]) -> None:
        for event in events:
            if isinstance(event, EngineStarted):
                self._reset()
            if self._fold.info is not None and event.step > self._fold.step:
                self._close_step()
            late = self._fold.info is None
            self._fold.apply(event)
            if self._fold.info is None:
                continue
            if late and isinstance(event, Snapshot):
                self._restore(event)
            self._tell(event)
            self._view = None

    # ------------------------------------------------------------ the story

    def _restore(self, event: Snapshot) -> None:
        self._executed_step = event.step
        for request_id, r in event.state.requests.items():
            track = _Track(r.arrival, r.num_prompt_tokens, r.num_tokens, r.num_computed_tokens, r.status)
            track.last_step = event.step
            if r.status == "waiting":
                track.waits_since = event.step
            self._tracks[request_id] = track

    def _tell(self, event: TraceEvent) -> None:
        match event:
            case RequestQueued():
                track = _Track(event.arrival, event.num_prompt_tokens, event.num_prompt_tokens)
                track.waits_since = track.last_step = event.step
                self._tracks[event.request_id] = track
            case PrefixLookup() if event.num_hit_tokens:
                self._mark(event, "hit", event.num_hit_tokens)
            case RequestPreempted():
                self._mark(event, "preempted", event.num_computed_tokens)
                self._tracks[event.request_id].waits_since = event.step
            case RequestAborted():
                self._end(event, "aborted")
            case RequestFinished():
                self._end(event, "failed" if event.reason == "error" else "finished", event.reason)
            case StepPlanned():
                self._rows = event
            case StepExecuted() if self._rows is not None:
                self._executed_step = event.step
                for row in self._rows.rows:
                    if row.request_id in self._tracks:
                        self._tracks[row.request_id].extend(row.phase, event.step, row.count)
                self._written = self._blocks_of_rows(self._rows)
            case _:
                pass

    def _mark(
        self, event: RequestPreempted | PrefixLookup, kind: Literal["hit", "preempted"], n: int
    ) -> None:
        track = self._tracks[event.request_id]
        track.marks.append(Mark(kind, event.step, n))
        track.last_step = event.step

    def _end(
        self,
        event: RequestFinished | RequestAborted,
        kind: Literal["finished", "aborted", "failed"],
        text: str = "",
    ) -> None:
        track = self._tracks[event.request_id]
        track.end_waiting(event.step)
        # An abort between two steps carries the number of the next one: draw it where the bar ends.
        step = min(event.step, track.spans[-1].stop - 1) if track.spans else event.step
        track.marks.append(Mark(kind, step, event.num_output_tokens, text))
        track.status = "done"
        track.num_tokens = track.num_computed_tokens = event.num_prompt_tokens + event.num_output_tokens
        track.last_step = event.step

    def _blocks_of_rows(self, plan: StepPlanned) -> frozenset[int]:
        """Blocks that the rows of a step wrote. Asked at StepExecuted: later its finished requests are gone."""
        assert self._fold.info is not None
        size = self._fold.info.block_size
        written: set[int] = set()
        for row in plan.rows:
            request = self._fold.requests.get(row.request_id)
            for table in request.tables if request else ():
                written.update(table[row.start // size : (row.start + row.count - 1) // size + 1])
        written.discard(0)
        return frozenset(written)

    def _close_step(self) -> None:
        """All events of the step are in: note the pool, and forget what the window no longer shows."""
        if self._executed_step and (not self._usage or self._usage[-1].step < self._fold.step):
            usage = self._count_usage()
            self._usage.append(usage)
            self._peak_blocks = max(self._peak_blocks, usage.used + usage.cached)
        left = self._fold.step - WINDOW_STEPS
        for request_id, track in list(self._tracks.items()):
            track.forget_before(left)
            if track.status == "done" and track.last_step < left:
                del self._tracks[request_id]

    def _count_usage(self) -> StepUsage:
        fold = self._fold
        assert fold.info is not None
        hashed = {block for blocks in fold.hash_table.values() for block in blocks}
        cached = len(hashed & fold.free.keys())
        return StepUsage(
            step=fold.step,
            used=fold.info.num_blocks - len(fold.free),
            cached=cached,
            free=len(fold.free) - cached,
            prefix_queries=fold.prefix_queries,
            prefix_hits=fold.prefix_hits,
        )

    # ------------------------------------------------------------ the view

    def _current(self) -> EngineView | None:
        if self._view is None and self._fold.info is not None:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> EngineView:
        fold = self._fold
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
            blocks=self._make_blocks(),
            requests=tuple(self._make_track(i, t) for i, t in self._tracks.items()),
            usage=tuple(usage),
            executed_step=self._executed_step,
            peak_blocks=max(self._peak_blocks, now.used + now.cached),
            num_running=len(fold.running),
            num_waiting=len(fold.requests) - len(fold.running),
            is_sample=self.is_sample,
        )

    def _make_track(self, request_id: str, track: _Track) -> RequestTrack:
        live = self._fold.requests.get(request_id)
        if live is not None:
            track.num_tokens, track.num_computed_tokens = live.num_tokens, live.num_computed_tokens
            track.status = "running" if live.is_running else "waiting"
        spans = list(track.spans)
        if track.status == "waiting" and track.waits_since is not None:
            spans.append(Span("waiting", track.waits_since, max(self._executed_step, track.waits_since) + 1))
        return RequestTrack(
            request_id=request_id,
            arrival=track.arrival,
            num_prompt_tokens=track.num_prompt_tokens,
            num_tokens=track.num_tokens,
            num_computed_tokens=track.num_computed_tokens,
            status=track.status,
            spans=tuple(spans),
            marks=tuple(track.marks),
        )

    def _make_blocks(self) -> tuple[BlockCell, ...]:
        fold = self._fold
        assert fold.info is not None
        size = fold.info.block_size
        owners: dict[int, list[Owner]] = {}
        tokens: dict[int, int] = {}
        for request_id, request in fold.requests.items():
            for group, table in enumerate(request.tables):
                for index, block in enumerate(table):
                    if block == 0:
                        continue
                    owners.setdefault(block, []).append(Owner(request_id, group, index))
                    filled = min(max(request.num_computed_tokens - index * size, 0), size)
                    tokens[block] = max(tokens.get(block, 0), filled)
        hashes: dict[int, list[str]] = {}
        for key, blocks in fold.hash_table.items():
            for block in blocks:
                hashes.setdefault(block, []).append(key)
        cells = [BlockCell(0, "null")]
        for block in range(1, fold.info.num_blocks + 1):
            refs = fold.ref_counts[block]
            state: BlockState = "used" if refs else "cached" if block in hashes else "free"
            cells.append(
                BlockCell(
                    block_id=block,
                    state=state,
                    owners=tuple(owners.get(block, ())),
                    # A hashed block is full by definition, also while a request that hit it has not run yet.
                    tokens=size if block in hashes else tokens.get(block, 0),
                    ref_count=refs,
                    hashes=tuple(hashes.get(block, ())),
                    is_written=block in self._written,
                )
            )
        return tuple(cells)
