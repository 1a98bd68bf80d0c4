"""Serves the charts and the header to every tab: each figure is made once a step for all, and sent as what changed.

``poll`` is open to any client, so everything it is told is checked, and what it keeps is bounded.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ui.charts.focus import Focus
from ui.charts.registry import CHARTS
from ui.charts.theme import LOOKS, Look, Size
from ui.engine_host import EngineHost
from ui.panes import Pane
from ui.view import EngineView
from ui.visitors import Visitors

FRAME_SECONDS = 0.2
"""Least time between two views that figures are made from."""
_MAX_FIGURES = 96
_FIGURES = {chart.elem_id: chart.figure for chart in CHARTS}
_MARKS_MINE = {"scheduler-timeline"}


@dataclass(frozen=True, slots=True)
class _Frame:
    """One version of one figure."""

    version: str
    """Unlike that of any other frame, also of another start of the page."""
    previous: str
    """The version that ``patch`` starts from; "" for none."""
    stamp: tuple[str, int]
    """(engine, seq) of the view it shows."""
    content: dict[str, Any]
    full: bytes
    patch: bytes


class Live:
    """What the script of the page asks for, several times a second."""

    def __init__(self, host: EngineHost, visitors: Visitors, panes: Mapping[str, Pane] | None = None) -> None:
        self._host = host
        self._visitors = visitors
        self._panes = dict(panes or {})
        self._lock = threading.Lock()
        self._frames: OrderedDict[tuple, _Frame] = OrderedDict()
        self._view: EngineView | None = None
        self._view_at = 0.0
        self._start = secrets.token_hex(4)
        self._num_frames = 0

    def poll(self, ask: Any) -> str:
        """JSON for ``{"viewer": token, "theme": name, "charts": {id: {"w", "h", "version"}}}``.

        For each chart that has changed: its whole figure, or a patch if the asker holds the version before.
        """
        viewer, look, charts = _checked(ask)
        view = self._current_view()
        parts = [b'"head":' + orjson.dumps(self._head(view))]
        if view is not None:
            mine = self._visitors.mine(viewer)
            figures = [self._figure(view, name, look, size, mine, version) for name, size, version in charts]
            parts.append(b'"charts":{' + b",".join(f for f in figures if f) + b"}")
        panes = ask.get("panes") if isinstance(ask, dict) else None
        if isinstance(panes, dict):
            visitor = self._visitors.of_token(viewer)
            answers = {
                name: self._panes[name].answer(asked, visitor, view, None)
                for name, asked in panes.items()
                if name in self._panes
            }
            parts.append(b'"panes":' + orjson.dumps(answers))
        return (b"{" + b",".join(parts) + b"}").decode()

    def _current_view(self) -> EngineView | None:
        """One view for all charts of all tabs, so that they show the same step."""
        with self._lock:
            now = time.monotonic()
            if self._view is None or now - self._view_at >= FRAME_SECONDS:
                self._view, self._view_at = self._host.view(), now
            return self._view

    # ------------------------------------------------------------ header

    def _head(self, view: EngineView | None) -> dict[str, Any]:
        state, engine = self._host.state, self._host.engine
        stats = engine.loop.stats() if engine else None
        queries = stats.prefix_cache_queries if stats else 0
        return {
            "state": state.version,
            "status": state.status,
            "model": state.serving or state.model,
            "badge": engine.loaded.badge if engine else "",
            "dtype": _dtype_name(engine.loaded.dtype) if engine else "",
            "message": state.message,
            "progress": state.progress,
            "running": stats.num_running if stats else 0,
            "waiting": stats.num_waiting if stats else 0,
            "used": stats.num_blocks - stats.num_free_blocks if stats else 0,
            "total": stats.num_blocks if stats else 0,
            "hits": round(100 * stats.prefix_cache_hits / queries) if stats and queries else None,
            "step": view.step if view and not view.is_sample else 0,
            "sample": view is not None and view.is_sample,
        }

    # ------------------------------------------------------------ figures

    def _figure(
        self, view: EngineView, name: str, look: Look, size: Size, mine: frozenset[str], version: str
    ) -> bytes:
        """One member of the answer's "charts", or b"" if the asker is up to date."""
        shown = frozenset(t.request_id for t in view.requests) & mine if name in _MARKS_MINE else frozenset()
        frame = self._frame(view, name, look, size, shown)
        if frame.version == version:
            return b""
        head = b'"%s":{"version":"%s",' % (name.encode(), frame.version.encode())
        if version and version == frame.previous:
            return head + b'"patch":' + frame.patch + b"}"
        return head + b'"full":' + frame.full + b"}"

    def _frame(self, view: EngineView, name: str, look: Look, size: Size, mine: frozenset[str]) -> _Frame:
        key = (name, look.name, size, mine)
        stamp = (f"{view.is_sample}:{id(view.info)}", view.seq)
        with self._lock:  # tabs wait for the one that draws, and get its figure
            old = self._frames.get(key)
            if old is not None and old.stamp == stamp:
                self._frames.move_to_end(key)
                return old
            figure = _FIGURES[name](view, look, size, Focus(mine))
            full = orjson.dumps(figure, option=orjson.OPT_SERIALIZE_NUMPY)
            content = orjson.loads(full)
            self._num_frames += 1
            frame = _Frame(
                version=f"{self._start}-{self._num_frames}",
                previous=old.version if old else "",
                stamp=stamp,
                content=content,
                full=full,
                patch=orjson.dumps(changes(old.content, content)) if old else b"",
            )
            self._frames[key] = frame
            self._frames.move_to_end(key)
            while len(self._frames) > _MAX_FIGURES:
                self._frames.popitem(last=False)
            return frame


def changes(old: Any, new: Any) -> list[list[Any]]:
    """[[path, value], ...] that turns ``old`` into ``new``; a path is a list of keys and indices.

    A list of another length, or mostly changed, is sent whole.
    """
    found: list[list[Any]] = []
    _compare(old, new, [], found)
    return found


def _compare(old: Any, new: Any, path: list[Any], found: list[list[Any]]) -> None:
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key, value in new.items():
            _compare(old[key], value, [*path, key], found)
        return
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 0:
        moved = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        nested = isinstance(new[0], dict | list)
        if nested or len(moved) * 3 < len(new):
            for i in moved:
                _compare(old[i], new[i], [*path, i], found)
            return
    if old != new:
        found.append([path, new])


# ---------------------------------------------------------------- what a client may say


def _checked(ask: Any) -> tuple[str, Look, list[tuple[str, Size, str]]]:
    """Anything odd falls back to a default: there is no user to tell."""
    if not isinstance(ask, dict):
        ask = {}
    viewer = ask.get("viewer")
    charts = ask.get("charts")
    wanted = []
    for name in _FIGURES:
        one = charts.get(name) if isinstance(charts, dict) else None
        if isinstance(one, dict):
            size = Size(_bounded(one.get("w"), 240, 2400, 800, 20), _bounded(one.get("h"), 80, 1200, 260, 10))
            version = one.get("version")
            wanted.append((name, size, version if isinstance(version, str) else ""))
    theme = ask.get("theme")
    return (
        viewer if isinstance(viewer, str) and len(viewer) <= 64 else "",
        LOOKS.get(theme if isinstance(theme, str) else "", LOOKS["light"]),
        wanted,
    )


def _bounded(value: Any, low: int, high: int, default: int, grain: int) -> int:
    """A whole number within bounds, rounded down to ``grain``: tabs of nearly the same size share figures."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return default
    return int(min(max(value, low), high)) // grain * grain


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
