"""A tiny paged driver: runs a model over a PagedKVCache step by step, with no scheduler and no runner.

It is as unhelpful as an engine may be: blocks are scattered, recycled blocks hold NaN until they are zeroed,
and the table entries of what fell out of a window may point at a poisoned block.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from micro_vllm.attention.attention import AttentionContext, PagedKVCache
from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.attention.operators.base import AttentionOperator
from micro_vllm.attention.operators.registry import get_operator
from micro_vllm.config import NULL_BLOCK, CacheGroup, form_cache_groups
from micro_vllm.models.decoder import DecoderForCausalLM


@dataclass
class Row:
    """One request: its tokens, how many of them are in the cache, and a block table per group."""

    token_ids: list[int]
    num_computed: int = 0
    tables: list[list[int]] = field(default_factory=list)


class PagedDriver:
    """Owns a poisoned pool and the rows that live in it."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        *,
        operator: str | AttentionOperator = "sdpa",
        block_size: int = 4,
        num_blocks: int = 400,
        seed: int = 0,
        stale_entry: int | None = None,
    ) -> None:
        """``stale_entry`` is written over table entries before a window (None: the null block)."""
        self.model = model
        self.operator = get_operator(operator) if isinstance(operator, str) else operator
        config = model.config
        self.groups: tuple[CacheGroup, ...] = form_cache_groups(config.layer_windows)
        self.dtype = next(model.parameters()).dtype
        self.cache = PagedKVCache(
            self.groups, block_size, num_blocks, config.num_kv_heads, config.head_dim, self.dtype
        )
        self.cache.data[:, :, 1:] = float("nan")  # every earlier owner left NaN behind
        self.free = list(range(1, num_blocks + 1))
        random.Random(seed).shuffle(self.free)
        self.stale_entry = NULL_BLOCK if stale_entry is None else stale_entry

    def add(self, token_ids: Sequence[int]) -> Row:
        return Row(list(token_ids), tables=[[] for _ in self.groups])

    @torch.inference_mode()
    def step(self, work: Sequence[tuple[Row, int]]) -> torch.Tensor:
        """Compute ``count`` more tokens of each row in one batch; logits ``(T, vocab)`` as in ``work``."""
        order = sorted(range(len(work)), key=lambda i: work[i][1] != 1)  # decodes first, stable
        rows = [work[i] for i in order]
        for row, count in rows:
            self._make_room(row, count)
        token_ids, positions = [], []
        for row, count in rows:
            span = range(row.num_computed, row.num_computed + count)
            token_ids += [row.token_ids[p] for p in span]
            positions += list(span)
        position_tensor = torch.tensor(positions)
        metadata = AttentionMetadata(
            query_lens=tuple(count for _, count in rows),
            context_lens=tuple(row.num_computed for row, _ in rows),
            num_decodes=sum(count == 1 for _, count in rows),
            positions=position_tensor,
            groups=tuple(self._group_metadata(g, rows) for g in range(len(self.groups))),
            block_size=self.cache.block_size,
        )
        context = AttentionContext(self.cache, self.groups, metadata, self.operator)
        hidden = self.model(torch.tensor(token_ids), position_tensor, context)
        logits = self.model.compute_logits(hidden)
        for row, count in rows:
            row.num_computed += count
        parts = logits.split([count for _, count in rows])
        return torch.cat([parts[order.index(i)] for i in range(len(work))])

    def greedy(self, prompt: Sequence[int], count: int, chunks: Sequence[int] = (10**6,)) -> list[int]:
        """``count`` greedy tokens of one request; the prompt goes in chunks of these sizes, in turn."""
        row = self.add(prompt)
        turn = 0
        while len(row.token_ids) < len(prompt) + count:
            size = min(chunks[turn % len(chunks)], len(row.token_ids) - row.num_computed)
            logits = self.step([(row, size)])
            turn += 1
            if row.num_computed == len(row.token_ids):
                row.token_ids.append(int(logits[-1].argmax()))
        return row.token_ids[len(prompt) :]

    def release(self, row: Row) -> None:
        """Give the row's blocks back as an engine would: contents stay, here as NaN."""
        for table in row.tables:
            self._recycle([block for block in table if block not in (NULL_BLOCK, self.stale_entry)])

    def _make_room(self, row: Row, count: int) -> None:
        size = self.cache.block_size
        for group, table in zip(self.groups, row.tables, strict=True):
            if group.window is not None:
                # A query at num_computed sees num_computed - window + 1 onwards: whole blocks before that go.
                gone = max(0, row.num_computed - group.window + 1) // size
                passed = [b for b in table[:gone] if b not in (NULL_BLOCK, self.stale_entry)]
                table[: min(gone, len(table))] = [self.stale_entry] * min(gone, len(table))
                self._recycle(passed)
            needed = -(-(row.num_computed + count) // size) - len(table)
            new = [self.free.pop(0) for _ in range(needed)]
            if new:
                self.cache.zero_blocks(torch.tensor(new))
            table += new

    def _recycle(self, blocks: list[int]) -> None:
        if blocks:
            self.cache.data[:, :, torch.tensor(blocks)] = float("nan")
            self.free += blocks

    def _group_metadata(self, index: int, rows: Sequence[tuple[Row, int]]) -> GroupMetadata:
        size = self.cache.block_size
        tables = [row.tables[index] for row, _ in rows]
        width = max(len(table) for table in tables)
        slots = [
            row.tables[index][p // size] * size + p % size
            for row, count in rows
            for p in range(row.num_computed, row.num_computed + count)
        ]
        return GroupMetadata(
            block_tables=torch.tensor([table + [NULL_BLOCK] * (width - len(table)) for table in tables]),
            slot_mapping=torch.tensor(slots),
        )
