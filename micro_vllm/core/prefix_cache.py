"""Which content lies in which block.

A full block's hash covers its token ids and everything before them: H(parent hash, token ids, extras), so equal
hashes mean equal prefixes. The key carries the cache group as well: layers of another group hold other
keys and values for the same tokens. Source: https://docs.vllm.ai/en/latest/design/prefix_caching.html
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from micro_vllm.trace.events import BlockCached, BlockEvicted
from micro_vllm.trace.sinks import Tracer

ROOT_HASH = bytes(32)
"""Parent of every first block."""


class BlockKey(NamedTuple):
    """Content of a block within one cache group."""

    group: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.group}:{self.hash.hex()}"


def hash_block(parent: bytes, token_ids: Sequence[int], salt: str | None = None) -> bytes:
    """sha256 over a fixed serialisation, equal between runs and machines.

    Layout, little endian: parent (32 bytes), number of tokens (u64), tokens (i64 each), salt (utf-8, the rest).
    """
    data = struct.pack(f"<Q{len(token_ids)}q", len(token_ids), *token_ids)
    return hashlib.sha256(parent + data + (salt or "").encode()).digest()


class PrefixCache:
    """Hash table from content to the blocks that hold it.

    Two requests that compute the same prefix side by side fill two blocks with one content; both stay
    registered, so that losing one twin does not lose the hit.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.table: dict[BlockKey, dict[int, None]] = {}
        self.parents: dict[BlockKey, bytes] = {}
        self.num_blocks = 0
        self._tracer = tracer

    def get(self, key: BlockKey) -> int | None:
        """The block registered longest for this content, or None."""
        ids = self.table.get(key)
        return next(iter(ids)) if ids else None

    def holds(self, block_id: int, key: BlockKey) -> bool:
        return block_id in self.table.get(key, ())

    def register(
        self, block_id: int, key: BlockKey, parent: bytes, request_id: str, logical_index: int
    ) -> None:
        """A block became full; from now on it is a hit."""
        self.table.setdefault(key, {})[block_id] = None
        self.parents[key] = parent
        self.num_blocks += 1
        if self._tracer:
            self._tracer.emit(
                BlockCached,
                block_id=block_id,
                group=key.group,
                hash=key.hash.hex(),
                parent="" if parent == ROOT_HASH else parent.hex(),
                request_id=request_id,
                logical_index=logical_index,
            )

    def evict(self, block_id: int, key: BlockKey) -> None:
        """The block is about to be overwritten."""
        ids = self.table[key]
        del ids[block_id]
        if not ids:
            del self.table[key], self.parents[key]
        self.num_blocks -= 1
        if self._tracer:
            self._tracer.emit(BlockEvicted, block_id=block_id, group=key.group, hash=key.hash.hex())
