"""What the KV block map shows of the request that is followed: its block table, and the slot of one token."""

from __future__ import annotations

from typing import Any

from ui.charts.block_grid import Box
from ui.charts.block_scene import OWN_SHARE, Scene, Trace, outlines, sign_heights
from ui.charts.block_words import token_words
from ui.charts.marks import lines, texts
from ui.charts.palette import readable_on, request_color
from ui.charts.theme import SANS


def trail_traces(scene: Scene) -> list[Trace]:
    """As many as ever, also if nothing is followed."""
    return [*_frames(scene), _indices(scene), *_token(scene)]


def _frames(scene: Scene) -> list[Trace]:
    """Whole round what the request still has (dashes: another group than 0), dotted round what it has no more."""
    grid, look = scene.grid, scene.look
    kinds: tuple[list[Box], list[Box], list[Box]] = ([], [], [])
    width = 2.5 if grid.cell_px >= 18 else 2
    for block, entry in scene.own.items():
        kind = 2 if not entry.is_its_own else 1 if entry.group else 0
        kinds[kind].append(grid.inset(block, width / 4))
    return [
        outlines(kinds[0], look.outline, width),
        outlines(kinds[1], look.outline, width, f"{grid.cell_px / 3:.0f}px,{grid.cell_px / 6:.0f}px"),
        outlines(kinds[2], look.muted, 1.5, "dot"),
    ]


def _indices(scene: Scene) -> Trace:
    """Logical indices; with several groups also the group, where the cells have room for it."""
    view, grid, look, followed = scene.view, scene.grid, scene.look, scene.followed
    x: list[float] = []
    y: list[float] = []
    text: list[str] = []
    paint: list[str] = []
    sizes: list[float] = []
    middles = sign_heights(grid, view.info.block_size)
    entries = scene.own
    signs = {block: str(entry.logical_index) for block, entry in entries.items()}
    if len(view.info.groups) > 1:
        grouped = {block: f"g{entry.group}·{entry.logical_index}" for block, entry in entries.items()}
        if grid.fits(max(map(len, grouped.values()), default=0), 8.5):
            signs = grouped
    for block, sign in signs.items() if grid.fits(max(map(len, signs.values()), default=0), 8.5) else ():
        assert followed is not None
        cell, entry = view.blocks[block], entries[block]
        row, column = divmod(block - 1, grid.columns)
        middle = middles[cell.tokens] if entry.fate == "held" else 0.5
        if block in followed.token_blocks:  # the bar needs the middle
            if grid.cell_px < 26:
                continue
            middle = 0.24 if followed.slot * 2 < view.info.block_size else 0.76
        share = OWN_SHARE if entry.fate == "held" and len(cell.owners) > 1 and cell.tokens else 1
        x.append(round(column + 0.5 * share + grid.pad_x * (1 - share), 3))
        y.append(row + middle)
        is_covered = entry.fate == "held" and cell.tokens > view.info.block_size * (1 - middle)
        marked = {"given": f"<s>{sign}</s>", "lost": f"<s>{sign}</s>", "unclear": f"{sign}?"}
        text.append(marked.get(entry.fate, f"<b>{sign}</b>"))
        color = request_color(followed.track.arrival).text if is_covered else look.text
        paint.append(readable_on(look.cell_cached) if cell.state == "cached" else color)
        sizes.append(grid.font(len(sign), 14, share))
    return texts(x, y, text, paint or look.text, sizes or 9)


def _token(scene: Scene) -> list[Trace]:
    """A bar at the height of the slot, wider than the cell, on a lighter one that parts it from the fill."""
    view, grid, look, followed = scene.view, scene.grid, scene.look, scene.followed
    x: list[float | None] = []
    y: list[float | None] = []
    for block in followed.token_blocks if followed else ():
        assert followed is not None
        left, top, right, bottom = grid.box(block)
        at = bottom - (bottom - top) * (followed.slot + 0.5) / view.info.block_size
        over = min(4 / grid.cell_width, 0.3)
        x += [round(left - over, 3), round(right + over, 3), None]
        y += [round(at, 3), round(at, 3), None]
    thick = 3 if grid.cell_px >= 12 else 2
    dash = "solid" if followed is None or followed.is_computed else "2px,2px"
    return [
        lines(x, y, color, width, line)
        for color, width, line in ((look.card, thick + 3, "solid"), (look.danger, thick, dash))
    ]


def notes(scene: Scene) -> list[dict[str, Any]]:
    """Words for a token, beside its block; and for a request that has nothing to show."""
    grid, look, followed = scene.grid, scene.look, scene.followed
    if followed is None:
        return []
    note = {
        "showarrow": False,
        "font": {"family": SANS, "size": 11.5, "color": look.text},
        "bgcolor": look.card,
        "bordercolor": look.muted,
        "borderpad": 3,
    }
    if not followed.blocks:
        why = (
            "has given its blocks back" if followed.track.status == "done" else "holds no block now: it waits"
        )
        text = f"<b>{followed.track.label}</b> {why}"
        return [{**note, "text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}]
    if not followed.token_blocks:
        return []
    block = followed.token_blocks[0]
    row, column = divmod(block - 1, grid.columns)
    share = column / grid.columns
    is_low = row * 2 >= grid.rows
    return [
        {
            **note,
            "text": token_words(block, followed),
            "x": column + (0 if share < 0.34 else 1 if share > 0.66 else 0.5),
            "xanchor": "left" if share < 0.34 else "right" if share > 0.66 else "center",
            "y": row if is_low else row + 1,
            "yanchor": "bottom" if is_low else "top",
            "yshift": 4 if is_low else -4,
        }
    ]
