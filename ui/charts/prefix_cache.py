"""Prefix cache."""

from __future__ import annotations

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.theme import LIGHT, Look, Size, base_layout
from ui.view import EngineView

TITLE = "Prefix cache"
CAPTION = ""


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    return {"data": [], "layout": base_layout(look)}
