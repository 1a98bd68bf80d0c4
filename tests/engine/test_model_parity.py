"""Logits and greedy tokens against transformers, float32 eager on CPU, for every family and rope type."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from micro_vllm.model_loader.loaded import load_model
from tests.engine.support.models import (
    edit_json,
    load_transformers,
    save_tiny_model,
    transformers_greedy,
    transformers_logits,
)
from tests.engine.support.paged import PagedDriver

TOLERANCE = 1e-4
NEW_TOKENS = 64

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
HYBRID = ["full_attention", "sliding_attention", "sliding_attention"] * 2

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-mha-biased": ("llama", {"num_key_value_heads": 6, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}},
    ),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-yarn-attention-factor": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7}}),
    "llama-yarn-betas": (
        "llama",
        {"rope_parameters": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}},
    ),
    "llama-dynamic-within-its-length": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}},
    ),
    "mistral-window": ("mistral", {"sliding_window": 8}),
    "mistral-window-of-one": ("mistral", {"sliding_window": 1}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "mistral-head-dim": ("mistral", {"sliding_window": 13, "head_dim": 20}),
    "qwen3": ("qwen3", {"head_dim": 16, "num_attention_heads": 4, "tie_word_embeddings": True}),
    "qwen3-biased": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "qwen3-hybrid": (
        "qwen3",
        {
            "head_dim": 16,
            "num_hidden_layers": 6,
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": HYBRID,
        },
    ),
    "qwen3-max-window-layers": (
        "qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1},
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(ours, transformers') of one random model."""
    family, config = CASES[request.param]
    folder = save_tiny_model(tmp_path_factory.mktemp(request.param), family, **config)
    return load_model(folder, skip_tokenizer_init=True), load_transformers(folder)


def random_prompt(length: int, seed: int = 1, vocab: int = 199) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, vocab) for _ in range(length)]


@pytest.mark.parametrize("operator", ["reference", "sdpa"])
@pytest.mark.parametrize("chunks", [(10**6,), (7, 1, 5, 3)], ids=["whole", "odd-chunks"])
def test_logits_match_transformers(pair: Any, operator: str, chunks: tuple[int, ...]) -> None:
    """E8, E28, E29: vllm #51756, optimum-neuron #879, foundation-model-stack #384. Tolerance 1e-4."""
    ours, theirs = pair
    prompt = random_prompt(45)
    driver = PagedDriver(ours.model, operator=operator)
    row, parts, turn = driver.add(prompt), [], 0
    while row.num_computed < len(prompt):
        size = min(chunks[turn % len(chunks)], len(prompt) - row.num_computed)
        parts.append(driver.step([(row, size)]))
        turn += 1
    expected = transformers_logits(theirs, prompt)
    assert expected.std() > 0.5  # not degenerate: a wrong model would not pass by being flat
    torch.testing.assert_close(torch.cat(parts), expected, atol=TOLERANCE, rtol=0)


def test_greedy_tokens_match_transformers_far_past_the_window(pair: Any) -> None:
    """E9: tt-metal #45184, vllm #2064. 64 new tokens, with windows down to 1 and poisoned blocks."""
    ours, theirs = pair
    prompt = random_prompt(21, seed=2)
    expected = transformers_greedy(theirs, prompt, NEW_TOKENS)
    assert len(expected) == NEW_TOKENS
    assert PagedDriver(ours.model).greedy(prompt, NEW_TOKENS, chunks=(9,)) == expected


def test_a_batch_of_mixed_requests_equals_each_alone(pair: Any) -> None:
    """Prefill chunks and decodes of different lengths in one flat batch do not touch each other."""
    ours, theirs = pair
    driver = PagedDriver(ours.model, num_blocks=300)
    prompts = [random_prompt(length, seed=length) for length in (3, 17, 1, 40, 8)]
    rows = [driver.add(prompt) for prompt in prompts]
    chooser = random.Random(5)
    while any(len(row.token_ids) < len(prompt) + 12 for row, prompt in zip(rows, prompts, strict=True)):
        work = []
        for row, prompt in zip(rows, prompts, strict=True):
            missing = len(row.token_ids) - row.num_computed
            if missing and len(row.token_ids) < len(prompt) + 12 and chooser.random() < 0.8:
                work.append((row, min(missing, chooser.choice([1, 2, 5, 11]))))
        if not work:
            continue
        parts = driver.step(work).split([count for _, count in work])
        for (row, _), logits in zip(work, parts, strict=True):
            if row.num_computed == len(row.token_ids):
                row.token_ids.append(int(logits[-1].argmax()))
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.token_ids[len(prompt) :] == transformers_greedy(theirs, prompt, 12)


def test_the_spelling_of_transformers_4_means_the_same(tmp_path: Path) -> None:
    """``rope_theta`` and ``rope_scaling`` with ``type`` instead of ``rope_parameters`` with ``rope_type``."""
    folder = save_tiny_model(tmp_path / "m", "llama", rope_parameters=LLAMA3)
    new = load_model(folder, skip_tokenizer_init=True)
    scaling = {key: value for key, value in LLAMA3.items() if key not in ("rope_theta", "rope_type")}
    edit_json(
        folder / "config.json",
        remove=("rope_parameters",),
        rope_theta=10_000.0,
        rope_scaling={**scaling, "type": "llama3"},
    )
    old = load_model(folder, skip_tokenizer_init=True)
    assert old.config == new.config
    logits = PagedDriver(old.model).step([(driver_row(old, 40), 40)])
    expected = transformers_logits(load_transformers(folder), random_prompt(40))
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def driver_row(loaded: Any, length: int) -> Any:
    return PagedDriver(loaded.model).add(random_prompt(length))
