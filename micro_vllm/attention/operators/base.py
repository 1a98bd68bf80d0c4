"""What an attention operator must offer."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.attention.spec import AttentionSpec


class AttentionOperator(Protocol):
    """Computes attention of one flattened batch over the paged cache.

    An operator holds no state between steps. What depends on the step and the cache group only (gather
    indices, masks) is made once by ``prepare`` and reused by all layers of the group.
    """

    name: str

    def prepare(
        self,
        metadata: AttentionMetadata,
        group: GroupMetadata,
        spec: AttentionSpec,
        dtype: torch.dtype,
    ) -> Any:
        """Index and mask tensors for one group, whose layers all have this ``spec``.

        Table entries wholly before a window may be stale and must not be read.
        """
        ...

    def attend(
        self,
        prepared: Any,
        spec: AttentionSpec,
        query: torch.Tensor,  # (T, H, D)
        key: torch.Tensor,  # (T, H_kv, D), already written to the cache
        value: torch.Tensor,  # (T, H_kv, D), already written to the cache
        kv_cache: torch.Tensor,  # (2, blocks, block_size, H_kv, D) of this layer
    ) -> torch.Tensor:  # (T, H, D)
        """Attention of every query token. Slots it may not see never reach it, NaN included."""
        ...
