"""Blocks, the free list and the pool. Ids only; the tensors behind them belong to the model runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from micro_vllm.config import NULL_BLOCK
from micro_vllm.core.prefix_cache import BlockKey, PrefixCache
from micro_vllm.errors import IntegrityError


class Block:
    """One KV block. On the free list exactly when ``ref_count`` is 0; hittable as long as ``key`` is set."""

    __slots__ = ("block_id", "key", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None
        self.prev: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, cached={self.key is not None})"


class FreeList:
    """Doubly linked through the blocks themselves: O(1) at both ends and O(1) removal from the middle.

    The head is handed out next. A freed block goes to the tail, so that order is exact LRU.
    """

    def __init__(self) -> None:
        self._head = Block(-1)  # sentinels, so that no link is ever None inside the list
        self._tail = Block(-1)
        self._head.next, self._tail.prev = self._tail, self._head
        self.size = 0

    def append(self, block: Block) -> None:
        last = self._tail.prev
        assert last is not None
        last.next, block.prev = block, last
        block.next, self._tail.prev = self._tail, block
        self.size += 1

    def remove(self, block: Block) -> None:
        assert block.prev is not None
        assert block.next is not None
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = None
        self.size -= 1

    def popleft(self) -> Block:
        block = self._head.next
        assert block is not None
        assert block is not self._tail, "the free list is empty"
        self.remove(block)
        return block

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            assert block is not None
            yield block
            block = block.next


class BlockPool:
    """All blocks of an engine: ids 1..num_blocks, and the null block 0, which nobody owns."""

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self.blocks = [Block(block_id) for block_id in range(num_blocks + 1)]
        self.prefix_cache = prefix_cache
        self.free_list = FreeList()
        for block in self.blocks[1:]:
            self.free_list.append(block)

    @property
    def num_free(self) -> int:
        """Blocks nobody references, those kept for reuse included."""
        return self.free_list.size

    def allocate(self, count: int) -> list[Block]:
        """``count`` blocks from the head of the free list, one reference each. What they cached is evicted."""
        taken = [self.free_list.popleft() for _ in range(count)]
        for block in taken:
            if block.key is not None:
                self.prefix_cache.evict(block.block_id, block.key)
                block.key = None
            block.ref_count = 1
        return taken

    def reference(self, blocks: Sequence[Block]) -> None:
        """One more owner each; a block that was free leaves the free list."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_list.remove(block)
            block.ref_count += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """One owner less each; those without any are appended to the free list in this order."""
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_list.append(block)

    def check_integrity(self, ref_counts: Sequence[int]) -> None:
        """``ref_counts[id]`` as counted from all block tables. Raises IntegrityError at the first difference."""
        free = [block.block_id for block in self.free_list]
        if len(free) != self.free_list.size or len(set(free)) != len(free):
            raise IntegrityError(f"free list holds {len(free)} blocks, says {self.free_list.size}: {free}")
        on_list = set(free)
        for block in self.blocks:
            if block.block_id == NULL_BLOCK:
                if block.ref_count or block.key is not None or NULL_BLOCK in on_list:
                    raise IntegrityError("the null block is owned, cached or free")
                continue
            if block.ref_count != ref_counts[block.block_id]:
                raise IntegrityError(
                    f"block {block.block_id} has {block.ref_count} references, "
                    f"block tables hold it {ref_counts[block.block_id]} times"
                )
            if (block.ref_count == 0) != (block.block_id in on_list):
                raise IntegrityError(f"block {block.block_id}: {block.ref_count} references, wrong side")
            if block.key is not None and not self.prefix_cache.holds(block.block_id, block.key):
                raise IntegrityError(f"block {block.block_id} has a hash the prefix cache does not know")
        keyed = sum(block.key is not None for block in self.blocks)
        if keyed != self.prefix_cache.num_blocks:
            raise IntegrityError(
                f"{keyed} blocks have a hash, the prefix cache holds {self.prefix_cache.num_blocks}"
            )
