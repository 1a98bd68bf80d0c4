"""What is wanted of each workload, and whether it was reached. Reported, never asserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.benchmarks.compare import Comparison, Measurement
from tests.benchmarks.metrics import METRICS
from tests.benchmarks.workloads import CONTINUOUS, GENERATE, LLAMA_CPP, OURS


@dataclass(frozen=True, slots=True)
class Target:
    """Ours against the best of some peers, from medians; above 1 ours is better."""

    workload: str
    metric: str
    against: str
    """In words."""
    peers: tuple[str, ...]
    at_least: float
    aim: float


@dataclass(frozen=True, slots=True)
class OwnTarget:
    """A share that ours reaches by itself."""

    workload: str
    metric: Literal["warm share", "read share"]
    what: str
    at_least: float
    aim: float


TARGETS: tuple[Target | OwnTarget, ...] = (
    Target("W1", "output rate", "llama.cpp best", LLAMA_CPP, 1.1, 1.4),
    Target("W2", "output rate", "llama.cpp best", LLAMA_CPP, 1.5, 2.0),
    Target("W3", "first token", "the better of llama.cpp and transformers", (*LLAMA_CPP, GENERATE), 1.3, 2.0),
    Target("W4", "decode rate", "llama.cpp best", LLAMA_CPP, 1.0, 1.3),
    Target("W4", "wall time", "llama.cpp best", LLAMA_CPP, 1.0, 1.3),
    Target("W5", "wall time", "llama.cpp best", LLAMA_CPP, 1.3, 2.0),
    Target("W5", "wall time", CONTINUOUS, (CONTINUOUS,), 6.0, 10.0),
    OwnTarget("W6", "warm share", "warm first token of the cold one", 0.08, 0.04),
    OwnTarget("W1", "read share", "of what memory reads allow for the weights it reads", 0.55, 0.75),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How we stand against one peer; above 1 ours is better."""

    system: str
    peer: str
    value: float
    """From medians."""
    least: float
    most: float
    """Of the ratios within the rounds in which both took part."""
    by_cpu_time: float | None
    """The same by CPU time of the whole round; on a busy machine the steadier figure."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target and what came out."""

    target: Target | OwnTarget
    system: str
    peer: str
    """The peer that was best; empty for a target without one."""
    value: float
    least: float
    most: float

    @property
    def is_met(self) -> bool:
        return self._reaches(self.target.at_least)

    @property
    def reaches_aim(self) -> bool:
        return self._reaches(self.target.aim)

    def _reaches(self, line: float) -> bool:
        less_is_better = self.target.aim < self.target.at_least
        return self.value <= line if less_is_better else self.value >= line


def ratio(ours: Measurement, peer: Measurement, metric: str) -> Ratio:
    """By one metric, of medians and round by round."""
    of = METRICS[metric]
    common = [number for number in ours.runs if number in peer.runs]
    pairs = [of.ratio(of.of(ours.workload, ours.runs[n]), of.of(peer.workload, peer.runs[n])) for n in common]
    is_share = of.unit == "%"
    return Ratio(
        ours.system.name,
        peer.system.name,
        of.ratio(ours.median(metric), peer.median(metric)),
        min(pairs),
        max(pairs),
        peer.cpu_seconds / ours.cpu_seconds if ours.cpu_seconds and not is_share else None,
    )


def our_best(comparison: Comparison) -> Measurement | None:
    """The native one if it took part, else the eager one."""
    return next(filter(None, map(comparison.of, OURS)), None)


def best_peer(comparison: Comparison, peers: Sequence[str], metric: str) -> Measurement | None:
    """Of those that were measured."""
    measured = [one for one in map(comparison.of, peers) if one is not None]
    if not measured:
        return None
    best = METRICS[metric].better([one.median(metric) for one in measured])
    return next(one for one in measured if one.median(metric) == best)


def read_share(one: Measurement) -> tuple[float, ...] | None:
    """Per round: weight bytes read a second, if every forward pass reads all weights once, of what memory gave beside
    that run. It may give half as much a minute later, on a machine that others share."""
    if one.num_forwards is None:
        return None
    bytes_read = one.system.weight_bytes * one.num_forwards
    seconds = zip(one.runs, one.values("wall time"), strict=True)
    return tuple(bytes_read / taken / 1e9 / one.reads[number] for number, taken in seconds)


def judge(comparisons: Mapping[str, Comparison]) -> list[tuple[Target | OwnTarget, Verdict | None]]:
    """Every target of the workloads that ran; None where somebody it needs was not measured."""
    found: list[tuple[Target | OwnTarget, Verdict | None]] = []
    for target in TARGETS:
        comparison = comparisons.get(target.workload)
        if comparison is not None:
            judged = _own(target, comparison) if isinstance(target, OwnTarget) else _ratio(target, comparison)
            found.append((target, judged))
    return found


def _ratio(target: Target, comparison: Comparison) -> Verdict | None:
    ours, peer = our_best(comparison), best_peer(comparison, target.peers, target.metric)
    if ours is None or peer is None:
        return None
    against = ratio(ours, peer, target.metric)
    return Verdict(target, ours.system.name, peer.system.name, against.value, against.least, against.most)


def _own(target: OwnTarget, comparison: Comparison) -> Verdict | None:
    ours = our_best(comparison)
    if ours is None:
        return None
    if target.metric == "warm share":
        values: tuple[float, ...] | None = ours.values("warm share")
        value = ours.median("warm share")
    else:
        values = read_share(ours)
        value = sorted(values)[len(values) // 2] if values else 0.0
    if not values:
        return None
    return Verdict(target, ours.system.name, "", value, min(values), max(values))
