"""The KV block map: one cell a block, in the order of block ids, so that a block keeps its place.

A cell fills from below as its slots fill, in the colour and with the letter of the request that owns it. Free
cells are empty; cells kept for reuse are dotted; a shared block is split between its owners; what the newest step
wrote is outlined; the null block stands apart.

Following a request dims all others; its blocks are framed and carry their logical index instead of a letter. A
token that is pointed at is a bar at the height of its slot.

Arrays over all cells have one entry a block in a fixed order, so that a step changes a few entries and not the array;
those over the cells in use are short.
"""

from __future__ import annotations

import math

from ui.charts.block_cells import cell_traces, ground
from ui.charts.block_grid import NUMBERS_PX
from ui.charts.block_scene import Scene, Trace, make_scene, outlines
from ui.charts.block_trail import notes, trail_traces
from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import texts
from ui.charts.theme import LIGHT, Look, Size, bare_axis, base_layout
from ui.view import EngineView

TITLE = "KV block map"
NUMBER_PX = 22
"""Height that one row number has at least."""
CAPTION = (
    'A cell is a <abbr title="room for the keys and values of a fixed number of tokens; '
    'a cell fills from below as its slots do">block</abbr>: '
    '<abbr title="kept for reuse: free, but a later prompt with the same beginning takes it over; '
    'the longest unused is evicted first">dotted if kept</abbr>, '
    '<abbr title="several requests read the same block, because their prompts begin alike">split if shared</abbr>, '
    '<abbr title="written in the step on show">framed if written</abbr>. '
    '<abbr title="its blocks then show their place in its block table, from 0; all others fade">'
    "Click follows a request</abbr>."
)


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size()
    scene = make_scene(view, look, size, focus)
    grid = scene.grid
    return {
        "data": [
            ground(scene),
            *_null(scene),
            *cell_traces(scene),
            *trail_traces(scene),
            _row_numbers(scene, size),
        ],
        "layout": base_layout(
            look,
            margin={"l": 2, "r": 2, "t": 3, "b": 1},
            barmode="overlay",
            xaxis=bare_axis(range=[-1 - grid.numbers, grid.columns]),
            yaxis=bare_axis(range=[grid.rows, 0]),
            annotations=notes(scene),
        ),
    }


def _null(scene: Scene) -> list[Trace]:
    """Block 0, apart from the pool."""
    grid, look = scene.grid, scene.look
    left = -1 - grid.numbers
    box = (left + grid.pad_x, grid.pad_y, left + 1 - grid.pad_x, 1 - grid.pad_y)
    sign = texts([left + 0.5], [0.5], ["∅"], look.muted, max(9, min(15, round(grid.cell_px * 0.5))))
    del sign["hoverinfo"]
    sign["hovertemplate"] = (
        "<b>null block</b><br>Holds no token. It stands in a table<br>where blocks fell out of a sliding<br>"
        "window, and pads short tables.<extra></extra>"
    )
    return [sign, outlines([box], look.muted, 1, "dot")]


def _row_numbers(scene: Scene, size: Size) -> Trace:
    """The id of the first block of a row, as often as there is room."""
    grid = scene.grid
    every = max(1, math.ceil(grid.rows * NUMBER_PX / max(size.height, 60)))
    rows = range(0, grid.rows, every)
    numbers = texts(
        [round(-6 / NUMBERS_PX * grid.numbers, 3) for _ in rows],
        [row + 0.5 for row in rows],
        [str(row * grid.columns + 1) for row in rows],
        scene.look.muted,
        11,
    )
    # Of a large pool the rows are lower than their numbers: those of the first one stand out of the plot.
    return {**numbers, "textposition": "middle left"}
