"""What all traces of the KV block map are drawn from, and the two parts that most of them are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ui.charts.block_follow import Followed, FollowedBlock, follow
from ui.charts.block_grid import Box, Grid, lay_out
from ui.charts.focus import Focus
from ui.charts.marks import lines, rectangles
from ui.charts.palette import RequestColor, mix, request_color
from ui.charts.theme import Look, Size
from ui.view import EngineView

LABEL_MIN_PX = 14.5
"""Smallest cell, in pixels, that carries a letter."""
MAX_STRIPS = 4
"""Most owners a shared cell is split between; the hover names all."""
OWN_SHARE = 0.76
"""Of a shared cell of the request that is followed: the rest is the others'."""
_FADE = 0.78

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """One view, laid out for one size."""

    view: EngineView
    grid: Grid
    look: Look
    labels: Mapping[str, str]
    """Request id -> letter."""
    colors: Mapping[str, RequestColor]
    """Request id -> colour; faded for all but the followed one."""
    followed: Followed | None

    @property
    def has_letters(self) -> bool:
        return self.grid.cell_px >= LABEL_MIN_PX

    @property
    def own(self) -> Mapping[int, FollowedBlock]:
        """Blocks of the request that is followed."""
        return self.followed.blocks if self.followed else {}


def make_scene(view: EngineView, look: Look, size: Size, focus: Focus) -> Scene:
    followed = follow(view, focus)
    colors = {track.request_id: request_color(track.arrival) for track in view.requests}
    if followed is not None:
        own = followed.track.request_id
        colors = {k: color if k == own else _faded(color, look) for k, color in colors.items()}
    return Scene(
        view=view,
        grid=lay_out(view.info.num_blocks, size),
        look=look,
        labels={track.request_id: track.label for track in view.requests},
        colors=colors,
        followed=followed,
    )


def _faded(color: RequestColor, look: Look) -> RequestColor:
    fill = mix(color.fill, look.card, _FADE)
    return RequestColor(fill, color.pattern, mix(color.pattern_color, look.card, _FADE), look.muted)


def sign_heights(grid: Grid, block_size: int) -> list[float]:
    """By filled slots, where a letter stands, from the top of its cell: in the middle of the filled part once half
    the slots are filled, of the empty part before, as far as it stays inside. On the edge it could not be read."""
    least = min(0.5, (grid.font(2, 14) / 2 + 1.5) / grid.cell_height)
    empty = [1 - tokens / block_size for tokens in range(block_size + 1)]
    middles = [(1 + share) / 2 if share < 0.5 else share / 2 for share in empty]
    return [round(min(max(middle, least), 1 - least), 3) for middle in middles]


def outlines(boxes: list[Box], color: str, width: float, dash: str = "solid") -> Trace:
    return lines(*rectangles(boxes), color, width, dash)
