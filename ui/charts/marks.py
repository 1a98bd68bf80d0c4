"""Parts of figures that several charts use, as plain data: words, numbers along the top, straight lines."""

from __future__ import annotations

from typing import Any

from ui.charts.theme import MONO, SANS, Look

HEADLINE_PX = 17
"""Height that ``headline`` takes at the top of a chart."""
INVISIBLE = "rgba(0,0,0,0)"
"""Colour of marks that are there for their hover only."""


def headline(text: str, look: Look, *, x: float = 0, y: float = 1, left_px: float = 0) -> dict[str, Any]:
    """An annotation on top of a panel; ``left_px`` shifts it into the left margin."""
    return note(
        text,
        look.text,
        x=x,
        y=y,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        xshift=-left_px,
        yshift=1,
        size=11.5,
    )


def empty_sentence(text: str, look: Look) -> dict[str, Any]:
    """What will appear here, in the middle of a chart that has nothing to show; "" for one that has."""
    return note(text, look.muted, x=0.5, y=0.5, xref="paper", yref="paper", size=12.5)


def note(text: str, color: str, *, size: float = 10.5, **place: Any) -> dict[str, Any]:
    """Words without an arrow."""
    return {"text": text, "showarrow": False, "font": {"family": SANS, "size": size, "color": color}, **place}


def texts(
    x: list[Any], y: list[Any], text: list[str], colors: list[str], size: float, **more: Any
) -> dict[str, Any]:
    """A trace of letters and numbers, each in its colour."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": x,
        "y": y,
        "text": text,
        "textfont": {"family": MONO, "size": size, "color": colors or "#000000"},
        "hoverinfo": "skip",
        **more,
    }


def line(
    color: str,
    *,
    x: tuple[float, float],
    y: tuple[float, float],
    width: float = 1,
    dash: str = "solid",
    **more: Any,
) -> dict[str, Any]:
    """A straight line as a shape of the layout."""
    return {
        "type": "line",
        "x0": x[0],
        "x1": x[1],
        "y0": y[0],
        "y1": y[1],
        "line": {"color": color, "width": width, "dash": dash},
        **more,
    }


def now_line(step: int, look: Look, **more: Any) -> dict[str, Any]:
    """Where the newest step that was computed ends."""
    return line(look.accent, x=(step + 1, step + 1), y=(0, 1), width=1.5, **{"yref": "paper", **more})
