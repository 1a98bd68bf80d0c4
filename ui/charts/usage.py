"""KV use: the pool after each step as one stack, and above it how much of what was looked up the prefix cache had.

A large pool with one chat in it would be a hair line. So the stack over time has a scale of its own, which grows in
steps and names its top; beside it stands the whole pool as one bar, with two lines that say which part of it is seen
enlarged.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.theme import LIGHT, MONO, SANS, Look, Size, bare_axis, base_layout, quiet_axis
from ui.charts.timeline import step_range, step_ticks
from ui.view import EngineView

TITLE = "KV use"
CAPTION = (
    "Blocks after each step; the bar is the whole pool. Above: share of looked-up prompt tokens that the "
    '<abbr title="blocks of earlier prompts and answers that can be used again">prefix cache</abbr> had.'
)
_LEFT = 64
_RIGHT = 118
_BOTTOM = 22
_STACK_TOP = 0.76
_STRIP_BOTTOM = 0.84
_BAR_PX = 16
_WEDGE_PX = 26
"""Between the stack and the bar: what widens from the part of the bar to the stack."""
MIN_SCALE = 32


def scale_for(peak: int, total: int) -> int:
    """Blocks at the top of the stack's axis: 32, 64, 128, ... or the whole pool, with an eighth of air over ``peak``.

    ``peak`` never falls in the life of an engine, and so does the scale.
    """
    scale = MIN_SCALE
    while scale < peak * 9 / 8:
        scale *= 2
    return min(scale, total)


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(height=180)
    steps = [u.step for u in view.usage]
    total = view.info.num_blocks
    scale = scale_for(view.peak_blocks, total)
    now = view.usage[-1]
    bands = (
        ("in use", [u.used for u in view.usage], look.accent, now.used),
        ("kept for reuse", [u.cached for u in view.usage], look.cell_cached, now.cached),
        ("free", [u.free for u in view.usage], look.cell_free, now.free),
    )
    # A step lasts until the next one: draw it as wide as that, the newest too.
    x = [*steps, steps[-1] + 1]
    traces = [_band(x, [*counts, counts[-1]], name, color) for name, counts, color, _ in bands]
    traces.append(_hit_rates(x, view, look))
    traces += [_bar_part(name, color, count, total) for name, _, color, count in bands]

    plot_w, plot_h = max(size.width - _LEFT - _RIGHT, 120), max(size.height - _BOTTOM - 4, 60)
    stack_right, bar_left = 1 - (_BAR_PX + _WEDGE_PX) / plot_w, 1 - _BAR_PX / plot_w
    left, right = step_range(view)
    return {
        "data": [t.to_plotly_json() for t in traces],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": _RIGHT, "t": 4, "b": _BOTTOM},
            xaxis=quiet_axis(
                look, range=[left, right], nticks=step_ticks(plot_w), anchor="y", domain=[0, stack_right]
            ),
            yaxis=quiet_axis(
                look,
                range=[0, scale],
                domain=[0, _STACK_TOP],
                tickvals=[0, scale // 2, scale],
                ticktext=["0", f"{scale // 2:,}", f"{scale:,}"],
            ),
            yaxis2=quiet_axis(
                look,
                range=[-8, 108],
                domain=[_STRIP_BOTTOM, 1],
                tickvals=[100],
                ticktext=["100 %"],
                tickfont={"family": MONO, "size": 10, "color": look.muted},
                showgrid=True,
            ),
            xaxis2=bare_axis(range=[0, 1], domain=[bar_left, 1], anchor="y3", fixedrange=True),
            yaxis3=bare_axis(range=[0, total], domain=[0, _STACK_TOP], anchor="x2", fixedrange=True),
            shapes=_wedge(stack_right, bar_left, scale / total, look),
            annotations=[
                *_band_labels([(name, count) for name, _, _, count in bands], total, plot_h, look),
                _label(_rate_words(now.hit_rate), (_STRIP_BOTTOM + 1) / 2, look, yref="paper"),
            ],
        ),
    }


# ---------------------------------------------------------------- traces


def _band(x: Sequence[int], counts: Sequence[int], name: str, color: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=counts,
        name=name,
        mode="lines",
        stackgroup="pool",
        line={"shape": "hv", "width": 0, "color": color},
        fillcolor=color,
        hovertemplate=f"%{{y}} blocks {name}<br>step %{{x}}<extra></extra>",
    )


def _hit_rates(x: Sequence[int], view: EngineView, look: Look) -> go.Scatter:
    rates = [100 * u.hit_rate for u in view.usage]
    return go.Scatter(
        x=x,
        y=[*rates, rates[-1]],
        mode="lines",
        yaxis="y2",
        line={"shape": "hv", "width": 1.75, "color": look.accent},
        hovertemplate="%{y:.0f} % of looked-up tokens were cached<br>step %{x}<extra></extra>",
    )


def _bar_part(name: str, color: str, count: int, total: int) -> go.Scatter:
    """One band of the whole pool, now."""
    return go.Scatter(
        x=[0, 1],
        y=[count, count],
        name=name,
        xaxis="x2",
        yaxis="y3",
        mode="lines",
        stackgroup="now",
        line={"width": 0, "color": color},
        fillcolor=color,
        text=[f"{count} of {total:,} blocks {name}"] * 2,
        hovertemplate="%{text}<extra></extra>",
    )


def _wedge(stack_right: float, bar_left: float, share: float, look: Look) -> list[dict[str, object]]:
    """From the part of the bar that the stack shows to the whole height of the stack."""
    ends = ((0.0, 0.0), (_STACK_TOP, share * _STACK_TOP))
    return [
        {
            "type": "line",
            "xref": "paper",
            "yref": "paper",
            "x0": stack_right,
            "x1": bar_left,
            "y0": at_stack,
            "y1": at_bar,
            "line": {"color": look.muted, "width": 1, "dash": "dot"},
        }
        for at_stack, at_bar in ends
    ]


# ---------------------------------------------------------------- words


def _rate_words(rate: float) -> str:
    return f"<b>{rate:.0%}</b> prefix hits".replace("%", " %")


def _band_labels(
    bands: Sequence[tuple[str, int]], total: int, plot_px: float, look: Look
) -> list[dict[str, object]]:
    """Beside the bands of the bar, pushed apart where they are thin."""
    gap = 15 / (plot_px * _STACK_TOP) * total
    places: list[float] = []
    floor = 0.0
    for _, count in bands:
        places.append(floor + count / 2)
        floor += count
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = places[-1] - (total - gap / 3)
    if over > 0:
        places[-1] -= over
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - gap)
    texts = [f"<b>{count:,}</b> {name}" for name, count in bands]
    return [_label(text, place, look, yref="y3") for text, place in zip(texts, places, strict=True)]


def _label(text: str, y: float, look: Look, *, yref: str) -> dict[str, object]:
    return {
        "x": 1,
        "xref": "paper",
        "xanchor": "left",
        "xshift": 8,
        "y": y,
        "yref": yref,
        "yanchor": "middle",
        "text": text,
        "showarrow": False,
        "font": {"family": SANS, "size": 12, "color": look.text},
    }
