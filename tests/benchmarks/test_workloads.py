"""The workloads themselves: what is measured must not change from run to run."""

from __future__ import annotations

import pytest

from tests.benchmarks.workloads import FIRST_PLAIN_ID, WORKLOADS, shortened, shrunk, token_requests

VOCAB = 49152


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_round_gives_same_token_ids(name: str):
    workload = WORKLOADS[name]
    assert token_requests(workload, 3, VOCAB) == token_requests(workload, 3, VOCAB)


@pytest.mark.parametrize("name", WORKLOADS)
def test_rounds_share_no_first_block_but_have_equal_lengths(name: str):
    """Otherwise a prefix cache would serve the second round."""
    first, second = (token_requests(WORKLOADS[name], number, VOCAB) for number in (0, 1))
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


def test_the_six_workloads_are_those_that_were_asked_for():
    """Figures of different days are only comparable if the shapes stay."""
    shapes = {
        name: [[(s.num_prompt, s.num_output) for s in wave] for wave in w.waves]
        for name, w in WORKLOADS.items()
    }
    assert shapes["W1"] == [[(64, 128)]]
    assert shapes["W2"] == [[(64, 64)] * 32]
    assert shapes["W3"] == [[(1536, 1)]]
    assert shapes["W4"] == [[(1536, 64)]]
    assert shapes["W6"] == [[(1056, 1)]] * 16
    assert {s.num_shared for wave in WORKLOADS["W6"].waves for s in wave} == {1024}
    assert {name: w.temperature for name, w in WORKLOADS.items() if w.temperature} == {"W5": 0.6}
    assert WORKLOADS["W5"].max_request_tokens <= 256 + 128


def test_mixed_lengths_are_fixed_and_within_their_ranges():
    shapes = {name: WORKLOADS[name].waves[0] for name in ("mixed16", "W5")}
    assert {name: len(wave) for name, wave in shapes.items()} == {"mixed16": 16, "W5": 64}
    for wave in shapes.values():
        assert all(16 <= s.num_prompt <= 256 and 16 <= s.num_output <= 128 for s in wave)
    totals = {name: (WORKLOADS[name].num_prompt, WORKLOADS[name].num_output) for name in shapes}
    assert totals == {"mixed16": (1888, 1280), "W5": (8327, 3986)}


def test_shared_prefix_is_equal_within_a_round_and_the_rest_differs():
    waves = token_requests(WORKLOADS["W6"], 0, VOCAB)
    assert len({request.prompt_token_ids[:1024] for (request,) in waves}) == 1
    assert len({request.prompt_token_ids[1024:] for (request,) in waves}) == 16
    assert {len(request.prompt_token_ids) for (request,) in waves} == {1056}


def test_requests_without_shared_prefix_are_all_different_and_carry_the_temperature():
    (wave,) = token_requests(WORKLOADS["W2"], 0, VOCAB)
    assert len({request.prompt_token_ids[:16] for request in wave}) == 32
    assert {request.temperature for request in wave} == {0.0}
    (wave,) = token_requests(WORKLOADS["W5"], 0, VOCAB)
    assert {request.temperature for request in wave} == {0.6}


def test_shortened_workload_keeps_prompts_and_cuts_answers():
    short = shortened(WORKLOADS["W5"], 4)
    assert [s.num_prompt for s in short.waves[0]] == [s.num_prompt for s in WORKLOADS["W5"].waves[0]][:32]
    assert {s.num_output for s in short.waves[0]} == {4}
    assert short.temperature == 0.6
    assert {s.num_output for s in shortened(WORKLOADS["W3"]).waves[0]} == {1}
    assert len(shortened(WORKLOADS["W6"]).waves) == 2  # one cold, one warm


@pytest.mark.parametrize("name", WORKLOADS)
def test_shrunk_workload_is_of_the_same_kind_and_fits_a_tiny_model(name: str):
    tiny = shrunk(WORKLOADS[name])
    assert tiny.max_request_tokens <= 128
    assert len(tiny.waves) == min(3, len(WORKLOADS[name].waves))
    assert tiny.metrics == WORKLOADS[name].metrics
    for shape in (shape for wave in tiny.waves for shape in wave):
        assert shape.num_prompt > shape.num_shared
        assert shape.num_output >= 1
