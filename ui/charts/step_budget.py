"""Step budget: what each step computed, of how much it might have, and why the scheduler planned no more.

Bars: tokens of each request, decodes below, prefill chunks above them, against the token budget. A decode is one token
and a budget some hundreds, so the axis has two parts: the lower half is stretched until one decode more or less is
seen; it lies on a ground of its own and names its factor. Under the bars the requests of the batch and, hatched, those
that wait; under these four rows say what ran out, one for each limit, so that it is told by place and not by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import (
    HEADLINE_PX,
    HOVER,
    Bar,
    bar_traces,
    empty_sentence,
    headline,
    line,
    note,
    now_line,
    texts,
)
from ui.charts.palette import mix, request_color
from ui.charts.step_decodes import FADE, decodes
from ui.charts.step_limits import LANES, batch_and_queue, step_hover, stop_bars, stop_symbols
from ui.charts.step_runs import (
    RUN_TEMPLATE,
    STOP_WORDS,
    STRETCHED,
    PrefillRun,
    TokenScale,
    prefill_runs,
    run_words,
    step_words,
    token_scale,
)
from ui.charts.theme import LIGHT, SANS, Look, Size, base_layout, quiet_axis
from ui.charts.timeline import step_range, step_ticks
from ui.charts.wording import longest_that_fits, power_of_two
from ui.view import EngineView, StepRecord, request_label

TITLE = "Step budget"
CAPTION = (
    '<abbr title="The most tokens that one step may compute is its budget. The lower half of the axis is stretched, '
    'so that single tokens are seen.">Tokens</abbr> of each request in each step. Below: '
    '<abbr title="Requests computed in the step; hatched: those that wait. The most are the seats.">batch and '
    "queue</abbr>, "
    '<abbr title="Tokens, seats or blocks ran out, or a request had just been preempted. Empty: nobody was left to '
    'plan.">what stopped planning</abbr>.'
)
EMPTY = "Every engine step will stand here as a bar: its tokens, request by request."
_LEFT = 62
_RIGHT = 8
_AXIS_PX = 18
_GAP_PX = 8


@dataclass(frozen=True, slots=True)
class _Panels:
    """Where the three parts lie, as domains of their axes."""

    bars: tuple[float, float]
    requests: tuple[float, float]
    lanes: tuple[float, float]
    bars_px: float
    step_px: float
    lane_font: float

    @staticmethod
    def of(size: Size, num_steps: float) -> _Panels:
        plot = max(size.height - HEADLINE_PX - _AXIS_PX, 80)
        lane_px = min(max(plot * 0.065, 9.0), 14.0)
        lanes = len(LANES) * lane_px
        requests = min(max(plot * 0.15, 15.0), 60.0)
        bottom = (lanes + 2 * _GAP_PX + requests) / plot
        return _Panels(
            bars=(bottom, 1.0),
            requests=((lanes + _GAP_PX) / plot, (lanes + _GAP_PX + requests) / plot),
            lanes=(0.0, lanes / plot),
            bars_px=plot * (1 - bottom),
            step_px=max(size.width - _LEFT - _RIGHT, 60) / num_steps,
            lane_font=9 if lane_px < 11 else 10.5,
        )


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(height=180)
    left, right = step_range(view)
    panels = _Panels.of(size, right - left)
    scale = token_scale(view)
    runs = prefill_runs(view.steps)
    most = power_of_two(max((s.num_seats + s.num_waiting for s in view.steps), default=0), 4)
    return {
        "data": [
            decodes(view.steps, scale, panels.bars_px, look, focus),
            *_prefills(runs, scale, panels, look, focus),
            _letters(runs, scale, panels, focus),
            *batch_and_queue(view.steps, look),
            step_hover(view.steps, most),
            stop_bars(view.steps, look),
            stop_symbols(view.steps, panels.step_px, look),
            _failures(view.steps, look),
        ],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": _RIGHT, "t": HEADLINE_PX, "b": _AXIS_PX},
            barmode="overlay",
            bargap=0,
            xaxis=quiet_axis(
                look,
                range=[left, right],
                nticks=step_ticks(size.width - _LEFT),
                anchor="y3",
                showgrid=True,
                layer="below traces",
            ),
            yaxis=_token_axis(scale, panels, look),
            yaxis2=_request_axis(view.info.max_num_seqs, most, panels, look),
            yaxis3=quiet_axis(
                look,
                range=[len(LANES) - 0.5, -0.5],
                domain=panels.lanes,
                fixedrange=True,
                tickvals=list(range(len(LANES))),
                ticktext=[words for _, words, _ in LANES],
                tickfont={"family": SANS, "size": panels.lane_font, "color": look.muted},
            ),
            shapes=_lines(view, scale, (left, right), most, look),
            annotations=[
                headline(_now_words(view, size), look, left_px=_LEFT - 2),
                note(
                    f"budget {scale.budget:,}",
                    look.danger,
                    x=1,
                    y=1,
                    xref="paper",
                    yref="paper",
                    xanchor="right",
                    yanchor="bottom",
                ),
                note(
                    f"stretched<br>{scale.factor:.0f} ×" if scale.is_stretched else "",
                    look.muted,
                    size=9,
                    x=0,
                    xref="paper",
                    xanchor="left",
                    xshift=-_LEFT,
                    y=panels.bars[0]
                    + (panels.bars[1] - panels.bars[0]) * STRETCHED * (0.25 if panels.bars_px >= 70 else 0.5),
                    yref="paper",
                    align="left",
                ),
                empty_sentence("" if view.steps else EMPTY, look, size.width - _LEFT - _RIGHT),
            ],
        ),
    }


# ---------------------------------------------------------------- traces


def _prefills(
    runs: Sequence[PrefillRun], scale: TokenScale, panels: _Panels, look: Look, focus: Focus
) -> list[dict[str, Any]]:
    bars = []
    for run in runs:
        color = request_color(run.arrival)
        is_faded = focus.request_id not in (None, run.request_id)
        fill = mix(color.fill, look.card, FADE) if is_faded else color.fill
        height = scale.height(run.base + run.count) - scale.height(run.base)
        is_large = (run.stop - run.start) * panels.step_px >= 6 and height * panels.bars_px >= 6
        bars.append(
            Bar(
                base=round(scale.height(run.base), 4),
                length=round(height, 4),
                at=(run.start + run.stop) / 2,
                width=run.stop - run.start,
                fill=fill,
                # Yellow on white needs an edge to be seen; whoever is looked for has a strong one.
                edge=look.outline if focus.request_id == run.request_id else mix(fill, look.text, 0.28),
                pattern=color.pattern if is_large and not is_faded else "",
                pattern_color=color.pattern_color,
                request_id=run.request_id,
                words=run_words(run),
            )
        )
    edge_px = 1 if panels.step_px >= 5 else 0.6
    return bar_traces(bars, is_horizontal=False, edge_px=edge_px, template=RUN_TEMPLATE)


def _letters(runs: Sequence[PrefillRun], scale: TokenScale, panels: _Panels, focus: Focus) -> dict[str, Any]:
    """The request's letter on each bar that has room for it."""
    x, y, text, colors = [], [], [], []
    for run in runs:
        label = request_label(run.arrival)
        if (run.stop - run.start) * panels.step_px < 7 * len(label) + 3:
            continue
        low, high = scale.height(run.base), scale.height(run.base + run.count)
        if (high - low) * panels.bars_px >= 11 and focus.request_id in (None, run.request_id):
            x.append((run.start + run.stop) / 2)
            y.append(round((low + high) / 2, 4))
            text.append(label)
            colors.append(request_color(run.arrival).text)
    return texts(x, y, text, colors, 11)


def _failures(steps: Sequence[StepRecord], look: Look) -> dict[str, Any]:
    failed = [s for s in steps if s.error]
    return {
        **texts([s.step + 0.5 for s in failed], [0.9] * len(failed), ["failed"] * len(failed), [], 11),
        "mode": "markers+text",
        "textposition": "middle left",
        "textfont": {"family": SANS, "size": 11, "color": look.danger},
        "marker": {"symbol": "x", "size": 9, "color": look.danger},
        "hoverinfo": "text",
        "hovertext": [step_words(s) for s in failed],
        "hovertemplate": HOVER,
    }


# ---------------------------------------------------------------- axes, lines, words


def _token_axis(scale: TokenScale, panels: _Panels, look: Look) -> dict[str, Any]:
    ticks = [scale.budget // 2, scale.budget]
    if scale.is_stretched:
        ticks = [scale.fine // 2, scale.fine, *ticks]
    tallest_gap = 0.17 if panels.bars_px >= 70 else 0.3
    shown: list[int] = [ticks.pop()]
    for tick in reversed(ticks):
        # The break of the scale is always named.
        if tick == scale.fine or scale.height(shown[-1]) - scale.height(tick) >= tallest_gap:
            shown.append(tick)
    return quiet_axis(
        look,
        range=[0, 1.0],
        domain=panels.bars,
        fixedrange=True,
        tickvals=[round(scale.height(tick), 4) for tick in shown],
        ticktext=[f"{tick:,}" for tick in shown],
    )


def _request_axis(seats: int, most: int, panels: _Panels, look: Look) -> dict[str, Any]:
    """Up to a power of two; the seats are named once the batch or the queue comes near them."""
    ticks = {most: str(most), most / 2: "requests"}
    if seats == most:
        ticks[most] = f"{seats} seats"
    elif most / 4 <= seats < most:
        ticks = (
            {most: str(most), seats: f"{seats} seats"} if seats <= 0.7 * most else {seats: f"{seats} seats"}
        )
    return quiet_axis(
        look,
        range=[0, most * 1.02],
        domain=panels.requests,
        fixedrange=True,
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
        tickfont={"family": SANS, "size": panels.lane_font, "color": look.muted},
    )


def _lines(
    view: EngineView, scale: TokenScale, across: tuple[float, float], most: int, look: Look
) -> list[dict[str, Any]]:
    """The ground of the stretched half, the budget, the seats once they are near, and the newest step."""
    seats = view.info.max_num_seqs
    ground = {
        "type": "rect",
        "x0": across[0],
        "x1": across[1],
        "y0": 0,
        "y1": STRETCHED,
        "layer": "below",
        "visible": scale.is_stretched,
        "fillcolor": look.cell_free,
        "line": {"width": 0},
    }
    return [
        ground,
        line(look.danger, x=across, y=(1, 1), width=1.25, dash="dash"),
        line(look.danger, x=across, y=(seats, seats), dash="dash", yref="y2", visible=seats <= most),
        now_line(view.executed_step, look),
    ]


def _now_words(view: EngineView, size: Size) -> str:
    if not view.steps:
        return ""
    now = view.steps[-1]
    words = (
        f"<b>{now.num_tokens:,}</b> token{'' if now.num_tokens == 1 else 's'} · "
        f"<b>{now.num_seats}</b> of {now.max_num_seqs} seats · <b>{now.num_waiting}</b> waiting"
    )
    why = STOP_WORDS[now.stopped_by]
    room = size.width - 70  # "budget 256" stands in the same line
    return longest_that_fits([f"step {now.step}: {words} · {why}", f"{words} · {why}", words], room)
