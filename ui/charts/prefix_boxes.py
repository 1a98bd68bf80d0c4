"""The boxes of the prefix cache chart: who holds a piece of the tree, and what it says.

Most boxes are in each frame what they were in the one before: what is drawn of one is kept by what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ui.charts.focus import Focus
from ui.charts.marks import Bar
from ui.charts.palette import mix, readable_on, request_color
from ui.charts.prefix_plan import Box, Plan
from ui.charts.prefix_tree import Piece
from ui.charts.prefix_words import KEPT, describe, piece_wordings
from ui.charts.theme import Look
from ui.charts.wording import longest_that_fits
from ui.view import EngineView

_MAX_STRIPS = 4
_CHAR_PX = 6.1
_FADE = 0.72


class Holder(NamedTuple):
    """A request that holds a piece."""

    request_id: str
    label: str
    arrival: int


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    color: str
    columns: float
    """Width of the ground it needs, 0 for none."""


@dataclass(frozen=True, slots=True)
class DrawnBox:
    bars: tuple[Bar, ...]
    """One; of a shared piece one strip for each holder, so that each can be clicked."""
    label: Label | None


def draw_boxes(plan: Plan, view: EngineView, look: Look, focus: Focus) -> list[DrawnBox]:
    holders = {t.request_id: Holder(t.request_id, t.label, t.arrival) for t in view.requests}
    block_size, has_groups = view.info.block_size, len(view.info.groups) > 1
    return [
        _draw(
            box,
            tuple([holders[r] for r in box.piece.first.owners if r in holders]),
            plan.column_px,
            plan.scale.shortens(box.piece.start, box.piece.stop),
            block_size,
            has_groups,
            look,
            focus.request_id,
        )
        for box in plan.boxes
    ]


@lru_cache(maxsize=4096)
def _draw(
    box: Box,
    held: tuple[Holder, ...],
    column_px: float,
    is_shortened: bool,
    block_size: int,
    has_groups: bool,
    look: Look,
    followed: str | None,
) -> DrawnBox:
    strips: Sequence[Holder | None] = held[:_MAX_STRIPS] or (None,)
    words = describe(box.piece, [holder.label for holder in held], block_size, has_groups)
    height = (box.bottom - box.top) / len(strips)
    is_small = (box.right - box.left) * column_px < len(KEPT) * _CHAR_PX + 5
    bars = []
    for i, holder in enumerate(strips):
        fill = _fill(box.piece, holder, look, followed)
        color = request_color(holder.arrival) if holder else None
        bars.append(
            Bar(
                base=box.left,
                length=round(box.right - box.left, 3),
                at=round(box.top + (i + 0.5) * height, 2),
                width=round(height, 2),
                fill=fill,
                edge=look.card,
                # Too small for the word that nobody holds it, and dotted instead: never by colour alone.
                pattern=color.pattern if color else "." if is_small else "",
                pattern_color=_pattern_color(fill, holder, look, followed),
                request_id=holder.request_id if holder else "",
                words=words,
            )
        )
    return DrawnBox(tuple(bars), _label(box, held, column_px, is_shortened, is_small, look, followed))


def _label(
    box: Box,
    held: tuple[Holder, ...],
    column_px: float,
    is_shortened: bool,
    is_small: bool,
    look: Look,
    followed: str | None,
) -> Label | None:
    """Who, how often found, how many blocks: as much of it as the box has room for."""
    room = (box.right - box.left) * column_px - 5
    wordings = piece_wordings(box.piece, [holder.label for holder in held], is_shortened)
    words = longest_that_fits([*wordings, ""], room, _CHAR_PX)
    if not words or box.bottom - box.top < 10:
        return None
    needs_ground = len(held) > 1 or (not held and is_small)
    fill = _fill(box.piece, held[0] if held else None, look, followed)
    return Label(
        x=round((box.left + box.right) / 2, 3),
        y=round((box.top + box.bottom) / 2, 2),
        text=words,
        color=look.text if needs_ground else readable_on(fill),
        columns=round((len(words) * _CHAR_PX + 5) / column_px, 3) if needs_ground else 0,
    )


def _fill(piece: Piece, holder: Holder | None, look: Look, followed: str | None) -> str:
    """The holder's colour; of what nobody holds, a grey that gets brighter with each hit."""
    if holder is None:
        fill = mix(look.cell_cached, look.accent, 0.17 * min(piece.first.num_hits, 5))
    else:
        fill = request_color(holder.arrival).fill
    is_faded = followed is not None and (holder is None or holder.request_id != followed)
    return mix(fill, look.card, _FADE) if is_faded else fill


def _pattern_color(fill: str, holder: Holder | None, look: Look, followed: str | None) -> str:
    if holder is None:
        return readable_on(fill)
    color = request_color(holder.arrival).pattern_color
    return mix(color, look.card, _FADE) if followed not in (None, holder.request_id) else color
