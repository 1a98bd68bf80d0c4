"""Who runs when, and what is kept of it. Made-up systems: nothing here depends on how fast the machine is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.compare import compare
from tests.benchmarks.machine import BusyClock, LimitProbe
from tests.benchmarks.made_up import LIMITS, FakeSystem, FixedProbe, measurement
from tests.benchmarks.workloads import CONTINUOUS, EAGER, GENERATE, LLAMA_CPP, NATIVE, WORKLOADS

W1 = WORKLOADS["W1"]
Q8, BF16, Q4 = LLAMA_CPP


def test_systems_take_turns_and_each_round_starts_with_another():
    log: list[tuple[str, str, int]] = []
    probe = FixedProbe()
    systems = [FakeSystem(name, log) for name in (NATIVE, EAGER, GENERATE)]
    found = compare(systems, W1, 3, 1000, probe)
    assert [name for name, what, output in log if what == "run" and output == 128] == [
        *(NATIVE, EAGER, GENERATE),
        *(EAGER, GENERATE, NATIVE),
        *(GENERATE, NATIVE, EAGER),
    ]
    assert [(one.system.name, len(one.runs), one.num_forwards) for one in found.measurements] == [
        (NATIVE, 3, 1),
        (EAGER, 3, 1),
        (GENERATE, 3, 1),
    ]
    assert probe.num_samples == 3
    assert found.limits.read_gb_per_s == 2 * LIMITS.read_gb_per_s  # the median of what the rounds saw


def test_warm_up_is_short_and_not_counted_and_all_is_closed():
    log: list[tuple[str, str, int]] = []
    found = compare([FakeSystem(NATIVE, log)], W1, 1, 1000, FixedProbe())
    assert log == [(NATIVE, "prepare", 0), (NATIVE, "run", 4), (NATIVE, "run", 128), (NATIVE, "close", 0)]
    assert found.measurements[0].values("output rate") == (256.0,)


def test_who_is_not_part_of_a_workload_is_not_run():
    log: list[tuple[str, str, int]] = []
    compare([FakeSystem(NATIVE, log), FakeSystem(CONTINUOUS, log)], WORKLOADS["W3"], 1, 1000, FixedProbe())
    assert {name for name, _, _ in log} == {NATIVE}


def test_a_slow_system_takes_part_in_every_second_round():
    log: list[tuple[str, str, int]] = []
    workload = replace(WORKLOADS["W5"], every={CONTINUOUS: 2})
    found = compare([FakeSystem(NATIVE, log), FakeSystem(CONTINUOUS, log)], workload, 5, 1000, FixedProbe())
    assert {one.system.name: list(one.runs) for one in found.measurements} == {
        NATIVE: [0, 1, 2, 3, 4],
        CONTINUOUS: [0, 2, 4],
    }


def test_weight_formats_far_from_the_fastest_drop_out_after_two_heats_and_it_is_said():
    log: list[tuple[str, str, int]] = []
    systems = [
        FakeSystem(NATIVE, log, seconds=9.0),
        FakeSystem(Q8, log, seconds=1.0),
        FakeSystem(BF16, log, seconds=1.2),
        FakeSystem(Q4, log, seconds=2.0),
    ]
    found = compare(systems, WORKLOADS["W2"], 2, 1000, FixedProbe())
    assert [one.system.name for one in found.measurements] == [NATIVE, Q8, BF16]
    assert found.left_out == {Q4: "0.50x of its fastest format in the warm-up"}
    heats_and_rounds = [name for name, _, output in log if output == 64]
    assert heats_and_rounds[:4] == [Q8, BF16, Q4, Q4]
    assert heats_and_rounds.count(Q4) == 2
    assert log.count((Q4, "close", 0)) == 1


def test_one_slow_moment_does_not_throw_a_weight_format_out():
    log: list[tuple[str, str, int]] = []
    slow_once = FakeSystem(BF16, log, seconds=[1.0, 9.0, 1.1, 1.0, 1.0])  # warm-up, two heats, rounds
    found = compare([FakeSystem(Q8, log, seconds=1.0), slow_once], WORKLOADS["W2"], 2, 1000, FixedProbe())
    assert not found.left_out
    assert [len(one.runs) for one in found.measurements] == [2, 2]


class Remembering(FakeSystem):
    """Has the prompts of all its runs in its cache."""

    seen = frozenset()

    def run(self, requests):
        result, prompts = super().run(requests), {request.prompt_token_ids for request in requests}
        known, self.seen = prompts <= self.seen, self.seen | prompts
        return replace(result, seconds=0.001, first_token_seconds=0.001) if known else result


def test_who_runs_a_second_heat_does_not_have_its_prompts_in_the_cache():
    """It once won by that, and all other formats were left out."""
    log: list[tuple[str, str, int]] = []
    systems = [Remembering(Q8, log, seconds=1.0), Remembering(Q4, log, seconds=4.0)]
    for workload in WORKLOADS.values():
        if workload.picks_format:
            found = compare(systems, workload, 1, 1000, FixedProbe())
            assert found.left_out == {Q4: "0.25x of its fastest format in the warm-up"}, workload.name


def test_alone_all_weight_formats_are_measured():
    log: list[tuple[str, str, int]] = []
    systems = [FakeSystem(name, log, seconds=1.0 + 9 * (name == Q4)) for name in LLAMA_CPP]
    found = compare(systems, W1, 1, 1000, FixedProbe())
    assert [one.system.name for one in found.measurements] == list(LLAMA_CPP)
    assert not found.left_out


def test_a_system_that_gives_fewer_tokens_than_asked_is_an_error_not_a_fast_system():
    with pytest.raises(RuntimeError, match=r"generate: asked for \[128\] tokens, given \[127\]"):
        compare([FakeSystem(GENERATE, [], num_missing=1)], W1, 1, 1000, FixedProbe())


def test_forward_passes_are_those_of_a_round_or_unknown():
    waves = {0: [1.0, 0.1, 0.1], 1: [1.0, 0.1, 0.1]}
    workload = replace(WORKLOADS["W6"], waves=WORKLOADS["W6"].waves[:3])
    assert measurement(NATIVE, workload, waves, num_forwards=2).num_forwards == 6
    assert measurement(NATIVE, workload, waves).num_forwards is None


def test_limits_and_the_share_of_others_are_measured_not_made_up():
    limits = LimitProbe(read_bytes=1 << 20).sample()
    assert limits.read_gb_per_s > 0
    assert limits.products("bf16") == limits.bf16_gflop_per_s > 0
    assert limits.products("int8") == limits.int8_gop_per_s > 0
    share = BusyClock().others_share()
    assert share is None or 0 <= share <= 1
