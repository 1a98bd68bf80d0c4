"""Which blocks of the map belong to the request that a viewer follows, and to the one token they point at.

The table of a live request is what its blocks say. A finished one has given its blocks back: its last table is
remembered, and each block of it is judged by what the prefix cache says of it now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ui.charts.focus import Focus
from ui.view import BlockCell, EngineView, PrefixNode, RequestTrack

Fate = Literal["held", "kept", "unclear", "given", "lost"]
"""held: the request holds it. Of a finished request: kept, it still has the request's tokens for whoever asks;
unclear, it may have; given, another request's tokens are in it; lost, it is free and nothing in it can be found."""


@dataclass(frozen=True, slots=True)
class FollowedBlock:
    """One entry of the table: ``logical_index`` of ``group`` is this block."""

    group: int
    logical_index: int
    fate: Fate

    @property
    def is_its_own(self) -> bool:
        return self.fate in ("held", "kept")


@dataclass(frozen=True, slots=True)
class Followed:
    """A request and its blocks, by block id."""

    track: RequestTrack
    blocks: Mapping[int, FollowedBlock] = field(default_factory=dict)
    position: int | None = None
    """The token pointed at, if it lies in one of the blocks."""
    token_blocks: tuple[int, ...] = ()
    """Where it lies: one block a group, without groups whose window it has left."""
    slot: int = 0

    @property
    def is_computed(self) -> bool:
        """Whether the token's keys and values were ever in its slot; those of the newest token never are."""
        if self.position is None:
            return False
        track = self.track
        newest = track.num_tokens - (1 if track.num_output_tokens else 0)
        return self.position < min(track.num_computed_tokens, newest)


def follow(view: EngineView, focus: Focus) -> Followed | None:
    """None if there is no such request in the window."""
    track = view.request(focus.request_id) if focus.request_id else None
    if track is None:
        return None
    blocks = _last_table(view, track) if track.status == "done" else _table(view, track)
    if focus.position is None or focus.position < 0:
        return Followed(track, blocks)
    index, slot = divmod(focus.position, view.info.block_size)
    at = tuple(block for block, entry in blocks.items() if entry.logical_index == index)
    return Followed(track, blocks, focus.position if at else None, at, slot)


def _table(view: EngineView, track: RequestTrack) -> dict[int, FollowedBlock]:
    return {
        cell.block_id: FollowedBlock(owner.group, owner.logical_index, "held")
        for cell in view.blocks
        for owner in cell.owners
        if owner.request_id == track.request_id
    }


def _last_table(view: EngineView, track: RequestTrack) -> dict[int, FollowedBlock]:
    nodes = {node.key: node for node in view.prefix}
    num_cached = track.num_cached_tokens // view.info.block_size
    return {
        block: FollowedBlock(
            group, index, _fate(view.blocks[block], track.arrival, group, index, index < num_cached, nodes)
        )
        for group, table in enumerate(track.tables)
        for index, block in enumerate(table)
        if 0 < block < len(view.blocks)
    }


def _fate(
    cell: BlockCell, arrival: int, group: int, index: int, was_hit: bool, nodes: Mapping[str, PrefixNode]
) -> Fate:
    """The view knows no hashes of the past, but who computed a content first, and where in its prompt it stands."""
    if not cell.hashes:
        return "lost" if cell.state == "free" else "given"
    fates: set[Fate] = set()
    for key in cell.hashes:
        node = nodes.get(key)
        if not key.startswith(f"{group}:"):
            fates.add("given")
        elif node is None or node.first_arrival is None:
            fates.add("unclear")
        elif node.depth != index or node.first_arrival > arrival:
            fates.add("given")
        elif node.first_arrival == arrival or was_hit:
            fates.add("kept")
        else:
            fates.add("unclear")
    order: tuple[Fate, ...] = ("kept", "unclear", "given")
    return next(fate for fate in order if fate in fates)
