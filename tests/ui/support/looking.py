"""A host whose engine is stepped by the test, and what a tab does with the answers it gets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from tests.ui.support.scripted_engine import make_engine
from ui.charts.registry import CHARTS
from ui.feed.live import Live
from ui.host.engine_host import HostState
from ui.replay import Replay

NAMES = tuple(chart.elem_id for chart in CHARTS)


class StandInHost:
    """Only what ``ui.feed.live`` asks an EngineHost for."""

    def __init__(self, num_blocks: int = 64, **config: Any) -> None:
        self.scripted, self.log = make_engine(num_blocks, **config)
        self.told = Replay(self.log)
        self.state = HostState(status="ready", serving="scripted", version=3)
        self.engine = SimpleNamespace(
            loop=SimpleNamespace(stats=self.scripted.stats),
            loaded=SimpleNamespace(badge="none", dtype="torch.float32"),
        )
        self.num_asked = 0

    def replay(self) -> Replay | None:
        self.num_asked += 1
        return self.told


class Tab:
    """Holds figures like the page's script does: whole ones first, then what changed."""

    def __init__(self, live: Live, viewer: str = "", **looks: Any) -> None:
        self.live = live
        self.looks = {"viewer": viewer, "theme": "light", **looks}
        self.size = {"w": 800, "h": 260}
        self.figures: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.full: list[str] = []
        """Charts that the last answer sent whole."""
        self.patched: list[str] = []

    def ask(self, charts: tuple[str, ...] = NAMES, **more: Any) -> dict[str, Any]:
        asked = {name: {**self.size, "version": self.versions.get(name, "")} for name in charts}
        answer = json.loads(self.live.poll({**self.looks, "charts": asked, **more}))
        self.full, self.patched = [], []
        for name, change in answer.get("charts", {}).items():
            if "full" in change:
                self.full.append(name)
                self.figures[name] = change["full"]
            else:
                self.patched.append(name)
                for one in change["patch"]:
                    put(self.figures[name], *one)
            self.versions[name] = change["version"]
        return answer


def put(figure: Any, path: list[Any], value: Any, start: int = 0, keep: int | None = None) -> None:
    """One change of ``ui.feed.frames.changes``, as the page's script applies it."""
    for key in path[:-1]:
        figure = figure[key]
    figure[path[-1]] = value if keep is None else figure[path[-1]][start : start + keep] + value


def as_sent(figure: Any) -> Any:
    """What arrives in a browser."""
    return json.loads(json.dumps(figure))
