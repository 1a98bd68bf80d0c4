"""Latency: how long each request waited for its first token, and where the time of a step goes.

Left a row a request: hatched in the queue, solid from admission to the first token; the numbers beside it are TTFT and
TPOT. Rows without a first token grow. Right each step as a stack of its parts. Where the chart is narrow, one part
lies below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.latency_rows import (
    LatencyRow,
    executed,
    median_words,
    overhead_words,
    row_words,
    rows_of,
    step_top,
    tpot_cell,
    ttft_cell,
)
from ui.charts.latency_steps import beyond, part_areas, part_words, step_hover
from ui.charts.marks import HEADLINE_PX, Bar, bar_traces, empty_sentence, headline, now_line, texts
from ui.charts.palette import mix, request_color
from ui.charts.theme import LIGHT, MONO, Look, Size, bare_axis, base_layout, quiet_axis
from ui.charts.timeline import step_range, step_ticks
from ui.charts.wording import duration_tick, longest_that_fits, round_up
from ui.view import EngineView

TITLE = "Latency"
CAPTION = (
    "Hatched: in the queue; solid: to the first token. "
    '<abbr title="time to first token, from the moment when the request arrived">TTFT</abbr> · '
    '<abbr title="time per output token after the first">TPOT</abbr>. Beside it '
    '<abbr title="schedule: decide who runs; build: make the batch; forward: the model; sample: draw the tokens">'
    "the parts of each step</abbr>."
)
EMPTY = "How long each request waits for its first token, and what a step's time goes into, will stand here."
ROW_PX = 14
_WIDE_PX = 560
_LEFT = 40
_RIGHT = 122
"""Words beside the steps."""
_CELLS_PX = 112
_AXIS_PX = 17
_BETWEEN_PX = 62
"""Between the two parts when they stand side by side: numbers of the right one's axis."""


@dataclass(frozen=True, slots=True)
class _Panels:
    """Where the parts lie, as domains of their axes."""

    rows_x: tuple[float, float]
    cells_x: tuple[float, float]
    rows_y: tuple[float, float]
    steps_x: tuple[float, float]
    steps_y: tuple[float, float]
    num_rows: int
    width: float
    """Pixels of the whole plot, without margins."""
    height: float
    right: float
    """Margin."""

    @staticmethod
    def of(size: Size) -> _Panels:
        height = max(size.height - HEADLINE_PX - _AXIS_PX, 80)
        if size.width >= _WIDE_PX:
            width = size.width - _LEFT - _RIGHT
            half = 0.55 * (width - _BETWEEN_PX)
            return _Panels(
                rows_x=(0, (half - _CELLS_PX) / width),
                cells_x=((half - _CELLS_PX) / width, half / width),
                rows_y=(0, 1),
                steps_x=((half + _BETWEEN_PX) / width, 1),
                steps_y=(0, 1),
                num_rows=max(int(height // ROW_PX) - 1, 1),
                width=width,
                height=height,
                right=_RIGHT,
            )
        # One below the other; the words beside the steps stand under the cells.
        width = max(size.width - _LEFT - 6, 200)
        inner = height - HEADLINE_PX - _AXIS_PX
        num_rows = max(int(inner * 0.58 // ROW_PX) - 1, 1)
        rows = (num_rows + 1) * ROW_PX
        return _Panels(
            rows_x=(0, 1 - _CELLS_PX / width),
            cells_x=(1 - _CELLS_PX / width, 1),
            rows_y=(1 - rows / height, 1),
            steps_x=(0, 1 - _RIGHT / width),
            steps_y=(0, max(inner - rows, 16) / height),
            num_rows=num_rows,
            width=width,
            height=height,
            right=6,
        )

    def x_px(self, domain: tuple[float, float]) -> float:
        return (domain[1] - domain[0]) * self.width


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(height=180)
    panels = _Panels.of(size)
    rows = rows_of(view, panels.num_rows, focus.request_id)
    steps = executed(view)
    top = step_top(steps)
    top_row = round_up(max((row.total for row in rows), default=0.0) or 1.0)
    left, right = step_range(view)
    return {
        "data": [
            *_row_bars(rows, look, focus),
            _growing(rows, look),
            _cells(rows, look, focus),
            *part_areas(steps, look),
            step_hover(steps, top),
            beyond(steps, top, look),
        ],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": panels.right, "t": HEADLINE_PX, "b": _AXIS_PX},
            barmode="overlay",
            bargap=0,
            xaxis=_time_axis(top_row if rows else 0.0, panels, look),
            yaxis=quiet_axis(
                look,
                range=[panels.num_rows - 0.5, -1.5],
                domain=panels.rows_y,
                fixedrange=True,
                tickvals=list(range(len(rows))),
                ticktext=[_row_label(row, focus) for row in rows],
                tickfont={"family": MONO, "size": 11, "color": look.text},
            ),
            xaxis3=bare_axis(range=[0, 1], domain=panels.cells_x, anchor="y", fixedrange=True),
            xaxis2=quiet_axis(
                look,
                range=[left, right],
                domain=panels.steps_x,
                anchor="y2",
                nticks=step_ticks(panels.x_px(panels.steps_x)),
                showgrid=True,
                layer="below traces",
            ),
            yaxis2=quiet_axis(
                look,
                range=[0, top * 1.08],
                domain=panels.steps_y,
                anchor="x2",
                fixedrange=True,
                tickvals=[top / 2, top] if steps else [],
                ticktext=[duration_tick(top / 2), duration_tick(top)] if steps else [],
                tickfont={"family": MONO, "size": 10, "color": look.muted},
            ),
            shapes=[now_line(view.executed_step, look, xref="x2", yref="y2 domain")],
            annotations=[
                headline(
                    longest_that_fits(median_words(view, len(rows)), panels.x_px((0, panels.cells_x[1])) + 30)
                    if rows
                    else "",
                    look,
                    left_px=_LEFT - 4,
                ),
                headline(
                    longest_that_fits(
                        overhead_words(steps), panels.x_px((panels.steps_x[0], 1)) + panels.right
                    ),
                    look,
                    x=panels.steps_x[0],
                    y=panels.steps_y[1],
                    left_px=_LEFT - 4,
                ),
                *part_words(steps, panels.steps_x[1], panels.steps_y, panels.height, look),
                empty_sentence("" if rows or steps else EMPTY, look, panels.width),
            ],
        ),
    }


# ---------------------------------------------------------------- requests


def _row_bars(rows: Sequence[LatencyRow], look: Look, focus: Focus) -> list[dict[str, Any]]:
    """The queue of each row, hatched, and behind it the time to the first token."""
    bars = []
    for i, row in enumerate(rows):
        color = request_color(row.track.arrival)
        fade = 0.7 if focus.request_id not in (None, row.track.request_id) else 0.0
        queue = mix(look.muted, look.card, fade)
        fill = mix(mix(color.fill, look.card, 0.45 if row.is_open else 0.0), look.card, fade)
        edge = look.outline if focus.request_id == row.track.request_id else mix(fill, look.text, 0.28)
        words, request_id = row_words(row), row.track.request_id
        bars += [
            Bar(0.0, round(row.queue, 5), i, 0.62, look.card, queue, "/", queue, request_id, words),
            Bar(
                base=round(row.queue, 5),
                length=round(row.first_token, 5),
                at=i,
                width=0.62,
                fill=fill,
                edge=edge,
                pattern=color.pattern,
                pattern_color=mix(color.pattern_color, look.card, fade),
                request_id=request_id,
                words=words,
            ),
        ]
    return bar_traces(bars, is_horizontal=True)


def _growing(rows: Sequence[LatencyRow], look: Look) -> dict[str, Any]:
    """An arrow at the end of what is not over yet."""
    growing = [(i, row) for i, row in enumerate(rows) if row.is_open]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [round(row.total, 5) for _, row in growing],
        "y": [i for i, _ in growing],
        "marker": {"symbol": "triangle-right", "size": 8, "color": look.text},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _cells(rows: Sequence[LatencyRow], look: Look, focus: Focus) -> dict[str, Any]:
    """TTFT and TPOT as numbers, in two columns with their names on top."""
    y = [-1, *range(len(rows))] if rows else []
    colors = [look.muted] + [
        look.text if focus.request_id in (None, row.track.request_id) else look.muted for row in rows
    ]
    names = ["TTFT", "TPOT"] if rows else ["", ""]
    ttft = [names[0], *map(ttft_cell, rows)][: len(y)]
    tpot = [names[1], *map(tpot_cell, rows)][: len(y)]
    trace = texts([0.53] * len(y) + [1.0] * len(y), y * 2, ttft + tpot, colors[: len(y)] * 2, 10.5)
    return {**trace, "textposition": "middle left", "xaxis": "x3"}


def _row_label(row: LatencyRow, focus: Focus) -> str:
    label = row.track.label
    name = f"<b>{label}</b>" if focus.request_id == row.track.request_id else label
    return f'{name} <span style="color:{request_color(row.track.arrival).fill}">■</span>'


def _time_axis(top: float, panels: _Panels, look: Look) -> dict[str, Any]:
    values = [0.0, top / 2, top] if panels.x_px(panels.rows_x) >= 130 else [0.0, top]
    return quiet_axis(
        look,
        range=[0, (top or 1.0) * 1.04],
        domain=panels.rows_x,
        anchor="y",
        fixedrange=True,
        tickvals=values if top else [],
        ticktext=["0", *map(duration_tick, values[1:])] if top else [],
        tickfont={"family": MONO, "size": 10, "color": look.muted},
        showgrid=True,
        layer="below traces",
    )
