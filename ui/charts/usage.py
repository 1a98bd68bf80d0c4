"""KV use: the pool after each step as one stack, and above it how much of what was looked up the prefix cache had."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ui.charts.theme import LIGHT, MONO, SANS, Look, Size, base_layout, quiet_axis
from ui.charts.timeline import step_range
from ui.view import EngineView

_RIGHT = 128
_STACK_TOP = 0.76
_STRIP_BOTTOM = 0.84


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None) -> go.Figure:
    size = size or Size(height=180)
    steps = [u.step for u in view.usage]
    total = view.info.num_blocks
    now = view.usage[-1]
    bands = (
        ("in use", [u.used for u in view.usage], look.accent, now.used),
        ("kept for reuse", [u.cached for u in view.usage], look.cell_cached, now.cached),
        ("free", [u.free for u in view.usage], look.cell_free, now.free),
    )
    # A step lasts until the next one: draw it as wide as that, the newest too.
    x = [*steps, steps[-1] + 1]
    traces = [
        go.Scatter(
            x=x,
            y=[*counts, counts[-1]],
            name=name,
            mode="lines",
            stackgroup="pool",
            line={"shape": "hv", "width": 0, "color": color},
            fillcolor=color,
            hovertemplate=f"%{{y}} blocks {name}<br>step %{{x}}<extra></extra>",
        )
        for name, counts, color, _ in bands
    ]
    rates = [100 * u.hit_rate for u in view.usage]
    traces.append(
        go.Scatter(
            x=x,
            y=[*rates, rates[-1]],
            mode="lines",
            yaxis="y2",
            line={"shape": "hv", "width": 1.75, "color": look.accent},
            hovertemplate="%{y:.0f} % of looked-up tokens were cached<br>step %{x}<extra></extra>",
        )
    )
    left, right = step_range(view)
    plot_px = max(size.height - 28, 60)
    labels = _band_labels([(name, now_) for name, _, _, now_ in bands], total, plot_px, look)
    labels.append(
        _label(
            f"<b>{now.hit_rate:.0%}</b> prefix hits".replace("%", " %"),
            (_STRIP_BOTTOM + 1) / 2,
            look,
            paper=True,
        )
    )
    return go.Figure(
        data=traces,
        layout=base_layout(
            look,
            margin={"l": 64, "r": _RIGHT, "t": 4, "b": 22},
            xaxis=quiet_axis(look, range=[left, right], nticks=8, anchor="y"),
            yaxis=quiet_axis(
                look,
                range=[0, total],
                domain=[0, _STACK_TOP],
                tickvals=[0, total // 2, total],
                showgrid=False,
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
            annotations=labels,
        ),
    )


def _band_labels(
    bands: Sequence[tuple[str, int]], total: int, plot_px: float, look: Look
) -> list[dict[str, object]]:
    """Beside the end of each band, pushed apart where bands are thin."""
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
    texts = [f"<b>{count}</b> {name}" for name, count in bands]
    return [_label(text, place, look) for text, place in zip(texts, places, strict=True)]


def _label(text: str, y: float, look: Look, *, paper: bool = False) -> dict[str, object]:
    return {
        "x": 1,
        "xref": "paper",
        "xanchor": "left",
        "xshift": 8,
        "y": y,
        "yref": "paper" if paper else "y",
        "yanchor": "middle",
        "text": text,
        "showarrow": False,
        "font": {"family": SANS, "size": 12, "color": look.text},
    }
