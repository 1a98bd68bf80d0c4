"""Masks, biases and penalties against values reckoned by hand."""

import numpy as np
import pytest
import torch

from micro_vllm.sampling.constraints import ConstrainedRow, LogitConstraints, apply_constraints
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.sampling.penalties import TokenCounts
from tests.engine.support.sampling import drawn_ids, sample

INF = float("inf")


def processed(logits, prompt=(), output=(), **settings) -> list[float]:
    """One row's logits after its constraints."""
    x = torch.tensor([logits], dtype=torch.float32)
    constraints = LogitConstraints(SamplingSpec(seed=0, **settings), prompt, output, x.shape[1])
    apply_constraints(x, [ConstrainedRow(0, constraints)], np.array([len(output)]), x.shape[1])
    return x[0].tolist()


def test_allowed_token_ids_mask_everything_else():
    assert processed([1, 2, 3, 4], allowed_token_ids=(0, 2)) == [1, -INF, 3, -INF]
    assert drawn_ids([0.0] * 6, temperature=3.0, allowed_token_ids=(1, 4)) == {1, 4}


def test_logit_bias_is_added():
    assert processed([1, 2, 3], logit_bias={0: 5.0, 2: -1.5}) == [6, 2, 1.5]
    assert sample(torch.zeros(1, 5), [SamplingSpec(seed=0, logit_bias={3: 0.5})]).token_ids == [3]


def test_logit_bias_does_not_lift_a_mask():
    masks = {"allowed_token_ids": (0, 1), "min_tokens": 1, "min_tokens_masked_ids": (1,)}
    assert processed([1, 2, 3], logit_bias={1: 99.0, 2: 99.0}, **masks) == [1, -INF, -INF]


@pytest.mark.parametrize(("num_outputs", "masked"), [(0, True), (2, True), (3, False), (4, False)])
def test_min_tokens_masks_every_end_until_it_is_reached(num_outputs, masked):
    """E19: every EOS and stop id, not only the first."""
    after = processed([1, 2, 3, 4], output=(0,) * num_outputs, min_tokens=3, min_tokens_masked_ids=(1, 3))
    assert after == ([1, -INF, 3, -INF] if masked else [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("output", "masked"),
    [
        ((), {4}),  # a word of one token is never drawn
        ((1,), {4}),
        ((1, 2), {4, 3}),  # 1 2 -> not 3
        ((1, 2, 2), {4}),
        ((5, 1, 2), {4, 3}),
        ((2, 1), {4, 0}),  # 1 -> not 0 after 2
    ],
)
def test_bad_words_mask_their_last_token_after_their_beginning(output, masked):
    words = ((1, 2, 3), (4,), (2, 1, 0))
    after = processed([0.0] * 6, prompt=(9, 1, 2), output=output, bad_words_token_ids=words)
    assert {i for i, x in enumerate(after) if x == -INF} == masked


def test_bad_words_look_at_the_output_only():
    """As in vLLM: a prompt that ends with the beginning of a bad word does not count."""
    assert processed([0.0] * 4, prompt=(1, 2), bad_words_token_ids=((1, 2, 3),)) == [0.0] * 4


def test_bad_words_follow_a_growing_output():
    spec = SamplingSpec(seed=0, bad_words_token_ids=((1, 2, 3),))
    constraints = LogitConstraints(spec, (), (), 6)
    constraints.append_outputs((1,))
    assert constraints.masked_ids(1).tolist() == []
    constraints.append_outputs((2,))
    assert constraints.masked_ids(2).tolist() == [3]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    # 0 is in the prompt, 1 in both, 2 in the output (twice: it counts once), 3 in neither.
    after = processed([3, -3, 6, 9], prompt=(0, 1), output=(1, 2, 2), repetition_penalty=1.5)
    assert after == [2, -4.5, 4, 9]


def test_presence_penalty_is_taken_once_per_token_of_the_output():
    assert processed([3, 3, 3], prompt=(0,), output=(1, 1), presence_penalty=0.5) == [3, 2.5, 3]


def test_frequency_penalty_is_taken_per_occurrence_in_the_output():
    assert processed([3, 3, 3], prompt=(0, 1), output=(1, 1, 2), frequency_penalty=0.5) == [3, 2, 2.5]


def test_negative_penalties_encourage():
    after = processed([1, 1], output=(1, 1), presence_penalty=-1.0, frequency_penalty=-0.5)
    assert after == [1, 3]


def test_penalties_come_after_the_bias_and_repetition_before_the_others():
    # (2 + 4) / 2 - 1 * 0.5 - 0.25
    after = processed(
        [2, 2],
        output=(0,),
        logit_bias={0: 4.0},
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
    )
    assert after == [2.25, 2]


def test_greedy_rows_obey_penalties_and_bias():
    spec = SamplingSpec(seed=0, frequency_penalty=1.0)
    assert sample(torch.tensor([[3.0, 2.5]]), [spec], [((), (0,))]).token_ids == [1]


def test_counts_grow_as_if_built_at_once():
    ids = np.random.default_rng(0).integers(0, 500, 3000).tolist()
    grown = TokenCounts(ids[:100], [])
    for token_id in ids[100:]:
        grown.append([token_id])
    whole = TokenCounts(ids[:100], ids[100:])
    assert dict(zip(grown.token_ids, grown.output_counts, strict=True)) == dict(
        zip(whole.token_ids, whole.output_counts, strict=True)
    )
    for token_id, count in zip(whole.token_ids, whole.output_counts, strict=True):
        assert count == ids[100:].count(token_id)


def test_constraints_touch_their_own_row_only():
    logits = torch.arange(12.0).reshape(3, 4)
    specs = [
        SamplingSpec(seed=0),
        SamplingSpec(seed=0, allowed_token_ids=(0,)),
        SamplingSpec(seed=0, logit_bias={1: 50.0}),
    ]
    assert sample(logits, specs).token_ids == [3, 0, 1]


@pytest.mark.parametrize(
    "spec",
    [
        SamplingSpec(seed=0),
        SamplingSpec(seed=0, temperature=1.0, top_p=0.5, min_tokens=3, num_logprobs=5),
    ],
)
def test_a_request_without_constraints_keeps_no_state(spec):
    assert not LogitConstraints.needed(spec)
