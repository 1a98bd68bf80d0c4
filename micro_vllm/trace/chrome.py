"""Export to the Chrome trace event format, which Perfetto and chrome://tracing open.

Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from micro_vllm.trace.events import (
    EngineStarted,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    StepExecuted,
    StepFailed,
    StepPlanned,
    TraceEvent,
)
from micro_vllm.trace.fold import Fold

_STEPS, _REQUESTS = 1, 2
"""Process ids: Perfetto draws one group of tracks for each."""


def write_chrome_trace(events: Iterable[TraceEvent], path: str | Path) -> None:
    """Save a trace for https://ui.perfetto.dev: steps with their parts, a track for each request, counters."""
    document = {"traceEvents": list(chrome_events(events)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def chrome_events(events: Iterable[TraceEvent]) -> Iterator[dict[str, Any]]:
    """The rows of the export; times in microseconds since the first event."""
    yield {"ph": "M", "pid": _STEPS, "name": "process_name", "args": {"name": "engine steps"}}
    yield {"ph": "M", "pid": _REQUESTS, "name": "process_name", "args": {"name": "requests"}}
    tracks = _RequestTracks()
    fold = Fold()
    origin: float | None = None
    for event in events:
        origin = event.time if origin is None else origin
        now = (event.time - origin) * 1e6
        fold.apply(event)
        match event:
            case EngineStarted() | Snapshot():
                tracks.restore(event, now)
            case StepExecuted():
                yield from _step(event, now)
                yield _counter("KV blocks", now, _block_counts(fold))
            case StepFailed():
                args = {"error": event.error, "requests": list(event.request_ids)}
                yield _instant("step failed", now, _STEPS, 1, args)
            case StepPlanned():
                budget = {"used": event.num_tokens, "left": event.token_budget - event.num_tokens}
                yield _counter("token budget", now, budget)
                yield from tracks.planned(event, now)
            case _:
                yield from tracks.follow(event, now)
    if origin is not None:
        yield from tracks.close(now)


def _step(event: StepExecuted, end: float) -> Iterator[dict[str, Any]]:
    """The step and, inside it, its parts one after the other. It ends when the event was written."""
    parts = [
        ("schedule", event.schedule_seconds),
        ("build batch", event.build_seconds),
        ("forward", event.forward_seconds),
        ("sample", event.sample_seconds),
    ]
    total = sum(seconds for _, seconds in parts) * 1e6
    start = max(0.0, end - total)
    args = {"tokens": event.num_tokens, "requests": event.num_requests, "operator": event.operator}
    yield _slice(f"step {event.step}", start, total, _STEPS, 1, args)
    for name, seconds in parts:
        yield _slice(name, start, seconds * 1e6, _STEPS, 1, {})
        start += seconds * 1e6


class _RequestTracks:
    """One thread a request; a slice for each stretch of waiting, prefill or decode."""

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}
        self._open: dict[str, tuple[str, float]] = {}

    def restore(self, event: EngineStarted | Snapshot, now: float) -> None:
        """What was alive when a cut log begins; a later snapshot tells nothing new."""
        if isinstance(event, Snapshot):
            for request_id, request in event.state.requests.items():
                if request_id not in self._open:
                    decodes = request.num_computed_tokens >= request.num_prompt_tokens
                    running = "decode" if decodes else "prefill"
                    phase = "waiting" if request.status == "waiting" else running
                    self._open[request_id] = (phase, now)

    def follow(self, event: TraceEvent, now: float) -> Iterator[dict[str, Any]]:
        match event:
            case RequestQueued():
                yield from self._turn(event.request_id, "waiting", now)
            case RequestAdmitted():
                yield from self._turn(event.request_id, "prefill", now)
            case RequestPreempted():
                yield from self._turn(event.request_id, "waiting", now)
                yield self._mark(event.request_id, "preempted", now, {"for": event.beneficiary})
            case RequestFinished():
                yield from self._turn(event.request_id, None, now)
                yield self._mark(event.request_id, f"finished: {event.reason}", now, {})
            case RequestAborted():
                yield from self._turn(event.request_id, None, now)
                yield self._mark(event.request_id, "aborted", now, {})
            case _:
                pass

    def planned(self, event: StepPlanned, now: float) -> Iterator[dict[str, Any]]:
        for row in event.rows:
            yield from self._turn(row.request_id, row.phase, now)

    def close(self, now: float) -> Iterator[dict[str, Any]]:
        for request_id in list(self._open):
            yield from self._turn(request_id, None, now)

    def _turn(self, request_id: str, phase: str | None, now: float) -> Iterator[dict[str, Any]]:
        before = self._open.get(request_id)
        if before is not None and before[0] == phase:
            return
        if request_id not in self._threads:
            thread = self._threads[request_id] = len(self._threads) + 1
            name = {"name": request_id}
            yield {"ph": "M", "pid": _REQUESTS, "tid": thread, "name": "thread_name", "args": name}
        if before is not None:
            yield _slice(before[0], before[1], now - before[1], _REQUESTS, self._threads[request_id], {})
            del self._open[request_id]
        if phase is not None:
            self._open[request_id] = (phase, now)

    def _mark(self, request_id: str, name: str, now: float, args: dict[str, Any]) -> dict[str, Any]:
        return _instant(name, now, _REQUESTS, self._threads[request_id], args)


def _block_counts(fold: Fold) -> dict[str, int]:
    cached = {block for blocks in fold.hash_table.values() for block in blocks}
    reusable = sum(block in cached for block in fold.free)
    assert fold.info is not None
    return {
        "in use": fold.info.num_blocks - len(fold.free),
        "kept for reuse": reusable,
        "free": len(fold.free) - reusable,
    }


def _slice(
    name: str, start: float, duration: float, process: int, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": process,
        "tid": thread,
        "args": args,
    }


def _instant(name: str, now: float, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "ts": now, "pid": process, "tid": thread, "args": args}


def _counter(name: str, now: float, values: dict[str, int]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "ts": now, "pid": _STEPS, "args": values}
