"""Where the tokens of one flattened batch lie.

R requests, T tokens in all, one after the other; requests with a single token (decodes) come first.
"""

from __future__ import annotations

import msgspec
import torch


class GroupMetadata(msgspec.Struct, frozen=True, eq=False):
    """One cache group's view of the batch."""

    block_tables: torch.Tensor
    """(R, most blocks) int64, padded with the null block. Those before a window may be stale: do not read."""
    slot_mapping: torch.Tensor
    """(T,) int64: ``block_id * block_size + offset``, where each token's key and value are written."""


class AttentionMetadata(msgspec.Struct, frozen=True, eq=False):
    """The batch, shared by all layers of a step."""

    query_lens: tuple[int, ...]
    """(R) tokens of each request in this step."""
    context_lens: tuple[int, ...]
    """(R) tokens of each request already in the cache before this step."""
    num_decodes: int
    """The first ``num_decodes`` requests have exactly one query token."""
    positions: torch.Tensor
    """(T,) int64 position of every token."""
    groups: tuple[GroupMetadata, ...]
    block_size: int

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """(R) tokens in the cache once this step's keys and values are written."""
        return tuple(c + q for c, q in zip(self.context_lens, self.query_lens, strict=True))
