"""Block tables of one cache group: what a prefix hit is, what a request needs, what a window lets go.

One class for each kind of visibility; the pool is shared by all groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from micro_vllm.config import NULL_BLOCK, CacheGroup
from micro_vllm.core.block import Block, BlockPool
from micro_vllm.core.prefix_cache import ROOT_HASH, BlockKey, PrefixCache
from micro_vllm.core.request import Request
from micro_vllm.trace.events import BlocksAllocated, BlocksFreed, BlocksNulled, BlocksReferenced
from micro_vllm.trace.sinks import Tracer


class CacheGroupManager:
    """Full attention: every block of a request stays until the request ends."""

    def __init__(
        self,
        group: CacheGroup,
        block_size: int,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        tracer: Tracer | None = None,
    ) -> None:
        self.group = group
        self.block_size = block_size
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.tables: dict[str, list[int]] = {}
        """Request -> block ids by logical index; NULL_BLOCK where the window has passed."""
        self._num_registered: dict[str, int] = {}
        """Request -> leading blocks that are in the prefix cache already."""
        self._tracer = tracer

    # ------------------------------------------------------------ visibility

    def first_visible_block(self, position: int) -> int:
        """Logical index of the first block that a query at ``position`` can see."""
        return 0

    def blocks_for(self, num_tokens: int, chunk: int) -> int:
        """Most blocks a request of ``num_tokens`` holds at once when computed in chunks of at most ``chunk``."""
        return -(-num_tokens // self.block_size)

    def longest_hit(self, hashes: Sequence[bytes], most: int) -> int:
        """Blocks of prefix, at most ``most``, after which this group can go on without recomputing."""
        for index in range(most):
            if self._cached(hashes[index]) is None:
                return index
        return most

    def num_shared(self, hashes: Sequence[bytes], num_hit: int) -> int:
        """Of the hit blocks, those in use by others for as long as this request holds them: they cost nothing."""
        blocks = (self._cached(h) for h in hashes[:num_hit])
        return sum(block is not None and block.ref_count > 0 for block in blocks)

    # ------------------------------------------------------------ life of a request

    def reference_hit(self, request: Request, num_hit: int) -> None:
        """Begin the table with the first ``num_hit`` cached blocks; those before the window are null."""
        first = self.first_visible_block(num_hit * self.block_size)
        blocks = [self._cached(h) for h in request.block_hashes[first:num_hit]]
        hit = [block for block in blocks if block is not None]
        assert len(hit) == num_hit - first, "the hit was agreed on before anything was allocated"
        self.pool.reference(hit)
        ids = [block.block_id for block in hit]
        self.tables[request.request_id] = [NULL_BLOCK] * first + ids
        self._num_registered[request.request_id] = num_hit
        if self._tracer and num_hit:
            self._tracer.emit(
                BlocksReferenced,
                request_id=request.request_id,
                group=self.group.group_id,
                block_ids=tuple(ids),
                logical_start=first,
            )

    def release_passed(self, request: Request) -> None:
        """Let go of blocks that the next token cannot see. Full attention sees all."""

    def num_missing(self, request: Request, num_tokens: int) -> int:
        """Blocks to append so that ``num_tokens`` tokens have slots."""
        return -(-num_tokens // self.block_size) - len(self.tables[request.request_id])

    def num_tokens_unchanged(self, request: Request) -> int:
        """As long as the request has no more tokens than this, its table stays as it is."""
        return len(self.tables[request.request_id]) * self.block_size

    def num_held(self, request: Request) -> int:
        return len(self.tables[request.request_id])

    def append_blocks(self, request: Request, count: int) -> tuple[int, ...]:
        if count <= 0:
            return ()
        table = self.tables[request.request_id]
        ids = tuple(block.block_id for block in self.pool.allocate(count))
        if self._tracer:
            self._tracer.emit(
                BlocksAllocated,
                request_id=request.request_id,
                group=self.group.group_id,
                block_ids=ids,
                logical_start=len(table),
            )
        table.extend(ids)
        return ids

    def register_full(self, request: Request) -> None:
        """Put blocks whose tokens are all computed into the prefix cache."""
        request_id = request.request_id
        table = self.tables[request_id]
        full = request.num_computed_tokens // self.block_size
        for index in range(self._num_registered[request_id], full):
            block = self.pool.blocks[table[index]]
            parent = request.block_hashes[index - 1] if index else ROOT_HASH
            block.key = BlockKey(self.group.group_id, request.block_hashes[index])
            self.prefix_cache.register(block.block_id, block.key, parent, request_id, index)
        self._num_registered[request_id] = max(full, self._num_registered[request_id])

    def free(self, request: Request) -> None:
        """Drop the whole table, tail first, so that the tail is evicted first and prefixes live longest."""
        table = self.tables.pop(request.request_id)
        del self._num_registered[request.request_id]
        self._release(request, [block_id for block_id in reversed(table) if block_id != NULL_BLOCK])

    # ------------------------------------------------------------ inside

    def _cached(self, block_hash: bytes) -> Block | None:
        block_id = self.prefix_cache.get(BlockKey(self.group.group_id, block_hash))
        return None if block_id is None else self.pool.blocks[block_id]

    def _release(self, request: Request, block_ids: Sequence[int]) -> None:
        if not block_ids:
            return
        self.pool.release([self.pool.blocks[block_id] for block_id in block_ids])
        if self._tracer:
            self._tracer.emit(
                BlocksFreed,
                request_id=request.request_id,
                group=self.group.group_id,
                block_ids=tuple(block_ids),
            )


class SlidingGroupManager(CacheGroupManager):
    """Sliding window of w tokens: a query at p sees p - w + 1 .. p; older blocks are nulled and freed."""

    def __init__(
        self,
        group: CacheGroup,
        block_size: int,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(group, block_size, pool, prefix_cache, tracer)
        assert group.window is not None
        self.window = group.window
        self._num_nulled: dict[str, int] = {}

    def first_visible_block(self, position: int) -> int:
        return max(0, position - self.window + 1) // self.block_size

    def blocks_for(self, num_tokens: int, chunk: int) -> int:
        # A chunk and the w - 1 tokens before it, unaligned at both ends.
        reach = -(-(self.window - 1 + chunk) // self.block_size) + 1
        return min(super().blocks_for(num_tokens, chunk), reach)

    def longest_hit(self, hashes: Sequence[bytes], most: int) -> int:
        """The largest k such that all blocks holding the last w - 1 tokens before block k are cached."""
        end, run = most, 0
        for index in range(most - 1, -1, -1):
            if run >= end - self.first_visible_block(end * self.block_size):
                return end
            if self._cached(hashes[index]) is None:
                end, run = index, 0
            else:
                run += 1
        return end

    def num_shared(self, hashes: Sequence[bytes], num_hit: int) -> int:
        # Shared blocks slide out of the window without becoming free, while new ones are needed: count none.
        return 0

    def reference_hit(self, request: Request, num_hit: int) -> None:
        super().reference_hit(request, num_hit)
        self._num_nulled[request.request_id] = self.first_visible_block(num_hit * self.block_size)

    def release_passed(self, request: Request) -> None:
        request_id = request.request_id
        start = self._num_nulled[request_id]
        stop = self.first_visible_block(request.num_computed_tokens)
        if stop <= start:
            return
        table = self.tables[request_id]
        passed = table[start:stop]
        table[start:stop] = [NULL_BLOCK] * len(passed)
        self._num_nulled[request_id] = stop
        if self._tracer:
            self._tracer.emit(
                BlocksNulled,
                request_id=request_id,
                group=self.group.group_id,
                block_ids=tuple(passed),
                logical_start=start,
            )
        self._release(request, passed[::-1])

    def num_tokens_unchanged(self, request: Request) -> int:
        # The query at this many tokens is the first that does not see the oldest block left.
        passes = (self._num_nulled[request.request_id] + 1) * self.block_size + self.window - 1
        return min(super().num_tokens_unchanged(request), passes)

    def num_held(self, request: Request) -> int:
        return len(self.tables[request.request_id]) - self._num_nulled[request.request_id]

    def free(self, request: Request) -> None:
        super().free(request)
        del self._num_nulled[request.request_id]


def make_group_manager(
    group: CacheGroup,
    block_size: int,
    pool: BlockPool,
    prefix_cache: PrefixCache,
    tracer: Tracer | None = None,
) -> CacheGroupManager:
    """The manager for a group's kind of visibility."""
    kind = CacheGroupManager if group.window is None else SlidingGroupManager
    return kind(group, block_size, pool, prefix_cache, tracer)
