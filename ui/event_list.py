"""A trace that is complete: events from a file or from anywhere, checked before anything is built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from micro_vllm.errors import TraceFileError
from micro_vllm.trace import (
    BlocksAllocated,
    BlocksReferenced,
    EngineInfo,
    EngineStarted,
    Snapshot,
    TraceEvent,
    read_trace,
)

MAX_EVENTS = 500_000
"""Most events of one list; an engine's own log holds 200,000."""
MAX_BLOCKS = 1 << 20
"""Most blocks of a pool, and of one block table: a file may claim anything, and memory is taken for it."""
MAX_GROUPS = 64


class EventSource(Protocol):
    """A TraceLog, or anything that answers like it. ``seq`` is gapless within one engine."""

    def since(self, seq: int = -1) -> Sequence[TraceEvent]:
        """Events with a greater ``seq``; if some of them are gone, those after a Snapshot, which comes first."""
        ...

    def ends(self) -> tuple[TraceEvent, TraceEvent] | None:
        """The oldest and the newest event held, None while there is none."""
        ...


class EventList:
    """An EventSource that never changes. Raises TraceFileError for what cannot be a trace."""

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self._events: list[TraceEvent] = []
        for event in events:
            if len(self._events) >= MAX_EVENTS:
                raise TraceFileError(
                    f"the trace has more than {MAX_EVENTS:,} events, the most that can be opened here. "
                    "Cut it at a Snapshot line and open a part."
                )
            _check_claims(event)
            self._events.append(event)
        if not any(isinstance(event, EngineStarted | Snapshot) for event in self._events):
            raise TraceFileError(
                f"none of the {len(self._events):,} events says how the engine began: a trace starts with an "
                "EngineStarted or a Snapshot event. Open the whole file, not a part of it."
            )

    @classmethod
    def read(cls, path: str | Path) -> EventList:
        """From a file of JSON lines. Kinds that this version does not know do no harm."""
        return cls(read_trace(path, keep_unknown=True))

    def since(self, seq: int = -1) -> Sequence[TraceEvent]:
        if seq < 0:
            return self._events
        if seq == self._events[-1].seq:
            return []
        return [event for event in self._events if event.seq > seq]

    def ends(self) -> tuple[TraceEvent, TraceEvent] | None:
        return (self._events[0], self._events[-1]) if self._events else None

    def __len__(self) -> int:
        return len(self._events)


def _check_claims(event: TraceEvent) -> None:
    """Numbers that memory is taken for, or that are divided by."""
    if isinstance(event, EngineStarted | Snapshot):
        _check_info(event.info)
        if isinstance(event, Snapshot) and len(event.state.ref_counts) != event.info.num_blocks + 1:
            raise TraceFileError(
                f"event {event.seq} (Snapshot) counts references of {len(event.state.ref_counts):,} blocks, but the "
                f"pool has {event.info.num_blocks:,} and the null block."
            )
    elif isinstance(event, BlocksReferenced | BlocksAllocated) and not (
        0 <= event.logical_start <= MAX_BLOCKS and min(event.block_ids, default=1) > 0
    ):
        raise TraceFileError(
            f"event {event.seq} ({event.kind}) puts blocks {list(event.block_ids[:3])} at index "
            f"{event.logical_start:,}; block ids begin with 1, and indices end with {MAX_BLOCKS:,}."
        )


def _check_info(info: EngineInfo) -> None:
    bounds = {
        "num_blocks": (info.num_blocks, 1, MAX_BLOCKS),
        "block_size": (info.block_size, 1, MAX_BLOCKS),
        "the number of groups": (len(info.groups), 1, MAX_GROUPS),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise TraceFileError(
                f"the trace says {name} is {value:,}; what can be shown is {least:,} to {most:,}."
            )
