"""Parts of figures that several charts use, as plain data: words, numbers along the top, straight lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ui.charts.theme import MONO, SANS, Look
from ui.charts.wording import wrapped

HEADLINE_PX = 17
"""Height that ``headline`` takes at the top of a chart."""
INVISIBLE = "rgba(0,0,0,0)"
"""Colour of marks that are there for their hover only."""
_SENTENCE_PX = 6.7
"""Width of a character of ``empty_sentence``, on average."""


HOVER = "%{hovertext}<extra></extra>"


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle from ``base`` on, ``length`` long; across it lies around ``at`` and is ``width`` wide."""

    base: float
    length: float
    at: float
    width: float
    fill: str
    edge: str
    pattern: str = ""
    """A shape of Plotly's, "" for a plain fill."""
    pattern_color: str = ""
    request_id: str = ""
    """What a click on it follows."""
    words: str = ""


def bar_traces(
    bars: Sequence[Bar], *, is_horizontal: bool, edge_px: float = 1, template: str = HOVER, **axes: Any
) -> list[dict[str, Any]]:
    """Two traces, the plain bars and those with a pattern.

    In one trace Plotly would take the colours of the patterns from those of the bars, if these differ.
    """
    plain = [bar for bar in bars if not bar.pattern]
    marked = [bar for bar in bars if bar.pattern]
    one = _bar_trace(plain, is_horizontal, edge_px, template, axes)
    one["marker"]["color"] = [bar.fill for bar in plain]
    two = _bar_trace(marked, is_horizontal, edge_px, template, axes)
    two["marker"]["pattern"] = {
        "shape": [bar.pattern for bar in marked],
        "bgcolor": [bar.fill for bar in marked],
        "fgcolor": [bar.pattern_color for bar in marked],
        "size": 6,
        "solidity": 0.28,
    }
    return [one, two]


def _bar_trace(
    bars: Sequence[Bar], is_horizontal: bool, edge_px: float, template: str, axes: dict[str, Any]
) -> dict[str, Any]:
    along, across = ("x", "y") if is_horizontal else ("y", "x")
    return {
        "type": "bar",
        "orientation": "h" if is_horizontal else "v",
        "base": [bar.base for bar in bars],
        along: [bar.length for bar in bars],
        across: [bar.at for bar in bars],
        "width": [bar.width for bar in bars],
        "marker": {"line": {"width": edge_px, "color": [bar.edge for bar in bars]}},
        "customdata": [bar.request_id for bar in bars],
        "hovertext": [bar.words for bar in bars],
        "hovertemplate": template,
        **axes,
    }


def hover_over(words: Mapping[int, str], height: float, **axes: str) -> dict[str, Any]:
    """What is told about each step where the mouse is over it, from 0 to ``height``: step -> words, ascending.

    One image that nobody sees. Bars would be an element for each step.
    """
    first, last = (min(words), max(words)) if words else (0, 0)
    steps = range(first, last + 1)
    return {
        "type": "heatmap",
        "z": [[0 if step in words else None for step in steps]],
        "x0": first + 0.5,
        "dx": 1,
        "y0": height / 2,
        "dy": height,
        "colorscale": [[0, INVISIBLE], [1, INVISIBLE]],
        "showscale": False,
        "text": [[words.get(step, "") for step in steps]],
        "hovertemplate": "%{text}<extra></extra>",
        **axes,
    }


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


def empty_sentence(text: str, look: Look, width: float) -> dict[str, Any]:
    """What will appear here, in the middle of a chart that has nothing to show; "" for one that has.

    In lines that have room in ``width`` pixels, those of the plot; what is drawn below does not run through them.
    """
    words = wrapped(text, width, _SENTENCE_PX)
    ground = look.card if words else INVISIBLE
    return note(words, look.muted, x=0.5, y=0.5, xref="paper", yref="paper", size=12.5, bgcolor=ground)


def note(text: str, color: str, *, size: float = 10.5, **place: Any) -> dict[str, Any]:
    """Words without an arrow; without words it is not drawn."""
    return {
        "text": text,
        "visible": bool(text),
        "showarrow": False,
        "font": {"family": SANS, "size": size, "color": color},
        **place,
    }


def texts(
    x: list[Any],
    y: list[Any],
    text: list[str],
    colors: str | list[str],
    size: float | list[float],
    **more: Any,
) -> dict[str, Any]:
    """A trace of letters and numbers, each in its colour (and size), or all in one."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": x,
        "y": y,
        "text": text,
        "textfont": {"family": MONO, "size": size, "color": colors or "#000000"},
        "hoverinfo": "skip",
        "cliponaxis": False,
        **more,
    }


def lines(x: list[Any], y: list[Any], color: str, width: float, dash: str = "solid") -> dict[str, Any]:
    """A trace of lines that are parted by None."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": color, "width": width, "dash": dash},
        "hoverinfo": "skip",
    }


def rectangles(
    boxes: Iterable[tuple[float, float, float, float]],
) -> tuple[list[float | None], list[float | None]]:
    """x and y of closed rectangles, parted by None. Of each box: left, top, right, bottom."""
    x: list[float | None] = []
    y: list[float | None] = []
    for left, top, right, bottom in boxes:
        x += (left, right, right, left, left, None)
        y += (top, top, bottom, bottom, top, None)
    return x, y


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


def strokes_shape(path: str, color: str, width: float = 1) -> dict[str, Any]:
    """Many lines as one shape above all traces; ``path`` is an SVG path in the units of the axes (M, L, H, V, Z).

    A trace of as many points takes Plotly several times as long.
    """
    return {
        "type": "path",
        "path": path or "M0,0",
        "visible": bool(path),
        "line": {"color": color, "width": width},
    }


def now_line(step: int, look: Look, **more: Any) -> dict[str, Any]:
    """Where the newest step that was computed ends."""
    return line(look.accent, x=(step + 1, step + 1), y=(0, 1), width=1.5, **{"yref": "paper", **more})
