"""What a tab looks at: which story, at which step. The newest step of the engine is one scene for all tabs."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from ui.events.rows import origin_of
from ui.feed.chart_budget import BURST, LONGEST_WAIT, ChartBudget
from ui.feed.questions import Question
from ui.host.engine_host import EngineHost
from ui.replay import Replay
from ui.traces.opened import OpenedTrace, OpenedTraces
from ui.view import Clock, EngineView, JumpKind
from ui.visitors import Visitor

FRAME_SECONDS = 0.1
"""Least time between two views of the engine that figures are made from; the budget may make it longer."""
VIEWS_KEPT = 24
"""Views of steps that somebody looks at."""
MARKS_SHOWN = 96
"""Of each kind: what a slider can show side by side."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One step of one story."""

    replay: Replay
    story: str
    """Names the story; unlike that of any other, also of another start of the page."""
    view: EngineView
    clock: Clock
    title: str
    is_live: bool = True
    """The newest step there is."""
    is_file: bool = False
    jumped: bool | None = None
    """Whether the step that was asked for with a jump was found; None: no jump was asked for."""

    @property
    def is_sample(self) -> bool:
        return self.view.is_sample


class TooSoonError(Exception):
    """Drawing has to wait for ``seconds``: the engine wants the processor."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Scenes:
    """Made by ``ui.feed.live``, one for the page."""

    def __init__(self, host: EngineHost, opened: OpenedTraces, budget: ChartBudget) -> None:
        self._host = host
        self._opened = opened
        self._budget = budget
        self._lock = threading.Lock()
        self._live: Scene | None = None
        self._live_at = 0.0
        self._views: OrderedDict[tuple[str, int], EngineView] = OrderedDict()
        self._stories: WeakKeyDictionary[Replay, str] = WeakKeyDictionary()
        self._start = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._origins: OrderedDict[str, float] = OrderedDict()
        self.num_live_views = 0

    def scene(self, question: Question, visitor: Visitor | None) -> Scene | None:
        """What this tab should see; None while there is nothing at all.

        Raises TooSoonError where the view has to be made and nothing may be spent now.
        """
        opened = self._opened.of(visitor) if question.is_file else None
        newest = self._file_scene(opened) if opened is not None else self._live_scene()
        if newest is None:
            return None
        # A cursor set in another story (the model was changed, the file was closed) means nothing in this one.
        step = question.cursor if question.story in ("", newest.story) else None
        jumped = None
        if question.jump is not None:
            start = newest.view.step if step is None else min(step, newest.view.step)
            found = newest.replay.jump(question.jump.kind, start, question.jump.direction)
            jumped = found is not None
            step = found if found is not None else step
        if step is None:
            return replace(newest, jumped=jumped) if jumped is not None else newest
        step = max(step, newest.clock.first_step)
        if step >= newest.view.step:
            return replace(newest, is_live=False, jumped=jumped)
        return replace(newest, view=self._view_at(newest, step), is_live=False, jumped=jumped)

    def wait_for_next(self) -> float:
        """Seconds until a newer view of the engine may be made."""
        with self._lock:
            since = time.monotonic() - self._live_at
        owed = self._budget.wait_for_frame(is_busy=self._is_busy())
        return max(0.0, FRAME_SECONDS - since, min(owed, LONGEST_WAIT - since))

    def check_affordable(self) -> None:
        """Raises TooSoonError. For everything that is drawn for one tab alone, or for a new size."""
        owed = self._budget.wait(is_busy=self._is_busy(), allowance=BURST)
        if owed > 0:
            raise TooSoonError(owed)

    def seconds_since_start(self, scene: Scene) -> float:
        """Of the engine's clock, from where the event table counts too."""
        with self._lock:
            origin = self._origins.get(scene.story)
            if origin is None:
                origin = self._origins[scene.story] = origin_of(scene.replay)
                while len(self._origins) > VIEWS_KEPT:
                    self._origins.popitem(last=False)
        return max(0.0, scene.view.time - origin)

    def story_of(self, replay: Replay) -> str:
        name = self._stories.get(replay)
        if name is None:
            name = self._stories[replay] = f"{self._start}-{next(self._numbers)}"
        return name

    # ------------------------------------------------------------ making them

    def _live_scene(self) -> Scene | None:
        """One for all charts of all tabs, so that they show the same step."""
        with self._lock:
            now = time.monotonic()
            since = now - self._live_at
            if self._live is not None and (
                since < FRAME_SECONDS
                or (since < LONGEST_WAIT and self._budget.wait_for_frame(is_busy=self._is_busy()) > 0)
            ):
                return self._live
            with self._budget.measured():
                replay = self._host.replay()
                view = replay.view() if replay is not None else None
                clock = replay.clock() if replay is not None else None
                if replay is None or view is None or clock is None:
                    self._live = None
                elif self._live is None or self._live.replay is not replay or self._live.view is not view:
                    title = "sample trace" if view.is_sample else view.info.model
                    self._live = Scene(replay, self.story_of(replay), view, clock, title)
                    self.num_live_views += 1
                    self._budget.note_frame()
            self._live_at = now
            return self._live

    def _file_scene(self, opened: OpenedTrace) -> Scene | None:
        view = opened.replay.view()
        if view is None:
            return None
        story = self.story_of(opened.replay)
        return Scene(opened.replay, story, view, opened.clock, opened.title, is_file=True)

    def _view_at(self, newest: Scene, step: int) -> EngineView:
        key = (newest.story, step)
        with self._lock:
            view = self._views.get(key)
            if view is not None:
                self._views.move_to_end(key)
                return view
        self.check_affordable()
        with self._budget.measured():
            view = newest.replay.view(step)
        if view is None:
            return newest.view
        with self._lock:
            self._views[key] = view
            while len(self._views) > VIEWS_KEPT:
                self._views.popitem(last=False)
        return view

    def _is_busy(self) -> bool:
        engine = self._host.engine
        if engine is None:
            return False
        stats = engine.loop.stats()
        return bool(stats.num_running or stats.num_waiting)


# ---------------------------------------------------------------- the clock's marks


def marks_version(scene: Scene) -> str:
    """Changes when the marks do."""
    clock = scene.clock
    ends = ",".join(f"{kind}{len(steps)}:{steps[-1]}" for kind, steps in clock.marks.items() if steps)
    return f"{scene.story}:{clock.first_step}:{ends}"


def shown_marks(clock: Clock) -> Mapping[JumpKind, list[int]]:
    return {kind: thinned(steps) for kind, steps in clock.marks.items()}


def thinned(steps: Any, most: int = MARKS_SHOWN) -> list[int]:
    """At most ``most`` of them, the first of each stretch of steps."""
    if len(steps) <= most:
        return list(steps)
    first, width = steps[0], (steps[-1] - steps[0] + 1) / most
    found: list[int] = []
    last_bin = -1
    for step in steps:
        if (place := int((step - first) / width)) != last_bin:
            found.append(step)
            last_bin = place
    return found
