"""Measurements from given seconds, for the tests of everything that is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from tests.benchmarks.compare import Comparison, Measurement
from tests.benchmarks.machine import LimitProbe, Limits
from tests.benchmarks.systems import SystemInfo, WaveResult, WeightSizes
from tests.benchmarks.workloads import LLAMA_CPP, TokenRequest, Workload

LIMITS = Limits(read_gb_per_s=40.0, bf16_gflop_per_s=400.0, int8_gop_per_s=800.0)
SIZES = WeightSizes(layer_parameters=90_000_000, head_parameters=10_000_000)


class FixedProbe(LimitProbe):
    """Knows the limits without measuring."""

    def __init__(self) -> None:
        self.num_samples = 0

    def read(self) -> float:
        return LIMITS.read_gb_per_s

    def sample(self) -> Limits:
        self.num_samples += 1
        return replace(LIMITS, read_gb_per_s=LIMITS.read_gb_per_s * self.num_samples)


def system_info(name: str) -> SystemInfo:
    if name in LLAMA_CPP:
        return SystemInfo(name, 110_000_000, "int8", formats_of="llama.cpp")
    return (
        SystemInfo(name, 100_000_000, "int8") if "native" in name else SystemInfo(name, 200_000_000, "bf16")
    )


def measurement(
    name: str,
    workload: Workload,
    rounds: Mapping[int, Sequence[float]] | Sequence[float],
    *,
    first_token: float | None = None,
    num_forwards: int | None = None,
    first_id: int = 7,
) -> Measurement:
    """``rounds``: seconds of each wave by round, or one figure a round for workloads of one wave."""
    if not isinstance(rounds, Mapping):
        rounds = {number: (seconds,) for number, seconds in enumerate(rounds)}

    def result(seconds: float, wave: int) -> WaveResult:
        outputs = tuple((first_id, *[0] * (shape.num_output - 1)) for shape in workload.waves[wave])
        return WaveResult(seconds, outputs, first_token, 2 * seconds, num_forwards)

    runs = {
        number: tuple(result(seconds, wave) for wave, seconds in enumerate(waves))
        for number, waves in rounds.items()
    }
    return Measurement(system_info(name), workload, runs, dict.fromkeys(runs, LIMITS.read_gb_per_s))


def comparison(workload: Workload, *measurements: Measurement, others: float | None = 0.01) -> Comparison:
    return Comparison(workload, measurements, LIMITS, others)


class FakeSystem:
    """Answers with as many tokens as asked, and notes who was called when. ``seconds``: of each run, or of all."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, str, int]],
        *,
        seconds: float | Sequence[float] = 0.5,
        num_missing: int = 0,
    ) -> None:
        self.info = system_info(name)
        self._log = log
        self._seconds = repeat(seconds) if isinstance(seconds, float) else iter(seconds)
        self._num_missing = num_missing

    def prepare(self, workload: Workload) -> None:
        self._log.append((self.info.name, "prepare", 0))

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        self._log.append((self.info.name, "run", requests[0].num_output))
        outputs = tuple((1,) * (request.num_output - self._num_missing) for request in requests)
        seconds = next(self._seconds)
        return WaveResult(seconds, outputs, seconds / 2, 1.0, 1)

    def close(self) -> None:
        self._log.append((self.info.name, "close", 0))
