"""Trace events as rows of a table: when, what kind, whose, and one plain sentence.

Pure, and where privacy is decided for the table and its download: no sentence holds the id of a token, an alternative
or a message about one unless it belongs to a request of the viewer.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from micro_vllm.errors import InvalidRequestError
from micro_vllm.trace import AnyEvent, EngineInfo, EngineStarted, TraceEvent
from ui.charts.palette import color_slot
from ui.events.words import Teller
from ui.replay import Replay, requests_of
from ui.view import request_label

FAMILIES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "requests",
        "how requests come and go",
        ("RequestQueued", "RequestAdmitted", "RequestPreempted", "RequestFinished", "RequestAborted"),
    ),
    ("prefix", "lookups in the prefix cache", ("PrefixLookup",)),
    ("steps", "what each step computes", ("StepPlanned", "StepExecuted", "StepFailed", "TokensSampled")),
    (
        "blocks",
        "who takes, shares and gives back blocks",
        (
            "BlocksReferenced",
            "BlocksAllocated",
            "BlocksNulled",
            "BlocksFreed",
            "BlockCached",
            "BlockEvicted",
        ),
    ),
    ("engine", "its start, and its whole state now and then", ("EngineStarted", "Snapshot")),
)
"""(name, what it is, kinds) of the groups in which kinds are chosen."""
KINDS: tuple[str, ...] = tuple(kind for _, _, kinds in FAMILIES for kind in kinds)
CSV_COLUMNS = ("step", "seconds", "kind", "requests", "request_ids", "what")

assert set(KINDS) == {kind.__name__ for kind in AnyEvent.__args__}


@dataclass(frozen=True, slots=True)
class Chip:
    """A request as the charts show it: its letter, on the colour of its slot. ``slot`` is None if it is forgotten."""

    request_id: str
    label: str
    slot: int | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event. ``seconds`` since the first request, or since the first event that is held (``origin_of``)."""

    seq: int
    step: int
    seconds: float
    kind: str
    requests: tuple[Chip, ...]
    text: str


def kind_words(kind: str) -> str:
    """BlocksAllocated -> "blocks allocated"."""
    return "".join(f" {char.lower()}" if char.isupper() else char for char in kind).strip()


def chip(request_id: str, arrival: int | None) -> Chip:
    if arrival is None:
        return Chip(request_id, "?", None)
    return Chip(request_id, request_label(arrival), color_slot(arrival))


def rows_of(
    events: Iterable[TraceEvent],
    info: EngineInfo,
    origin: float,
    arrival_of: Callable[[str], int | None],
    viewer_requests: Collection[str] = (),
) -> list[EventRow]:
    """One row an event, in their order.

    Args:
        info: of the engine that tells; block size, windows and groups are in its sentences.
        origin: time of the engine's clock that counts as 0 seconds.
        arrival_of: the number of a request, from which its letter and colour follow; None where it is forgotten.
        viewer_requests: requests whose tokens may be named.
    """
    return list(_rows(events, info, origin, arrival_of, viewer_requests))


def _rows(
    events: Iterable[TraceEvent],
    info: EngineInfo,
    origin: float,
    arrival_of: Callable[[str], int | None],
    viewer_requests: Collection[str],
) -> Iterator[EventRow]:
    chips: dict[str, Chip] = {}

    def chip_of(request_id: str) -> Chip:
        if request_id not in chips:
            chips[request_id] = chip(request_id, arrival_of(request_id))
        return chips[request_id]

    teller = Teller(info, lambda request_id: chip_of(request_id).label, viewer_requests)
    for event in events:
        yield EventRow(
            seq=event.seq,
            step=event.step,
            seconds=max(event.time - origin, 0.0),
            kind=event.kind,
            requests=tuple(chip_of(request_id) for request_id in requests_of(event)),
            text=teller.tell(event),
        )


# ---------------------------------------------------------------- as a file


def rows_to_csv(rows: Sequence[EventRow]) -> str:
    """A header and one line a row, as RFC 4180 has it (https://www.rfc-editor.org/rfc/rfc4180)."""
    return "".join((_line(CSV_COLUMNS), *map(_row_line, rows)))


def csv_for(
    replay: Replay,
    viewer_requests: Collection[str],
    kinds: Collection[str] | None = None,
    request_id: str | None = None,
    until: int | None = None,
) -> Iterator[bytes]:
    """All rows that the table would show if it had no end, newest first, in pieces of a few lines.

    Raises InvalidRequestError for a kind that does not exist.
    """
    unknown = sorted(set(kinds or ()) - set(KINDS))
    if unknown:
        raise InvalidRequestError(f"kind {unknown[0]!r} is unknown; known: {', '.join(KINDS)}.")
    return _csv_pieces(replay, viewer_requests, frozenset(kinds) if kinds else None, request_id, until)


def _csv_pieces(
    replay: Replay,
    viewer_requests: Collection[str],
    kinds: frozenset[str] | None,
    request_id: str | None,
    until: int | None,
) -> Iterator[bytes]:
    yield _line(CSV_COLUMNS).encode()
    view = replay.view()
    if view is None:
        return
    events = replay.events(until=until, kinds=kinds, request_id=request_id, limit=sys.maxsize)
    piece: list[str] = []
    for row in _rows(events, view.info, origin_of(replay), replay.arrival_of, viewer_requests):
        piece.append(_row_line(row))
        if len(piece) == 256:
            yield "".join(piece).encode()
            piece.clear()
    yield "".join(piece).encode()


def origin_of(replay: Replay) -> float:
    """The engine's time at the first event after its start, or at the first one that is held: what counts as 0 seconds
    for the table and for the clock. (An engine may wait for an hour before its first request.)"""
    clock = replay.clock()
    first = replay.events(until=clock.first_step + 1, limit=sys.maxsize) if clock else []
    if len(first) > 1 and isinstance(first[-1], EngineStarted):
        first.pop()
    return first[-1].time if first else 0.0


def _row_line(row: EventRow) -> str:
    return _line(
        (
            row.step,
            f"{row.seconds:.6f}",
            row.kind,
            " ".join(chip.label for chip in row.requests),
            " ".join(chip.request_id for chip in row.requests),
            row.text,
        )
    )


def _line(cells: Sequence[object]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow([_harmless(cell) if isinstance(cell, str) else cell for cell in cells])
    return buffer.getvalue()


def _harmless(text: str) -> str:
    """A cell that begins like a formula would be computed by whoever opens the file.

    Source: https://owasp.org/www-community/attacks/CSV_Injection
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
