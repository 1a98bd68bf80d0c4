"""What a tab may ask: anybody can call, so each part of a question is checked and bounded before it is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ui.charts.registry import CHARTS
from ui.charts.theme import LOOKS, Look, Size
from ui.view import JUMP_KINDS, JumpKind

MAX_STEP = 2**53
MAX_NAME = 128
"""Characters of a request id, a token or a version."""


@dataclass(frozen=True, slots=True)
class ChartAsk:
    """One chart that is in view, and the version of it that the tab holds ("" for none)."""

    name: str
    size: Size
    version: str


@dataclass(frozen=True, slots=True)
class Jump:
    """From the step on show to the next one where something of this kind happened; direction is 1 or -1."""

    kind: JumpKind
    direction: int


@dataclass(frozen=True, slots=True)
class Question:
    viewer: str = ""
    look: Look = LOOKS["light"]
    charts: tuple[ChartAsk, ...] = ()
    cursor: int | None = None
    """The step to look at; None: the newest."""
    is_file: bool = False
    """Look at the trace that this visitor has opened."""
    story: str = ""
    """What ``cursor`` is a step of; of another story it means nothing."""
    marks: str = ""
    """Version of the clock's marks that the tab holds."""
    jump: Jump | None = None
    request_id: str | None = None
    position: int | None = None
    panes: dict[str, Any] = field(default_factory=dict)


def read_question(ask: Any) -> Question:
    """Anything odd falls back to a default: there is no user to tell."""
    if not isinstance(ask, dict):
        ask = {}
    focus = ask.get("focus")
    focus = focus if isinstance(focus, dict) else {}
    request_id = _name(focus.get("request")) or None
    panes = ask.get("panes")
    return Question(
        viewer=_name(ask.get("viewer")),
        look=LOOKS.get(_name(ask.get("theme")), LOOKS["light"]),
        charts=_charts(ask.get("charts")),
        cursor=_whole(ask.get("cursor")),
        is_file=ask.get("source") == "file",
        story=_name(ask.get("story")),
        marks=_name(ask.get("marks")),
        jump=_jump(ask.get("jump")),
        request_id=request_id,
        position=_whole(focus.get("position")) if request_id is not None else None,
        panes=panes if isinstance(panes, dict) else {},
    )


def is_early(ask: Any) -> bool:
    """Sent before there can be anything new, to be answered as soon as there is."""
    return isinstance(ask, dict) and ask.get("early") is True


def _charts(asked: Any) -> tuple[ChartAsk, ...]:
    found = []
    for chart in CHARTS:
        one = asked.get(chart.elem_id) if isinstance(asked, dict) else None
        if isinstance(one, dict):
            size = Size(_pixels(one.get("w"), 240, 2400, 800, 20), _pixels(one.get("h"), 80, 1200, 260, 10))
            found.append(ChartAsk(chart.elem_id, size, _name(one.get("version"))))
    return tuple(found)


def _jump(asked: Any) -> Jump | None:
    if not isinstance(asked, dict):
        return None
    kind = next((kind for kind in JUMP_KINDS if kind == asked.get("kind")), None)
    if kind is None or asked.get("direction") not in (1, -1):
        return None
    return Jump(kind, int(asked["direction"]))


def _name(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_NAME else ""


def _whole(value: Any) -> int | None:
    """0 to MAX_STEP; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_STEP:
        return None
    return int(value)


def _pixels(value: Any, low: int, high: int, default: int, grain: int) -> int:
    """Within bounds, rounded down to ``grain``: tabs of nearly the same size share figures."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return default
    return int(min(max(value, low), high)) // grain * grain
