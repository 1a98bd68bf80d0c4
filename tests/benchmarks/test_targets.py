"""Verdicts from given seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.made_up import comparison, measurement
from tests.benchmarks.targets import TARGETS, OwnTarget, Target, Verdict, judge, ratio, read_share
from tests.benchmarks.workloads import CONTINUOUS, EAGER, GENERATE, LLAMA_CPP, NATIVE, WORKLOADS

Q8, BF16, Q4 = LLAMA_CPP
W1, W3, W5, W6 = (WORKLOADS[name] for name in ("W1", "W3", "W5", "W6"))


def verdict_on(found: dict, index: int = 0) -> Verdict:
    verdict = judge(found)[index][1]
    assert verdict is not None
    return verdict


def test_ratio_is_of_medians_with_the_spread_of_the_rounds_both_were_in():
    ours = measurement(NATIVE, W5, [1.0, 2.0, 4.0])
    peer = measurement(CONTINUOUS, W5, {0: [8.0], 2: [12.0]})
    found = ratio(ours, peer, "wall time")
    assert (found.value, found.least, found.most) == (5.0, 3.0, 8.0)
    assert found.by_cpu_time == 5.0


def test_the_best_of_the_weight_formats_is_the_peer():
    found = comparison(
        W1,
        measurement(NATIVE, W1, [1.0]),
        measurement(Q8, W1, [2.0]),
        measurement(BF16, W1, [1.2]),
        measurement(Q4, W1, [3.0]),
    )
    verdict = verdict_on({"W1": found})
    assert (verdict.peer, verdict.value) == (BF16, pytest.approx(1.2))
    assert verdict.is_met
    assert not verdict.reaches_aim


def test_for_a_long_prompt_transformers_may_be_the_one_to_beat():
    found = comparison(
        W3, measurement(NATIVE, W3, [1.0]), measurement(Q8, W3, [3.0]), measurement(GENERATE, W3, [1.25])
    )
    verdict = verdict_on({"W3": found})
    assert (verdict.peer, verdict.value) == (GENERATE, 1.25)
    assert not verdict.is_met


def test_less_is_better_for_the_warm_share():
    workload = replace(W6, waves=W6.waves[:3])

    def warm(seconds: float) -> Verdict:
        return verdict_on(
            {"W6": comparison(workload, measurement(NATIVE, workload, {0: [1.0, *[seconds] * 2]}))}
        )

    assert (warm(0.03).is_met, warm(0.03).reaches_aim) == (True, True)
    assert (warm(0.06).is_met, warm(0.06).reaches_aim) == (True, False)
    assert (warm(0.09).is_met, warm(0.09).reaches_aim) == (False, False)


def test_read_share_is_of_the_bytes_that_the_system_reads():
    """100 MB in each of 128 passes within 0.5 s are 25.6 GB/s, of 40."""
    ours = measurement(NATIVE, W1, [0.5], num_forwards=128)
    assert read_share(ours) == (pytest.approx(0.64),)
    assert read_share(measurement(EAGER, W1, [0.5], num_forwards=128)) == (pytest.approx(1.28),)
    assert read_share(measurement(CONTINUOUS, W1, [0.5])) is None
    verdict = verdict_on({"W1": comparison(W1, ours)}, 1)
    assert isinstance(verdict.target, OwnTarget)
    assert (verdict.value, verdict.is_met, verdict.reaches_aim) == (pytest.approx(0.64), True, False)


def test_without_the_native_one_the_eager_one_is_judged():
    found = comparison(W1, measurement(EAGER, W1, [1.0]), measurement(Q8, W1, [2.0]))
    assert verdict_on({"W1": found}).system == EAGER


def test_what_was_not_measured_has_no_verdict():
    judged = judge({"W1": comparison(W1, measurement(NATIVE, W1, [1.0]))})
    assert [(target.metric, verdict) for target, verdict in judged] == [
        ("output rate", None),
        ("read share", None),
    ]
    assert judge({}) == []


def test_targets_are_those_that_were_set():
    """Moving a line must be a decision: workload, metric, against whom, at least, aim."""
    lines = [
        (t.workload, t.metric, t.against if isinstance(t, Target) else "", t.at_least, t.aim) for t in TARGETS
    ]
    assert lines == [
        ("W1", "output rate", "llama.cpp best", 1.1, 1.4),
        ("W2", "output rate", "llama.cpp best", 1.5, 2.0),
        ("W3", "first token", "the better of llama.cpp and transformers", 1.3, 2.0),
        ("W4", "decode rate", "llama.cpp best", 1.0, 1.3),
        ("W4", "wall time", "llama.cpp best", 1.0, 1.3),
        ("W5", "wall time", "llama.cpp best", 1.3, 2.0),
        ("W5", "wall time", CONTINUOUS, 6.0, 10.0),
        ("W6", "warm share", "", 0.08, 0.04),
        ("W1", "read share", "", 0.55, 0.75),
    ]
    for target in TARGETS:
        workload = WORKLOADS[target.workload]
        assert NATIVE in workload.systems
        assert target.metric in (*workload.metrics, "read share")
        assert set(getattr(target, "peers", ())) <= set(workload.systems)
