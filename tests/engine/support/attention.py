"""Random attention problems over a paged cache, for comparing operators without a model."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from micro_vllm.attention.attention import AttentionContext, PagedKVCache
from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.attention.operators.registry import get_operator
from micro_vllm.attention.spec import AttentionSpec
from micro_vllm.config import NULL_BLOCK, CacheGroup

NAN = float("nan")


@dataclass
class AttentionProblem:
    """One layer, R requests: queries of this step, keys and values of their whole history."""

    spec: AttentionSpec
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    query: torch.Tensor  # (T, H, D)
    keys: list[torch.Tensor]  # per request (S, H_kv, D)
    values: list[torch.Tensor]
    block_size: int
    dtype: torch.dtype

    @classmethod
    def random(
        cls,
        spec: AttentionSpec,
        query_lens: tuple[int, ...],
        context_lens: tuple[int, ...],
        *,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> AttentionProblem:
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int, heads: int) -> torch.Tensor:
            return torch.randn(rows, heads, spec.head_dim, generator=generator).to(dtype)

        lengths = [c + q for c, q in zip(context_lens, query_lens, strict=True)]
        return cls(
            spec=spec,
            query_lens=query_lens,
            context_lens=context_lens,
            query=normal(sum(query_lens), spec.num_heads),
            keys=[normal(length, spec.num_kv_heads) for length in lengths],
            values=[normal(length, spec.num_kv_heads) for length in lengths],
            block_size=block_size,
            dtype=dtype,
        )

    def run(self, operator: str, *, seed: int = 0) -> torch.Tensor:
        """Attention output ``(T, H, D)``; every slot nobody may see holds NaN.

        That is: the tail of each last block, free blocks, and the slots before a window; not the null block, which
        is never written and which operators may therefore use as padding. Table
        entries wholly before a window name a block that does not exist: whoever reads one gets an IndexError.
        """
        size = self.block_size
        lengths = [len(keys) for keys in self.keys]
        num_blocks = sum(-(-length // size) for length in lengths) + 3
        groups = (CacheGroup(0, self.spec.window, (0,)),)
        cache = PagedKVCache(groups, size, num_blocks, self.spec.num_kv_heads, self.spec.head_dim, self.dtype)
        cache.data.fill_(NAN)
        cache.data[:, :, NULL_BLOCK] = 0
        free = list(range(1, num_blocks + 1))
        random.Random(seed).shuffle(free)
        stale = num_blocks + 1_000_000
        key_slots, value_slots = cache.slots[0]
        tables, slot_mapping, positions = [], [], []
        for keys, values, count, context in zip(
            self.keys, self.values, self.query_lens, self.context_lens, strict=True
        ):
            table = [free.pop() for _ in range(-(-len(keys) // size))]
            slots = torch.tensor([table[p // size] * size + p % size for p in range(len(keys))])
            first = 0 if self.spec.window is None else max(0, context - self.spec.window + 1)
            key_slots[slots[first:context]] = keys[first:context]
            value_slots[slots[first:context]] = values[first:context]
            for block in range(first // size):
                table[block] = stale
            tables.append(table)
            slot_mapping += slots[context:].tolist()
            positions += list(range(context, context + count))
        width = max(map(len, tables))
        metadata = AttentionMetadata(
            query_lens=self.query_lens,
            context_lens=self.context_lens,
            num_decodes=self._num_decodes(),
            positions=torch.tensor(positions),
            groups=(
                GroupMetadata(
                    torch.tensor([table + [NULL_BLOCK] * (width - len(table)) for table in tables]),
                    torch.tensor(slot_mapping),
                ),
            ),
            block_size=size,
        )
        context_ = AttentionContext(cache, groups, metadata, get_operator(operator))
        new_keys = torch.cat([k[c:] for k, c in zip(self.keys, self.context_lens, strict=True)])
        new_values = torch.cat([v[c:] for v, c in zip(self.values, self.context_lens, strict=True)])
        return context_.attend(0, self.spec, self.query, new_keys, new_values)

    def expected(self) -> torch.Tensor:
        """The definition, one query at a time, in float64, with no cache at all."""
        rows, start = [], 0
        for keys, values, count, context in zip(
            self.keys, self.values, self.query_lens, self.context_lens, strict=True
        ):
            for offset in range(count):
                position = context + offset
                first = 0 if self.spec.window is None else max(0, position - self.spec.window + 1)
                heads = []
                for head in range(self.spec.num_heads):
                    kv_head = head // self.spec.queries_per_kv
                    k = keys[first : position + 1, kv_head].double()
                    v = values[first : position + 1, kv_head].double()
                    scores = (k @ self.query[start + offset, head].double()) * self.spec.scale
                    heads.append(scores.softmax(0) @ v)
                rows.append(torch.stack(heads))
            start += count
        return torch.stack(rows)

    def _num_decodes(self) -> int:
        """Leading requests with one query token."""
        for index, count in enumerate(self.query_lens):
            if count != 1:
                return index
        return len(self.query_lens)
