"""Under the bars of the step budget: the batch and the queue, and what each step ran out of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ui.charts.marks import HOVER, hover_over
from ui.charts.step_runs import STOP_WORDS, step_words, steps_words, stop_runs
from ui.charts.theme import Look
from ui.view import StepRecord

LANES = (
    ("budget", "no tokens", "square"),
    ("seats", "no seats", "circle"),
    ("blocks", "no blocks", "diamond"),
    ("preemption", "preempted", "x"),
)
"""(stopped_by, words beside the row, symbol), from the top."""


def batch_and_queue(steps: Sequence[StepRecord], look: Look) -> list[dict[str, Any]]:
    """A step lasts until the next one: draw it as wide as that, the newest too."""
    shown = [*steps, *steps[-1:]]
    waiting = [s.num_waiting for s in shown]
    shared: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": [s.step for s in steps] + [s.step + 1 for s in steps[-1:]],
        "yaxis": "y2",
        "stackgroup": "requests",
        "hoverinfo": "skip",
    }
    hatched = {"shape": "/", "bgcolor": look.card, "fgcolor": look.muted, "size": 5, "solidity": 0.3}
    return [
        {
            **shared,
            "y": [s.num_seats for s in shown],
            "line": {"shape": "hv", "width": 0, "color": look.cell_cached},
            "fillcolor": look.cell_cached,
        },
        {
            **shared,
            "y": waiting,
            "line": {"shape": "hv", "width": 1 if any(waiting) else 0, "color": look.muted},
            "fillcolor": look.card,
            "fillpattern": hatched,
        },
    ]


def step_hover(steps: Sequence[StepRecord], most: int) -> dict[str, Any]:
    """Over the batch and the queue: everything about one step."""
    return hover_over({s.step: step_words(s) for s in steps}, most, yaxis="y2")


def stop_bars(steps: Sequence[StepRecord], look: Look) -> dict[str, Any]:
    lane = {reason: i for i, (reason, _, _) in enumerate(LANES)}
    runs = [run for run in stop_runs(steps) if run[0] in lane]
    return {
        "type": "bar",
        "orientation": "h",
        "base": [start for _, start, _ in runs],
        "x": [stop - start for _, start, stop in runs],
        "y": [lane[reason] for reason, _, _ in runs],
        "width": 0.5,
        "yaxis": "y3",
        "marker": {"color": look.cell_cached, "line": {"width": 0.5, "color": look.muted}},
        "hovertext": [
            f"{steps_words(start, stop)} · planning stopped:<br><b>{STOP_WORDS[reason]}</b>"
            for reason, start, stop in runs
        ],
        "hovertemplate": HOVER,
    }


def stop_symbols(steps: Sequence[StepRecord], step_px: float, look: Look) -> dict[str, Any]:
    """The symbol of the row at the beginning of each run, unless the one before is too near."""
    x, y, symbols = [], [], []
    lane = {reason: (i, symbol) for i, (reason, _, symbol) in enumerate(LANES)}
    last: dict[str, float] = {}
    for reason, start, _ in stop_runs(steps):
        if reason in lane and (start - last.get(reason, -1e9)) * step_px >= 8:
            last[reason] = start
            x.append(start + 0.5)
            y.append(lane[reason][0])
            symbols.append(lane[reason][1])
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "yaxis": "y3",
        "marker": {"symbol": symbols or "circle", "size": 7, "color": look.text},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
