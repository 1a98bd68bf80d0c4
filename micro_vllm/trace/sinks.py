"""Where events go: the protocol, the tracer that stamps them, and the ring buffer the page reads."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from micro_vllm.trace.events import Snapshot, TraceEvent

logger = logging.getLogger(__name__)


@runtime_checkable
class TraceSink(Protocol):
    """Anything with ``emit``. It is called on the engine's thread: be quick, and never call the engine back: it is in
    the middle of something. Raising does not fail a step."""

    def emit(self, event: TraceEvent) -> None: ...


class Tracer:
    """Stamps events with seq, engine, step and time, and hands them to one sink.

    Rooms hold ``Tracer | None`` and ask before they build anything: without a sink no event object exists.
    """

    def __init__(self, sink: TraceSink, engine: str) -> None:
        self.sink = sink
        self.engine = engine
        self.step = 0
        """The step being computed, or the next one between steps. 0 before the first."""
        self.num_failures = 0
        self._seq = 0

    def emit(self, kind: type[TraceEvent], **fields: Any) -> None:
        event = kind(seq=self._seq, engine=self.engine, step=self.step, time=time.monotonic(), **fields)
        self._seq += 1
        try:
            self.sink.emit(event)
        except Exception:
            self.num_failures += 1
            if self.num_failures == 1:  # once: a broken sink must not flood the log either
                logger.exception("trace sink %r failed; the engine goes on", self.sink)


class TraceLog:
    """A ring buffer of events, safe to read from any thread.

    Never drops past the newest Snapshot that still leaves at least half of ``capacity`` events: what remains can
    always be folded. So it may briefly hold more than ``capacity`` when snapshots are rare.
    """

    def __init__(self, capacity: int = 200_000) -> None:
        self.capacity = capacity
        self._events: deque[TraceEvent] = deque()
        self._lock = threading.Lock()
        self._snapshots: deque[int] = deque()
        """Positions (total number of events emitted before it) of the snapshots still held."""
        self._emitted = 0

    def emit(self, event: TraceEvent) -> None:
        with self._lock:
            if isinstance(event, Snapshot):
                self._snapshots.append(self._emitted)
            self._events.append(event)
            self._emitted += 1
            if len(self._events) > self.capacity:
                self._drop()

    def _drop(self) -> None:
        """Drop up to the newest snapshot among the older half; nothing if there is none."""
        first = self._emitted - len(self._events)
        half = self._emitted - self.capacity // 2
        cut = None
        while self._snapshots and self._snapshots[0] <= half:
            cut = self._snapshots.popleft()
        if cut is None:
            return
        self._snapshots.appendleft(cut)
        for _ in range(cut - first):
            self._events.popleft()

    def since(self, seq: int = -1) -> Sequence[TraceEvent]:
        """Events with a greater ``seq``; all that is held for -1.

        If events after ``seq`` were dropped already, the answer begins with a Snapshot: start over from it.
        """
        with self._lock:
            if not self._events:
                return []
            missing = self._events[-1].seq - seq
            if missing >= len(self._events):
                return list(self._events)
            # Newest first, so that a reader who is up to date costs little.
            tail = []
            for event in reversed(self._events):
                if event.seq <= seq:
                    break
                tail.append(event)
            return tail[::-1]

    def ends(self) -> tuple[TraceEvent, TraceEvent] | None:
        """The oldest and the newest event held, None while there is none."""
        with self._lock:
            return (self._events[0], self._events[-1]) if self._events else None

    @property
    def last_seq(self) -> int:
        with self._lock:
            return self._events[-1].seq if self._events else -1

    def __len__(self) -> int:
        with self._lock:
            return len(self._events)

    def clear(self) -> None:
        """Forget all; the next engine starts with its EngineStarted."""
        with self._lock:
            self._events.clear()
            self._snapshots.clear()


class TeeSink:
    """Hands each event to several sinks; one that fails does not keep the others from it."""

    def __init__(self, *sinks: TraceSink) -> None:
        self.sinks = sinks

    def emit(self, event: TraceEvent) -> None:
        errors = []
        for sink in self.sinks:
            try:
                sink.emit(event)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
