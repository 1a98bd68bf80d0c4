"""The vectorised sampler draws what its plain reference draws."""

import random

import pytest
import torch

from micro_vllm.sampling import reference
from micro_vllm.sampling.params import SamplingSpec
from tests.engine.support.sampling import sample


def random_spec(rng: random.Random, vocabulary: int) -> SamplingSpec:
    """Any mix of settings; about half of each are off."""

    def maybe(value, off):
        return value if rng.random() < 0.5 else off

    ids = range(vocabulary)
    return SamplingSpec(
        seed=rng.randrange(-(2**63), 2**63),
        temperature=maybe(rng.choice([0.1, 0.7, 1.0, 1.5, 4.0]), 0.0) if rng.random() < 0.4 else 1.0,
        top_p=maybe(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999]), 1.0),
        top_k=maybe(rng.choice([1, 2, 5, 40, vocabulary // 2, vocabulary - 1, vocabulary + 5]), 0),
        min_p=maybe(rng.choice([0.01, 0.1, 0.5, 1.0]), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2.0), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe({rng.choice(ids): rng.uniform(-5, 5) for _ in range(5)}, None),
        allowed_token_ids=tuple(rng.sample(ids, vocabulary // 3)) if rng.random() < 0.2 else None,
        bad_words_token_ids=maybe(((1,), (2, 3), (3, 3, 4)), ()),
        min_tokens=rng.randrange(6),
        min_tokens_masked_ids=maybe((0, 5), ()),
    )


@pytest.mark.parametrize("vocabulary", [70, 1000])
@pytest.mark.parametrize("kind", ["spread", "peaked", "flat", "ties"])
def test_draws_equal_the_reference(kind, vocabulary):
    """Exact equality of the token, 64 rows together against one by one. Logits that are multiples of 1/4 give
    ties at every cut."""
    rng = random.Random(f"{kind}{vocabulary}")
    logits = torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits = {
        "spread": logits * 3,
        "peaked": logits * 9,
        "flat": logits * 0.1,
        "ties": (logits * 8).round() / 4,
    }[kind]
    specs = [random_spec(rng, vocabulary) for _ in logits]
    histories = [
        ([rng.randrange(vocabulary) for _ in range(10)], [rng.randrange(6) for _ in range(rng.randrange(8))])
        for _ in logits
    ]
    found = sample(logits, specs, histories)
    assert not found.failed
    for row, (spec, (prompt, output)) in enumerate(zip(specs, histories, strict=True)):
        assert found.token_ids[row] == reference.draw(logits[row], spec, prompt, output), (row, spec)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.95, 0.9999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nucleus_is_exact_in_a_large_vocabulary(top_p, dtype):
    """Peaked and nearly flat rows side by side: the nucleus of a flat one reaches below the first guess and
    beyond the number of candidates that are sorted together."""
    vocabulary = 20_000
    logits = torch.randn(8, vocabulary, generator=torch.Generator().manual_seed(5))
    logits *= torch.tensor([6.0, 4.0, 3.0, 2.0, 1.0, 0.3, 0.01, 0.0])[:, None]
    logits = logits.to(dtype)
    for first_seed in (0, 100, -100):
        specs = [SamplingSpec(seed=first_seed + s, temperature=0.9, top_p=top_p) for s in range(8)]
        found = sample(logits, specs).token_ids
        assert found == [reference.draw(row.float(), spec) for row, spec in zip(logits, specs, strict=True)]


@pytest.mark.parametrize("top_k", [2, 40, 300, 312, 313, 5000, 19_999])
def test_top_k_is_exact_in_a_large_vocabulary(top_k):
    """Below and above the number of blocks whose maxima give the first guess."""
    logits = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(6))
    logits[:3] = (logits[:3] * 2).round() / 2
    specs = [SamplingSpec(seed=s, temperature=3.0, top_k=top_k) for s in range(6)]
    found = sample(logits, specs).token_ids
    assert found == [reference.draw(row, spec) for row, spec in zip(logits, specs, strict=True)]


def test_kept_sets_equal_the_reference():
    """With equal noise the winner alone could hide a wrong cut: compare which tokens ever win."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(8))
    for settings in ({"top_p": 0.8}, {"top_k": 5, "top_p": 0.7}, {"min_p": 0.2, "top_p": 0.9, "top_k": 6}):
        specs = [SamplingSpec(seed=s, temperature=1.5, **settings) for s in range(3000)]
        found = set(sample(logits.expand(3000, -1), specs).token_ids)
        kept = reference.filtered_probs(logits, specs[0]).nonzero()[:, 0].tolist()
        assert found == set(kept)
