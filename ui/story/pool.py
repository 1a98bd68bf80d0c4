"""The pool seen from its blocks: who holds each, and how full it is. Kept up event by event, never counted anew.

All values per block are immutable and lie in flat lists, so that a copy for a keyframe costs little time and memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from micro_vllm.trace import Fold
from ui.view import BlockCell, BlockState, Owner


class PoolMap:
    """Lists by block id; index 0 is the null block, which nobody owns.

    Invariant: a block has owners exactly when its reference count is not 0, and one that has a key (its content can
    be hit) is full.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.owners: list[tuple[Owner, ...]] = [()] * (num_blocks + 1)
        self.keys: list[tuple[str, ...]] = [()] * (num_blocks + 1)
        self.tokens: list[int] = [0] * (num_blocks + 1)
        self.num_used = 0
        self.num_reusable = 0
        """Blocks without an owner that can be hit."""
        self.num_filled = 0
        """Slots with a token in the blocks that have an owner, each slot once."""
        self.touched_keys: set[str] = set()
        """Contents whose blocks changed hands since the prefix tree last asked."""
        self._written: frozenset[int] = frozenset()
        self._cells: list[BlockCell] = []
        self._stale: set[int] = set()
        self._drawn: tuple[BlockCell, ...] = ()

    def copy(self) -> PoolMap:
        """Goes its own way; what was drawn already is not copied: keyframes are many and rarely looked at."""
        other = copy.copy(self)
        other.owners, other.keys, other.tokens = self.owners.copy(), self.keys.copy(), self.tokens.copy()
        other.touched_keys = set()
        other._cells, other._stale, other._drawn = [], set(), ()
        return other

    def restore(self, fold: Fold) -> None:
        """The state of a Snapshot, into a new map."""
        for key, blocks in fold.hash_table.items():
            for block in blocks:
                self.cached(block, key)
        for request_id, request in fold.requests.items():
            for group, table in enumerate(request.tables):
                for index, block in enumerate(table):
                    if block:
                        self.take(block, Owner(request_id, group, index), fold)
                        filled = min(
                            max(request.num_computed_tokens - index * self.block_size, 0), self.block_size
                        )
                        self.write(block, filled)

    # ------------------------------------------------------------ what happens to a block

    def take(self, block: int, owner: Owner, fold: Fold) -> None:
        """One more owner. Owners stand in order of arrival, wherever a block is drawn."""
        held = self.owners[block]
        if held:
            order = sorted((*held, owner), key=lambda o: (fold.requests[o.request_id].arrival, o.group))
            self.owners[block] = tuple(order)
        else:
            self.owners[block] = (owner,)
            self.num_used += 1
            self.num_reusable -= bool(self.keys[block])
            self.num_filled += self.tokens[block]
        self._touch(block)

    def release(self, block: int, request_id: str, group: int) -> None:
        """One owner less; what a block without owner and key held is nobody's any more."""
        held = self.owners[block]
        left = tuple(o for o in held if o.request_id != request_id or o.group != group)
        self.owners[block] = left
        if held and not left:
            self.num_used -= 1
            self.num_filled -= self.tokens[block]
            if self.keys[block]:
                self.num_reusable += 1
            else:
                self.tokens[block] = 0
        self._touch(block)

    def write(self, block: int, filled: int) -> None:
        """``filled`` slots hold a token now."""
        if not self.keys[block]:
            self._fill(block, filled)
            self._stale.add(block)

    def cached(self, block: int, key: str) -> None:
        """The block can be hit under ``key``: it is full."""
        if not self.owners[block] and not self.keys[block]:
            self.num_reusable += 1
        self.keys[block] = (*self.keys[block], key)
        self._fill(block, self.block_size)
        self._touch(block)

    def evicted(self, block: int, key: str) -> None:
        """Its content can no longer be hit under ``key``."""
        self._touch(block)
        self.keys[block] = tuple(k for k in self.keys[block] if k != key)
        if not self.owners[block] and not self.keys[block]:
            self.num_reusable -= 1
            self.tokens[block] = 0

    def computed(self, blocks: Iterable[int]) -> None:
        """A step is computed, and these are the blocks it wrote."""
        before, self._written = self._written, frozenset(blocks)
        self._stale |= before ^ self._written

    def _fill(self, block: int, filled: int) -> None:
        if self.owners[block]:
            self.num_filled += filled - self.tokens[block]
        self.tokens[block] = filled

    def _touch(self, block: int) -> None:
        self._stale.add(block)
        if self.keys[block]:
            self.touched_keys.update(self.keys[block])

    # ------------------------------------------------------------ drawing

    def draw(self, ref_counts: Sequence[int]) -> tuple[BlockCell, ...]:
        """By block id. Only what changed since the last time is made anew."""
        if not self._cells:
            self._cells = [self._cell(block, count) for block, count in enumerate(ref_counts)]
        for block in self._stale:
            self._cells[block] = self._cell(block, ref_counts[block])
        if self._stale or not self._drawn:
            self._drawn = tuple(self._cells)
        self._stale.clear()
        return self._drawn

    def _cell(self, block: int, ref_count: int) -> BlockCell:
        keys = self.keys[block]
        state: BlockState = "null" if not block else "used" if ref_count else "cached" if keys else "free"
        return BlockCell(
            block_id=block,
            state=state,
            owners=self.owners[block],
            tokens=self.tokens[block],
            ref_count=ref_count,
            hashes=keys,
            is_written=block in self._written,
        )
