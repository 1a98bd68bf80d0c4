"""The default model's real weights against transformers."""

from __future__ import annotations

import pytest
import torch

from micro_vllm.model_loader.loaded import load_model
from tests.engine.support.models import load_transformers, transformers_logits
from tests.engine.support.paged import PagedDriver

pytestmark = [pytest.mark.slow, pytest.mark.real_model]

PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


def test_float32_logits_match_transformers_in_odd_chunks() -> None:
    """30 layers deep: 1e-3 on logits that span tens, and the same order of the five best everywhere."""
    loaded = load_model("SmolLM2-135M-Instruct", dtype="float32")
    assert loaded.tokenizer is not None
    token_ids = list(loaded.tokenizer.encode(PROMPT))
    driver = PagedDriver(loaded.model, block_size=16, num_blocks=12)
    row = driver.add(token_ids)
    parts = []
    while row.num_computed < len(token_ids):
        parts.append(driver.step([(row, min(5, len(token_ids) - row.num_computed))]))
    logits = torch.cat(parts)
    expected = transformers_logits(load_transformers(loaded.path), token_ids)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)
    assert torch.equal(logits.topk(5).indices, expected.topk(5).indices)


def test_bfloat16_parts_from_float32_only_where_the_choice_was_close() -> None:
    """Greedy ids of bfloat16 equal float32's wherever float32's best two logits are more than 0.5 apart."""
    token_ids: list[int] = []
    found = {}
    for dtype in ("float32", "bfloat16"):
        loaded = load_model("SmolLM2-135M-Instruct", dtype=dtype)
        assert loaded.tokenizer is not None
        token_ids = list(loaded.tokenizer.encode(PROMPT))
        driver = PagedDriver(loaded.model, block_size=16, num_blocks=12)
        found[dtype] = driver.step([(driver.add(token_ids), len(token_ids))]).float()
    best = found["float32"].topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.5
    assert clear.sum() >= len(token_ids) // 2
    assert torch.equal(found["bfloat16"].argmax(-1)[clear], found["float32"].argmax(-1)[clear])
