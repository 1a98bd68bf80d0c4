"""Where each piece of the prefix tree lies on the chart: rows and columns to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ui.charts.focus import Focus
from ui.charts.marks import HEADLINE_PX
from ui.charts.prefix_tree import DepthScale, GroupTree, Piece, count_leaves, depth_scale, lay_out, share_rows
from ui.charts.theme import Size
from ui.view import EngineView

MIN_ROW_PX = 12
MAX_ROW_PX = 44
MIN_COLUMN_PX = 11
MAX_COLUMN_PX = 60
_GROUP_WORDS_PX = 14
AXIS_PX = 16
LEFT_PX = 4
RIGHT_PX = 16
_COLUMN_STEPS = (6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)


class Box(msgspec.Struct, frozen=True, gc=False):
    """A piece with its rectangle; x in columns, y in pixels from the top."""

    piece: Piece
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Plan:
    boxes: tuple[Box, ...]
    scale: DepthScale
    column_px: float
    row_px: float
    width: float
    """Columns of the whole chart."""
    height: float
    """Pixels."""
    group_words: tuple[tuple[int, float], ...]
    """(group, top) of the words above each group, if there are several."""
    num_left_out: int


def make_plan(view: EngineView, size: Size, focus: Focus) -> Plan:
    height = max(size.height - HEADLINE_PX - AXIS_PX, 60)
    width = max(size.width - LEFT_PX - RIGHT_PX, 120)
    num_groups = len(view.info.groups)
    words_px = _GROUP_WORDS_PX if num_groups > 1 else 0
    wanted = [count_leaves(view.prefix, group) for group in range(num_groups)]
    room = int((height - num_groups * words_px) // MIN_ROW_PX)
    first = [focus.request_id] if focus.request_id else []
    trees = [
        lay_out(view.prefix, group, rows, first)
        for group, rows in enumerate(share_rows(wanted, room))
        if wanted[group]
    ]
    scale = depth_scale((p for t in trees for p in t.pieces), width // MIN_COLUMN_PX)
    # Both grow in steps, so that boxes stay where they are while chains get longer by a block.
    columns = next((n for n in _COLUMN_STEPS if n >= scale.num_columns), scale.num_columns)
    columns = max(columns if columns * MIN_COLUMN_PX <= width else scale.num_columns, width / MAX_COLUMN_PX)
    num_rows = sum(tree.num_rows for tree in trees)
    row_px = min((height - len(trees) * words_px) / max(num_rows, 1), MAX_ROW_PX)
    boxes, words = _boxes_of(trees, scale, row_px, words_px)
    return Plan(
        boxes=tuple(boxes),
        scale=scale,
        column_px=width / columns,
        row_px=row_px,
        width=columns,
        height=height,
        group_words=tuple(words) if num_groups > 1 else (),
        num_left_out=sum(tree.num_left_out for tree in trees),
    )


def _boxes_of(
    trees: Sequence[GroupTree], scale: DepthScale, row_px: float, words_px: float
) -> tuple[list[Box], list[tuple[int, float]]]:
    boxes: list[Box] = []
    words: list[tuple[int, float]] = []
    top = 0.0
    for tree in trees:
        words.append((tree.group, top))
        top += words_px
        for piece in tree.pieces:
            boxes.append(
                Box(
                    piece,
                    round(scale.column(piece.start), 3),
                    round(scale.column(piece.stop), 3),
                    round(top + piece.top * row_px + 0.75, 2),
                    round(top + piece.bottom * row_px - 0.75, 2),
                )
            )
        top += tree.num_rows * row_px
    return boxes, words
