"""The event table: what the trace says, line by line, as far as the cursor has come.

The server filters, words and bounds; the tab holds at most ``MAX_ROWS`` rows and gets the new ones only.
"""

from __future__ import annotations

import html
import itertools
import json
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import gradio as gr

from micro_vllm.trace import EngineInfo, TraceEvent
from ui.context import PageContext
from ui.events.rows import FAMILIES, KINDS, EventRow, chip, kind_words, origin_of, rows_of
from ui.replay import Replay, requests_of
from ui.view import EngineView
from ui.visitors import Visitor

MAX_ROWS = 200
CHIPS_SHOWN = 4
"""Letters in one row; the rest are counted."""
_REQUESTS_SHOWN = 128
"""Newest requests that can be chosen."""
_FILTERS_KEPT = 64
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a tab wants to see, checked."""

    kinds: frozenset[str] | None
    request_id: str | None
    version: str

    @property
    def key(self) -> str:
        return f"{'+'.join(sorted(self.kinds or ()))}/{self.request_id or ''}"


@dataclass(frozen=True, slots=True)
class _Found:
    """The newest events that pass a filter, and up to which event of the story they were looked for."""

    seq: int
    events: tuple[TraceEvent, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class _Story:
    number: int
    info: EngineInfo
    origin: float


class EventTable:
    """The pane "events". Safe to use from any thread; holds events, and no tab's rows."""

    def __init__(self, context: PageContext) -> None:
        self._host = context.host
        self._visitors = context.visitors
        self._lock = threading.Lock()
        self._stories: WeakKeyDictionary[Replay, _Story] = WeakKeyDictionary()
        self._numbers = itertools.count(1)
        self._found: OrderedDict[tuple[int, str], _Found] = OrderedDict()

    def answer(
        self, ask: Any, visitor: Visitor | None, view: EngineView | None, replay: Replay | None
    ) -> Any:
        """``{"version", "step", "rows", "add", "more", "requests"}``, or None for a tab that is up to date.

        ``rows`` are newest first: all of them, or with ``add`` those to put above the ones that the tab has.
        ``requests`` can be chosen, newest first; None if they are those that the tab knows.
        """
        if view is None or replay is None:
            return None
        asked = _checked(ask)
        story = self._story(replay, view)
        events = self._events(replay, story, view.step, asked)
        newest = events[0].seq if events else -1
        letters = [chip(track.request_id, track.arrival) for track in view.requests[-_REQUESTS_SHOWN:]]
        names = zlib.crc32("/".join(letter.request_id for letter in letters).encode())
        same = f"{story.number}.{zlib.crc32(asked.key.encode())}."
        version = f"{same}{names}.{newest}"
        if asked.version == version:
            return None
        had = _newest_of(asked.version, same)
        knows = asked.version.startswith(f"{same}{names}.")
        is_addition = had is not None and had <= newest
        if is_addition:
            events = tuple(itertools.takewhile(lambda event: event.seq > (had or -1), events))
        rows = rows_of(events, story.info, story.origin, replay.arrival_of, self._mine(visitor, view, replay))
        return {
            "version": version,
            "step": view.step,
            "rows": [_as_json(row) for row in rows],
            "add": is_addition,
            "more": len(events) == MAX_ROWS,
            "requests": None if knows else [[c.request_id, c.label] for c in reversed(letters)],
        }

    def _mine(self, visitor: Visitor | None, view: EngineView, replay: Replay) -> frozenset[str]:
        """Requests whose tokens the viewer may see. Of the engine's story only: ids in a file mean other requests."""
        engine = self._host.engine
        if visitor is None or view.is_sample or engine is None or replay is not engine.replay:
            return frozenset()
        return self._visitors.mine(visitor.token)

    def _story(self, replay: Replay, view: EngineView) -> _Story:
        with self._lock:
            story = self._stories.get(replay)
        if story is None or story.info is not view.info:
            story = _Story(next(self._numbers), view.info, origin_of(replay))
            with self._lock:
                self._stories[replay] = story
        return story

    def _events(self, replay: Replay, story: _Story, step: int, asked: _Ask) -> tuple[TraceEvent, ...]:
        """The newest ``MAX_ROWS`` up to ``step``; what was found for the step before is not looked for again."""
        newest = replay.events(until=step, limit=1)
        seq = newest[0].seq if newest else -1
        key = (story.number, asked.key)
        with self._lock:
            old = self._found.get(key)
        if old is not None and old.seq == seq:
            return old.events
        if old is not None and old.seq < seq < old.seq + 10 * MAX_ROWS:
            fresh = replay.events(until=step, limit=seq - old.seq)
            events = tuple(e for e in fresh if e.seq > old.seq and _passes(e, asked)) + old.events
            events = events[:MAX_ROWS]
        else:
            events = tuple(
                replay.events(until=step, kinds=asked.kinds, request_id=asked.request_id, limit=MAX_ROWS)
            )
        with self._lock:
            self._found[key] = _Found(seq, events)
            self._found.move_to_end(key)
            while len(self._found) > _FILTERS_KEPT:
                self._found.popitem(last=False)
        return events


def _passes(event: TraceEvent, asked: _Ask) -> bool:
    return (
        type(event) is not TraceEvent
        and (asked.kinds is None or event.kind in asked.kinds)
        and (asked.request_id is None or asked.request_id in requests_of(event))
    )


def _newest_of(version: str, same: str) -> int | None:
    """The newest event that a tab holds, if it holds rows of the same story and filter."""
    last = version.rpartition(".")[2]
    return int(last) if version.startswith(same) and last.isascii() and last.isdecimal() else None


def _checked(ask: Any) -> _Ask:
    """Anything odd falls back to no filter: there is no user to tell."""
    asked = ask if isinstance(ask, dict) else {}
    kinds, request_id, version = asked.get("kinds"), asked.get("request"), asked.get("version")
    chosen = (
        frozenset(KINDS) & {k for k in kinds if isinstance(k, str)}
        if isinstance(kinds, list)
        else frozenset()
    )
    return _Ask(
        kinds=chosen if chosen and len(chosen) < len(KINDS) else None,
        request_id=request_id if isinstance(request_id, str) and 0 < len(request_id) <= _MAX_NAME else None,
        version=version if isinstance(version, str) and len(version) <= _MAX_NAME else "",
    )


def _as_json(row: EventRow) -> list[Any]:
    return [
        row.seq,
        row.step,
        f"{row.seconds:.3f}",
        kind_words(row.kind),
        [[c.request_id, c.label, c.slot] for c in row.requests[:CHIPS_SHOWN]],
        max(len(row.requests) - CHIPS_SHOWN, 0),
        row.text,
    ]


# ---------------------------------------------------------------- on the page


def build_event_table(context: PageContext) -> None:
    """Called where the table belongs on the page."""
    gr.HTML(
        html_template=_template(),
        js_on_load="window.microVLLM.events(element)",
        apply_default_css=False,
        elem_id="event-table",
        elem_classes="mv-events",
    )


def _template() -> str:
    families = "".join(
        f'<button type="button" data-family="{name}" data-kinds="{html.escape(json.dumps(kinds))}" '
        f'aria-pressed="false" title="{html.escape(help_)}">{name}</button>'
        for name, help_, kinds in FAMILIES
    )
    kinds = "".join(
        f"<fieldset><legend>{name}</legend>"
        + "".join(
            f'<label><input type="checkbox" value="{kind}"> {kind_words(kind)}</label>' for kind in kinds
        )
        + "</fieldset>"
        for name, _, kinds in FAMILIES
    )
    columns = (
        ("step", "num", "engine step; press to look at it"),
        ("time", "num", "seconds since the first request, or since the first event that is still known"),
        ("kind", "", "kind of event"),
        ("request", "", "requests that it speaks of; press to follow one"),
        ("what", "", "what happened"),
    )
    heads = "".join(
        f'<th scope="col" class="{kind}" title="{help_}">{name}{" / s" if name == "time" else ""}</th>'
        for name, kind, help_ in columns
    )
    return (
        '<section class="mv-card">'
        '<div class="top"><h2 id="event-table-title">Events</h2>'
        "<p>What the engine told, newest first, up to the step on show. "
        "All charts are drawn from these lines.</p></div>"
        '<div class="filters" role="group" aria-label="which events">'
        f'<div class="families" role="group" aria-label="kinds of events, by family">{families}</div>'
        f'<details class="kinds" id="event-kinds"><summary>kinds</summary><div class="list">{kinds}</div></details>'
        '<label class="who">request <select id="event-request" aria-label="request"><option value="">all</option>'
        "</select></label>"
        '<span class="count" role="status"></span>'
        '<button type="button" id="event-csv" title="save these events, all of them, as a table for spreadsheets">'
        "CSV</button></div>"
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="event-table-title">'
        f"<table><thead><tr>{heads}</tr></thead><tbody></tbody></table>"
        '<p class="none" hidden></p></div></section>'
    )
