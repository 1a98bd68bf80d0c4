"""Tables and JSON from made-up timings; nothing here depends on how fast the machine is."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.compare import Comparison
from tests.benchmarks.machine import Machine
from tests.benchmarks.made_up import LIMITS, SIZES, comparison, measurement, system_info
from tests.benchmarks.overhead import Overhead, WaitingCost
from tests.benchmarks.report import (
    as_json,
    comparison_lines,
    first_token_agreement,
    gflop_per_s,
    head_lines,
    overhead_lines,
    verdict_lines,
    waiting_lines,
)
from tests.benchmarks.targets import judge
from tests.benchmarks.workloads import CONTINUOUS, GENERATE, LLAMA_CPP, NATIVE, WORKLOADS

MACHINE = Machine("processor", 2, 2, {"torch": "2.13.0"}, 0.5)
W1, W5 = WORKLOADS["W1"], WORKLOADS["W5"]
Q8 = LLAMA_CPP[0]
OVERHEAD = Overhead("native", 1, 0.0, 62, 0.005, 0.0048, 0.031, {"schedule": 0.0001, "sample": 0.0001})
WAITING = WaitingCost(32, 10_000, 0.0002, 0.00022, 0.0001, 0.00011)


def test_products_are_counted_for_every_token_and_the_head_for_every_drawn_one():
    one = measurement(NATIVE, W1, [2.0])
    assert gflop_per_s(one, SIZES) == pytest.approx(2 * (0.09 * (64 + 128) + 0.01 * 128) / 2.0)


def test_table_of_a_workload():
    found = Comparison(
        W1,
        (
            measurement(NATIVE, W1, [0.5, 0.4, 0.64], num_forwards=128),
            measurement(Q8, W1, [1.0, 1.0, 1.0], num_forwards=128),
        ),
        LIMITS,
        0.01,
        {"llama.cpp Q4_1": "0.50x of its fastest format in the warm-up"},
    )
    title, ours, peer, out, *absent, meanwhile = comparison_lines(found, SIZES, [NATIVE, Q8, GENERATE])
    assert title == "W1: one request: 64 in, 128 out"
    assert "256 tok/s (200 to 320, 3 rounds)" in ours
    assert "reads 64%" in ours
    assert "ours" not in ours
    assert "128 tok/s (128 to 128, 3 rounds)  ours 2.00x (2.00x by CPU time)" in peer
    assert "same first token 100%" in peer
    assert "llama.cpp Q4_1" in out
    assert "not run: 0.50x" in out
    assert not absent, "all of these are part of it"
    assert "memory reads 40 GB/s" in meanwhile
    assert "other programs took 1% of the cores" in meanwhile
    assert "BUSY" not in meanwhile


def test_table_says_who_is_not_part_of_it_and_when_the_machine_was_busy():
    found = comparison(W5, measurement(NATIVE, W5, [10.0]), others=0.3)
    *_, absent, meanwhile = comparison_lines(found, SIZES, [NATIVE, GENERATE, CONTINUOUS])
    assert absent.strip() == f"not part of this workload: {GENERATE}"
    assert "30% of the cores: TOO BUSY" in meanwhile
    unknown = comparison_lines(comparison(W5, measurement(NATIVE, W5, [1.0]), others=None), SIZES, [])[-1]
    assert "other programs: not known" in unknown


def test_verdicts_say_missed_met_and_aim_reached():
    def lines(ours: float) -> list[str]:
        pair = measurement(NATIVE, W1, [ours], num_forwards=128), measurement(Q8, W1, [1.0])
        return verdict_lines(judge({"W1": comparison(W1, *pair)}))

    assert "W1 against llama.cpp best" in lines(1.0)[1]
    assert "1.00x (at least 1.1x, aim 1.4x): MISSED" in lines(1.0)[1]
    assert "1.25x (at least 1.1x, aim 1.4x): met" in lines(0.8)[1]
    assert "2.00x (at least 1.1x, aim 1.4x): aim reached" in lines(0.5)[1]
    assert "64.0% (at least 55%, aim 75%): met" in lines(0.5)[2]
    alone = verdict_lines(judge({"W1": comparison(W1, measurement(NATIVE, W1, [1.0]))}))
    assert "not measured (at least 1.1x, aim 1.4x)" in alone[1]
    assert verdict_lines([]) == []


def test_overhead_is_met_or_missed():
    (_, met) = overhead_lines([OVERHEAD])
    assert "native  1 running, temperature 0: 4.0% of 5.00 ms (target below 5%: met)" in met
    assert "3.1% of the median step; µs: schedule 100, sample 100" in met
    (_, missed) = overhead_lines([Overhead("native", 32, 0.6, 9, 0.02, 0.018, 0.09, {})])
    assert "10.0% of 20.00 ms (target below 5%: MISSED)" in missed


def test_a_queue_that_costs_is_missed():
    assert "200 µs with 0 waiting, 220 µs with 10,000 waiting: 1.10x" in waiting_lines(WAITING)[0]
    assert "met" in waiting_lines(WAITING)[0]
    slow = WaitingCost(32, 10_000, 0.0002, 0.02, 0.0001, 0.01)
    assert "100.00x" in waiting_lines(slow)[0]
    assert "MISSED" in waiting_lines(slow)[0]


def test_first_token_agreement_is_a_share_of_all_answers_and_unknown_where_they_are_drawn():
    w2 = WORKLOADS["W2"]
    ours, same, other = (measurement(NATIVE, w2, [1.0, 1.0], first_id=first) for first in (7, 7, 8))
    assert first_token_agreement(ours, same) == 1.0
    assert first_token_agreement(ours, other) == 0.0
    drawn = measurement(NATIVE, W5, [1.0])
    assert first_token_agreement(drawn, drawn) is None


def test_head_tells_what_a_step_reads_and_allows():
    lines = head_lines(MACHINE, LIMITS, "model", [system_info(NATIVE)])
    assert "100 MB" in lines[-1]
    assert "400 /s" in lines[-1]
    assert "int8 800 GOP/s" in lines[1]


def test_json_holds_all_figures():
    found = {
        "W1": comparison(W1, measurement(NATIVE, W1, [0.5], num_forwards=128), measurement(Q8, W1, [1.0]))
    }
    figures = json.loads(json.dumps(as_json(MACHINE, "model", SIZES, found, [OVERHEAD], WAITING)))
    systems = figures["workloads"]["W1"]["systems"]
    assert [one["metrics"]["output rate"]["median"] for one in systems] == [256.0, 128.0]
    assert systems[0]["read_share"] == pytest.approx(0.64)
    assert figures["workloads"]["W1"]["ratios"][0]["value"] == 2.0
    assert [one.get("value") for one in figures["targets"]] == [2.0, pytest.approx(0.64)]
    assert figures["overhead"][0]["share"] == pytest.approx(0.04)
    assert figures["waiting"]["ratio"] == pytest.approx(1.1)
    assert figures["machine"]["versions"] == {"torch": "2.13.0"}
