"""Whole rows of logits, natively: maxima, draws and log-probabilities are those of the plain way."""

from __future__ import annotations

import pytest
import torch

from micro_vllm.model_loader.cache import default_cache_root
from micro_vllm.native.compile import load_kernels
from micro_vllm.native.kernels import declare
from micro_vllm.native.prepare import KERNEL_FOLDER
from micro_vllm.native.sampling import NativeSampling
from micro_vllm.sampling.logprobs import gather_logprobs
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.sampling.settings import Asking, Filters, Race
from micro_vllm.sampling.truncation import draw_filtered, draw_unfiltered
from tests.engine.support.native import needs_native
from tests.engine.support.sampling import sample

pytestmark = needs_native


@pytest.fixture(scope="module")
def kernels():
    return NativeSampling(declare(load_kernels(default_cache_root() / KERNEL_FOLDER)))


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("vocabulary", [17, 300, 1001, 5000])
def test_draws_are_those_of_the_plain_race(kernels, vocabulary, spread):
    """Also in any batch, order and number of threads."""
    generator = torch.Generator().manual_seed(vocabulary)
    padded = torch.randn(40, vocabulary + 5, generator=generator) * spread
    logits = padded[:, :vocabulary]  # ids behind it only pad, and must not win
    padded[:, vocabulary:] = 100
    padded[7, :9] = -torch.inf  # as masks leave it
    temperature = torch.rand(40, generator=generator) * 2 + 0.02
    temperature[3], temperature[4] = 1e-5, torch.finfo(torch.float32).max
    seeds = torch.randint(-(2**63), 2**63 - 1, (40,), generator=generator)
    index = torch.arange(40)
    maxima, likeliest = logits.max(dim=-1)
    wanted = draw_unfiltered((logits - maxima[:, None]) / temperature[:, None], seeds, index)

    def drawn(rows):
        _, tokens = kernels.maxima(logits)
        race = Race(rows, len(rows) == 40, temperature[rows], seeds[rows], None)
        kernels.draw(logits, tokens, race, index.tolist())
        others = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False).numpy()
        assert (tokens[others] == likeliest.numpy()[others]).all()  # rows of no race keep their maximum
        return torch.tensor(tokens)[rows]

    assert torch.equal(drawn(torch.arange(40)), wanted)
    order = torch.randperm(40, generator=generator)
    assert torch.equal(drawn(order), wanted[order])
    torch.set_num_threads(3)
    try:
        for i in (0, 7, 39):
            assert drawn(torch.tensor([i])) == wanted[i]
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("spread", [0.0, 0.2, 2.0, 9.0])
@pytest.mark.parametrize("vocabulary", [17, 300, 5003])
def test_filtered_draws_are_those_of_the_plain_way(kernels, vocabulary, spread):
    generator = torch.Generator().manual_seed(vocabulary)
    count = 120
    padded = torch.randn(count, vocabulary + 5, generator=generator) * spread
    logits = padded[:, :vocabulary]
    padded[:, vocabulary:] = 100
    padded[7, :9] = -torch.inf
    logits[8] = logits[8].mul(2).round()  # equals are cut by id
    temperature = torch.rand(count, generator=generator) * 2 + 0.05
    temperature[3] = 1e-5

    def some(values, dtype):
        return torch.tensor([values[i % len(values)] for i in range(count)], dtype=dtype)

    top_k = some([0, 1, 0, 5, 0, vocabulary - 1, 0, 50 % vocabulary], torch.int64)
    top_p = some([0.9, 1.0, 0.5, 0.95, 1.0, 0.999, 0.01], torch.float64)
    min_p = some([0.0, 0.0, 0.1, 0.0, 0.02], torch.float64)
    off = (top_k == 0) & (top_p == 1) & (min_p == 0)
    top_p[off] = 0.7  # whoever asks for nothing is drawn otherwise
    seeds = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    index = torch.arange(count)
    maxima = logits.amax(dim=-1)
    scaled = (logits - maxima[:, None]) / temperature[:, None]
    wanted = draw_filtered(scaled, top_k, top_p, min_p, seeds, index)

    def drawn(rows):
        _, tokens = kernels.maxima(logits)
        filters = Filters(top_k[rows], top_p[rows], min_p[rows])
        race = Race(rows, len(rows) == count, temperature[rows], seeds[rows], filters)
        kernels.draw(logits, tokens, race, index.tolist())
        return torch.tensor(tokens)[rows]

    assert torch.equal(drawn(torch.arange(count)), wanted)
    order = torch.randperm(count, generator=generator)[:31]
    torch.set_num_threads(3)
    try:
        found = drawn(order)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, wanted[order])


@pytest.mark.parametrize("vocabulary", [1, 15, 16, 17, 1003])
def test_maxima_are_torchs_first_ones_and_nan_wins(kernels, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    padded = torch.randint(-9, 9, (12, vocabulary + 3), generator=generator).float()  # many are equal
    padded[:, vocabulary:] = 100
    logits = padded[:, :vocabulary]
    logits[1] = -torch.inf
    logits[2, vocabulary // 2] = torch.inf
    logits[3, vocabulary // 3 :: 5] = torch.nan
    logits[4, -1], logits[4, 0] = torch.nan, torch.inf
    logits[5, ::2] = -torch.inf
    logits[6, -1] = 50
    for some in (logits, logits[:2], logits[2:5], logits[3:4]):
        maxima, ids = kernels.maxima(some)
        assert ids.tolist() == some.numpy().argmax(axis=-1).tolist()
        torch.testing.assert_close(
            torch.tensor(maxima), some.max(dim=-1).values, equal_nan=True, rtol=0, atol=0
        )


@pytest.mark.parametrize("vocabulary", [9, 16, 40, 3001])
def test_logprobs_and_ranks_are_those_of_the_plain_way(kernels, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(10, vocabulary + 7, generator=generator) * 4  # 7 ids only pad
    logits[1] = logits[1].mul(8).round()  # some are equal
    logits[2, :30] = 20.0  # as many as the plain way still orders by id
    logits[3, :4] = -torch.inf
    logits[4, -2] = 90
    sampled = torch.randint(0, vocabulary, (10,), generator=generator)
    sampled[5] = logits[5, :vocabulary].argmax()
    sampled[6], sampled[7] = 0, vocabulary - 1
    counts = [0, 1, 5, 20, 2, 3, 7, 0, 20, 4]
    for rows in (torch.arange(10), torch.tensor([7]), torch.tensor([3, 1, 8]), torch.tensor([0])):
        asked = [counts[i] for i in rows.tolist()]
        _, tokens = kernels.maxima(logits)
        tokens[:] = sampled
        found = kernels.logprobs(logits, tokens, Asking(rows, len(rows) == 10, tuple(asked)), vocabulary)
        wanted = gather_logprobs(logits[rows], sampled[rows], asked, vocabulary)
        for ours, one in zip(found, wanted, strict=True):
            assert ours.token_ids == one.token_ids
            assert ours.ranks == one.ranks
            assert ours.logprobs == pytest.approx(one.logprobs, abs=3e-6, rel=1e-6)


def test_a_sampler_with_native_kernels_draws_what_the_plain_one_does(kernels):
    logits = torch.randn(24, 900, generator=torch.Generator().manual_seed(5)) * 2
    specs = [
        SamplingSpec(
            seed=i,
            temperature=(0, 0.6, 1.3)[i % 3],
            top_p=0.9 if i % 4 == 0 else 1,
            presence_penalty=0.5 if i % 5 == 0 else 0,
            num_logprobs=3 if i % 6 == 0 else None,
        )
        for i in range(24)
    ]
    wanted = sample(logits, specs)
    found = sample(logits, specs, kernels=kernels)
    assert found.token_ids == wanted.token_ids
    assert found.logprobs.keys() == wanted.logprobs.keys() == set(range(0, 24, 6))
    broken = logits.clone()
    broken[1, 5] = torch.nan
    assert list(sample(broken, specs, kernels=kernels).failed) == [1]
