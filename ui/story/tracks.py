"""The requests of the window: what each did in which step, what happened to it, and when."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Literal

from micro_vllm.trace import (
    Fold,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    ScheduledRow,
    Snapshot,
)
from ui.view import Mark, RequestTimes, RequestTrack, Span, SpanKind


@dataclass(slots=True)
class _Track:
    """Values that are replaced, never changed: a shallow copy is a copy."""

    arrival: int
    num_prompt_tokens: int
    priority: int
    last_step: int
    """The newest step in which anything happened to it."""
    waits_since: int | None
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    times: RequestTimes = field(default_factory=RequestTimes)
    num_cached_tokens: int | None = None
    """None until it is admitted."""
    num_preemptions: int = 0
    end: _End | None = None
    made: RequestTrack | None = None
    """What was shown of it, as long as nothing changed. Only of an ended request: others change in every step."""

    def extend(self, kind: SpanKind, step: int, tokens: int) -> None:
        """Add ``step``; decodes in a row make one span, each prefill chunk stays its own."""
        self.end_waiting(step)
        last = self.spans[-1] if self.spans else None
        if kind == "decode" and last and last.kind == "decode" and last.stop == step:
            span = Span(kind, last.start, step + 1, last.tokens + tokens)
            self.spans = (*self.spans[:-1], span)
        else:
            self.spans = (*self.spans, Span(kind, step, step + 1, tokens))
        self.last_step = step

    def end_waiting(self, step: int) -> None:
        if self.waits_since is not None and step > self.waits_since:
            self.spans = (*self.spans, Span("waiting", self.waits_since, step))
        self.waits_since = None

    def mark(self, mark: Mark, step: int) -> None:
        self.marks = (*self.marks, mark)
        self.last_step = step

    def forget_before(self, step: int) -> None:
        if self.spans and self.spans[0].stop <= step:
            self.spans = tuple(span for span in self.spans if span.stop > step)
            self.made = None
        if self.marks and self.marks[0].step < step:
            self.marks = tuple(mark for mark in self.marks if mark.step >= step)
            self.made = None


@dataclass(frozen=True, slots=True)
class _End:
    """The last state of a request that the engine has forgotten."""

    reason: str
    num_tokens: int
    tables: tuple[tuple[int, ...], ...]


class Tracks:
    """By request id, in order of arrival. Ended ones stay as long as the window shows something of them."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def copy(self) -> Tracks:
        other = Tracks()
        other._tracks = {request_id: copy.copy(track) for request_id, track in self._tracks.items()}
        return other

    def arrival_of(self, request_id: str) -> int | None:
        track = self._tracks.get(request_id)
        return track.arrival if track else None

    # ------------------------------------------------------------ what happens to a request

    def restore(self, event: Snapshot) -> None:
        for request_id, r in event.state.requests.items():
            waits_since = event.step if r.status == "waiting" else None
            self._tracks[request_id] = _Track(
                r.arrival, r.num_prompt_tokens, r.priority, event.step, waits_since
            )

    def queued(self, event: RequestQueued) -> None:
        track = _Track(event.arrival, event.num_prompt_tokens, event.priority, event.step, event.step)
        track.times = RequestTimes(queued=event.time)
        self._tracks.pop(event.request_id, None)  # an id used again: its place is that of the new request
        self._tracks[event.request_id] = track

    def admitted(self, event: RequestAdmitted) -> None:
        track = self._tracks[event.request_id]
        if not event.is_resumed:
            track.num_cached_tokens = event.num_computed_tokens
            track.times = replace(track.times, admitted=event.time)

    def hit(self, request_id: str, step: int, num_tokens: int) -> None:
        self._tracks[request_id].mark(Mark("hit", step, num_tokens), step)

    def preempted(self, event: RequestPreempted) -> None:
        track = self._tracks[event.request_id]
        track.mark(Mark("preempted", event.step, event.num_computed_tokens), event.step)
        track.num_preemptions = event.num_preemptions
        track.waits_since = event.step

    def computed(self, row: ScheduledRow, step: int) -> None:
        if row.request_id in self._tracks:
            self._tracks[row.request_id].extend(row.phase, step, row.count)

    def sampled(self, request_id: str, time: float) -> None:
        track = self._tracks[request_id]
        first = track.times.first_token
        if first is None and track.times.queued is not None:  # else it began before the trace did
            first = time
        track.times = replace(track.times, first_token=first, last_token=time)

    def ended(self, event: RequestFinished | RequestAborted, fold: Fold) -> None:
        """Told before the fold forgets the request."""
        track = self._tracks[event.request_id]
        track.end_waiting(event.step)
        reason = "abort" if isinstance(event, RequestAborted) else event.reason
        kind: Literal["finished", "aborted", "failed"] = "finished"
        if reason in ("abort", "error"):
            kind = "aborted" if reason == "abort" else "failed"
        # An abort between two steps carries the number of the next one: draw it where the bar ends.
        step = min(event.step, track.spans[-1].stop - 1) if track.spans else event.step
        text = "" if reason == "abort" else reason
        track.mark(Mark(kind, step, event.num_output_tokens, text), event.step)
        track.times = replace(track.times, finished=event.time)
        if track.num_cached_tokens is None:  # admitted before the trace began
            track.num_cached_tokens = event.metrics.num_cached_tokens
        track.num_preemptions = event.metrics.num_preemptions
        num_tokens = event.num_prompt_tokens + event.num_output_tokens
        track.end = _End(reason, num_tokens, _tables(fold, event.request_id))

    def forget_before(self, step: int) -> None:
        """What happened before ``step`` is no longer shown."""
        for request_id, track in list(self._tracks.items()):
            track.forget_before(step)
            if track.end is not None and track.last_step < step:
                del self._tracks[request_id]

    # ------------------------------------------------------------ drawing

    def drawn(self, fold: Fold, executed_step: int) -> tuple[RequestTrack, ...]:
        return tuple([self._draw(r, track, fold, executed_step) for r, track in self._tracks.items()])

    def _draw(self, request_id: str, track: _Track, fold: Fold, executed_step: int) -> RequestTrack:
        if track.made is not None:
            return track.made
        spans = track.spans
        end = track.end
        if end is None:
            live = fold.requests[request_id]
            num_tokens, num_computed = live.num_tokens, live.num_computed_tokens
            tables = _tables(fold, request_id)
            status: Literal["waiting", "running", "done"] = "running" if live.is_running else "waiting"
            if not live.is_running and track.waits_since is not None:
                stop = max(executed_step, track.waits_since) + 1
                spans = (*spans, Span("waiting", track.waits_since, stop))
        else:
            num_tokens = num_computed = end.num_tokens
            tables, status = end.tables, "done"
        made = RequestTrack(
            request_id=request_id,
            arrival=track.arrival,
            num_prompt_tokens=track.num_prompt_tokens,
            num_tokens=num_tokens,
            num_computed_tokens=num_computed,
            status=status,
            spans=spans,
            marks=track.marks,
            num_cached_tokens=track.num_cached_tokens or 0,
            num_preemptions=track.num_preemptions,
            priority=track.priority,
            finish_reason=end.reason if end else "",
            times=track.times,
            tables=tables,
        )
        if end is not None:
            track.made = made
        return made


def _tables(fold: Fold, request_id: str) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, fold.requests[request_id].tables))
