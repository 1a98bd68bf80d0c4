"""The prefix cache as a tree of contents: who computed each, how often it was found, who holds it now."""

from __future__ import annotations

import copy

import msgspec

from micro_vllm.trace import BlockCached, Fold
from ui.story.pool import PoolMap
from ui.view import PrefixNode


class _Content(msgspec.Struct, frozen=True, gc=False):
    """What is known of one content beside the blocks that hold it. Immutable: copies of the tree share it."""

    group: int
    parent: str
    depth: int
    first_arrival: int | None
    num_hits: int = 0
    last_hit_step: int | None = None


class PrefixTree:
    """A content lives from its first BlockCached until the last block that holds it is evicted."""

    def __init__(self) -> None:
        self._contents: dict[str, _Content] = {}
        """Parents before children, else in the order in which they were first cached."""
        self._num_children: dict[str, int] = {}
        """By key of the parent, which may be evicted."""
        self._stale: set[str] = set()
        self._nodes: dict[str, PrefixNode] = {}
        self._drawn: tuple[PrefixNode, ...] | None = None

    def copy(self) -> PrefixTree:
        """Goes its own way; what was drawn already is not copied."""
        other = copy.copy(self)
        other._contents = dict(self._contents)
        other._num_children = dict(self._num_children)
        other._stale, other._nodes, other._drawn = set(), {}, None
        return other

    def restore(self, fold: Fold) -> None:
        """The contents of a Snapshot. It does not say who computed them or how often they were found."""
        for key in fold.hash_table:
            group = int(key.partition(":")[0])
            self._insert(key, _Content(group, _key(group, fold.parents[key]), 0, None))
        contents = _parents_first(self._contents)
        depths = _depths(contents, fold)
        self._contents = {k: msgspec.structs.replace(c, depth=depths[k]) for k, c in contents.items()}

    # ------------------------------------------------------------ what happens to a content

    def cached(self, event: BlockCached, arrival: int | None) -> str:
        """A block holds it. Returns its key."""
        key = _key(event.group, event.hash)
        if key not in self._contents:
            parent = _key(event.group, event.parent)
            self._insert(key, _Content(event.group, parent, event.logical_index, arrival))
            if key in self._num_children:  # evicted earlier than its children, and cached again
                self._contents = _parents_first(self._contents)
        self._stale.add(key)
        return key

    def hit(self, keys: tuple[str, ...], step: int) -> None:
        """A request found a block that holds it."""
        for key in keys:
            content = self._contents[key]
            num_hits = content.num_hits + 1
            self._contents[key] = msgspec.structs.replace(content, num_hits=num_hits, last_hit_step=step)
            self._stale.add(key)

    def evicted(self, key: str, fold: Fold) -> None:
        """One block less holds it."""
        if key not in fold.hash_table:
            parent = self._contents.pop(key).parent
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                del self._num_children[parent]
            self._nodes.pop(key, None)
        self._stale.add(key)

    def _insert(self, key: str, content: _Content) -> None:
        self._contents[key] = content
        self._num_children[content.parent] = self._num_children.get(content.parent, 0) + 1

    # ------------------------------------------------------------ drawing

    def draw(self, fold: Fold, pool: PoolMap) -> tuple[PrefixNode, ...]:
        """Parents before children. Only nodes that changed since the last time are made anew."""
        nodes, contents = self._nodes, self._contents
        if pool.touched_keys:
            self._stale |= pool.touched_keys
            pool.touched_keys.clear()
        if self._stale or self._drawn is None:
            for key in self._stale & contents.keys() if self._drawn is not None else contents:
                nodes[key] = _node(key, contents[key], fold.hash_table[key], pool)
            self._stale.clear()
            self._drawn = tuple([nodes[key] for key in contents])
        return self._drawn


def _node(key: str, content: _Content, blocks: tuple[int, ...], pool: PoolMap) -> PrefixNode:
    owners = dict.fromkeys(owner.request_id for block in blocks for owner in pool.owners[block])
    return PrefixNode(
        key=key,
        parent=content.parent,
        group=content.group,
        depth=content.depth,
        block_ids=blocks,
        num_hits=content.num_hits,
        last_hit_step=content.last_hit_step,
        owners=tuple(owners),
        first_arrival=content.first_arrival,
        is_evictable=not owners,
    )


def _key(group: int, content_hash: str) -> str:
    return f"{group}:{content_hash}" if content_hash else ""


def _parents_first(contents: dict[str, _Content]) -> dict[str, _Content]:
    """The same in the same order, except that a parent moves ahead of the first of its children."""
    ordered: dict[str, _Content] = {}
    placed: set[str] = set()
    for key in contents:
        chain = []
        while key in contents and key not in placed:
            placed.add(key)
            chain.append(key)
            key = contents[key].parent
        ordered.update((link, contents[link]) for link in reversed(chain))
    return ordered


def _depths(contents: dict[str, _Content], fold: Fold) -> dict[str, int]:
    """By key: from the beginning of its chain, from the block tables that hold it, or from a child of known depth.
    An orphan of which none of this is known counts as a beginning."""
    keys_of: dict[int, list[str]] = {}
    for key, blocks in fold.hash_table.items():
        for block in blocks:
            keys_of.setdefault(block, []).append(key)
    depths: dict[str, int] = {}
    for request in fold.requests.values():
        for table in request.tables:
            for index, block in enumerate(table):
                depths.update(dict.fromkeys(keys_of.get(block, ()), index))
    for key in reversed(contents):
        parent = contents[key].parent
        if key in depths and parent in contents:
            depths.setdefault(parent, depths[key] - 1)
    for key, content in contents.items():
        if key not in depths:
            depths[key] = depths.get(content.parent, -1) + 1
    return depths
