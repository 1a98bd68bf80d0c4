"""Measurements as a table, ratios and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tests.benchmarks.compare import Measurement
from tests.benchmarks.machine import Machine
from tests.benchmarks.overhead import TARGET_SHARE, Overhead
from tests.benchmarks.systems import OURS
from tests.benchmarks.workloads import WORKLOADS

TARGETS = {
    ("alone", "transformers generate"): 1.2,
    ("mixed16", "transformers continuous batching"): 2.5,
}
"""(workload, peer) -> how many times its speed ours should have. Reported, never asserted."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a forward pass costs at least."""

    name: str
    weight_bytes: int
    """Read once in every forward pass (a tied head and embedding count once)."""
    layer_parameters: int
    head_parameters: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """How we stand against one peer on one workload; above 1 we are better."""

    workload: str
    peer: str
    value: float
    target: float | None = None
    by_cpu_time: float | None = None
    """The same by CPU time; on a busy machine the steadier figure."""


def ratios(measurements: Sequence[Measurement]) -> list[Ratio]:
    """Ours over the peer's, from medians. Where a smaller figure is better, the peer's over ours."""
    ours = {one.workload: one for one in measurements if one.system == OURS}
    found = []
    for peer in measurements:
        if peer.system == OURS or peer.workload not in ours:
            continue
        value = ours[peer.workload].median_rate / peer.median_rate
        if peer.unit == "warm share":
            value = 1 / value
        target = TARGETS.get((peer.workload, peer.system))
        found.append(Ratio(peer.workload, peer.system, value, target, _cpu_ratio(ours[peer.workload], peer)))
    return found


def _cpu_ratio(ours: Measurement, peer: Measurement) -> float | None:
    mine, theirs = median(ours.cpu_seconds), median(peer.cpu_seconds)
    return theirs / mine if mine and peer.unit != "warm share" else None


def read_gb_per_s(measurement: Measurement, size: ModelSize) -> float | None:
    """Weight bytes read a second, if every forward pass reads all weights once."""
    if measurement.num_forwards is None:
        return None
    return size.weight_bytes * measurement.num_forwards / measurement.median_seconds / 1e9


def gflop_per_s(measurement: Measurement, size: ModelSize) -> float:
    """Products of the layers for every token, of the head for every drawn token; attention not counted."""
    tokens = measurement.num_prompt + measurement.num_output
    flop = 2 * (size.layer_parameters * tokens + size.head_parameters * measurement.num_output)
    return flop / measurement.median_seconds / 1e9


def first_token_agreement(ours: Measurement, peer: Measurement) -> float:
    """Share of answers that start with the same token."""
    pairs = [
        (mine, theirs)
        for run, other in zip(ours.first_ids, peer.first_ids, strict=True)
        for mine, theirs in zip(run, other, strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


# ---------------------------------------------------------------- text


def machine_lines(machine: Machine, size: ModelSize) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    limit = machine.read_gb_per_s * 1e9 / size.weight_bytes
    return [
        f"machine   {machine.processor}, {machine.num_cores} cores, {machine.num_threads} threads, "
        f"load {machine.load_average:.1f}",
        f"measured  memory reads {machine.read_gb_per_s:.0f} GB/s, "
        f"bfloat16 products {machine.gemm_gflop_per_s:.0f} GFLOP/s",
        f"model     {size.name}, {size.weight_bytes / 1e6:.0f} MB of bfloat16 weights: "
        f"one request alone can reach {limit:.0f} tok/s here",
        f"versions  {versions}",
    ]


def workload_lines(measurements: Sequence[Measurement], machine: Machine, size: ModelSize) -> list[str]:
    """The table of one workload, ours first."""
    ours = next(one for one in measurements if one.system == OURS)
    by_peer = {ratio.peer: ratio for ratio in ratios(measurements)}
    lines = [f"{ours.workload}: {WORKLOADS[ours.workload].title}"]
    for one in measurements:
        spread = f"({_figure(one.unit, min(one.rates))} to {_figure(one.unit, max(one.rates))})"
        line = (
            f"  {one.system:34} {_figure(one.unit, one.median_rate):>7} {one.unit:12} {spread:20} "
            f"{_achieved(one, machine, size)}"
        )
        if one.system in by_peer:
            ratio = by_peer[one.system]
            line += f"  ours is {ratio.value:.2f}x"
            if ratio.target is not None:
                line += f" (target {ratio.target}x: {'met' if ratio.value >= ratio.target else 'MISSED'})"
            if ratio.by_cpu_time is not None:
                line += f", {ratio.by_cpu_time:.2f}x by CPU time"
            line += f", same first token {first_token_agreement(ours, one):.0%}"
        lines.append(line.rstrip())
    return lines


def overhead_lines(overhead: Overhead) -> list[str]:
    verdict = "met" if overhead.share < TARGET_SHARE else "MISSED"
    return [
        f"overhead: scheduling and KV bookkeeping at 16 running requests, {overhead.num_steps} decode steps",
        f"  step {overhead.step * 1e3:.2f} ms, schedule {overhead.schedule * 1e3:.3f} ms, "
        f"update {overhead.update * 1e3:.3f} ms: {overhead.share:.2%} of the step "
        f"(target below {TARGET_SHARE:.0%}: {verdict})",
    ]


def _figure(unit: str, rate: float) -> str:
    if unit == "warm share":
        return f"{rate:.1%}"
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _achieved(one: Measurement, machine: Machine, size: ModelSize) -> str:
    """What of the machine was used: memory where tokens are drawn, arithmetic where prompts are read."""
    if one.unit == "prompt tok/s":
        rate = gflop_per_s(one, size)
        return f"{rate:6.0f} GFLOP/s ({rate / machine.gemm_gflop_per_s:.0%})"
    read = read_gb_per_s(one, size)
    if read is None or one.unit == "warm share":
        return " " * 18
    return f"{read:6.1f} GB/s ({read / machine.read_gb_per_s:.0%})"


def as_json(
    machine: Machine,
    size: ModelSize,
    measurements: Sequence[Measurement],
    overhead: Overhead | None,
) -> dict[str, Any]:
    """Everything that was measured, as plain JSON values."""
    return {
        "format": 1,
        "machine": asdict(machine),
        "model": asdict(size),
        "measurements": [
            asdict(one)
            | {
                "median_rate": one.median_rate,
                "median_seconds": one.median_seconds,
                "read_gb_per_s": read_gb_per_s(one, size),
                "gflop_per_s": gflop_per_s(one, size),
            }
            for one in measurements
        ],
        "ratios": [asdict(ratio) for ratio in ratios(measurements)],
        "overhead": asdict(overhead) if overhead else None,
    }
