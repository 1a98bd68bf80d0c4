"""Raw logprobs, and rows that cannot be sampled."""

import pytest
import torch

from micro_vllm.sampling.params import SamplingSpec
from tests.engine.support.sampling import sample

LOGITS = torch.randn(5, 200, generator=torch.Generator().manual_seed(2)) * 3


def test_logprobs_are_the_raw_models_under_temperature_masks_and_penalties():
    """E14, vllm #9453: log_softmax of the model's logits, whatever the sampling does. Tolerance 1e-5."""
    specs = [
        SamplingSpec(seed=1, num_logprobs=3),
        SamplingSpec(seed=2, temperature=2.0, top_p=0.7, num_logprobs=5),
        SamplingSpec(seed=3, repetition_penalty=1.8, frequency_penalty=2.0, num_logprobs=2),
        SamplingSpec(seed=4, temperature=1.0, allowed_token_ids=(3, 4), num_logprobs=1),
        SamplingSpec(seed=5, logit_bias={7: 50.0}, num_logprobs=0),
    ]
    history = (LOGITS[2].topk(5).indices.tolist(), LOGITS[2].topk(3).indices.tolist())
    output = sample(LOGITS, specs, [history] * 5)
    expected = LOGITS.double().log_softmax(-1)
    for row, spec in enumerate(specs):
        found = output.logprobs[row]
        best = expected[row].argsort(descending=True).tolist()
        assert found.token_ids == (output.token_ids[row], *best[: spec.num_logprobs])
        assert found.logprobs == pytest.approx(expected[row, list(found.token_ids)].tolist(), abs=1e-5)
        assert found.ranks == tuple(best.index(token_id) + 1 for token_id in found.token_ids)
    assert output.token_ids[4] == 7  # forced by the bias, and far from the raw best
    assert output.logprobs[4].ranks[0] > 1


def test_only_rows_that_ask_get_logprobs():
    specs = [SamplingSpec(seed=s, num_logprobs=n) for s, n in enumerate([None, 0, None, 2, None])]
    output = sample(LOGITS, specs)
    assert {row: len(found.token_ids) for row, found in output.logprobs.items()} == {1: 1, 3: 3}


def test_more_logprobs_than_tokens_lists_them_all():
    output = sample(LOGITS[:1, :4], [SamplingSpec(seed=0, num_logprobs=20)])
    assert sorted(output.logprobs[0].token_ids[1:]) == [0, 1, 2, 3]


def test_equal_logits_are_ranked_by_id_as_greedy_takes_them():
    logits = torch.zeros(1, 500)
    logits[0, [300, 20, 100]] = 1.0
    found = sample(logits, [SamplingSpec(seed=0, num_logprobs=3)]).logprobs[0]
    assert found.token_ids == (20, 20, 100, 300)
    assert found.ranks == (1, 1, 2, 3)


def test_padding_of_the_vocabulary_is_not_listed_but_counts_in_the_sum():
    logits = torch.tensor([[1.0, 0.0, 3.0, 3.0]])
    found = sample(logits, [SamplingSpec(seed=0, num_logprobs=4)], num_valid_ids=2).logprobs[0]
    assert found.token_ids == (0, 0, 1)
    assert found.logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[0, 0]), abs=1e-6)


@pytest.mark.parametrize("setting", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}])
@pytest.mark.parametrize(
    ("spoil", "where"),
    [(float("nan"), slice(3, 4)), (float("inf"), slice(3, 4)), (float("-inf"), slice(None))],
)
def test_a_row_without_finite_logits_fails_alone(spoil, where, setting):
    logits = LOGITS.clone()
    logits[2, where] = spoil
    specs = [SamplingSpec(seed=s, num_logprobs=1, **setting) for s in range(5)]
    output, sound = sample(logits, specs), sample(LOGITS, specs)
    assert set(output.failed) == {2}
    assert "not finite" in output.failed[2]
    assert set(output.logprobs) == {0, 1, 3, 4}
    for row in (0, 1, 3, 4):
        assert output.token_ids[row] == sound.token_ids[row]


def test_single_masked_logits_of_the_model_are_no_failure():
    logits = LOGITS.clone()
    logits[:, ::2] = -torch.inf
    output = sample(logits, [SamplingSpec(seed=s, temperature=2.0) for s in range(5)])
    assert not output.failed
    assert all(token_id % 2 for token_id in output.token_ids)


def test_masks_that_leave_nothing_fail_their_row_with_the_reason():
    specs = [
        SamplingSpec(
            seed=0, temperature=1.0, allowed_token_ids=(4,), min_tokens=1, min_tokens_masked_ids=(4,)
        ),
        SamplingSpec(seed=0),
    ]
    output = sample(LOGITS[:2], specs)
    assert set(output.failed) == {0}
    assert "allowed_token_ids" in output.failed[0]


def test_nan_in_the_padding_of_the_vocabulary_is_no_failure():
    logits = LOGITS.clone()
    logits[:, 190:] = torch.nan
    specs = [SamplingSpec(seed=s, temperature=1.0) for s in range(5)]
    assert not sample(logits, specs, num_valid_ids=190).failed
