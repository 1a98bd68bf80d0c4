"""The right half of the latency chart: what the time of each step goes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ui.charts.latency_rows import PARTS, part_medians, part_seconds, step_words
from ui.charts.marks import HOVER, hover_over, note
from ui.charts.palette import OKABE_ITO, mix
from ui.charts.theme import Look
from ui.charts.wording import duration
from ui.view import StepRecord


def part_colors(look: Look) -> dict[str, str]:
    """What the model does in the accent, what is spent around it in two of the request colours' hues."""
    return {
        "forward": look.accent,
        "sample": mix(look.accent, look.card, 0.55),
        "build": OKABE_ITO[1],
        "schedule": OKABE_ITO[5],
    }


def part_areas(steps: Sequence[StepRecord], look: Look) -> list[dict[str, Any]]:
    """One stack; a step lasts until the next one, the newest too. What is beyond the axis is cut and marked."""
    colors = part_colors(look)
    shown = [*steps, *steps[-1:]]
    x = [s.step for s in steps] + [s.step + 1 for s in steps[-1:]]
    heights = list(zip(*map(part_seconds, shown), strict=True)) or [()] * len(PARTS)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": list(column),
            "xaxis": "x2",
            "yaxis": "y2",
            "stackgroup": "parts",
            "line": {"shape": "hv", "width": 0, "color": colors[part]},
            "fillcolor": colors[part],
            "hoverinfo": "skip",
        }
        for part, column in zip(PARTS, heights, strict=True)
    ]


def step_hover(steps: Sequence[StepRecord], top: float) -> dict[str, Any]:
    return hover_over({s.step: step_words(s) for s in steps}, round(top, 6), xaxis="x2", yaxis="y2")


def beyond(steps: Sequence[StepRecord], top: float, look: Look) -> dict[str, Any]:
    long = [s for s in steps if s.seconds > top * 1.08]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [s.step + 0.5 for s in long],
        "y": [round(top * 1.04, 6)] * len(long),
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": {
            "symbol": "triangle-up",
            "size": 8,
            "color": look.text,
            "line": {"width": 1, "color": look.card},
        },
        "hovertext": [f"beyond the scale<br>{step_words(s)}" for s in long],
        "hovertemplate": HOVER,
    }


def part_words(
    steps: Sequence[StepRecord], x: float, y: tuple[float, float], plot_px: float, look: Look
) -> list[dict[str, Any]]:
    """Beside the stack, in its order, the medians of the window."""
    colors = part_colors(look)
    medians = part_medians(steps)
    height = (y[1] - y[0]) * plot_px
    line_px = min(15.0, height / len(PARTS))
    words = []
    for i, part in enumerate(PARTS):
        square = f'<span style="color:{colors[part]}">■</span>'
        words.append(
            note(
                f"{square} {part} <b>{duration(medians[part])}</b>" if steps else "",
                look.text,
                size=10.5 if line_px >= 12 else 9,
                x=x,
                y=y[0],
                xref="paper",
                yref="paper",
                xanchor="left",
                yanchor="bottom",
                xshift=8,
                yshift=round(i * line_px, 1),
                borderpad=0,
            )
        )
    return words
