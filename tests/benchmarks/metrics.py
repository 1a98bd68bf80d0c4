"""The figures of a round: what is read off the clock for each workload, and which way is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.systems import WaveResult
from tests.benchmarks.workloads import Workload

Run = tuple[WaveResult, ...]
"""The waves of one round."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a round."""

    name: str
    unit: str
    more_is_better: bool
    of: Callable[[Workload, Run], float]

    def text(self, value: float) -> str:
        """``178 tok/s``, ``0.83 s``, ``4.1 %``."""
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        digits = 3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
        return f"{value:.{digits}f} {self.unit}"

    def better(self, values: Sequence[float]) -> float:
        return max(values) if self.more_is_better else min(values)

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times as good; above 1 ours is better."""
        return ours / theirs if self.more_is_better else theirs / ours


def wall_time(workload: Workload, run: Run) -> float:
    return sum(wave.seconds for wave in run)


def output_rate(workload: Workload, run: Run) -> float:
    return workload.num_output / wall_time(workload, run)


def first_token(workload: Workload, run: Run) -> float:
    """Of the only request, which asks for one token."""
    (wave,) = run
    return wave.seconds


def decode_rate(workload: Workload, run: Run) -> float:
    """Tokens after the first one, over the seconds after it."""
    (wave,) = run
    if wave.first_token_seconds is None:
        raise ValueError("the time of the first token is not known for this system.")
    return (workload.num_output - 1) / (wave.seconds - wave.first_token_seconds)


def cold_first_token(workload: Workload, run: Run) -> float:
    return run[0].seconds


def warm_first_token(workload: Workload, run: Run) -> float:
    return median(wave.seconds for wave in run[1:])


def warm_share(workload: Workload, run: Run) -> float:
    return warm_first_token(workload, run) / cold_first_token(workload, run)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("output rate", "tok/s", True, output_rate),
        Metric("decode rate", "tok/s", True, decode_rate),
        Metric("wall time", "s", False, wall_time),
        Metric("first token", "s", False, first_token),
        Metric("cold first token", "s", False, cold_first_token),
        Metric("warm first token", "s", False, warm_first_token),
        Metric("warm share", "%", False, warm_share),
    )
}
