"""The noise of a draw depends only on (seed, output index), and draws follow the softmax."""

import math

import pytest
import torch

from micro_vllm.sampling.noise import gumbel_noise
from micro_vllm.sampling.params import SamplingSpec
from tests.engine.support.sampling import draws, sample

LOGITS = torch.randn(40, 2000, generator=torch.Generator().manual_seed(3)) * 2


def _one(seed: int, index: int, ids: torch.Tensor) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([index]), ids)[0]


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.02}])
def test_seeded_rows_draw_the_same_in_any_batch_and_order(filters):
    """E15, vllm #17524."""
    specs = [SamplingSpec(seed=s * 7 - 100, temperature=0.9, **filters) for s in range(40)]
    histories = [((), (0,) * (s % 5)) for s in range(40)]
    together = sample(LOGITS, specs, histories).token_ids
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = sample(LOGITS[order], [specs[i] for i in order], [histories[i] for i in order]).token_ids
    assert [together[i] for i in order] == shuffled
    for i in range(40):
        assert sample(LOGITS[i : i + 1], [specs[i]], [histories[i]]).token_ids == [together[i]]


def test_filters_that_remove_nothing_that_wins_change_no_draw():
    """The noise of a token does not depend on which other tokens are in the race."""
    plain = sample(LOGITS, [SamplingSpec(seed=s, temperature=0.7) for s in range(40)]).token_ids
    for filters in ({"top_k": 1999}, {"top_k": 500}, {"top_p": 0.999999}, {"min_p": 1e-7}):
        specs = [SamplingSpec(seed=s, temperature=0.7, **filters) for s in range(40)]
        assert sample(LOGITS, specs).token_ids == plain


def test_noise_of_some_ids_is_that_of_the_whole_vocabulary():
    whole = _one(5, 2, torch.arange(1000))
    some = torch.tensor([999, 3, 500])
    assert torch.equal(_one(5, 2, some), whole[some])


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
def test_every_seed_is_usable_and_its_own(seed):
    ids = torch.arange(5000)
    noise = _one(seed, 0, ids)
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.1  # Euler's constant; 5 standard deviations are 0.09
    assert not torch.equal(noise, _one(seed ^ 1, 0, ids))
    assert not torch.equal(noise, _one(seed, 1, ids))


def test_neighbouring_seeds_and_indices_are_not_correlated():
    ids = torch.arange(20_000)
    base = _one(1234, 7, ids)
    shifted = [_one(1234, 7, ids + 1), _one(1235, 7, ids), _one(1234, 8, ids), _one(1235, 6, ids)]
    for other in shifted:
        assert abs(float(torch.corrcoef(torch.stack([base, other]))[0, 1])) < 5 / math.sqrt(20_000)


def test_noise_is_gumbel():
    """Kolmogorov-Smirnov distance of 200,000 values to the Gumbel; its 0.1 % point is 1.95 / sqrt(n)."""
    noise = gumbel_noise(torch.arange(20), torch.arange(20), torch.arange(10_000)).flatten().double()
    noise = noise.sort().values
    n = len(noise)
    cdf = (-(-noise).exp()).exp()
    distance = (cdf - (torch.arange(n) + 0.5) / n).abs().max()
    assert float(distance) < 1.95 / math.sqrt(n)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("by", ["seed", "output index"])
def test_draws_follow_the_softmax(temperature, by):
    """Chi-square over 20 tokens and 20,000 draws; 43.8 is the 0.1 % point of 19 degrees of freedom."""
    logits = torch.linspace(-2, 1, 20)
    count = 20_000
    if by == "seed":
        found = draws(logits.tolist(), count, temperature=temperature)
    else:
        noise = gumbel_noise(torch.full((count,), 11), torch.arange(count), torch.arange(20))
        found = (logits / temperature + noise).argmax(-1).bincount(minlength=20)
    expected = (logits / temperature).softmax(-1).double() * count
    assert float(((found - expected) ** 2 / expected).sum()) < 43.8


def test_unlikely_tokens_come_up_as_often_as_they_should():
    """One token of 30,000 equal ones has 63 % of the mass, each other 1.2e-5."""
    logits = torch.zeros(2000, 30_000)
    logits[:, 17] = math.log(30_000 * 1.7)
    tokens = sample(logits, [SamplingSpec(seed=s, temperature=1.0) for s in range(2000)]).token_ids
    share = tokens.count(17) / 2000
    assert abs(share - 1.7 / 2.7) < 4 * math.sqrt(0.63 * 0.37 / 2000)
    others = [t for t in tokens if t != 17]
    assert len(set(others)) > 0.95 * len(others)
    assert abs(sum(others) / len(others) - 15_000) < 4 * 30_000 / math.sqrt(12 * len(others))
