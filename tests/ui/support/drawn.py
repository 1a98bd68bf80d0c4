"""Reading figures back: charts are checked by what Plotly understands of them, not by how they were made."""

from __future__ import annotations

import itertools
from typing import Any

import plotly.graph_objects as go

from tests.ui.support.scripted_engine import make_engine, random_run
from ui.charts.theme import LIGHT, Look, Size
from ui.replay import Replay
from ui.view import EngineView

SIZE = Size(800, 270)


def drawn(chart: Any, view: EngineView, look: Look = LIGHT, size: Size = SIZE, *focus: Any) -> go.Figure:
    """The chart as Plotly takes it: an unknown name or a wrong kind of value raises."""
    figure = chart.figure(view, look, size, *focus)
    assert set(figure) == {"data", "layout"}
    return go.Figure(figure)


def view_after(
    num_blocks: int, steps: int, seed: int = 0, *, windows: Any = (None,), load: float = 0.3, **config: Any
) -> EngineView:
    engine, log = make_engine(num_blocks, windows=windows, **config)
    for _ in random_run(engine, steps, seed, load=load):
        pass
    view = Replay().follow(log)
    assert view is not None
    return view


def rectangles(trace: Any) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of each polygon in a path parted by None."""
    found = []
    points = zip(trace.x, trace.y, strict=True)
    for is_gap, corners in itertools.groupby(points, key=lambda p: None in p):
        if not is_gap:
            xs, ys = zip(*corners, strict=True)
            found.append((min(xs), min(ys), max(xs), max(ys)))
    return found


def scatters(figure: go.Figure, mode: str) -> list[Any]:
    return [trace for trace in figure.data if trace.type == "scatter" and trace.mode == mode]
