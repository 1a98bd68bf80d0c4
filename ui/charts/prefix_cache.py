"""The prefix cache: chains of block contents from the beginnings of prompts, which later prompts can take over.

One column a depth, left to right; where prompts part, the branches share the height. Blocks that requests hold have
their colours and letters; the others say "kept" or are dotted, and are the brighter the more often they were found.
Runs of like blocks are one box; where there is no room, long runs are shortened and say how many blocks they are, and
the chains that are worth least are left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import (
    HEADLINE_PX,
    bar_traces,
    empty_sentence,
    headline,
    lines,
    note,
    rectangles,
    strokes_shape,
    texts,
)
from ui.charts.prefix_boxes import Label, draw_boxes
from ui.charts.prefix_plan import AXIS_PX, LEFT_PX, RIGHT_PX, Plan, make_plan
from ui.charts.prefix_words import EMPTY, headline_words
from ui.charts.theme import LIGHT, MONO, Look, Size, bare_axis, base_layout, quiet_axis
from ui.view import EngineView

TITLE = "Prefix cache"
CAPTION = (
    '<abbr title="A block is found again by the tokens in it and before it, so blocks form chains from the beginning '
    'of a prompt; where prompts part, a chain branches.">Chains</abbr> of cached blocks. '
    "×3 found three times · "
    '<abbr title="kept for reuse: no request holds it, so it can be evicted. The brighter, the more often found.">kept'
    "</abbr>: evictable · outlined found just now."
)


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(width=320, height=180)
    plan = make_plan(view, size, focus)
    boxes = draw_boxes(plan, view, look, focus)
    labels = [box.label for box in boxes if box.label]
    return {
        "data": [
            _stubs(plan, look),
            *bar_traces([bar for box in boxes for bar in box.bars], is_horizontal=True),
            _grounds(labels, look),
            _outlines(plan, view, look),
            _position(plan, view, focus, look),
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


def _stubs(plan: Plan, look: Look) -> dict[str, Any]:
    """Where the beginning of a chain was evicted: a dotted line instead of it."""
    x: list[float | None] = []
    y: list[float | None] = []
    for box in plan.boxes:
        if box.piece.is_orphan:
            middle = round((box.top + box.bottom) / 2, 2)
            x += [max(box.left - 1.5, 0), box.left, None]
            y += [middle, middle, None]
    return lines(x, y, look.muted, 1.5, dash="dot")


def _dividers(plan: Plan, look: Look) -> dict[str, Any]:
    """Between the blocks of a piece; a shortened run ends like a pile of sheets."""
    scale = plan.scale
    strokes: list[str] = []
    for box in plan.boxes:
        start, stop = box.piece.start, box.piece.stop
        if scale.is_plain:
            strokes.append(_plain_strokes(start, stop, box.top, box.bottom))
            continue
        columns = [
            scale.column(depth)
            for depth in range(start + 1, stop)
            if not (scale.is_shortened(depth) or scale.is_shortened(depth - 1))
        ]
        if scale.shortens(start, stop):
            columns += [box.right - px / plan.column_px for px in (2.5, 5)]
        strokes.append(_strokes(columns, box.top, box.bottom))
    return strokes_shape("".join(strokes), look.card)


@lru_cache(maxsize=1024)
def _plain_strokes(start: int, stop: int, top: float, bottom: float) -> str:
    """Most pieces stay where they are from one step to the next."""
    return _strokes(range(start + 1, stop), top, bottom)


def _strokes(columns: Iterable[float], top: float, bottom: float) -> str:
    middle = (top + bottom) / 2
    free = min(middle - top - 1.5, 8)  # no line through the letters
    above, below = f"{top}V{middle - free:.2f}", f"{middle + free:.2f}V{bottom}"
    return "".join([f"M{x:.3f},{above}M{x:.3f},{below}" for x in columns])


def _outlines(plan: Plan, view: EngineView, look: Look) -> dict[str, Any]:
    """Found in the newest step."""
    now = max(view.executed_step, 1)
    boxes = [box for box in plan.boxes if (box.piece.first.last_hit_step or 0) >= now]
    return lines(*rectangles([(b.left, b.top, b.right, b.bottom) for b in boxes]), look.outline, 2)


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
    return lines(*rectangles(found), look.outline, 2.5, dash="dot")


def _grounds(labels: Sequence[Label], look: Look) -> dict[str, Any]:
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
