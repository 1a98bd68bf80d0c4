"""Figures of a round from given seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.made_up import measurement
from tests.benchmarks.metrics import METRICS
from tests.benchmarks.workloads import NATIVE, WORKLOADS

W6_OF_FOUR = replace(WORKLOADS["W6"], waves=WORKLOADS["W6"].waves[:4])


def test_output_rate_is_the_median_of_tokens_over_seconds():
    one = measurement(NATIVE, WORKLOADS["W1"], [1.0, 0.5, 2.0])
    assert one.values("output rate") == (128.0, 256.0, 64.0)
    assert one.median("output rate") == 128.0


def test_decode_rate_counts_the_tokens_after_the_first_and_the_time_after_it():
    one = measurement(NATIVE, WORKLOADS["W4"], [2.0], first_token=1.5)
    assert one.median("decode rate") == 63 / 0.5
    assert one.median("wall time") == 2.0
    with pytest.raises(ValueError, match="first token is not known"):
        measurement(NATIVE, WORKLOADS["W4"], [2.0]).median("decode rate")


def test_warm_share_is_the_median_later_wave_over_the_first():
    one = measurement(NATIVE, W6_OF_FOUR, {0: [2.0, 0.1, 0.2, 0.9]})
    assert one.median("cold first token") == 2.0
    assert one.median("warm first token") == 0.2
    assert one.median("warm share") == 0.1


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "ratio"),
    [("output rate", 200, 100, 2.0), ("first token", 0.5, 1.0, 2.0), ("warm share", 0.02, 0.08, 4.0)],
)
def test_a_ratio_above_one_means_that_ours_is_better(name: str, ours: float, theirs: float, ratio: float):
    metric = METRICS[name]
    assert metric.ratio(ours, theirs) == pytest.approx(ratio)
    assert metric.better([ours, theirs]) == ours


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("output rate", 178.4, "178 tok/s"),
        ("output rate", 25.06, "25.1 tok/s"),
        ("first token", 0.8345, "0.83 s"),
        ("first token", 0.0345, "0.035 s"),
        ("warm share", 0.0412, "4.1 %"),
    ],
)
def test_figures_are_written_with_their_units(name: str, value: float, text: str):
    assert METRICS[name].text(value) == text


def test_every_metric_of_a_workload_exists():
    assert {name for workload in WORKLOADS.values() for name in workload.metrics} <= METRICS.keys()
