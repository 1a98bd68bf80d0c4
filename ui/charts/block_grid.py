"""Where the cells of the KV block map lie: as near to square as they fill the chart, in the order of block ids."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ui.charts.theme import Size

NUMBERS_PX = 38
"""Room for the row numbers, between the null block and the pool."""
_CHAR = 0.602
"""Width of a character of the monospaced font, in its size."""

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in cells; y grows downward."""


@dataclass(frozen=True, slots=True)
class Grid:
    """``columns`` x ``rows`` cells, one unit each; ``pad`` units of air on every side of a cell."""

    columns: int
    rows: int
    cell_width: float
    """Pixels."""
    cell_height: float
    pad_x: float
    pad_y: float
    numbers: float
    """NUMBERS_PX in columns."""
    lefts: tuple[float, ...]
    """Left edge of the cells of each column."""
    rights: tuple[float, ...]
    tops: tuple[float, ...]
    """Upper edge of the cells of each row."""
    bottoms: tuple[float, ...]

    @property
    def cell_px(self) -> float:
        return min(self.cell_width, self.cell_height)

    def box(self, block_id: int) -> Box:
        row, column = divmod(block_id - 1, self.columns)
        return self.lefts[column], self.tops[row], self.rights[column], self.bottoms[row]

    def inset(self, block_id: int, pixels: float) -> Box:
        """The cell's square without ``pixels`` on every side; 0 is the middle of the gap to its neighbours."""
        row, column = divmod(block_id - 1, self.columns)
        x, y = pixels / self.cell_width, pixels / self.cell_height
        box = (column + x, row + y, column + 1 - x, row + 1 - y)
        return round(box[0], 3), round(box[1], 3), round(box[2], 3), round(box[3], 3)

    def font(self, num_chars: int, most: float, share: float = 1) -> float:
        """The size of ``num_chars`` characters that leave some air in ``share`` of a cell's width; 8.5 at least."""
        fitting = (self.cell_width * share - 4) / (num_chars * _CHAR)
        return round(max(8.5, min(most, fitting, self.cell_px * 0.6)), 1)

    def fits(self, num_chars: int, size: float) -> bool:
        """Whether so many characters of that size have room in a cell."""
        return self.cell_height >= size + 1.5 and num_chars * _CHAR * size <= self.cell_width


def lay_out(num_blocks: int, size: Size) -> Grid:
    width, height = max(size.width - NUMBERS_PX - 4, 80), max(size.height - 4, 60)
    columns = max(1, round(math.sqrt(num_blocks * width / height)))
    columns = min(columns, num_blocks)
    rows = math.ceil(num_blocks / columns)
    columns = math.ceil(num_blocks / rows)
    cell_w, cell_h = width / (columns + 1), height / rows  # + 1: the null block
    air = 1.5 if min(cell_w, cell_h) >= 12 else 0.75
    pad_x, pad_y = air / cell_w, air / cell_h
    return Grid(
        columns=columns,
        rows=rows,
        cell_width=cell_w,
        cell_height=cell_h,
        pad_x=pad_x,
        pad_y=pad_y,
        numbers=NUMBERS_PX / cell_w,
        lefts=tuple(round(column + pad_x, 3) for column in range(columns)),
        rights=tuple(round(column + 1 - pad_x, 3) for column in range(columns)),
        tops=tuple(round(row + pad_y, 3) for row in range(rows)),
        bottoms=tuple(round(row + 1 - pad_y, 3) for row in range(rows)),
    )
