"""Bars and marks of the scheduler timeline, row by row: one trace a kind, in an order that never changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ui.charts.marks import INVISIBLE
from ui.charts.palette import mix, request_color
from ui.charts.theme import Look
from ui.charts.timeline_words import mark_words, span_words
from ui.view import EngineView, RequestTrack

HEIGHT = {"waiting": 0.07, "prefill": 0.8, "decode": 0.3}
OFFSET = {"waiting": 0.25, "prefill": 0.0, "decode": 0.25}
"""Decode lies low in its row; above it is room for words."""
_SYMBOLS = {
    "hit": ("diamond", 7, "accent"),
    "finished": ("line-ns-open", 6, "text"),
    "preempted": ("x", 10, "danger"),
    "aborted": ("square-open", 7, "text"),
    "failed": ("x", 10, "danger"),
}
"""Symbol, size and the colour's name in Look of each kind of mark, in the order of their traces."""
_FADE = 0.7


@dataclass
class _Points:
    """The arrays of one trace."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    fill: list[str] = field(default_factory=list)
    edge: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    hover: list[str] = field(default_factory=list)


class Strip:
    """Collects the bars and marks of all rows: one trace a kind."""

    def __init__(self, view: EngineView, look: Look, followed: RequestTrack | None) -> None:
        self._look = look
        self._followed = followed
        self._steps = {record.step: record for record in view.steps}
        self._bars = {kind: _Points() for kind in HEIGHT}
        self._touch = _Points()
        self._marks = {kind: _Points() for kind in _SYMBOLS}

    def add(self, row: int, track: RequestTrack) -> None:
        look = self._look
        color = request_color(track.arrival).fill
        fade = 0.0 if self._followed in (None, track) else _FADE
        fills = {
            kind: mix(fill, look.card, fade) if fade else fill
            for kind, fill in (
                ("waiting", look.muted),
                ("prefill", color),
                ("decode", mix(color, look.card, 0.3)),
            )
        }
        # Yellow on white needs an edge to be seen.
        edges = {kind: mix(fill, look.text, 0.1 if fade else 0.28) for kind, fill in fills.items()}
        edges["waiting"] = fills["waiting"]
        tail = f"<br>%{{meta[{row}]}}<extra></extra>"
        for span in track.spans:
            points = self._bars[span.kind]
            points.base.append(span.start)
            points.x.append(span.stop - span.start)
            points.y.append(row + OFFSET[span.kind])
            points.fill.append(fills[span.kind])
            points.edge.append(edges[span.kind])
            if span.kind != "prefill":  # thin: what the pointer finds is as high as the row
                points = self._touch
                points.base.append(span.start)
                points.x.append(span.stop - span.start)
                points.y.append(row)
            points.ids.append(track.request_id)
            points.hover.append(span_words(track, span, self._steps) + tail)
        for mark in track.marks:
            points = self._marks[mark.kind]
            at_end = mark.kind in ("finished", "aborted", "failed")
            points.x.append(mark.step + 1 if at_end else mark.step)
            # Ends sit on the low decode bar, out of the way of words.
            points.y.append(row + OFFSET["decode"] if at_end else row)
            mark_color = getattr(look, _SYMBOLS[mark.kind][2])
            points.fill.append(mix(mark_color, look.card, fade) if fade else mark_color)
            points.ids.append(track.request_id)
            points.hover.append(mark_words(track, mark) + tail)

    def traces(self) -> list[dict[str, Any]]:
        waiting, decode, prefill = (self._bar_trace(kind) for kind in ("waiting", "decode", "prefill"))
        touch = {
            **_bars(self._touch, HEIGHT["prefill"]),
            **_hover(self._touch),
            "marker": {"color": INVISIBLE, "line": {"width": 0}},
        }
        skip = {"hoverinfo": "skip"}
        return [
            {**waiting, **skip},
            {**decode, **skip},
            touch,
            {**prefill, **_hover(self._bars["prefill"])},
            *(self._mark_trace(kind) for kind in _SYMBOLS),
        ]

    def _bar_trace(self, kind: str) -> dict[str, Any]:
        points = self._bars[kind]
        return {
            **_bars(points, HEIGHT[kind]),
            "marker": {"color": points.fill, "line": {"width": 1, "color": points.edge}},
        }

    def _mark_trace(self, kind: str) -> dict[str, Any]:
        points = self._marks[kind]
        symbol, size, _ = _SYMBOLS[kind]
        is_open = symbol.endswith("open")
        return {
            "type": "scatter",
            "x": points.x,
            "y": points.y,
            "mode": "markers",
            "marker": {
                "symbol": symbol,
                "size": size,
                "color": points.fill,
                "line": {"width": 2 if is_open else 1, "color": points.fill if is_open else self._look.card},
            },
            **_hover(points),
            "cliponaxis": False,
        }


def _bars(points: _Points, height: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "base": points.base,
        "x": points.x,
        "y": points.y,
        "width": height,
    }


def _hover(points: _Points) -> dict[str, Any]:
    return {"customdata": points.ids, "hovertemplate": points.hover}
