"""The prefix cache as a tree of contents: who computed each, how often it was found, who holds it now."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

from micro_vllm.trace import BlockCached, Fold
from ui.story.pool import PoolMap
from ui.view import PrefixNode


class _Content(NamedTuple):
    """What is known of one content beside the blocks that hold it. Immutable: copies of the tree share it."""

    parent: str
    depth: int
    first_arrival: int | None
    num_hits: int = 0
    last_hit_step: int | None = None


class PrefixTree:
    """A content lives from its first BlockCached until the last block that holds it is evicted."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}
        self._stale: set[str] = set()
        self._nodes: dict[str, PrefixNode] = {}
        self._order: list[str] | None = None
        self._drawn: tuple[PrefixNode, ...] | None = None

    def copy(self) -> PrefixTree:
        """Goes its own way; what was drawn already is not copied."""
        other = copy.copy(self)
        other._contents = dict(self._contents)
        other._stale, other._nodes, other._order, other._drawn = set(), {}, None, None
        return other

    def restore(self, fold: Fold) -> None:
        """The contents of a Snapshot. It does not say who computed them or how often they were found."""
        depths: dict[str, int] = {}
        keys_of: dict[int, list[str]] = {}
        for key, blocks in fold.hash_table.items():
            for block in blocks:
                keys_of.setdefault(block, []).append(key)
        for request in fold.requests.values():
            for table in request.tables:
                for index, block in enumerate(table):
                    depths.update(dict.fromkeys(keys_of.get(block, ()), index))
        parents = {key: _key(key.partition(":")[0], fold.parents[key]) for key in fold.hash_table}
        for key in _parents_first(parents):
            if key not in depths:
                depths[key] = depths.get(parents[key], -1) + 1
        self._contents = {key: _Content(parents[key], depths[key], None) for key in parents}

    # ------------------------------------------------------------ what happens to a content

    def cached(self, event: BlockCached, arrival: int | None) -> str:
        """A block holds it. Returns its key."""
        key = _key(str(event.group), event.hash)
        if key not in self._contents:
            parent = _key(str(event.group), event.parent)
            self._contents[key] = _Content(parent, event.logical_index, arrival)
            self._order = None
        self._touch(key)
        return key

    def hit(self, keys: tuple[str, ...], step: int) -> None:
        """A request found a block that holds it."""
        for key in keys:
            content = self._contents[key]
            self._contents[key] = content._replace(num_hits=content.num_hits + 1, last_hit_step=step)
            self._touch(key)

    def evicted(self, key: str, fold: Fold) -> None:
        """One block less holds it."""
        if key not in fold.hash_table:
            del self._contents[key]
            self._nodes.pop(key, None)
            self._order = None
        self._touch(key)

    def _touch(self, key: str) -> None:
        self._stale.add(key)
        self._drawn = None

    # ------------------------------------------------------------ drawing

    def nodes(self, fold: Fold, pool: PoolMap) -> tuple[PrefixNode, ...]:
        """Parents before children. Only nodes that changed since the last time are made anew."""
        if pool.touched_keys:
            self._stale |= pool.touched_keys
            pool.touched_keys.clear()
            self._drawn = None
        if self._drawn is None:
            nodes, contents = self._nodes, self._contents
            for key in self._stale & contents.keys() if nodes else contents:
                nodes[key] = _node(key, contents[key], fold.hash_table[key], pool)
            self._stale.clear()
            if self._order is None:
                self._order = _parents_first({key: content.parent for key, content in contents.items()})
            self._drawn = tuple([nodes[key] for key in self._order])
        return self._drawn


def _node(key: str, content: _Content, blocks: tuple[int, ...], pool: PoolMap) -> PrefixNode:
    owners = dict.fromkeys(owner.request_id for block in blocks for owner in pool.owners[block])
    return PrefixNode(
        key=key,
        parent=content.parent,
        group=int(key.partition(":")[0]),
        depth=content.depth,
        block_ids=blocks,
        num_hits=content.num_hits,
        last_hit_step=content.last_hit_step,
        owners=tuple(owners),
        first_arrival=content.first_arrival,
        is_evictable=not owners,
    )


def _key(group: str, content_hash: str) -> str:
    return f"{group}:{content_hash}" if content_hash else ""


def _parents_first(parents: Mapping[str, str]) -> list[str]:
    """All keys in their order, except that a parent that came after its child (evicted, then cached again) moves
    ahead of it."""
    order: list[str] = []
    placed: set[str] = set()
    for key in parents:
        chain = []
        while key in parents and key not in placed:
            placed.add(key)
            chain.append(key)
            key = parents[key]
        order.extend(reversed(chain))
    return order
