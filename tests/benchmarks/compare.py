"""Systems take turns on the same requests, so that a slower minute of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.systems import System, WaveResult
from tests.benchmarks.workloads import Workload, shortened, token_requests

WARM_UP = -1
"""Number of the repeat that is not counted."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All repeats of one system on one workload."""

    system: str
    workload: str
    unit: str
    rates: tuple[float, ...]
    """One per repeat, in ``unit``."""
    seconds: tuple[tuple[float, ...], ...]
    """Per repeat, per wave."""
    cpu_seconds: tuple[float, ...]
    """Per repeat, all waves and threads."""
    first_ids: tuple[tuple[int, ...], ...]
    """First token of every answer, per repeat: systems that compute the same thing mostly agree here."""
    num_forwards: int | None
    """Forward passes in one repeat (the median)."""
    num_output: int
    """Output tokens in one repeat."""
    num_prompt: int
    """Prompt tokens in one repeat."""

    @property
    def median_rate(self) -> float:
        return median(self.rates)

    @property
    def median_seconds(self) -> float:
        """All waves of a repeat."""
        return median(sum(waves) for waves in self.seconds)


def compare(
    systems: Sequence[System],
    workload: Workload,
    repeats: int,
    vocab_size: int,
    *,
    on_run: Callable[[str, int], None] = lambda system, repeat: None,
) -> list[Measurement]:
    """Warm everyone up, then ``repeats`` rounds; each round starts with another system.

    Raises:
        RuntimeError: a system gave another number of tokens than it was asked for.
    """
    results: dict[str, list[tuple[WaveResult, ...]]] = {system.name: [] for system in systems}
    for system in systems:
        on_run(system.name, WARM_UP)
        system.prepare(workload)
        for wave in token_requests(shortened(workload), WARM_UP, vocab_size):
            system.run(wave)
    for repeat in range(repeats):
        waves = token_requests(workload, repeat, vocab_size)
        turn = repeat % len(systems)
        for system in (*systems[turn:], *systems[:turn]):
            on_run(system.name, repeat)
            run = tuple(system.run(wave) for wave in waves)
            for wave, result in zip(waves, run, strict=True):
                asked = [request.num_output for request in wave]
                given = [len(output) for output in result.outputs]
                if asked != given:
                    raise RuntimeError(f"{system.name}: asked for {asked} tokens, given {given}.")
            results[system.name].append(run)
    return [summarise(system.name, workload, results[system.name]) for system in systems]


def summarise(system: str, workload: Workload, runs: Sequence[tuple[WaveResult, ...]]) -> Measurement:
    """``runs``: per repeat the results of its waves."""
    num_output = sum(shape.num_output for wave in workload.waves for shape in wave)
    num_prompt = sum(shape.num_prompt for wave in workload.waves for shape in wave)
    seconds = tuple(tuple(result.seconds for result in run) for run in runs)
    forwards = [sum(result.num_forwards or 0 for result in run) for run in runs]
    is_counted = all(result.num_forwards is not None for run in runs for result in run)
    return Measurement(
        system=system,
        workload=workload.name,
        unit=workload.unit,
        rates=tuple(_rate(workload, waves, num_output, num_prompt) for waves in seconds),
        seconds=seconds,
        cpu_seconds=tuple(sum(result.cpu_seconds for result in run) for run in runs),
        first_ids=tuple(tuple(ids[0] for result in run for ids in result.outputs) for run in runs),
        num_forwards=int(median(forwards)) if is_counted else None,
        num_output=num_output,
        num_prompt=num_prompt,
    )


def _rate(workload: Workload, waves: Sequence[float], num_output: int, num_prompt: int) -> float:
    if workload.unit == "warm share":
        return waves[-1] / waves[0]
    return (num_output if workload.unit == "output tok/s" else num_prompt) / sum(waves)
