"""The prefix cache: chains of block contents from the beginnings of prompts, which later prompts can take over.

One column a depth, left to right; where prompts part, the branches share the height. Blocks that requests hold have
their colours and letters; the others say "kept" or are dotted, and are the brighter the more often they were found.
Runs of like blocks are one box; where there is no room, long runs are shortened and say how many blocks they are, and
the chains that are worth least are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import HEADLINE_PX, Bar, bar_traces, empty_sentence, headline, note, strokes_shape, texts
from ui.charts.palette import mix, readable_on, request_color
from ui.charts.prefix_plan import AXIS_PX, LEFT_PX, RIGHT_PX, Box, Plan, make_plan
from ui.charts.prefix_tree import DepthScale, Piece
from ui.charts.prefix_words import EMPTY, KEPT, describe, headline_words, piece_wordings
from ui.charts.theme import LIGHT, MONO, Look, Size, bare_axis, base_layout, quiet_axis
from ui.charts.wording import longest_that_fits
from ui.view import EngineView, RequestTrack

TITLE = "Prefix cache"
CAPTION = (
    '<abbr title="A block is found again by the tokens in it and before it, so blocks form chains from the beginning '
    'of a prompt; where prompts part, a chain branches.">Chains</abbr> of cached blocks. '
    "×3 found three times · "
    '<abbr title="kept for reuse: no request holds it, so it can be evicted. The brighter, the more often found.">kept'
    "</abbr>: evictable · outlined found just now."
)
_MAX_STRIPS = 4
_CHAR_PX = 6.1


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(width=320, height=180)
    tracks = {track.request_id: track for track in view.requests}
    plan = make_plan(view, size, focus)
    labels = _labels(plan, tracks, look, focus)
    return {
        "data": [
            _stubs(plan, look),
            *_boxes(plan, view, tracks, look, focus),
            _outlines(plan, view, look),
            _position(plan, view, focus, look),
            _grounds(labels, look),
            texts(
                [label.x for label in labels],
                [label.y for label in labels],
                [label.text for label in labels],
                [label.color for label in labels],
                10,
            ),
        ],
        "layout": base_layout(
            look,
            margin={"l": LEFT_PX, "r": RIGHT_PX, "t": HEADLINE_PX, "b": AXIS_PX},
            barmode="overlay",
            bargap=0,
            xaxis=_depth_axis(plan, view, look),
            yaxis=bare_axis(range=[plan.height, 0], fixedrange=True),
            shapes=[_dividers(plan, look)],
            annotations=[
                headline(headline_words(view, plan.num_left_out, size.width), look),
                note(
                    "tokens" if view.prefix else "",
                    look.muted,
                    size=10,
                    x=0,
                    y=0,
                    xref="paper",
                    yref="paper",
                    xanchor="left",
                    yanchor="top",
                    yshift=1,
                ),
                *_group_words(plan, view, look),
                empty_sentence("" if view.prefix else EMPTY, look, size.width - LEFT_PX - RIGHT_PX),
            ],
        ),
    }


# ---------------------------------------------------------------- traces


def _boxes(
    plan: Plan, view: EngineView, tracks: dict[str, RequestTrack], look: Look, focus: Focus
) -> list[dict[str, Any]]:
    """One bar a piece; of a shared piece one strip for each holder, so that each can be clicked."""
    bars = []
    for box in plan.boxes:
        held = [tracks[r] for r in box.piece.first.owners if r in tracks][:_MAX_STRIPS]
        strips: list[RequestTrack | None] = [*held] or [None]
        words = describe(box.piece, view, tracks)
        height = (box.bottom - box.top) / len(strips)
        is_small = _is_small(box, plan)
        for i, track in enumerate(strips):
            fill = piece_fill(box.piece, track, look, focus)
            color = request_color(track.arrival) if track else None
            bars.append(
                Bar(
                    base=box.left,
                    length=round(box.right - box.left, 3),
                    at=round(box.top + (i + 0.5) * height, 2),
                    width=round(height, 2),
                    fill=fill,
                    edge=look.card,
                    pattern=color.pattern if color else "." if is_small else "",
                    pattern_color=_pattern_color(fill, track, look, focus),
                    request_id=track.request_id if track else "",
                    words=words,
                )
            )
    return bar_traces(bars, is_horizontal=True)


def _is_small(box: Box, plan: Plan) -> bool:
    """Too small for the word that nobody holds it, and dotted instead: never by colour alone."""
    return (box.right - box.left) * plan.column_px < len(KEPT) * _CHAR_PX + 5


def _pattern_color(fill: str, track: RequestTrack | None, look: Look, focus: Focus) -> str:
    if track is None:
        return readable_on(fill)
    is_faded = focus.request_id not in (None, track.request_id)
    color = request_color(track.arrival).pattern_color
    return mix(color, look.card, 0.72) if is_faded else color


def piece_fill(piece: Piece, track: RequestTrack | None, look: Look, focus: Focus) -> str:
    """The holder's colour; of what nobody holds, a grey that gets brighter with each hit."""
    if track is None:
        fill = mix(look.cell_cached, look.accent, 0.17 * min(piece.first.num_hits, 5))
    else:
        fill = request_color(track.arrival).fill
    is_faded = focus.request_id is not None and (track is None or track.request_id != focus.request_id)
    return mix(fill, look.card, 0.72) if is_faded else fill


def _stubs(plan: Plan, look: Look) -> dict[str, Any]:
    """Where the beginning of a chain was evicted: a dotted line instead of it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for box in plan.boxes:
        if box.piece.is_orphan:
            middle = round((box.top + box.bottom) / 2, 2)
            x += [max(box.left - 1.5, 0), box.left, None]
            y += [middle, middle, None]
    return _path(x, y, look.muted, 1.5, dash="dot")


def _dividers(plan: Plan, look: Look) -> dict[str, Any]:
    """Between the blocks of a piece; a shortened run ends like a pile of sheets."""
    strokes = [
        _strokes(plan.scale, plan.column_px, box.piece.start, box.piece.stop, box.right, box.top, box.bottom)
        for box in plan.boxes
    ]
    return strokes_shape("".join(strokes), look.card)


@lru_cache(maxsize=1024)
def _strokes(
    scale: DepthScale, column_px: float, start: int, stop: int, right: float, top: float, bottom: float
) -> str:
    """Of one piece. Most of them stay where they are from one step to the next."""
    columns = [
        scale.column(depth)
        for depth in range(start + 1, stop)
        if not (scale.is_shortened(depth) or scale.is_shortened(depth - 1))
    ]
    if scale.shortens(start, stop):
        columns += [right - px / column_px for px in (2.5, 5)]
    middle = (top + bottom) / 2
    free = min(middle - top - 1.5, 8)  # no line through the letters
    above, below = f"{top}V{middle - free:.2f}", f"{middle + free:.2f}V{bottom}"
    return "".join([f"M{x:.3f},{above}M{x:.3f},{below}" for x in columns])


def _outlines(plan: Plan, view: EngineView, look: Look) -> dict[str, Any]:
    """Found in the newest step."""
    now = max(view.executed_step, 1)
    boxes = [box for box in plan.boxes if (box.piece.first.last_hit_step or 0) >= now]
    return _path(*_rectangles([(b.left, b.top, b.right, b.bottom) for b in boxes]), look.outline, 2)


def _position(plan: Plan, view: EngineView, focus: Focus, look: Look) -> dict[str, Any]:
    """The block that holds the token which the viewer has chosen, in each group."""
    found = []
    if focus.request_id is not None and focus.position is not None:
        depth = focus.position // view.info.block_size
        for box in plan.boxes:
            piece = box.piece
            if piece.start <= depth < piece.stop and focus.request_id in piece.first.owners:
                left, right = plan.scale.column(depth), plan.scale.column(depth + 1)
                found.append((round(left, 3), box.top, round(right, 3), box.bottom))
    return _path(*_rectangles(found), look.outline, 2.5, dash="dot")


@dataclass(frozen=True, slots=True)
class _Label:
    x: float
    y: float
    text: str
    color: str
    columns: float
    """Width of the ground it needs, 0 for none."""


def _labels(plan: Plan, tracks: dict[str, RequestTrack], look: Look, focus: Focus) -> list[_Label]:
    """Who, how often found, how many blocks: as much of it as the box has room for."""
    labels = []
    for box in plan.boxes:
        held = [tracks[r] for r in box.piece.first.owners if r in tracks]
        room = (box.right - box.left) * plan.column_px - 5
        is_shortened = plan.scale.shortens(box.piece.start, box.piece.stop)
        words = longest_that_fits([*piece_wordings(box.piece, held, is_shortened), ""], room, _CHAR_PX)
        if not words or box.bottom - box.top < 10:
            continue
        fill = piece_fill(box.piece, held[0] if held else None, look, focus)
        needs_ground = len(held) > 1 or (not held and _is_small(box, plan))
        labels.append(
            _Label(
                x=round((box.left + box.right) / 2, 3),
                y=round((box.top + box.bottom) / 2, 2),
                text=words,
                color=look.text if needs_ground else readable_on(fill),
                columns=round((len(words) * _CHAR_PX + 5) / plan.column_px, 3) if needs_ground else 0,
            )
        )
    return labels


def _grounds(labels: Sequence[_Label], look: Look) -> dict[str, Any]:
    """Letters on strips of several colours, or on dots, cannot be read without one."""
    on = [label for label in labels if label.columns]
    return {
        "type": "bar",
        "orientation": "h",
        "base": [round(label.x - label.columns / 2, 3) for label in on],
        "x": [label.columns for label in on],
        "y": [label.y for label in on],
        "width": 12,
        "marker": {"color": look.card, "line": {"width": 0}},
        "hoverinfo": "skip",
    }


def _rectangles(
    boxes: Sequence[tuple[float, float, float, float]],
) -> tuple[list[float | None], list[float | None]]:
    x: list[float | None] = []
    y: list[float | None] = []
    for left, top, right, bottom in boxes:
        x += [left, right, right, left, left, None]
        y += [top, top, bottom, bottom, top, None]
    return x, y


def _path(
    x: list[float | None], y: list[float | None], color: str, width: float, dash: str = "solid"
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": color, "width": width, "dash": dash},
        "hoverinfo": "skip",
    }


# ---------------------------------------------------------------- axis and words


def _depth_axis(plan: Plan, view: EngineView, look: Look) -> dict[str, Any]:
    """Tokens from the beginning, at the depths where something begins or ends, as far as the numbers have room."""
    ticks: list[tuple[float, str]] = []
    last = plan.scale.bounds[-1]
    end = plan.scale.column(last) * plan.column_px
    for depth in plan.scale.bounds[1:] if view.prefix else ():
        place = plan.scale.column(depth) * plan.column_px
        before = ticks[-1][0] if ticks else 16.0  # the word stands there
        if place - before >= 32 and (depth == last or end - place >= 32):
            ticks.append((place, f"{depth * view.info.block_size:,}"))
    return quiet_axis(
        look,
        range=[0, plan.width],
        fixedrange=True,
        tickvals=[round(place / plan.column_px, 3) for place, _ in ticks],
        ticktext=[text for _, text in ticks],
        tickfont={"family": MONO, "size": 10, "color": look.muted},
    )


def _group_words(plan: Plan, view: EngineView, look: Look) -> list[dict[str, Any]]:
    words = []
    for group, top in plan.group_words:
        window = view.info.groups[group].window
        sees = f"sees the last {window:,} tokens" if window else "sees all tokens"
        words.append(
            note(
                f"group {group} · {sees}",
                look.muted,
                x=0,
                y=top,
                xanchor="left",
                yanchor="top",
                yshift=3,
                borderpad=0,
            )
        )
    return words
