"""The KV block map: one cell a block, in the order of block ids, so that a block keeps its place.

A cell fills from below as its slots fill, in the colour and with the letter of the request that owns it. Free
cells are empty; cells kept for reuse carry ``#`` (a dotted pattern where the cell is too small for it); a shared
block is split between its owners; what the newest step wrote is outlined; the null block stands apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.palette import NUM_SLOTS, PAPER, color_slot, readable_on, slot_color
from ui.charts.theme import LIGHT, MONO, Look, Size, bare_axis, base_layout
from ui.view import BlockCell, EngineView, RequestTrack

TITLE = "KV block map"
CAPTION = (
    "One cell is one block of token slots, filled from below. "
    '<abbr title="kept for reuse: free, but a later prompt with the same beginning takes it over; '
    'the longest unused is evicted first">#</abbr> kept for reuse · '
    '<abbr title="several requests read the same block, because their prompts begin alike">split</abbr> shared · '
    "outlined just written."
)
LABEL_MIN_PX = 15
"""Smallest cell, in pixels, that carries a letter."""
MAX_STRIPS = 4
"""Most owners a shared cell is split between; the hover names all."""
_NUMBERS_PX = 38
"""Room for the row numbers, between the null block and the pool."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the cells lie: ``columns`` x ``rows``, one unit each; ``pad`` units of air on every side."""

    columns: int
    rows: int
    cell_px: float
    pad_x: float
    pad_y: float
    numbers: float
    """_NUMBERS_PX in columns."""

    def box(self, block_id: int) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) of a block's cell; y grows downward."""
        row, column = divmod(block_id - 1, self.columns)
        return column + self.pad_x, row + self.pad_y, column + 1 - self.pad_x, row + 1 - self.pad_y


def lay_out(num_blocks: int, size: Size) -> Grid:
    """Cells as near to square as they fill the chart."""
    width, height = max(size.width - _NUMBERS_PX - 4, 80), max(size.height - 4, 60)
    columns = max(1, round(math.sqrt(num_blocks * width / height)))
    columns = min(columns, num_blocks)
    rows = math.ceil(num_blocks / columns)
    columns = math.ceil(num_blocks / rows)
    cell_w, cell_h = width / (columns + 1), height / rows  # + 1: the null block
    air = 1.5 if min(cell_w, cell_h) >= 12 else 0.75
    return Grid(columns, rows, min(cell_w, cell_h), air / cell_w, air / cell_h, _NUMBERS_PX / cell_w)


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size()
    grid = lay_out(view.info.num_blocks, size)
    tracks = {track.request_id: track for track in view.requests}
    show_letters = grid.cell_px >= LABEL_MIN_PX
    traces = [_ground(view, grid, look, tracks), _kept(view, grid, look, show_letters)]
    traces += _fills(view, grid, tracks)
    traces.append(_outlines(view, grid, look))
    traces.append(_letters(view, grid, look, tracks, show_letters))
    traces.append(_counts(view, grid, look, show_letters))
    traces.append(_row_numbers(grid, size, look))
    traces += _null(look, grid)
    return {
        "data": [t.to_plotly_json() for t in traces],
        "layout": base_layout(
            look,
            margin={"l": 2, "r": 2, "t": 2, "b": 2},
            xaxis=bare_axis(range=[-1 - grid.numbers, grid.columns]),
            yaxis=bare_axis(range=[grid.rows, 0]),
        ),
    }


# ---------------------------------------------------------------- traces


def _ground(view: EngineView, grid: Grid, look: Look, tracks: dict[str, RequestTrack]) -> go.Heatmap:
    """What lies under the fills, and the hover of every cell."""
    code = {"free": 0, "cached": 1, "used": 2}
    z: list[list[int | None]] = [[None] * grid.columns for _ in range(grid.rows)]
    text = [[""] * grid.columns for _ in range(grid.rows)]
    for cell in view.blocks[1:]:
        row, column = divmod(cell.block_id - 1, grid.columns)
        z[row][column] = code[cell.state]
        text[row][column] = describe(cell, view, tracks)
    gap = 3 if grid.cell_px >= 12 else 1.5
    return go.Heatmap(
        z=z,
        x0=0.5,
        y0=0.5,
        dx=1,
        dy=1,
        zmin=0,
        zmax=2,
        colorscale=[[0, look.cell_free], [0.5, look.cell_cached], [1, look.cell_used]],
        showscale=False,
        xgap=gap,
        ygap=gap,
        text=text,
        hovertemplate="%{text}<extra></extra>",
    )


def _kept(view: EngineView, grid: Grid, look: Look, show_letters: bool) -> go.Scatter:
    """Cells too small for a ``#`` are dotted instead: never by colour alone."""
    cells = [] if show_letters else [cell for cell in view.blocks if cell.state == "cached"]
    boxes = [grid.box(cell.block_id) for cell in cells]
    return _polygons(
        boxes, look.cell_cached, pattern=".", pattern_color=readable_on(look.cell_cached), solidity=0.22
    )


def _fills(view: EngineView, grid: Grid, tracks: dict[str, RequestTrack]) -> list[go.Scatter]:
    """One trace a colour slot, so that their number never changes."""
    boxes: list[list[tuple[float, float, float, float]]] = [[] for _ in range(NUM_SLOTS)]
    for cell in view.blocks:
        owners = [owner.request_id for owner in cell.owners if owner.request_id in tracks][:MAX_STRIPS]
        if not owners or not cell.tokens:
            continue
        left, top, right, bottom = grid.box(cell.block_id)
        top = bottom - (bottom - top) * cell.tokens / view.info.block_size
        strip = (right - left) / len(owners)
        for i, request_id in enumerate(owners):
            slot = color_slot(tracks[request_id].arrival)
            boxes[slot].append((left + i * strip, top, left + (i + 1) * strip, bottom))
    traces = []
    for slot in range(NUM_SLOTS):
        color = slot_color(slot)
        traces.append(_polygons(boxes[slot], color.fill, color.pattern, color.pattern_color))
    return traces


def _outlines(view: EngineView, grid: Grid, look: Look) -> go.Scatter:
    x, y = _paths([grid.box(cell.block_id) for cell in view.blocks if cell.is_written])
    width = 2 if grid.cell_px >= 12 else 1.25
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": look.outline, "width": width, "shape": "linear"},
        hoverinfo="skip",
    )


def _letters(
    view: EngineView, grid: Grid, look: Look, tracks: dict[str, RequestTrack], show_letters: bool
) -> go.Scatter:
    x: list[float] = []
    y: list[float] = []
    text: list[str] = []
    colors: list[str] = []
    on_free = look.text
    for cell in view.blocks[1:] if show_letters else ():
        owners = [tracks[o.request_id] for o in cell.owners if o.request_id in tracks]
        if not owners and cell.state != "cached":
            continue
        left, top, right, bottom = grid.box(cell.block_id)
        x.append((left + right) / 2)
        y.append((top + bottom) / 2)
        if len(owners) > 1:
            x.pop()
            y.pop()
            continue  # _counts
        if not owners:
            text.append("#")
            colors.append(readable_on(look.cell_cached))
            continue
        text.append(owners[0].label)
        # The letter sits in the middle: on the colour once half the slots are filled, on the ground before.
        is_covered = cell.tokens * 2 > view.info.block_size
        colors.append(slot_color(color_slot(owners[0].arrival)).text if is_covered else on_free)
    font = max(9, min(14, round(grid.cell_px * 0.46)))
    return go.Scatter(
        x=x,
        y=y,
        text=text,
        mode="text",
        textfont={"family": MONO, "size": font, "color": colors or look.text},
        hoverinfo="skip",
    )


def _counts(view: EngineView, grid: Grid, look: Look, show_letters: bool) -> go.Scatter:
    """How many share a block, on a disc of its own: letters on stripes of several colours cannot be read."""
    cells = [cell for cell in view.blocks if len(cell.owners) > 1] if show_letters else []
    boxes = [grid.box(cell.block_id) for cell in cells]
    return go.Scatter(
        x=[(left + right) / 2 for left, _, right, _ in boxes],
        y=[(top + bottom) / 2 for _, top, _, bottom in boxes],
        text=[str(len(cell.owners)) for cell in cells],
        mode="markers+text",
        marker={"symbol": "circle", "size": max(11, min(18, round(grid.cell_px * 0.62))), "color": look.card},
        textfont={"family": MONO, "size": max(9, min(13, round(grid.cell_px * 0.42))), "color": look.text},
        hoverinfo="skip",
    )


def _null(look: Look, grid: Grid) -> list[go.Scatter]:
    """Block 0, apart from the pool."""
    left = -1 - grid.numbers
    x, y = _paths([(left + grid.pad_x, grid.pad_y, left + 1 - grid.pad_x, 1 - grid.pad_y)])
    frame = go.Scatter(
        x=x, y=y, mode="lines", line={"color": look.muted, "width": 1, "dash": "dot"}, hoverinfo="skip"
    )
    sign = go.Scatter(
        x=[left + 0.5],
        y=[0.5],
        text=["∅"],
        mode="text",
        textfont={"family": MONO, "size": max(9, min(15, round(grid.cell_px * 0.5))), "color": look.muted},
        hovertemplate="<b>null block</b><br>Holds no token. It stands in a table where blocks fell out of<br>"
        "a sliding window, and pads short tables.<extra></extra>",
    )
    return [frame, sign]


def _row_numbers(grid: Grid, size: Size, look: Look) -> go.Scatter:
    """The id of the first block of a row, as often as there is room."""
    every = max(1, math.ceil(grid.rows * 16 / max(size.height, 60)))
    rows = range(0, grid.rows, every)
    return go.Scatter(
        x=[-6 / _NUMBERS_PX * grid.numbers for _ in rows],
        y=[row + 0.5 for row in rows],
        text=[str(row * grid.columns + 1) for row in rows],
        mode="text",
        textposition="middle left",
        textfont={"family": MONO, "size": 11, "color": look.muted},
        hoverinfo="skip",
    )


def _polygons(
    boxes: Sequence[tuple[float, float, float, float]],
    fill: str,
    pattern: str = "",
    pattern_color: str = PAPER,
    solidity: float = 0.28,
) -> go.Scatter:
    x, y = _paths(boxes)
    style: dict = {"fillcolor": fill}
    if pattern:
        style = {
            "fillcolor": fill,
            "fillpattern": {
                "shape": pattern,
                "bgcolor": fill,
                "fgcolor": pattern_color,
                "size": 6,
                "solidity": solidity,
            },
        }
    return go.Scatter(
        x=x, y=y, mode="lines", line={"width": 0, "color": fill}, fill="toself", hoverinfo="skip", **style
    )


def _paths(
    boxes: Sequence[tuple[float, float, float, float]],
) -> tuple[list[float | None], list[float | None]]:
    """Closed rectangles in one path, parted by None."""
    x: list[float | None] = []
    y: list[float | None] = []
    for left, top, right, bottom in boxes:
        x += [round(v, 4) for v in (left, right, right, left, left)]
        y += [round(v, 4) for v in (top, top, bottom, bottom, top)]
        x.append(None)
        y.append(None)
    return x, y


# ---------------------------------------------------------------- words


def describe(cell: BlockCell, view: EngineView, tracks: dict[str, RequestTrack]) -> str:
    """The hover of one cell. Ids and counts only: nothing in it is anybody's text."""
    head = f"<b>block {cell.block_id}</b>"
    if cell.state == "free" and not cell.is_written:
        return f"{head} · free"
    lines = []
    if cell.state == "used":
        letters = sorted({tracks[o.request_id].label for o in cell.owners if o.request_id in tracks})
        shared = f", shared by {cell.ref_count}" if cell.ref_count > 1 else ""
        lines.append(f"{head} · in use by {', '.join(letters) or 'a request'}{shared}")
        places = sorted({(o.group, o.logical_index) for o in cell.owners})
        for group, index in places[:3]:
            in_group = f" of group {group}{_window(view, group)}" if len(view.info.groups) > 1 else ""
            lines.append(f"block {index} of its table{in_group}, tokens {_tokens(view, index)}")
    elif cell.state == "cached":
        lines.append(f"{head} · kept for reuse, can be evicted")
    else:
        lines.append(f"{head} · free")
    lines.append(f"{cell.tokens} of {view.info.block_size} slots filled · {cell.ref_count} references")
    if cell.hashes:
        lines.append("hash " + ", ".join(_short_hash(key) for key in cell.hashes[:3]))
    if cell.is_written:
        lines.append("written by the newest step")
    return "<br>".join(lines)


def _tokens(view: EngineView, index: int) -> str:
    start = index * view.info.block_size
    return f"{start}–{start + view.info.block_size - 1}"


def _window(view: EngineView, group: int) -> str:
    window = view.info.groups[group].window
    return f" (window {window})" if window else " (sees all)"


def _short_hash(key: str) -> str:
    return key.partition(":")[2][:8]
