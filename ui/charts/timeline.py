"""The scheduler timeline: one row a request, one column an engine step.

Waiting is a thin line, a prefill chunk a tall bar with its token count behind it, decode a low bar. A diamond
marks a prefix hit, a cross a preemption, a tick the end. Rows of the viewer's own requests say "yours". The row of
the request that is followed lies on a band, all others fade.

The numbers of a request stand once in ``layout.meta``, by row; the hovers of its bars refer to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import now_line
from ui.charts.palette import request_color
from ui.charts.theme import LIGHT, MONO, SANS, Look, Size, base_layout, quiet_axis
from ui.charts.timeline_bars import Strip
from ui.charts.timeline_words import left_out, numbers
from ui.charts.wording import longest_that_fits
from ui.view import WINDOW_STEPS, EngineView, RequestTrack, Span

TITLE = "Scheduler timeline"
CAPTION = (
    '<abbr title="one row a request, one column an engine step">Rows</abbr>: '
    '<abbr title="prefill: the prompt is read, many tokens in one step">tall prefill</abbr>, '
    '<abbr title="decode: one new token a step">low decode</abbr>, '
    '<abbr title="in the queue, for a seat in the batch or for blocks">thin waiting</abbr>, '
    '<abbr title="tokens found in the prefix cache need not be computed">◆ prefix hit</abbr>, '
    '<abbr title="no block was free: its blocks went to another request, it is computed again later">✕ preempted'
    "</abbr>, "
    '<abbr title="a tick: the answer is complete; a square: stopped by its caller">| end</abbr>. '
    '<abbr title="hover shows numbers; a click marks its blocks and its row">Click follows.</abbr>'
)
ROW_PX = 15
"""Least height of a row; what does not fit is left out, oldest finished first."""
_LEFT = 86
"""Room for "yours" and three letters: those of the 703rd request and later."""
_RIGHT = 12
_CHAR_PX = 6.0
_WORDS_OFFSET = -0.14


def step_range(view: EngineView) -> tuple[float, float]:
    """The steps on show: the newest WINDOW_STEPS, or from 0 in a young engine."""
    if view.step >= WINDOW_STEPS:
        return view.step - WINDOW_STEPS + 1, view.step + 1
    span = next((n for n in (40, 80) if view.step < n), WINDOW_STEPS)
    return 0, span


def step_ticks(width: float) -> int:
    """Most ticks of a step axis: their numbers stay upright and apart, also on a phone."""
    return int(min(max(width // 60, 2), 8))


def choose_rows(
    requests: Sequence[RequestTrack], most: int, followed: str | None = None
) -> list[RequestTrack]:
    """At most ``most`` requests that have something to show, in order of arrival: the followed one, those that run,
    those that wait (the first in the queue first), then the newest of the finished."""
    shown = [track for track in requests if track.spans or track.marks]
    if len(shown) <= most:
        return shown
    rank = {"running": 1, "waiting": 2, "done": 3}
    order = sorted(
        shown,
        key=lambda t: (
            0 if t.request_id == followed else rank[t.status],
            -t.arrival if t.status == "done" else t.arrival,
        ),
    )
    return sorted(order[:most], key=lambda track: track.arrival)


def figure(
    view: EngineView,
    look: Look = LIGHT,
    size: Size | None = None,
    focus: Focus = NO_FOCUS,
) -> Figure:
    size = size or Size()
    left, right = step_range(view)
    followed = view.request(focus.request_id) if focus.request_id else None
    rows, hidden = _fit_rows(view, size, followed)
    step_px = max(size.width - _LEFT - _RIGHT, 100) / (right - left)
    strip = Strip(view, look, followed)
    for y, track in enumerate(rows):
        strip.add(y, track)
    # A few requests keep the row height of six: bars do not balloon when only one is there.
    num_rows = max(len(rows) + bool(hidden), 6)
    return {
        "data": [*strip.traces(), _notes(rows, left, right, step_px, look, followed)],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": _RIGHT, "t": 4, "b": 22},
            barmode="overlay",
            bargap=0,
            meta=[numbers(track) for track in rows],
            xaxis=quiet_axis(
                look,
                range=[left, right],
                nticks=step_ticks(size.width - _LEFT),
                showgrid=True,
                layer="below traces",
            ),
            yaxis=quiet_axis(
                look,
                range=[num_rows - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=[
                    _row_label(track, track.request_id in focus.mine, look, followed) for track in rows
                ],
                tickfont={"family": MONO, "size": 12, "color": look.text},
            ),
            shapes=_shapes(view, rows, look, followed),
            annotations=[_left_out_note(len(rows), left, hidden, size.width, look)] if hidden else [],
        ),
    }


def _fit_rows(
    view: EngineView, size: Size, followed: RequestTrack | None
) -> tuple[list[RequestTrack], list[RequestTrack]]:
    """(rows, requests without a row); where some are left out, a row is kept for saying so."""
    name = followed.request_id if followed else None
    most = max(4, (size.height - 26) // ROW_PX)
    rows = choose_rows(view.requests, most, name)
    shown = [track for track in view.requests if track.spans or track.marks]
    if len(shown) > most:
        rows = choose_rows(view.requests, most - 1, name)
    kept = {track.request_id for track in rows}
    return rows, [track for track in shown if track.request_id not in kept]


def _notes(
    rows: Sequence[RequestTrack],
    left: float,
    right: float,
    step_px: float,
    look: Look,
    followed: RequestTrack | None,
) -> dict[str, Any]:
    """Token counts behind each run of prefill chunks, the longest wording that has room."""
    x: list[float] = []
    y: list[float] = []
    text: list[str] = []
    colors: list[str] = []
    for row, track in enumerate(rows):
        for start, stop, tokens in prefill_runs(track.spans):
            if stop <= left:
                continue
            hit = sum(m.tokens for m in track.marks if m.kind == "hit" and m.step == start)
            room = (_next_event(track, stop, right) - stop) * step_px - 8
            note = next((t for t in _wordings(tokens, hit) if len(t) * _CHAR_PX <= room), None)
            if note:
                x.append(round(stop + 3 / step_px, 2))
                y.append(row + _WORDS_OFFSET)
                text.append(note)
                colors.append(look.text if followed in (None, track) else look.muted)
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "text": text,
        "mode": "text",
        "textposition": "middle right",
        "textfont": {"family": SANS, "size": 10.5, "color": colors},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def prefill_runs(spans: Sequence[Span]) -> list[tuple[int, int, int]]:
    """(first step, end, tokens) of each run of prefill chunks without another kind between."""
    runs: list[tuple[int, int, int]] = []
    previous: Span | None = None
    for span in spans:
        if span.kind == "prefill":
            if previous is not None and previous.kind == "prefill":
                start, _, tokens = runs[-1]
                runs[-1] = (start, span.stop, tokens + span.tokens)
            else:
                runs.append((span.start, span.stop, span.tokens))
        previous = span
    return runs


def _wordings(tokens: int, hit: int) -> list[str]:
    if hit:
        return [f"{hit} cached + {tokens} prefilled", f"{hit} cached + {tokens}", f"{hit} + {tokens}"]
    return [f"{tokens} prefilled", f"{tokens}"]


def _next_event(track: RequestTrack, step: int, right: float) -> float:
    """Where the free room behind ``step`` ends: the next preemption, wait or prefill of the row."""
    starts = [s.start for s in track.spans if s.start >= step and s.kind != "decode"]
    crosses = [m.step for m in track.marks if m.kind == "preempted" and m.step >= step]
    return min([*starts, *crosses, right])


# ---------------------------------------------------------------- around the bars


def _row_label(track: RequestTrack, is_mine: bool, look: Look, followed: RequestTrack | None) -> str:
    square = f'<span style="color:{request_color(track.arrival).fill}">■</span>'
    yours = f'<span style="color:{look.accent}">yours</span> ' if is_mine else ""
    if followed is None:
        return f"{yours}{track.label} {square}"
    if followed is track:
        return f"{yours}<b>{track.label}</b> {square}"
    return f'{yours}<span style="color:{look.muted}">{track.label}</span> {square}'


def _shapes(
    view: EngineView, rows: Sequence[RequestTrack], look: Look, followed: RequestTrack | None
) -> list[dict[str, Any]]:
    """The step on show, and the band of the row that is followed."""
    shapes = [now_line(view.executed_step, look)]
    for y, track in enumerate(rows):
        if track is followed:
            shapes.append(
                {
                    "type": "rect",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": y - 0.5,
                    "y1": y + 0.5,
                    "fillcolor": look.cell_used,
                    "line": {"width": 0},
                    "layer": "below",
                }
            )
    return shapes


def _left_out_note(
    row: int, left: float, hidden: list[RequestTrack], width: int, look: Look
) -> dict[str, Any]:
    wordings = [left_out(hidden), f"{len(hidden):,} more not shown"]
    return {
        "text": longest_that_fits(wordings, width - _LEFT - _RIGHT, _CHAR_PX),
        "x": left,
        "y": row,
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "font": {"family": SANS, "size": 11, "color": look.muted},
    }
