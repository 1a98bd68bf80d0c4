"""The prefix cache as a tree that fits a chart: runs of like blocks joined, branches side by side, the rest counted.

Left to right is depth: a block lies right of the block before it in its prompts. Below each other are the ways in which
prompts went on. Nothing here knows colours or pixels, except how many rows and columns there is room for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from ui.view import PrefixNode


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A run of blocks one after the other that are alike: same holders, same hits; nothing branches off inside."""

    nodes: tuple[PrefixNode, ...]
    top: float
    """In rows, from the top of its group."""
    bottom: float
    is_orphan: bool = False
    """The block before it has been evicted: it can no longer be found, unless that one is computed again."""

    @property
    def first(self) -> PrefixNode:
        return self.nodes[0]

    @property
    def start(self) -> int:
        """Depth of its first block."""
        return self.nodes[0].depth

    @property
    def stop(self) -> int:
        return self.nodes[0].depth + len(self.nodes)


@dataclass(frozen=True, slots=True)
class GroupTree:
    """The chains of one cache group, ``num_rows`` high."""

    group: int
    pieces: tuple[Piece, ...]
    num_rows: int
    num_left_out: int
    """Blocks for which there was no row."""


@dataclass(frozen=True, slots=True)
class DepthScale:
    """Depth to columns, the same for all chains. Stretches in which nothing begins or ends are shortened to ``cap``."""

    bounds: tuple[int, ...]
    """Depths at which something begins or ends, ascending, from 0."""
    places: tuple[float, ...]
    """Their columns."""
    cap: int

    def column(self, depth: int) -> float:
        i = min(max(bisect_right(self.bounds, depth) - 1, 0), len(self.bounds) - 2)
        low, high = self.bounds[i], self.bounds[i + 1]
        return self.places[i] + (self.places[i + 1] - self.places[i]) * (depth - low) / (high - low)

    def is_shortened(self, depth: int) -> bool:
        """Whether the block at ``depth`` has less than a column."""
        i = min(bisect_right(self.bounds, depth) - 1, len(self.bounds) - 2)
        return self.bounds[i + 1] - self.bounds[i] > self.cap

    def shortens(self, start: int, stop: int) -> bool:
        """Whether any block from ``start`` to ``stop`` - 1 has less than a column."""
        i = min(bisect_right(self.bounds, start) - 1, len(self.bounds) - 2)
        while i < len(self.bounds) - 1 and self.bounds[i] < stop:
            if self.bounds[i + 1] - self.bounds[i] > self.cap:
                return True
            i += 1
        return False

    @property
    def num_columns(self) -> float:
        return self.places[-1]

    @property
    def is_plain(self) -> bool:
        """Nothing is shortened: a column a depth."""
        return self.places[-1] == self.bounds[-1]


def lay_out(nodes: Sequence[PrefixNode], group: int, most_rows: int, first: Iterable[str] = ()) -> GroupTree:
    """The tree of one group in at most ``most_rows`` rows.

    A row is a leaf. Where there are more, those held by the requests in ``first`` stay, then those held at all, then
    the most often found, then the newest; all in the order in which they were first cached, so that they keep their
    place. ``nodes`` have parents before children.
    """
    nodes = [node for node in nodes if node.group == group]
    wanted = frozenset(first)
    by_key = {node.key: node for node in nodes}
    num_children = dict.fromkeys(by_key, 0)
    for node in nodes:
        if node.parent in num_children:
            num_children[node.parent] += 1

    leaves = [node for node in nodes if not num_children[node.key]]
    if len(leaves) > most_rows:
        order = {node.key: i for i, node in enumerate(nodes)}
        ranked = sorted(
            leaves,
            key=lambda leaf: (*_worth(leaf, by_key, num_children, wanted), order[leaf.key]),
            reverse=True,
        )
        kept = {leaf.key for leaf in ranked[:most_rows]}
        shown: set[str] = set()
        for leaf in leaves:
            key = leaf.key if leaf.key in kept else ""
            while key in by_key and key not in shown:
                shown.add(key)
                key = by_key[key].parent
        num_left_out = len(nodes) - len(shown)
        nodes = [node for node in nodes if node.key in shown]
    else:
        num_left_out = 0
    pieces, num_rows = _place(nodes)
    return GroupTree(group, tuple(pieces), num_rows, num_left_out)


def _worth(
    leaf: PrefixNode, by_key: dict[str, PrefixNode], num_children: dict[str, int], wanted: frozenset[str]
) -> tuple[bool, bool, int]:
    """(a wanted request holds it, somebody holds it, hits) of the blocks that only this leaf's row would show."""
    is_wanted, is_held, hits = False, False, 0
    node: PrefixNode | None = leaf
    while node is not None and num_children[node.key] <= 1:
        is_wanted = is_wanted or not wanted.isdisjoint(node.owners)
        is_held = is_held or bool(node.owners)
        hits = max(hits, node.num_hits)
        node = by_key.get(node.parent)
    return is_wanted, is_held, hits


def _place(nodes: Sequence[PrefixNode]) -> tuple[list[Piece], int]:
    """Join like blocks to pieces and give each the rows of its leaves. No recursion: chains are long."""
    children: dict[str, list[PrefixNode]] = {}
    keys = {node.key for node in nodes}
    for node in nodes:
        children.setdefault(node.parent if node.parent in keys else "", []).append(node)

    pieces: list[Piece] = []
    rows = 0.0
    # (run of nodes, is orphan) to visit, and, after its branches, (run, orphan, first row): then its height is known.
    stack: list[tuple[tuple[PrefixNode, ...], bool, float | None]] = [
        (_run(node, children), bool(node.parent), None) for node in reversed(children.get("", []))
    ]
    while stack:
        run, is_orphan, top = stack.pop()
        branches = children.get(run[-1].key, [])
        if top is None and branches:
            stack.append((run, is_orphan, rows))
            stack += [(_run(node, children), False, None) for node in reversed(branches)]
            continue
        if top is None:
            top = rows
            rows += 1
        pieces.append(Piece(run, top, rows, is_orphan))
    return sorted(pieces, key=lambda piece: (piece.top, piece.start)), int(rows)


def _run(node: PrefixNode, children: dict[str, list[PrefixNode]]) -> tuple[PrefixNode, ...]:
    """``node`` and those after it, as long as there is one way on and it is alike."""
    run = [node]
    while len(after := children.get(node.key, [])) == 1 and _is_alike(node, after[0]):
        node = after[0]
        run.append(node)
    return tuple(run)


def _is_alike(one: PrefixNode, other: PrefixNode) -> bool:
    return (
        one.owners == other.owners
        and one.num_hits == other.num_hits
        and one.is_evictable == other.is_evictable
        and other.depth == one.depth + 1
    )


def depth_scale(pieces: Iterable[Piece], most_columns: int) -> DepthScale:
    """One column a depth if there is room; else what is long and uniform is shortened, as little as needed."""
    bounds = {0}
    for piece in pieces:
        bounds.update((piece.start, piece.stop))
    ordered = tuple(sorted(bounds)) if len(bounds) > 1 else (0, 1)
    gaps = [high - low for low, high in pairwise(ordered)]
    cap = max(gaps)
    while cap > 1 and sum(min(gap, cap) for gap in gaps) > most_columns:
        cap -= 1
    places = [0.0]
    for gap in gaps:
        places.append(places[-1] + min(gap, cap))
    return DepthScale(ordered, tuple(places), cap)


def share_rows(wanted: Sequence[int], room: int) -> list[int]:
    """Rows for each group: what it wants, as far as there is room; what one leaves over goes to the others."""
    shares = [0] * len(wanted)
    left = max(room, len(wanted))
    open_groups = [i for i, want in enumerate(wanted) if want]
    while open_groups and left > 0:
        each = max(left // len(open_groups), 1)
        for i in list(open_groups):
            given = min(each, wanted[i] - shares[i], left)
            shares[i] += given
            left -= given
            if shares[i] == wanted[i]:
                open_groups.remove(i)
    return shares


def count_leaves(nodes: Sequence[PrefixNode], group: int) -> int:
    parents = {node.parent for node in nodes}
    return sum(node.group == group and node.key not in parents for node in nodes)
