"""The workloads themselves: what is measured must not change from run to run."""

from __future__ import annotations

import pytest

from tests.benchmarks.workloads import FIRST_PLAIN_ID, WORKLOADS, shortened, token_requests

VOCAB = 49152


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_repeat_gives_same_token_ids(name: str):
    workload = WORKLOADS[name]
    assert token_requests(workload, 3, VOCAB) == token_requests(workload, 3, VOCAB)


@pytest.mark.parametrize("name", WORKLOADS)
def test_repeats_share_no_first_block_but_have_equal_lengths(name: str):
    """Otherwise a prefix cache would serve the second repeat."""
    first, second = (token_requests(WORKLOADS[name], repeat, VOCAB) for repeat in (0, 1))
    openings = [
        {request.prompt_token_ids[:16] for wave in waves for request in wave} for waves in (first, second)
    ]
    assert openings[0].isdisjoint(openings[1])
    lengths = [
        [(len(request.prompt_token_ids), request.num_output) for wave in waves for request in wave]
        for waves in (first, second)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_have_the_lengths_of_their_shapes_and_plain_ids(name: str):
    workload = WORKLOADS[name]
    for shapes, requests in zip(workload.waves, token_requests(workload, 0, VOCAB), strict=True):
        assert [(s.num_prompt, s.num_output) for s in shapes] == [
            (len(r.prompt_token_ids), r.num_output) for r in requests
        ]
        assert all(FIRST_PLAIN_ID <= i < VOCAB for r in requests for i in r.prompt_token_ids)


def test_mixed_lengths_are_fixed_and_within_their_ranges():
    """Figures of different days are only comparable if the shapes stay: these sums are part of the workload."""
    shapes = {name: WORKLOADS[name].waves[0] for name in ("mixed16", "mixed64")}
    assert {name: len(wave) for name, wave in shapes.items()} == {"mixed16": 16, "mixed64": 64}
    for wave in shapes.values():
        assert all(16 <= s.num_prompt <= 256 and 16 <= s.num_output <= 128 for s in wave)
    totals = {
        name: (sum(s.num_prompt for s in w), sum(s.num_output for s in w)) for name, w in shapes.items()
    }
    assert totals == {"mixed16": (1888, 1280), "mixed64": (8327, 3986)}


def test_shared_prefix_is_equal_within_a_repeat_and_the_rest_differs():
    (first,), (second,) = token_requests(WORKLOADS["shared1024"], 0, VOCAB)
    assert first.prompt_token_ids[:1024] == second.prompt_token_ids[:1024]
    assert first.prompt_token_ids[1024:] != second.prompt_token_ids[1024:]
    assert len(second.prompt_token_ids) == 1040


def test_requests_without_shared_prefix_are_all_different():
    (wave,) = token_requests(WORKLOADS["batch32"], 0, VOCAB)
    assert len({request.prompt_token_ids[:16] for request in wave}) == 32


def test_shortened_workload_keeps_prompts_and_cuts_answers():
    short = shortened(WORKLOADS["mixed16"], 4)
    assert [s.num_prompt for s in short.waves[0]] == [s.num_prompt for s in WORKLOADS["mixed16"].waves[0]]
    assert {s.num_output for s in short.waves[0]} == {4}
    assert {s.num_output for s in shortened(WORKLOADS["prefill1536"]).waves[0]} == {1}
