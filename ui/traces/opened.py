"""Trace files that visitors opened: read, checked and bounded, each for the tab that opened it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from micro_vllm.errors import MicroVLLMError, TraceFileError
from micro_vllm.trace import (
    BlockCached,
    BlocksAllocated,
    BlocksReferenced,
    EngineInfo,
    EngineStarted,
    RequestAborted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    TraceEvent,
    read_trace,
)
from ui.replay import Replay
from ui.story.event_list import EventList
from ui.view import Clock
from ui.visitors import Visitor, Visitors

MIB = 1024 * 1024
MAX_FILE_BYTES = 64 * MIB
MAX_HOSTED_FILE_BYTES = 16 * MIB
MAX_OPENED = 8
"""In all; a trace that nobody has looked at for ``IDLE_SECONDS`` makes room."""
IDLE_SECONDS = 60.0
MAX_BLOCKS = 65_536
"""Largest pool that the page draws."""
MAX_NULLS = 4_000_000
"""Entries before the first real block of a windowed request's table, all requests together."""
_MAX_NUMBER = 2**53
"""Numbers beyond it mean something else in a browser."""


@dataclass(eq=False)
class OpenedTrace:
    """A file that one visitor walks through, without a model."""

    replay: Replay
    clock: Clock
    title: str
    num_steps: int
    last_seen: float = field(default_factory=time.monotonic)


class OpenedTraces:
    """One for each visitor; it goes when they close it, open another one, or leave."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        self._lock = threading.Lock()

    def open(self, visitor: Visitor, path: Path) -> OpenedTrace:
        """Read a file and show it to ``visitor``. Takes seconds for a large one: call it off the event loop.

        Raises TraceFileError, in words for the visitor.
        """
        self._make_room(visitor)
        opened = read_opened(path)
        visitor.opened = opened  # only now: a wrong file leaves the one that was open
        return opened

    def of(self, visitor: Visitor | None) -> OpenedTrace | None:
        opened = visitor.opened if visitor is not None else None
        if opened is not None:
            opened.last_seen = time.monotonic()
        return opened

    def close(self, visitor: Visitor) -> None:
        visitor.opened = None

    def _make_room(self, visitor: Visitor) -> None:
        with self._lock:
            holders = [v for v in self._visitors.all() if v.opened is not None and v is not visitor]
            if len(holders) < MAX_OPENED:
                return
            oldest = min(holders, key=_last_seen)
            if time.monotonic() - _last_seen(oldest) < IDLE_SECONDS:
                raise TraceFileError(
                    f"{MAX_OPENED} traces of other visitors are open, as many as this server holds. "
                    "Try again in a few minutes."
                )
            oldest.opened = None


def _last_seen(visitor: Visitor) -> float:
    return visitor.opened.last_seen if visitor.opened is not None else 0.0


def read_opened(path: Path) -> OpenedTrace:
    """Fold a whole file once, so that what is wrong with it is told now and not at some step.

    Raises TraceFileError.
    """
    try:
        events = EventList(list(_checked(read_trace(path, keep_unknown=True), path.name)))
        replay = Replay(events, title=path.name)
        view, clock = replay.view(), replay.clock()
    except TraceFileError:
        raise
    except MicroVLLMError as error:
        raise TraceFileError(f"{path.name} contradicts itself: {error}") from error
    except (KeyError, IndexError, ValueError, TypeError, AssertionError, RecursionError) as error:
        raise TraceFileError(
            f"{path.name} contradicts itself: an event names a request, a group or a block that is not there "
            f"({type(error).__name__}: {error})."
        ) from error
    if view is None or clock is None or clock.last_step < 1:
        raise TraceFileError(f"{path.name} holds no step; there is nothing to walk through.")
    num_steps = clock.last_step - clock.first_step + 1
    return OpenedTrace(replay, clock, f"{path.name} · {num_steps:,} steps · opened file", num_steps)


# ---------------------------------------------------------------- what a file may say


def _checked(events: Iterable[TraceEvent], name: str) -> Iterator[TraceEvent]:
    """Refuse what could be folded but not held or drawn: a few bytes can ask for a thousand million table entries."""
    info: EngineInfo | None = None
    tables: dict[str, dict[int, int]] = {}
    num_nulls = 0
    for event in events:
        if isinstance(event, EngineStarted | Snapshot):
            if info is not None and isinstance(event, EngineStarted):
                raise TraceFileError(f"{name} holds the traces of two engines; open them one by one.")
            info = event.info
            _check_info(info, name)
        if not (0 <= event.seq <= _MAX_NUMBER and 0 <= event.step <= _MAX_NUMBER):
            raise TraceFileError(f"{name}: the number or the step of event {event.seq} is out of range.")
        match event:
            case RequestQueued() if not 0 <= event.arrival <= _MAX_NUMBER:
                raise TraceFileError(f"{name}: event {event.seq} counts {event.arrival} requests before it.")
            case BlocksReferenced() | BlocksAllocated():
                table = tables.setdefault(event.request_id, {})
                num_nulls += max(0, event.logical_start - table.get(event.group, 0))
                if num_nulls > MAX_NULLS:
                    raise TraceFileError(
                        f"{name}: event {event.seq} puts blocks at index {event.logical_start:,} of a table that "
                        "is shorter than that; more null blocks are not held."
                    )
                table[event.group] = event.logical_start + len(event.block_ids)
                _check_blocks(event.block_ids, info, event, name)
            case BlockCached():
                _check_blocks((event.block_id,), info, event, name)
            case RequestPreempted() | RequestFinished() | RequestAborted():
                tables.pop(event.request_id, None)
            case _:
                pass
        yield event


def _check_info(info: EngineInfo, name: str) -> None:
    for what, value, most in (
        ("blocks", info.num_blocks, MAX_BLOCKS),
        ("slots a block", info.block_size, 65_536),
        ("cache groups", len(info.groups), 64),
    ):
        if not 1 <= value <= most:
            raise TraceFileError(f"{name} says {value:,} {what}; this page shows 1 to {most:,}.")


def _check_blocks(block_ids: tuple[int, ...], info: EngineInfo | None, event: TraceEvent, name: str) -> None:
    if info is None:
        return
    for block_id in block_ids:
        if not 0 < block_id <= info.num_blocks:
            raise TraceFileError(
                f"{name}: event {event.seq} names block {block_id:,}; the pool has 1 to {info.num_blocks:,}."
            )
