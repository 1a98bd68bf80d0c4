"""The scheduler timeline: one row a request, one column an engine step.

Waiting is a thin line, a prefill chunk a tall bar with its token count behind it, decode a low bar. A diamond
marks a prefix hit, a cross a preemption, a tick the end. Rows of the viewer's own requests say "yours".
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.palette import mix, request_color
from ui.charts.theme import LIGHT, MONO, SANS, Look, Size, base_layout, quiet_axis
from ui.view import WINDOW_STEPS, EngineView, Mark, RequestTrack, Span

TITLE = "Scheduler timeline"
CAPTION = (
    "One row a request, one column an engine step. "
    '<abbr title="prefill: the prompt is read, many tokens in one step">Tall</abbr> prefill · '
    '<abbr title="decode: one new token a step">low</abbr> decode · thin waiting · '
    '<abbr title="tokens found in the prefix cache need not be computed">◆</abbr> prefix hit · '
    '<abbr title="no block was free: its blocks went to another request, it is computed again later">✕</abbr> '
    "preempted."
)
ROW_PX = 15
"""Least height of a row; what does not fit is left out, oldest finished first."""
_LEFT = 64
_RIGHT = 12
_CHAR_PX = 6.0
_HEIGHT = {"waiting": 0.07, "prefill": 0.8, "decode": 0.3}
_OFFSET = {"waiting": 0.25, "prefill": 0.0, "decode": 0.25}
"""Decode lies low in its row; above it is room for words."""
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


def choose_rows(requests: Sequence[RequestTrack], most: int) -> list[RequestTrack]:
    """At most ``most`` requests that have something to show, live ones first, in order of arrival."""
    shown = [track for track in requests if track.spans or track.marks]
    live = [track for track in shown if track.status != "done"]
    done = [track for track in shown if track.status == "done"]
    kept = live[-most:]
    room = most - len(kept)
    kept += done[-room:] if room else []
    return sorted(kept, key=lambda track: track.arrival)


def figure(
    view: EngineView,
    look: Look = LIGHT,
    size: Size | None = None,
    focus: Focus = NO_FOCUS,
) -> Figure:
    mine = focus.mine
    size = size or Size()
    left, right = step_range(view)
    most = max(4, (size.height - 30) // ROW_PX)
    rows = choose_rows(view.requests, most)
    step_px = max(size.width - _LEFT - _RIGHT, 100) / (right - left)
    shown = [(y, track) for y, track in enumerate(rows)]
    traces = [
        _bars(shown, "waiting", look),
        _bars(shown, "decode", look),
        _bars(shown, "prefill", look),
        _marks(shown, "hit", "diamond", look.accent, look),
        _marks(shown, "finished", "line-ns-open", look.text, look),
        _marks(shown, "preempted", "x", look.danger, look),
        _marks(shown, "aborted", "square-open", look.text, look),
        _marks(shown, "failed", "x", look.danger, look),
        _notes(shown, left, right, step_px, look),
    ]
    # A few requests keep the row height of six: bars do not balloon when only one is there.
    num_rows = max(len(rows), 6)
    return {
        "data": [t.to_plotly_json() for t in traces],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": _RIGHT, "t": 4, "b": 22},
            barmode="overlay",
            bargap=0,
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
                tickvals=[y for y, _ in shown],
                ticktext=[_row_label(track, track.request_id in mine, look) for _, track in shown],
                tickfont={"family": MONO, "size": 12, "color": look.text},
            ),
            shapes=[
                {
                    "type": "line",
                    "x0": view.executed_step + 1,
                    "x1": view.executed_step + 1,
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "line": {"color": look.accent, "width": 1.5},
                }
            ],
        ),
    }


# ---------------------------------------------------------------- traces


def _bars(shown: Sequence[tuple[int, RequestTrack]], kind: str, look: Look) -> go.Bar:
    base: list[int] = []
    length: list[int] = []
    y: list[float] = []
    colors: list[str] = []
    edges: list[str] = []
    hover: list[str] = []
    for row, track in shown:
        color = request_color(track.arrival)
        for span in track.spans:
            if span.kind != kind:
                continue
            base.append(span.start)
            length.append(span.stop - span.start)
            y.append(row + _OFFSET[kind])
            fill = {"waiting": look.muted, "decode": mix(color.fill, look.card, 0.3)}.get(kind, color.fill)
            colors.append(fill)
            edges.append(mix(fill, look.text, 0.28))  # yellow on white needs an edge to be seen
            hover.append(_hover(track, span))
    return go.Bar(
        orientation="h",
        base=base,
        x=length,
        y=y,
        width=_HEIGHT[kind],
        marker={"color": colors, "line": {"width": 1, "color": edges}},
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _marks(
    shown: Sequence[tuple[int, RequestTrack]], kind: str, symbol: str, color: str, look: Look
) -> go.Scatter:
    x: list[float] = []
    y: list[float] = []
    hover: list[str] = []
    for row, track in shown:
        for mark in track.marks:
            if mark.kind != kind:
                continue
            at_end = kind in ("finished", "aborted", "failed")
            x.append(mark.step + 1 if at_end else mark.step)
            # Ends sit on the low decode bar, out of the way of words.
            y.append(row + _OFFSET["decode"] if at_end else row)
            hover.append(_mark_words(track, mark))
    size = {"line-ns-open": 6, "x": 10}.get(symbol, 7)
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={
            "symbol": symbol,
            "size": size,
            "color": color,
            "line": {
                "width": 2 if symbol.endswith("open") else 1,
                "color": color if symbol.endswith("open") else look.card,
            },
        },
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
        cliponaxis=False,
    )


def _notes(
    shown: Sequence[tuple[int, RequestTrack]], left: float, right: float, step_px: float, look: Look
) -> go.Scatter:
    """Token counts behind each run of prefill chunks, the longest wording that has room."""
    x: list[float] = []
    y: list[float] = []
    text: list[str] = []
    for row, track in shown:
        for start, stop, tokens in prefill_runs(track.spans):
            if stop <= left:
                continue
            hit = sum(m.tokens for m in track.marks if m.kind == "hit" and m.step == start)
            room = (_next_event(track, stop, right) - stop) * step_px - 8
            note = next((t for t in _wordings(tokens, hit) if len(t) * _CHAR_PX <= room), None)
            if note:
                x.append(stop + 3 / step_px)
                y.append(row + _WORDS_OFFSET)
                text.append(note)
    return go.Scatter(
        x=x,
        y=y,
        text=text,
        mode="text",
        textposition="middle right",
        textfont={"family": SANS, "size": 10.5, "color": look.text},
        hoverinfo="skip",
        cliponaxis=True,
    )


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


# ---------------------------------------------------------------- words


def _wordings(tokens: int, hit: int) -> list[str]:
    if hit:
        return [f"{hit} cached + {tokens} prefilled", f"{hit} cached + {tokens}", f"{hit} + {tokens}"]
    return [f"{tokens} prefilled", f"{tokens}"]


def _next_event(track: RequestTrack, step: int, right: float) -> float:
    """Where the free room behind ``step`` ends: the next preemption, wait or prefill of the row."""
    starts = [s.start for s in track.spans if s.start >= step and s.kind != "decode"]
    crosses = [m.step for m in track.marks if m.kind == "preempted" and m.step >= step]
    return min([*starts, *crosses, right])


def _row_label(track: RequestTrack, is_mine: bool, look: Look) -> str:
    square = f'<span style="color:{request_color(track.arrival).fill}">■</span>'
    yours = f'<span style="color:{look.accent}">yours</span> ' if is_mine else ""
    return f"{yours}{track.label} {square}"


def _hover(track: RequestTrack, span: Span) -> str:
    steps = f"step {span.start}" if span.stop - span.start == 1 else f"steps {span.start}–{span.stop - 1}"
    what = {
        "waiting": "waiting for a seat or for blocks",
        "prefill": f"prefill, {span.tokens} tokens in one step",
        "decode": f"decode, one token a step, {span.tokens} tokens",
    }[span.kind]
    lengths = f"{track.num_prompt_tokens} prompt tokens, {track.num_tokens - track.num_prompt_tokens} written"
    return f"<b>request {track.label}</b> · {what}<br>{steps}<br>{lengths}"


def _mark_words(track: RequestTrack, mark: Mark) -> str:
    head = f"<b>request {track.label}</b> · "
    match mark.kind:
        case "hit":
            return f"{head}{mark.tokens} tokens came from the prefix cache<br>step {mark.step}"
        case "preempted":
            return (
                f"{head}preempted: no block was free<br>"
                f"{mark.tokens} tokens will be computed again<br>step {mark.step}"
            )
        case "aborted":
            return f"{head}stopped by its caller after {mark.tokens} tokens<br>step {mark.step}"
        case "failed":
            return f"{head}failed after {mark.tokens} tokens<br>step {mark.step}"
    why = "its length limit" if mark.text == "length" else "the model ended it"
    return f"{head}finished after {mark.tokens} tokens ({why})<br>step {mark.step}"
