"""The physical cache: its bytes, its null block, its zeroing; and the context's checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from micro_vllm.attention.attention import AttentionContext, PagedKVCache
from micro_vllm.attention.metadata import AttentionMetadata
from micro_vllm.attention.operators.registry import get_operator
from micro_vllm.attention.spec import AttentionSpec
from micro_vllm.config import CacheGroup, form_cache_groups
from micro_vllm.errors import ConfigError
from micro_vllm.model_loader.loaded import load_model
from tests.engine.support.models import save_tiny_model
from tests.engine.support.paged import PagedDriver


def test_a_pool_costs_one_groups_bytes_not_all_groups() -> None:
    """12 layers in three groups of 4: a block backs 4 layers, so n blocks cost a third of 12 layers."""
    hybrid = form_cache_groups([None, 8, 8] * 4)
    assert len(hybrid) == 3
    cache = PagedKVCache(hybrid, 16, 9, 2, 8, torch.bfloat16)
    one_layer = 2 * 16 * 2 * 8 * 2  # keys and values, slots, heads, head_dim, bytes
    assert PagedKVCache.block_bytes(hybrid, 16, 2, 8, torch.bfloat16) == 4 * one_layer
    assert cache.data.untyped_storage().nbytes() == 10 * 4 * one_layer  # 9 blocks and the null block
    assert cache.num_bytes == 10 * 4 * one_layer
    full = form_cache_groups([None] * 12)
    assert PagedKVCache.block_bytes(full, 16, 2, 8, torch.bfloat16) == 12 * one_layer


def test_groups_of_different_size_are_refused() -> None:
    groups = (CacheGroup(0, None, (0, 1)), CacheGroup(1, 8, (2,)))
    with pytest.raises(ConfigError, match="equally many layers"):
        PagedKVCache(groups, 4, 3, 1, 8, torch.float32)


def test_zero_blocks_clears_those_blocks_in_every_layer_and_no_other() -> None:
    cache = PagedKVCache(form_cache_groups([None] * 3), 4, 6, 2, 8, torch.float32)
    cache.data.fill_(float("nan"))
    cache.zero_blocks(torch.tensor([2, 5]))
    clean = torch.tensor([2, 5])
    assert (cache.data[:, :, clean] == 0).all()
    assert cache.data[:, :, torch.tensor([0, 1, 3, 4, 6])].isnan().all()


def test_a_decode_writes_one_slot_per_layer_and_never_the_null_block(tmp_path: Path) -> None:
    model = load_model(save_tiny_model(tmp_path / "m"), skip_tokenizer_init=True).model
    driver = PagedDriver(model, block_size=4)
    driver.cache.data.zero_()
    row = driver.add([5, 6, 7, 8, 9, 10])
    driver.step([(row, 5)])
    before = driver.cache.data.clone()
    driver.step([(row, 1)])
    changed = (driver.cache.data != before).flatten(4).any(-1)  # (layers, 2, blocks, slots)
    assert changed.sum() == model.config.num_layers * 2
    assert changed[:, :, row.tables[0][1], 1].all()
    assert (driver.cache.data[:, :, 0] == 0).all()


@pytest.mark.parametrize("operator", ["reference", "sdpa"])
def test_recycled_blocks_and_stale_table_entries_never_leak(tmp_path: Path, operator: str) -> None:
    """A hybrid model decodes far beyond its window while a block full of NaN stands in its passed entries."""
    folder = save_tiny_model(
        tmp_path / "m",
        "qwen3",
        head_dim=16,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    model = load_model(folder, skip_tokenizer_init=True).model
    clean = PagedDriver(model, operator=operator, num_blocks=60)
    dirty = PagedDriver(model, operator=operator, num_blocks=60, seed=3)
    dirty.stale_entry = dirty.free.pop()  # never zeroed: NaN for good
    dirty.cache.data[:, :, 0] = float("nan")
    others = [dirty.add([40 + i] * 9) for i in range(2)]
    prompt = [11, 12, 13, 14, 15]
    row, expected = dirty.add(prompt), clean.greedy(prompt, 40)
    dirty.step([(other, 9) for other in others])
    dirty.release(others[0])
    while len(row.token_ids) < len(prompt) + 40:
        logits = dirty.step([(row, len(row.token_ids) - row.num_computed)])
        assert logits.isfinite().all()
        row.token_ids.append(int(logits[-1].argmax()))
    assert row.token_ids[len(prompt) :] == expected
    assert dirty.stale_entry in row.tables[1]
    assert dirty.stale_entry not in row.tables[0]


def test_masks_and_indices_are_made_once_per_step_and_group(tmp_path: Path) -> None:
    class Counting:
        name = "counting"

        def __init__(self) -> None:
            self.inner = get_operator("sdpa")
            self.prepared = self.attended = 0

        def prepare(self, *args: object) -> object:
            self.prepared += 1
            return self.inner.prepare(*args)  # type: ignore[arg-type]

        def attend(self, *args: object) -> torch.Tensor:
            self.attended += 1
            return self.inner.attend(*args)  # type: ignore[arg-type]

    folder = save_tiny_model(
        tmp_path / "m",
        "qwen3",
        head_dim=16,
        num_hidden_layers=6,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"] * 2,
    )
    operator = Counting()
    driver = PagedDriver(load_model(folder, skip_tokenizer_init=True).model, operator=operator)
    assert len(driver.groups) == 3
    driver.step([(driver.add([5, 6, 7]), 3)])
    assert (operator.prepared, operator.attended) == (3, 6)


def test_a_layer_outside_the_groups_and_a_wrong_window_are_refused() -> None:
    groups = (CacheGroup(0, 8, (0,)),)
    cache = PagedKVCache(groups, 4, 3, 1, 8, torch.float32)
    metadata = AttentionMetadata((1,), (0,), 1, torch.zeros(1, dtype=torch.int64), (), 4)
    context = AttentionContext(cache, groups, metadata, get_operator("sdpa"))
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, window=8)
    tensor = torch.zeros(1, 1, 8)
    with pytest.raises(ConfigError, match="layer 3 is in no cache group"):
        context.attend(3, spec, tensor, tensor, tensor)
    full = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, window=None)
    with pytest.raises(ConfigError, match="layer 0 has window None, its cache group 8"):
        context.attend(0, full, tensor, tensor, tensor)
