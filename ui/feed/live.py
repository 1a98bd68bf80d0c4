"""Serves charts, clock and header to every tab: each figure is made once a step for all, and sent as what changed.

``poll`` is open to any client: ``ui.feed.questions`` checks what it says, and what is kept for it is bounded.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import orjson

from ui.charts.focus import NO_FOCUS, Focus
from ui.charts.registry import CHARTS
from ui.feed.chart_budget import ChartBudget
from ui.feed.frames import Frames
from ui.feed.panes import Pane
from ui.feed.questions import ChartAsk, Question, is_early, read_question
from ui.feed.scenes import Scene, Scenes, TooSoonError, marks_version, shown_marks
from ui.focus_card import focus_card
from ui.host.engine_host import SHUT_DOWN, EngineHost
from ui.traces.opened import OpenedTraces
from ui.visitors import Visitor, Visitors

logger = logging.getLogger(__name__)

LONGEST_HOLD = 0.1
"""Seconds that a question which came early waits at most."""
SHARED_FIGURES = 96
OWN_FIGURES = 96
"""Of tabs that look at a step or a request of their own."""
_FIGURES = {chart.elem_id: chart.figure for chart in CHARTS}
_MARKS_MINE = {"scheduler-timeline"}


class Live:
    """What the script of the page asks for, several times a second."""

    def __init__(
        self,
        host: EngineHost,
        visitors: Visitors,
        panes: Mapping[str, Pane] | None = None,
        opened: OpenedTraces | None = None,
    ) -> None:
        self._host = host
        self._visitors = visitors
        self._panes = dict(panes or {})
        self.budget = ChartBudget()
        self.scenes = Scenes(host, opened or OpenedTraces(visitors), self.budget)
        start = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._shared = Frames(start, SHARED_FIGURES)
        self._own = Frames(start + "o", OWN_FIGURES)
        self._broken: set[str] = set()
        self._num_polls = 0
        self._poll_seconds = 0.0

    def seconds_to_hold(self, ask: Any) -> float:
        """How long a question that came early has to wait for its answer; 0 for others.

        A question that were sent only when there can be a new frame would come late by its way to the server.
        """
        return min(self.scenes.wait_for_next(), LONGEST_HOLD) if is_early(ask) else 0.0

    def poll(self, ask: Any) -> bytes:
        """JSON: {"head", "clock", "charts", "card", "panes", "next"}; see ``ui.feed.questions`` for what is asked.

        For each chart that has changed: its whole figure, or what changed since the version that the asker holds.
        All of it shows one step. ``next``: milliseconds until there can be more. ``again``: nothing could be drawn
        now; ask once more after so many milliseconds.
        """
        begun = time.thread_time()
        question = read_question(ask)
        visitor = self._visitors.of_token(question.viewer)
        broken: list[str] = []
        parts: dict[str, bytes] = {}
        scene: Scene | None = None
        try:
            scene = self.scenes.scene(question, visitor)
            if scene is not None:
                focus = Focus(self._visitors.mine(question.viewer), question.request_id, question.position)
                parts["charts"] = self._charts(scene, question, focus, broken)
                parts["clock"] = orjson.dumps(self._clock(scene, question))
                parts["card"] = orjson.dumps(focus_card(scene.view, focus))
            parts["panes"] = orjson.dumps(self._answers(question, visitor, scene, broken))
            parts["next"] = b"%d" % (1000 * self.scenes.wait_for_next())
        except TooSoonError as error:
            parts = {"again": b"%d" % max(20, 1000 * error.seconds)}
        parts["head"] = orjson.dumps(self._head(scene, visitor))
        if broken:
            parts["broken"] = orjson.dumps(broken)
        answer = b"{" + b",".join(b'"%s":%s' % (name.encode(), part) for name, part in parts.items()) + b"}"
        with self._lock:
            self._num_polls += 1
            self._poll_seconds += time.thread_time() - begun
        return answer

    def counters(self) -> dict[str, float]:
        """What charts have cost so far, for the benchmarks; seconds are those of the processor."""
        return {
            "polls": self._num_polls,
            "poll_seconds": self._poll_seconds,
            "chart_seconds": self.budget.cpu_seconds,
            "live_views": self.scenes.num_live_views,
            "shared_figures": self._shared.num_drawn,
            "own_figures": self._own.num_drawn,
        }

    # ------------------------------------------------------------ header and clock

    def _head(self, scene: Scene | None, visitor: Visitor | None) -> dict[str, Any]:
        state, engine = self._host.state, self._host.engine
        stats = engine.loop.stats() if engine else None
        queries = stats.prefix_cache_queries if stats else 0
        return {
            "state": state.version,
            "status": state.status,
            "closing": state.status == "error" and state.message.lower() == SHUT_DOWN.lower(),
            "known": visitor is not None,
            "model": state.serving or state.model,
            "badge": engine.loaded.badge if engine else "",
            "dtype": (state.kernels or _dtype_name(engine.loaded.dtype)) if engine else "",
            "paused": state.is_paused,
            "message": state.message,
            "progress": state.progress,
            "running": stats.num_running if stats else 0,
            "waiting": stats.num_waiting if stats else 0,
            "used": stats.num_blocks - stats.num_free_blocks if stats else 0,
            "total": stats.num_blocks if stats else 0,
            "hits": round(100 * stats.prefix_cache_hits / queries) if stats and queries else None,
            "step": scene.view.step if scene and not scene.is_sample else 0,
            "sample": scene is not None and scene.is_sample,
        }

    def _clock(self, scene: Scene, question: Question) -> dict[str, Any]:
        version = marks_version(scene)
        clock = scene.clock
        told: dict[str, Any] = {
            "story": scene.story,
            "title": scene.title,
            "is_sample": scene.is_sample,
            "is_file": scene.is_file,
            "is_live": scene.is_live,
            "first": clock.first_step,
            "last": max(clock.last_step, scene.view.step),
            "step": scene.view.step,
            "seconds": round(self.scenes.seconds_since_start(scene), 3),
            "marks_version": version,
        }
        if version != question.marks:
            told["marks"] = shown_marks(clock)
        if scene.jumped is not None:
            told["jumped"] = scene.jumped
        return told

    # ------------------------------------------------------------ figures

    def _charts(self, scene: Scene, question: Question, focus: Focus, broken: list[str]) -> bytes:
        known = {track.request_id for track in scene.view.requests}
        is_shared = scene.is_live and not scene.is_file and focus.request_id is None
        frames = self._shared if is_shared else self._own
        with self._lock:  # tabs wait for the one that draws, and get its figures
            asked = [
                (one, *self._key(scene, question, one, focus, known, is_shared)) for one in question.charts
            ]
            if not all(frames.is_fresh(key, stamp) for _, key, stamp, _ in asked):
                self.scenes.check_affordable()
            with self.budget.measured():
                found = [self._figure(frames, scene, question, *each, broken) for each in asked]
        return b"{" + b",".join(part for part in found if part) + b"}"

    def _key(
        self, scene: Scene, question: Question, one: ChartAsk, focus: Focus, known: set[str], is_shared: bool
    ) -> tuple[tuple, tuple, Focus]:
        """(whose figure it is, what it shows, the focus it is drawn with)."""
        mine = focus.mine & known if one.name in _MARKS_MINE else NO_FOCUS.mine
        looks = (one.name, question.look.name, one.size)
        if is_shared:
            return (scene.story, *looks, mine), (scene.view.seq,), Focus(mine)
        drawn = Focus(mine, focus.request_id, focus.position)
        return (question.viewer, *looks), (scene.story, scene.view.seq, drawn), drawn

    def _figure(
        self,
        frames: Frames,
        scene: Scene,
        question: Question,
        one: ChartAsk,
        key: tuple,
        stamp: tuple,
        focus: Focus,
        broken: list[str],
    ) -> bytes:
        """One member of the answer's "charts", or b"" if the asker is up to date."""
        try:
            answer = frames.answer(
                key,
                stamp,
                lambda: _FIGURES[one.name](scene.view, question.look, one.size, focus),
                one.version,
            )
        except Exception:
            self._complain(f"chart {one.name}", broken)
            return b""
        return b'"%s":%s' % (one.name.encode(), answer) if answer else b""

    def _answers(
        self, question: Question, visitor: Visitor | None, scene: Scene | None, broken: list[str]
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for name, asked in question.panes.items():
            pane = self._panes.get(name)
            if pane is None:
                continue
            try:
                answers[name] = pane.answer(
                    asked, visitor, scene.view if scene else None, scene.replay if scene else None
                )
            except Exception:
                self._complain(f"pane {name}", broken)
        return answers

    def _complain(self, what: str, broken: list[str]) -> None:
        """A part that fails must not take the others with it: the tab says so, and the log why, once."""
        broken.append(what)
        if what not in self._broken:
            self._broken.add(what)
            logger.exception("%s could not be made", what)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
