"""The reference: one request at a time, dense, masked, float32. Every other operator must agree with it.

Source: https://arxiv.org/abs/1706.03762 (attention), https://arxiv.org/abs/2305.13245 (grouped queries).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.attention.spec import AttentionSpec


@dataclass(frozen=True)
class _Request:
    """One request's rows in the batch, the slots it may read, and who sees what among them."""

    start: int
    end: int
    slots: torch.Tensor  # (S,) int64, those of positions first .. seq_len
    visible: torch.Tensor  # (n, S) bool


class ReferenceAttention:
    """Dense attention over gathered slots."""

    name = "reference"

    def prepare(
        self, metadata: AttentionMetadata, group: GroupMetadata, spec: AttentionSpec, dtype: torch.dtype
    ) -> list[_Request]:
        window = spec.window
        requests: list[_Request] = []
        start = 0
        for row, (count, context) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
            # Table entries before what the first query sees may be stale: positions start at `first`.
            first = 0 if window is None else max(0, context - window + 1)
            keys = torch.arange(first, context + count, device=group.block_tables.device)  # (S,)
            queries = torch.arange(context, context + count, device=keys.device)[:, None]  # (n, 1)
            visible = keys <= queries  # (n, S)
            if window is not None:
                visible &= keys > queries - window
            blocks = group.block_tables[row, keys // metadata.block_size]  # (S,)
            slots = blocks * metadata.block_size + keys % metadata.block_size  # (S,)
            requests.append(_Request(start, start + count, slots, visible))
            start += count
        return requests

    def attend(
        self,
        prepared: list[_Request],
        spec: AttentionSpec,
        query: torch.Tensor,  # (T, H, D)
        key: torch.Tensor,  # (T, H_kv, D)
        value: torch.Tensor,  # (T, H_kv, D)
        kv_cache: torch.Tensor,  # (2, blocks, block_size, H_kv, D)
    ) -> torch.Tensor:  # (T, H, D)
        out = torch.empty_like(query)
        key_slots, value_slots = kv_cache.flatten(1, 2).unbind(0)  # (slots, H_kv, D)
        for request in prepared:
            q = query[request.start : request.end].float()  # (n, H, D)
            k = key_slots[request.slots].float().repeat_interleave(spec.queries_per_kv, dim=1)  # (S, H, D)
            v = value_slots[request.slots].float().repeat_interleave(spec.queries_per_kv, dim=1)  # (S, H, D)
            scores = torch.einsum("nhd,shd->hns", q, k) * spec.scale  # (H, n, S)
            scores = scores.masked_fill(~request.visible, float("-inf"))
            weights = scores.softmax(dim=-1)  # (H, n, S)
            out[request.start : request.end] = torch.einsum("hns,shd->nhd", weights, v).to(out.dtype)
        return out
