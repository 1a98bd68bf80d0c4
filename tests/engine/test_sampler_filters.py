"""Greedy, temperature, top_k, top_p, min_p: exact expectations on rows small enough to reckon by hand."""

import math

import pytest
import torch

from micro_vllm.sampling.params import SamplingSpec
from tests.engine.support.sampling import drawn_ids, draws, sample

# Probabilities .4 .3 .15 .1 .05 of ids 3, 0, 4, 1, 2 at temperature 1.
PROBS = [0.3, 0.1, 0.05, 0.4, 0.15]
LOGITS = [math.log(p) for p in PROBS]


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def test_greedy_takes_the_maximum_and_the_smaller_id_of_equals():
    assert sample(torch.tensor([[0.0, 2.0, 2.0, 1.0]]), [SamplingSpec(seed=0)]).token_ids == [1]


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_temperature_zero_neutralises_the_filters(temperature):
    """E17, vllm #1748: plain argmax under top_p=0.1, top_k=5, min_p=0.5."""
    logits = random_logits(50, 1000)
    specs = [SamplingSpec(seed=s, temperature=temperature, top_p=0.1, top_k=5, min_p=0.5) for s in range(50)]
    assert sample(logits, specs).token_ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_k_one_is_greedy(temperature, dtype):
    """E16, vllm #5404: bf16 rows have ties at the top, and still agree."""
    logits = random_logits(200, 5000).to(dtype)
    logits[:, 7] = logits[:, 4000] = logits.amax(-1)  # tied maxima in every row
    random = [SamplingSpec(seed=s, temperature=temperature, top_k=1, top_p=0.9) for s in range(200)]
    greedy = [SamplingSpec(seed=s) for s in range(200)]
    assert sample(logits, random).token_ids == sample(logits, greedy).token_ids


def test_top_k_zero_or_beyond_the_vocabulary_is_off():
    """E18: SamplingParams turns -1 into 0."""
    logits = random_logits(64, 300)
    expected = sample(logits, [SamplingSpec(seed=s, temperature=1.0) for s in range(64)]).token_ids
    for top_k in (0, 300, 10**6):
        specs = [SamplingSpec(seed=s, temperature=1.0, top_k=top_k) for s in range(64)]
        assert sample(logits, specs).token_ids == expected


@pytest.mark.parametrize(("top_k", "kept"), [(2, {3, 0}), (3, {3, 0, 4}), (4, {3, 0, 4, 1})])
def test_top_k_keeps_the_k_likeliest(top_k, kept):
    assert drawn_ids(LOGITS, temperature=1.0, top_k=top_k) == kept


def test_top_k_cuts_through_equals_by_id():
    assert drawn_ids([1.0, 1.0, 2.0, 1.0, 1.0], temperature=1.0, top_k=3) == {2, 0, 1}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, {3}), (0.39, {3}), (0.41, {3, 0}), (0.69, {3, 0}), (0.71, {3, 0, 4}), (0.94, {3, 0, 4, 1})],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert drawn_ids(LOGITS, temperature=1.0, top_p=top_p) == kept


def test_top_p_cuts_through_equals_by_id():
    assert drawn_ids([0.0] * 10, temperature=1.0, top_p=0.35) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("min_p", "kept"), [(0.2, {3, 0, 4, 1}), (0.3, {3, 0, 4}), (0.5, {3, 0}), (1.0, {3})]
)
def test_min_p_is_relative_to_the_likeliest(min_p, kept):
    assert drawn_ids(LOGITS, temperature=1.0, min_p=min_p) == kept


def test_filters_see_the_distribution_after_temperature():
    # At temperature 2 the probabilities go as the square roots: id 2 has sqrt(.05 / .4) = .354 of id 3.
    assert drawn_ids(LOGITS, temperature=2.0, min_p=0.3) == {0, 1, 2, 3, 4}
    assert drawn_ids(LOGITS, temperature=0.5, min_p=0.3) == {3, 0}  # squares: (.3 / .4)^2 = .56, then .14
    assert drawn_ids(LOGITS, temperature=0.5, top_p=0.8) == {3, 0}  # squares: .16 + .09 of .285


def test_top_p_counts_in_what_top_k_and_min_p_left():
    # Of ids 3 and 0 alone, id 3 has .4 / .7 = .57.
    assert drawn_ids(LOGITS, temperature=1.0, top_p=0.55) == {3, 0}
    assert drawn_ids(LOGITS, temperature=1.0, top_p=0.55, top_k=2) == {3}
    assert drawn_ids(LOGITS, temperature=1.0, top_p=0.55, min_p=0.7) == {3}


def test_kept_tokens_keep_their_proportions():
    counts = draws(LOGITS, 20_000, temperature=1.0, top_k=2)
    # Four standard deviations of a binomial with p = 4/7.
    assert abs(int(counts[3]) / 20_000 - 4 / 7) < 4 * math.sqrt(4 / 7 * 3 / 7 / 20_000)


def test_extreme_temperatures_neither_overflow_nor_lose_the_draw():
    logits = torch.tensor([[300.0, 299.0, -300.0]])
    assert sample(logits, [SamplingSpec(seed=0, temperature=1e-5, top_p=0.9)]).token_ids == [0]
    assert sample(logits, [SamplingSpec(seed=0, temperature=1e-5)]).token_ids == [0]
    assert drawn_ids([300.0, 299.0, -300.0], temperature=1e6) == {0, 1, 2}


def test_rows_with_different_settings_share_a_batch():
    logits = random_logits(6, 3000)
    specs = [
        SamplingSpec(seed=1),
        SamplingSpec(seed=2, temperature=1.0),
        SamplingSpec(seed=3, temperature=0.7, top_p=0.9),
        SamplingSpec(seed=4, temperature=0.7, top_k=7),
        SamplingSpec(seed=5, temperature=1.3, min_p=0.1),
        SamplingSpec(seed=6, temperature=2.0, top_k=2500, top_p=0.999),
    ]
    together = sample(logits, specs).token_ids
    alone = [sample(logits[i : i + 1], [spec]).token_ids[0] for i, spec in enumerate(specs)]
    assert together == alone


def test_padding_of_the_vocabulary_is_never_drawn():
    """E25, vllm #13175: rows of the embedding beyond the tokenizer, here the likeliest by far."""
    logits = torch.zeros(300, 40)
    logits[:, 30:] = 50.0
    settings = [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 5.0, "top_k": 35},
    ]
    settings += [{"temperature": 1.0, "allowed_token_ids": (5, 35)}, {"logit_bias": {35: 100.0, 3: 1.0}}]
    for setting in settings:
        specs = [SamplingSpec(seed=s, **setting) for s in range(300)]
        assert max(sample(logits, specs, num_valid_ids=30).token_ids) < 30


def test_the_logits_are_left_as_they_were():
    logits = random_logits(3, 100)
    before = logits.clone()
    specs = [
        SamplingSpec(seed=0, temperature=0.5, top_k=3),
        SamplingSpec(seed=0, logit_bias={3: 5.0}),
        SamplingSpec(seed=0, repetition_penalty=2.0, num_logprobs=2),
    ]
    sample(logits, specs, [((1, 2), (3,))] * 3)
    assert torch.equal(logits, before)


def test_an_empty_batch_draws_nothing():
    assert sample(torch.empty(0, 10), []).token_ids == []
