"""Where a replay gets its events from: a log that grows, or a list that is complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from micro_vllm.errors import TraceFileError
from micro_vllm.trace import EngineStarted, Snapshot, TraceEvent, read_trace


class EventSource(Protocol):
    """A TraceLog, or anything that answers like it. ``seq`` is gapless within one engine."""

    def since(self, seq: int = -1) -> Sequence[TraceEvent]:
        """Events with a greater ``seq``; if some of them are gone, those after a Snapshot, which comes first."""
        ...

    def ends(self) -> tuple[TraceEvent, TraceEvent] | None:
        """The oldest and the newest event held, None while there is none."""
        ...


class EventList:
    """An EventSource that never changes, from a file or from anywhere.

    Raises TraceFileError where no event says how the engine began.
    """

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._events = list(events)
        if not any(isinstance(event, EngineStarted | Snapshot) for event in self._events):
            raise TraceFileError(
                f"none of the {len(self._events):,} events says how the engine began: a trace starts with an "
                "EngineStarted or a Snapshot event. Open the whole file, not a part of it."
            )

    @classmethod
    def read(cls, path: str | Path) -> EventList:
        """From a file of JSON lines. Kinds that this version does not know do no harm. Raises TraceFileError."""
        return cls(read_trace(path, keep_unknown=True))

    def since(self, seq: int = -1) -> Sequence[TraceEvent]:
        if seq == self._events[-1].seq:
            return []
        return self._events if seq < 0 else [event for event in self._events if event.seq > seq]

    def ends(self) -> tuple[TraceEvent, TraceEvent] | None:
        return self._events[0], self._events[-1]

    def __len__(self) -> int:
        return len(self._events)
