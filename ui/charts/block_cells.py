"""What the KV block map shows of every cell: ground, fill, letter, and that it was just written."""

from __future__ import annotations

from typing import Any

from ui.charts.block_grid import Box, Grid
from ui.charts.block_scene import MAX_STRIPS, OWN_SHARE, Scene, Trace, outlines, sign_heights
from ui.charts.block_words import describe
from ui.charts.marks import INVISIBLE, rectangles, texts
from ui.charts.palette import PAPER, PATTERNS, mix, readable_on

_CODES = {"free": 0, "cached": 1, "used": 2}


def cell_traces(scene: Scene) -> list[Trace]:
    """All that lies on the ground. Nobody points at it: the hover of a cell is the ground's."""
    return [
        _kept(scene),
        *_fills(scene),
        _written(scene),
        _letters(scene),
        _counts(scene),
    ]


def ground(scene: Scene) -> Trace:
    """What lies under the fills; hover and click of every cell."""
    view, grid, look, followed = scene.view, scene.grid, scene.look, scene.followed
    cells = view.blocks[1:]
    z: list[Any] = [_CODES[cell.state] for cell in cells]
    text: list[Any] = [describe(cell, view, scene.labels) for cell in cells]
    ids: list[Any] = [cell.owners[0].request_id if cell.owners else "" for cell in cells]
    for block_id, entry in scene.own.items():
        assert followed is not None
        i = block_id - 1
        z[i] += 3 if entry.is_its_own else 0
        text[i] = describe(cells[i], view, scene.labels, followed)
        if entry.fate == "held" or not ids[i]:
            ids[i] = followed.track.request_id
    colors = (look.cell_free, look.cell_cached, look.cell_used)
    faded = [mix(color, look.card, 0.5) for color in colors] if followed else colors
    gap = 3 if grid.cell_px >= 12 else 1.5
    return {
        "type": "heatmap",
        "z": _by_row(z, grid, None),
        "x0": 0.5,
        "y0": 0.5,
        "dx": 1,
        "dy": 1,
        "zmin": 0,
        "zmax": 5,
        "colorscale": [[i / 5, color] for i, color in enumerate((*faded, *colors))],
        "showscale": False,
        "xgap": gap,
        "ygap": gap,
        "text": _by_row(text, grid, ""),
        "customdata": _by_row(ids, grid, ""),
        "hovertemplate": "%{text}<extra></extra>",
    }


def _by_row(values: list[Any], grid: Grid, empty: Any) -> list[list[Any]]:
    values += [empty] * (grid.columns * grid.rows - len(values))
    return [values[i : i + grid.columns] for i in range(0, len(values), grid.columns)]


def _kept(scene: Scene) -> Trace:
    """Cells kept for reuse are dotted: never by colour alone. Others' heights are None."""
    grid, look = scene.grid, scene.look
    color = mix(look.cell_cached, look.card, 0.5) if scene.followed else look.cell_cached
    x: list[float | None] = []
    y: list[float | None] = []
    for i, cell in enumerate(scene.view.blocks[1:]):
        row, column = divmod(i, grid.columns)
        left, right = grid.lefts[column], grid.rights[column]
        x += (left, right, right, left, None)
        if cell.state == "cached":
            top, bottom = grid.tops[row], grid.bottoms[row]
            y += (top, top, bottom, bottom, None)
        else:
            y += (None, None, None, None, None)
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "none",
        "fill": "toself",
        "fillcolor": color,
        "fillpattern": {
            "shape": ".",
            "bgcolor": color,
            "fgcolor": mix(readable_on(color), color, 0.7 if scene.followed else 0.4),
            "size": 5,
            "solidity": 0.15,
        },
        "hoverinfo": "skip",
    }


def _fills(scene: Scene) -> list[Trace]:
    """One bar a cell that somebody owns, as high as it is full; shared cells are the second trace's narrower ones.

    Cells that nobody owns have none: Plotly draws a bar of no height as slowly as any other. Where no letter
    tells the tints of a hue apart, their patterns do, each a trace: bars cannot have several.
    """
    view, grid, colors, followed = scene.view, scene.grid, scene.colors, scene.followed
    block_size = view.info.block_size
    width = round(1 - 2 * grid.pad_x, 3)
    heights_of = [-round(n * (1 - 2 * grid.pad_y) / block_size, 3) for n in range(block_size + 1)]
    own, has_letters = scene.own, scene.has_letters
    x: list[float] = []
    base: list[float] = []
    heights: list[float] = []
    paint: list[str] = []
    strips: list[tuple[float, float, float, float, str]] = []
    patterned: dict[str, list[Box]] = {pattern: [] for pattern in PATTERNS if pattern}
    for i, cell in enumerate(view.blocks[1:]):
        owners = [o.request_id for o in cell.owners if o.request_id in colors] if cell.tokens else ()
        if not owners:
            continue
        row, column = divmod(i, grid.columns)
        bottom = grid.bottoms[row]
        height = heights_of[cell.tokens]
        if len(owners) == 1:
            x.append(column + 0.5)
            base.append(bottom)
            heights.append(height)
            color = colors[owners[0]]
            paint.append(color.fill)
            if color.pattern and not has_letters:
                patterned[color.pattern].append(
                    (grid.lefts[column], round(bottom + height, 3), grid.rights[column], bottom)
                )
            continue
        first = followed.track.request_id if followed and cell.block_id in own else None
        left = grid.lefts[column]
        for name, share in _shares(owners, first):
            part = round(width * share, 3)
            strips.append((round(left + part / 2, 3), bottom, height, part, colors[name].fill))
            left += part
    fills = _bars(x, base, heights, width, paint)
    shared = _bars(*([strip[k] for strip in strips] for k in range(5)))  # type: ignore[arg-type]
    return [
        fills,
        shared,
        *(_texture(pattern, boxes, 0.2 if followed else 0.6) for pattern, boxes in patterned.items()),
    ]


def _texture(pattern: str, boxes: list[Box], opacity: float) -> Trace:
    x, y = rectangles(boxes)
    return {
        "type": "scatter",
        "x": x,
        "y": y,
        "mode": "none",
        "fill": "toself",
        "fillpattern": {
            "shape": pattern,
            "bgcolor": INVISIBLE,
            "fgcolor": PAPER,
            "fgopacity": opacity,
            "size": 4,
        },
        "hoverinfo": "skip",
    }


def _shares(owners: list[str], first: str | None) -> list[tuple[str, float]]:
    """Who gets how much of a shared cell's width."""
    if first is None or first not in owners:
        owners = owners[:MAX_STRIPS]
        return [(name, 1 / len(owners)) for name in owners]
    others = [name for name in owners if name != first][: MAX_STRIPS - 1]
    return [(first, OWN_SHARE), *((name, (1 - OWN_SHARE) / len(others)) for name in others)]


def _bars(
    x: list[float],
    base: list[float],
    heights: list[float],
    width: float | list[float],
    paint: list[str],
) -> Trace:
    return {
        "type": "bar",
        "x": x,
        "y": heights,
        "base": base,
        "width": width,
        "marker": {
            "color": paint,
            "line": {"width": 0},
        },
        "hoverinfo": "skip",
    }


def _written(scene: Scene) -> Trace:
    grid, look = scene.grid, scene.look
    cells = [cell.block_id for cell in scene.view.blocks if cell.is_written]
    width = 2.0 if grid.cell_px >= 12 else 1.25
    color = look.outline
    if scene.followed is not None:
        color, width = mix(look.outline, look.card, 0.5), 1.0
    return outlines([grid.box(block) for block in cells], color, width)


def _letters(scene: Scene) -> Trace:
    """Of the cells with one owner. Text is what Plotly draws slowest: there is none where nothing is to be read."""
    view, grid, look, labels = scene.view, scene.grid, scene.look, scene.labels
    own = scene.own
    on_ground = look.muted if scene.followed else look.text
    block_size = view.info.block_size
    middles = sign_heights(grid, block_size)
    x: list[float] = []
    y: list[float] = []
    text: list[str] = []
    paint: list[str] = []
    for i, cell in enumerate(view.blocks[1:] if scene.has_letters else ()):
        # Several owners: _counts; blocks of the request that is followed: their index, in block_trail.
        if len(cell.owners) != 1 or cell.block_id in own or cell.owners[0].request_id not in labels:
            continue
        name = cell.owners[0].request_id
        row, column = divmod(i, grid.columns)
        x.append(column + 0.5)
        y.append(row + middles[cell.tokens])
        text.append(labels[name])
        paint.append(scene.colors[name].text if 2 * cell.tokens > block_size else on_ground)
    return texts(x, y, text, paint or look.text, grid.font(2, 14))


def _counts(scene: Scene) -> Trace:
    """How many share a block, on a disc of its own: letters on stripes of several colours cannot be read."""
    view, grid, look = scene.view, scene.grid, scene.look
    own = scene.own
    cells = (
        [c for c in view.blocks if len(c.owners) > 1 and c.block_id not in own] if scene.has_letters else []
    )
    centers = [_center(grid.box(cell.block_id)) for cell in cells]
    signs = texts(
        [x for x, _ in centers],
        [y for _, y in centers],
        [str(len(cell.owners)) for cell in cells],
        look.muted if scene.followed else look.text,
        grid.font(2, 13),
    )
    disc = {"symbol": "circle", "size": max(11, min(18, round(grid.cell_px * 0.62))), "color": look.card}
    return {**signs, "mode": "markers+text", "marker": disc}


def _center(box: Box) -> tuple[float, float]:
    left, top, right, bottom = box
    return round((left + right) / 2, 3), round((top + bottom) / 2, 3)
