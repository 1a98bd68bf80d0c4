"""Systems take turns on the same requests, so that a slower minute of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmarks.machine import BusyClock, LimitProbe, Limits, typical
from tests.benchmarks.metrics import METRICS, Run
from tests.benchmarks.systems import System, SystemInfo
from tests.benchmarks.workloads import Workload, shortened, token_requests

WARM_UP = -1
HEAT, SECOND_HEAT = -2, -3
"""Numbers of the rounds that are not counted."""
NEAR_FASTEST = 1.25
"""A weight format this many times slower than its peer's fastest in the heats does not take part in the rounds."""
HEAT_REQUESTS, HEAT_WAVES = 32, 4
"""A heat is a round of no more than this."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All rounds of one system on one workload."""

    system: SystemInfo
    workload: Workload
    runs: Mapping[int, Run]
    """By number of the round."""
    reads: Mapping[int, float]
    """GB/s that memory gave right before and after each run, the mean: by number of the round."""

    def values(self, metric: str) -> tuple[float, ...]:
        """One for each round."""
        return tuple(METRICS[metric].of(self.workload, run) for run in self.runs.values())

    def median(self, metric: str) -> float:
        return median(self.values(metric))

    @property
    def median_seconds(self) -> float:
        """All waves of a round."""
        return self.median("wall time")

    @property
    def cpu_seconds(self) -> float:
        """Of a round, all threads; the median."""
        return median(sum(wave.cpu_seconds for wave in run) for run in self.runs.values())

    @property
    def num_forwards(self) -> int | None:
        """Forward passes in a round (the median)."""
        counts = [wave.num_forwards for run in self.runs.values() for wave in run]
        if any(count is None for count in counts):
            return None
        return int(median(sum(wave.num_forwards or 0 for wave in run) for run in self.runs.values()))

    def first_ids(self, round_number: int) -> tuple[int, ...]:
        """First token of every answer: systems that compute the same thing mostly agree here."""
        return tuple(ids[0] for wave in self.runs[round_number] for ids in wave.outputs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload, everyone who took part, and the machine meanwhile."""

    workload: Workload
    measurements: tuple[Measurement, ...]
    limits: Limits
    others_share: float | None
    """Of all cores, taken by other programs meanwhile; None where the system does not tell."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """System -> why it was not measured."""

    def of(self, system: str) -> Measurement | None:
        return next((one for one in self.measurements if one.system.name == system), None)


def compare(
    systems: Sequence[System],
    workload: Workload,
    rounds: int,
    vocab_size: int,
    probe: LimitProbe,
    *,
    on_run: Callable[[str, int], None] = lambda system, round_number: None,
) -> Comparison:
    """Warm everyone up, then ``rounds`` rounds; each starts with another system.

    Raises:
        RuntimeError: a system gave another number of tokens than it was asked for.
    """
    taking_part = [system for system in systems if system.info.name in workload.systems]
    warm_up = shortened(workload)
    for system in taking_part:
        on_run(system.info.name, WARM_UP)
        system.prepare(workload)
        for wave in token_requests(warm_up, WARM_UP, vocab_size):
            system.run(wave)
    left_out: dict[str, str] = {}
    if workload.picks_format:
        taking_part, left_out = _pick_formats(taking_part, workload, vocab_size, on_run)
    runs: dict[str, dict[int, Run]] = {system.info.name: {} for system in taking_part}
    reads: dict[str, dict[int, float]] = {system.info.name: {} for system in taking_part}
    limits = []
    busy = BusyClock()
    for number in range(rounds):
        limits.append(probe.sample())
        turn = number % len(taking_part)
        for system in (*taking_part[turn:], *taking_part[:turn]):
            name = system.info.name
            if number % workload.every.get(name, 1) == 0:
                on_run(name, number)
                before = probe.read()
                runs[name][number] = _run(system, workload, number, vocab_size)
                reads[name][number] = (before + probe.read()) / 2
    others = busy.others_share()
    for system in taking_part:
        system.close()
    return Comparison(
        workload,
        tuple(
            Measurement(system.info, workload, runs[system.info.name], reads[system.info.name])
            for system in taking_part
        ),
        typical(limits),
        others,
        left_out,
    )


def _pick_formats(
    systems: Sequence[System],
    workload: Workload,
    vocab_size: int,
    on_run: Callable[[str, int], None],
) -> tuple[list[System], dict[str, str]]:
    """A heat for every system that is one format among several; who is far from the fastest drops out.

    Not for one slow moment of the machine: who would drop out runs again, and the better run counts. The second heat is
    another round: of prompts that it still has in its cache a system is done in no time.
    """
    heat = shortened(workload, workload.max_request_tokens, HEAT_REQUESTS, HEAT_WAVES)
    name = workload.metrics[0]
    metric = METRICS["wall time" if METRICS[name].unit == "%" else name]

    def figure(system: System, round_number: int) -> float:
        on_run(system.info.name, round_number)
        return metric.of(heat, _run(system, heat, round_number, vocab_size))

    left_out = {}
    for peer in {system.info.formats_of for system in systems} - {""}:
        formats = {system.info.name: system for system in systems if system.info.formats_of == peer}
        figures = {name: figure(system, HEAT) for name, system in formats.items()}
        fastest = metric.better(list(figures.values()))
        for name, system in formats.items():
            if metric.ratio(fastest, figures[name]) > NEAR_FASTEST:
                figures[name] = metric.better((figures[name], figure(system, SECOND_HEAT)))
        fastest = metric.better(list(figures.values()))
        for name, system in formats.items():
            behind = metric.ratio(fastest, figures[name])
            if behind > NEAR_FASTEST:
                left_out[name] = f"{1 / behind:.2f}x of its fastest format in the warm-up"
                system.close()
    return [system for system in systems if system.info.name not in left_out], left_out


def _run(system: System, workload: Workload, round_number: int, vocab_size: int) -> Run:
    waves = token_requests(workload, round_number, vocab_size)
    run = tuple(system.run(wave) for wave in waves)
    for wave, result in zip(waves, run, strict=True):
        asked = [request.num_output for request in wave]
        given = [len(output) for output in result.outputs]
        if asked != given:
            raise RuntimeError(f"{system.info.name}: asked for {asked} tokens, given {given}.")
    return run
