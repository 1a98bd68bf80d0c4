"""The requests of the window: what each did in which step, what happened to it, and when."""

from __future__ import annotations

import copy
from dataclasses import dataclass
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
from ui.view import Mark, RequestTimes, RequestTrack, Span

_END_MARKS: dict[str, Literal["finished", "aborted", "failed"]] = {"abort": "aborted", "error": "failed"}


@dataclass(slots=True)
class _Track:
    """Nothing in it is changed in place, so that a shallow copy is a copy."""

    arrival: int
    num_prompt_tokens: int
    priority: int
    last_step: int
    """The newest step in which anything happened to it."""
    waits_since: int | None
    queued: float | None = None
    """None for one that is older than the trace: of its times only the end is known."""
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    spans: tuple[Span, ...] = ()
    """Those that are over."""
    decode_start: int = 0
    decode_stop: int = 0
    """Steps of decoding in a row, up to now: they make one span. Empty while it does not decode."""
    decode_tokens: int = 0
    marks: tuple[Mark, ...] = ()
    num_cached_tokens: int | None = None
    """None until it is admitted."""
    num_preemptions: int = 0
    finish_reason: str = ""
    num_tokens: int = 0
    """Of an ended request; of a live one the fold knows them, and its tables."""
    tables: tuple[tuple[int, ...], ...] = ()
    drawn: RequestTrack | None = None
    """What was shown of an ended request, as long as nothing of it is forgotten."""

    def compute(self, row: ScheduledRow, step: int) -> None:
        """Add ``step``; decodes in a row make one span, each prefill chunk stays its own."""
        self.last_step = step
        if row.phase == "decode" and self.decode_stop == step and self.decode_tokens:
            self.decode_stop += 1
            self.decode_tokens += row.count
            return
        self.stop_decoding()
        self.stop_waiting(step)
        if row.phase == "decode":
            self.decode_start, self.decode_stop, self.decode_tokens = step, step + 1, row.count
        else:
            self.spans = (*self.spans, Span("prefill", step, step + 1, row.count))

    def stop_decoding(self) -> None:
        if self.decode_tokens:
            self.spans = (
                *self.spans,
                Span("decode", self.decode_start, self.decode_stop, self.decode_tokens),
            )
            self.decode_tokens = 0

    def stop_waiting(self, step: int) -> None:
        if self.waits_since is not None and step > self.waits_since:
            self.spans = (*self.spans, Span("waiting", self.waits_since, step))
        self.waits_since = None

    def mark(self, mark: Mark, step: int) -> None:
        self.marks = (*self.marks, mark)
        self.last_step = step

    def forget_before(self, step: int) -> None:
        if self.spans and self.spans[0].stop <= step:
            self.spans = tuple(span for span in self.spans if span.stop > step)
            self.drawn = None
        if self.marks and self.marks[0].step < step:
            self.marks = tuple(mark for mark in self.marks if mark.step >= step)
            self.drawn = None

    def draw(self, request_id: str, fold: Fold, executed_step: int) -> RequestTrack:
        spans = self.spans
        status: Literal["waiting", "running", "done"] = "done"
        num_tokens = num_computed = self.num_tokens
        tables = self.tables
        if not self.finish_reason:
            live = fold.requests[request_id]
            status = "running" if live.is_running else "waiting"
            num_tokens, num_computed = live.num_tokens, live.num_computed_tokens
            tables = tuple(map(tuple, live.tables))
            if self.decode_tokens:
                spans = (*spans, Span("decode", self.decode_start, self.decode_stop, self.decode_tokens))
            if not live.is_running and self.waits_since is not None:
                stop = max(executed_step, self.waits_since) + 1
                spans = (*spans, Span("waiting", self.waits_since, stop))
        return RequestTrack(
            request_id=request_id,
            arrival=self.arrival,
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=num_tokens,
            num_computed_tokens=num_computed,
            status=status,
            spans=spans,
            marks=self.marks,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_preemptions=self.num_preemptions,
            priority=self.priority,
            finish_reason=self.finish_reason,
            times=RequestTimes(self.queued, self.admitted, self.first_token, self.last_token, self.finished),
            tables=tables,
        )


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
        track.queued = event.time
        self._tracks.pop(event.request_id, None)  # an id used again: its place is that of the new request
        self._tracks[event.request_id] = track

    def admitted(self, event: RequestAdmitted) -> None:
        track = self._tracks[event.request_id]
        if not event.is_resumed:
            track.num_cached_tokens = event.num_computed_tokens
            track.admitted = event.time if track.queued is not None else None

    def hit(self, request_id: str, step: int, num_tokens: int) -> None:
        self._tracks[request_id].mark(Mark("hit", step, num_tokens), step)

    def preempted(self, event: RequestPreempted) -> None:
        track = self._tracks[event.request_id]
        track.stop_decoding()
        track.mark(Mark("preempted", event.step, event.num_computed_tokens), event.step)
        track.num_preemptions = event.num_preemptions
        track.waits_since = event.step

    def computed(self, row: ScheduledRow, step: int) -> None:
        self._tracks[row.request_id].compute(row, step)

    def sampled(self, request_id: str, time: float) -> None:
        track = self._tracks[request_id]
        if track.queued is not None:
            track.last_token = time
            if track.first_token is None:
                track.first_token = time

    def ended(self, event: RequestFinished | RequestAborted, fold: Fold) -> None:
        """Told before the fold forgets the request."""
        track = self._tracks[event.request_id]
        track.stop_decoding()
        track.stop_waiting(event.step)
        track.finish_reason = "abort" if isinstance(event, RequestAborted) else event.reason
        kind = _END_MARKS.get(track.finish_reason, "finished")
        # An abort between two steps carries the number of the next one: draw it where the bar ends.
        step = min(event.step, track.spans[-1].stop - 1) if track.spans else event.step
        text = "" if kind == "aborted" else track.finish_reason
        track.mark(Mark(kind, step, event.num_output_tokens, text), event.step)
        track.finished = event.time
        if track.num_cached_tokens is None:  # perhaps admitted before the trace began
            track.num_cached_tokens = event.metrics.num_cached_tokens
        track.num_preemptions = event.metrics.num_preemptions
        track.num_tokens = event.num_prompt_tokens + event.num_output_tokens
        track.tables = tuple(map(tuple, fold.requests[event.request_id].tables))

    def forget_before(self, step: int) -> None:
        """What happened before ``step`` is no longer shown."""
        gone = []
        for request_id, track in self._tracks.items():
            track.forget_before(step)
            if track.finish_reason and track.last_step < step:
                gone.append(request_id)
        for request_id in gone:
            del self._tracks[request_id]

    # ------------------------------------------------------------ drawing

    def draw(self, fold: Fold, executed_step: int) -> tuple[RequestTrack, ...]:
        """In order of arrival. What has ended is made once."""
        drawn = []
        for request_id, track in self._tracks.items():
            shown = track.drawn or track.draw(request_id, fold, executed_step)
            if track.finish_reason:
                track.drawn = shown
            drawn.append(shown)
        return tuple(drawn)
