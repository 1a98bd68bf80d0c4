"""Ratios and rates from made-up timings; turns; nothing here depends on how fast the machine is."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.benchmarks.compare import WARM_UP, Measurement, compare, summarise
from tests.benchmarks.machine import Machine
from tests.benchmarks.overhead import Overhead
from tests.benchmarks.report import (
    ModelSize,
    as_json,
    first_token_agreement,
    gflop_per_s,
    overhead_lines,
    ratios,
    read_gb_per_s,
    workload_lines,
)
from tests.benchmarks.systems import OURS, WaveResult
from tests.benchmarks.workloads import WORKLOADS, Shape, TokenRequest, Workload

MACHINE = Machine("processor", 2, 2, 40.0, 400.0, {"torch": "2.13.0"}, 0.5)
SIZE = ModelSize("model", 200_000_000, 90_000_000, 10_000_000)
TINY = Workload("alone", "tiny", ((Shape(6, 10),),), "output tok/s")
SHARED = Workload("shared1024", "shared", ((Shape(6, 1, num_shared=4),),) * 2, "warm share")


def result(
    seconds: float, num_output: int = 10, first: int = 7, num_forwards: int | None = None
) -> WaveResult:
    return WaveResult(seconds, ((first, *[0] * (num_output - 1)),), 2 * seconds, num_forwards)


def measured(system: str, seconds: Sequence[float], workload: Workload = TINY, **kwargs) -> Measurement:
    return summarise(system, workload, [(result(s, **kwargs),) for s in seconds])


def test_rate_is_the_median_of_tokens_over_seconds():
    one = measured(OURS, [1.0, 0.5, 2.0])
    assert one.rates == (10.0, 20.0, 5.0)
    assert one.median_rate == 10.0
    assert (one.num_output, one.num_prompt) == (10, 6)


def test_ratio_is_ours_over_the_peers_with_its_target():
    found = ratios(
        [measured(OURS, [0.5]), measured("transformers generate", [1.0]), measured("llama.cpp", [0.25])]
    )
    assert [(r.peer, r.value, r.target, r.by_cpu_time) for r in found] == [
        ("transformers generate", 2.0, 1.2, 2.0),
        ("llama.cpp", 0.5, None, 0.5),
    ]


def test_ratio_of_a_share_is_turned_round_because_less_is_better():
    def share(system: str, cold: float, warm: float) -> Measurement:
        return summarise(system, SHARED, [(result(cold, 1), result(warm, 1))])

    (ratio,) = ratios([share(OURS, 2.0, 0.1), share("llama.cpp", 2.0, 0.4)])
    assert ratio.value == pytest.approx(4.0)
    assert ratio.by_cpu_time is None


def test_achieved_rates_count_weights_once_a_forward_and_the_head_once_a_drawn_token():
    one = measured(OURS, [2.0], num_forwards=10)
    assert read_gb_per_s(one, SIZE) == pytest.approx(10 * 0.2 / 2.0)
    assert gflop_per_s(one, SIZE) == pytest.approx(2 * (0.09 * 16 + 0.01 * 10) / 2.0)
    assert read_gb_per_s(measured(OURS, [2.0]), SIZE) is None


def test_table_says_missed_and_met():
    slow = workload_lines([measured(OURS, [1.0]), measured("transformers generate", [1.0])], MACHINE, SIZE)
    fast = workload_lines([measured(OURS, [0.5]), measured("transformers generate", [1.0])], MACHINE, SIZE)
    assert "ours is 1.00x (target 1.2x: MISSED)" in slow[-1]
    assert "ours is 2.00x (target 1.2x: met)" in fast[-1]
    over = Overhead(num_steps=9, step=0.04, schedule=0.002, update=0.001, share=0.075)
    assert "7.50% of the step" in overhead_lines(over)[-1]
    assert "MISSED" in overhead_lines(over)[-1]


def test_first_token_agreement_is_a_share_of_all_answers():
    ours = summarise(OURS, TINY, [(result(1.0, first=7),), (result(1.0, first=8),)])
    peer = summarise("llama.cpp", TINY, [(result(1.0, first=7),), (result(1.0, first=9),)])
    assert first_token_agreement(ours, peer) == 0.5


def test_json_holds_all_figures():
    over = Overhead(num_steps=9, step=0.04, schedule=0.0002, update=0.0001, share=0.0075)
    figures = json.loads(
        json.dumps(as_json(MACHINE, SIZE, [measured(OURS, [0.5]), measured("llama.cpp", [1.0])], over))
    )
    assert [one["median_rate"] for one in figures["measurements"]] == [20.0, 10.0]
    assert figures["ratios"][0]["value"] == 2.0
    assert figures["overhead"]["share"] == 0.0075
    assert figures["machine"]["read_gb_per_s"] == 40.0


class FakeSystem:
    """Answers with as many tokens as asked and writes down who was called when."""

    def __init__(self, name: str, log: list[tuple[str, int]], num_missing: int = 0) -> None:
        self.name = name
        self._log = log
        self._num_missing = num_missing

    def prepare(self, workload: Workload) -> None:
        self._log.append((self.name, WARM_UP))

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        self._log.append((self.name, requests[0].num_output))
        return WaveResult(0.5, tuple((1,) * (r.num_output - self._num_missing) for r in requests), 1.0, 1)

    def close(self) -> None:
        pass


def test_systems_take_turns_and_each_repeat_starts_with_another():
    log: list[tuple[str, int]] = []
    found = compare([FakeSystem(name, log) for name in (OURS, "b", "c")], WORKLOADS["alone"], 3, 1000)
    assert [name for name, output in log if output == 128] == [OURS, "b", "c", "b", "c", OURS, "c", OURS, "b"]
    assert [(one.system, len(one.rates), one.num_forwards) for one in found] == [
        (OURS, 3, 1),
        ("b", 3, 1),
        ("c", 3, 1),
    ]


def test_warm_up_is_short_and_not_counted():
    log: list[tuple[str, int]] = []
    (one,) = compare([FakeSystem(OURS, log)], WORKLOADS["alone"], 1, 1000)
    assert log == [(OURS, WARM_UP), (OURS, 4), (OURS, 128)]
    assert one.rates == (256.0,)


def test_a_system_that_gives_fewer_tokens_than_asked_is_an_error_not_a_fast_system():
    with pytest.raises(RuntimeError, match=r"b: asked for \[128\] tokens, given \[127\]"):
        compare([FakeSystem("b", [], num_missing=1)], WORKLOADS["alone"], 1, 1000)
