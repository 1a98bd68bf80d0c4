"""Comparisons as tables, verdicts and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from tests.benchmarks.compare import Comparison, Measurement
from tests.benchmarks.machine import Limits, Machine
from tests.benchmarks.metrics import METRICS
from tests.benchmarks.overhead import TARGET_SHARE, TARGET_WAITING, Overhead, WaitingCost
from tests.benchmarks.systems import SystemInfo, WeightSizes
from tests.benchmarks.targets import OwnTarget, Ratio, Target, Verdict, judge, our_best, ratio, read_share
from tests.benchmarks.workloads import OURS, WORKLOADS

BUSY = 0.05
"""Share of the cores taken by others from which on a table says so loudly."""


def gflop_per_s(one: Measurement, sizes: WeightSizes) -> float:
    """Products of the layers for every token, of the head for every drawn token; attention not counted."""
    tokens = one.workload.num_prompt + one.workload.num_output
    flop = 2 * (sizes.layer_parameters * tokens + sizes.head_parameters * one.workload.num_output)
    return flop / one.median_seconds / 1e9


def first_token_agreement(ours: Measurement, peer: Measurement) -> float | None:
    """Share of answers that start with the same token; None where they are drawn."""
    if ours.workload.temperature:
        return None
    pairs = [
        (mine, theirs)
        for number in ours.runs.keys() & peer.runs.keys()
        for mine, theirs in zip(ours.first_ids(number), peer.first_ids(number), strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)


# ---------------------------------------------------------------- text


def head_lines(machine: Machine, limits: Limits, model: str, systems: Sequence[SystemInfo]) -> list[str]:
    """The machine, and what each system reads in a step."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"machine   {machine.processor}, {machine.num_cores} cores, {machine.num_threads} threads, "
        f"load {machine.load_average:.1f}",
        f"measured  memory reads {limits.read_gb_per_s:.0f} GB/s; products of {_products(limits)}; again in every "
        "round below",
        f"model     {model}",
        f"versions  {versions}",
        "weights   read in a step, and how many steps a second that allows:",
    ]
    for system in systems:
        rate = limits.read_gb_per_s * 1e9 / system.weight_bytes
        lines.append(f"  {system.name:34} {system.weight_bytes / 1e6:6.0f} MB {rate:6.0f} /s")
    return lines


def _products(limits: Limits) -> str:
    return f"bfloat16 {limits.bf16_gflop_per_s:.0f} GFLOP/s, int8 {limits.int8_gop_per_s:.0f} GOP/s"


def comparison_lines(comparison: Comparison, sizes: WeightSizes, installed: Sequence[str]) -> list[str]:
    """The table of one workload. ``installed``: systems that exist in this run, whether they take part or not."""
    workload, ours = comparison.workload, our_best(comparison)
    lines = [f"{workload.name}: {workload.title}"]
    for one in comparison.measurements:
        lines.append(_line(one, ours, comparison.limits, sizes))
    for name, reason in comparison.left_out.items():
        lines.append(f"  {name:32} not run: {reason}")
    absent = [name for name in installed if name not in workload.systems]
    if absent:
        lines.append(f"  not part of this workload: {', '.join(absent)}")
    others = comparison.others_share
    if others is None:
        meanwhile = "other programs: not known"
    else:
        meanwhile = f"other programs took {others:.0%} of the cores" + (
            ": TOO BUSY for figures to trust" if others > BUSY else ""
        )
    limits = comparison.limits
    lines.append(
        f"  meanwhile: memory reads {limits.read_gb_per_s:.0f} GB/s, products of {_products(limits)}; {meanwhile}"
    )
    return lines


def _line(one: Measurement, ours: Measurement | None, limits: Limits, sizes: WeightSizes) -> str:
    first, *more = (METRICS[name] for name in one.workload.metrics)
    values = one.values(first.name)
    line = f"  {one.system.name:32} {first.text(median(values)):>10}"
    least, most = (first.text(value).split()[0] for value in (min(values), max(values)))
    line += f" ({least} to {most}, {len(values)} rounds)"
    if ours is not None and one.system.name != ours.system.name:
        against = ratio(ours, one, first.name)
        line += f"  ours {against.value:.2f}x"
        if against.by_cpu_time is not None:
            line += f" ({against.by_cpu_time:.2f}x by CPU time)"
    for metric in more:
        line += f"; {metric.name} {metric.text(one.median(metric.name))}"
    if "warm share" not in one.workload.metrics:  # where tokens come from the cache, work is not known
        if shares := read_share(one):
            line += f"; reads {median(shares):.0%}"
        rate = gflop_per_s(one, sizes)
        line += f"; products {rate:.0f} GFLOP/s ({rate / limits.products(one.system.arithmetic):.0%})"
    if ours is not None and one.system.name not in OURS:
        agreement = first_token_agreement(ours, one)
        line += "" if agreement is None else f"; same first token {agreement:.0%}"
    return line


def verdict_lines(judged: Sequence[tuple[Target | OwnTarget, Verdict | None]]) -> list[str]:
    """The table of targets."""
    if not judged:
        return []
    return ["targets", *(_verdict_line(target, verdict) for target, verdict in judged)]


def _verdict_line(target: Target | OwnTarget, verdict: Verdict | None) -> str:
    if isinstance(target, OwnTarget):
        what = f"{target.workload} {target.what}"
        edge = "at most" if target.aim < target.at_least else "at least"
        wanted = f"{edge} {target.at_least:.0%}, aim {target.aim:.0%}"
    else:
        by = "" if target.metric == WORKLOADS[target.workload].metrics[0] else f", {target.metric}"
        what = f"{target.workload} against {target.against}{by}"
        wanted = f"at least {target.at_least}x, aim {target.aim}x"
    if verdict is None:
        return f"  {what:60} not measured ({wanted})"

    def figure(value: float) -> str:
        return f"{value:.1%}" if isinstance(target, OwnTarget) else f"{value:.2f}x"

    state = "aim reached" if verdict.reaches_aim else "met" if verdict.is_met else "MISSED"
    who = f"{verdict.system} / {verdict.peer}" if verdict.peer else verdict.system
    spread = f"{figure(verdict.least)} to {figure(verdict.most)} by round"
    return f"  {what:60} {figure(verdict.value):>7} ({wanted}): {state}; {spread}; {who}"


def overhead_lines(overheads: Sequence[Overhead]) -> list[str]:
    """Shares of a step that are not the model's."""
    lines = ["overhead: all of a step that is not the forward pass; text is made and a trace is kept"]
    for one in overheads:
        verdict = "met" if one.share < TARGET_SHARE else "MISSED"
        parts = ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in one.parts.items())
        lines.append(
            f"  {one.execution:6} {one.num_running:2} running, temperature {one.temperature:g}: {one.share:.1%} of "
            f"{one.step * 1e3:.2f} ms (target below {TARGET_SHARE:.0%}: {verdict}), {one.median_share:.1%} of the "
            f"median step; µs: {parts}; {one.num_steps} steps"
        )
    return lines


def waiting_lines(cost: WaitingCost) -> list[str]:
    """What a queue costs."""
    verdict = "met" if cost.ratio < TARGET_WAITING else "MISSED"
    return [
        f"queue: a step of {cost.num_running} running, but for its forward pass: {cost.none_waiting * 1e6:.0f} µs with "
        f"0 waiting, {cost.many_waiting * 1e6:.0f} µs with {cost.num_waiting:,} waiting: {cost.ratio:.2f}x "
        f"(target below {TARGET_WAITING}x: {verdict}); scheduling alone {cost.schedule_none * 1e6:.0f} and "
        f"{cost.schedule_many * 1e6:.0f} µs"
    ]


# ---------------------------------------------------------------- JSON


def as_json(
    machine: Machine,
    model: str,
    sizes: WeightSizes,
    comparisons: Mapping[str, Comparison],
    overheads: Sequence[Overhead],
    waiting: WaitingCost | None,
) -> dict[str, Any]:
    """Everything that was measured, as plain JSON values."""
    return {
        "format": 2,
        "machine": asdict(machine),
        "model": {"name": model, **asdict(sizes)},
        "workloads": {name: _comparison(one, sizes) for name, one in comparisons.items()},
        "targets": [_judged(target, verdict) for target, verdict in judge(comparisons)],
        "overhead": [asdict(one) | {"share": one.share} for one in overheads],
        "waiting": None if waiting is None else asdict(waiting) | {"ratio": waiting.ratio},
    }


def _comparison(comparison: Comparison, sizes: WeightSizes) -> dict[str, Any]:
    ours = our_best(comparison)
    ratios: list[Ratio] = []
    if ours is not None:
        peers = [one for one in comparison.measurements if one is not ours]
        ratios = [ratio(ours, peer, comparison.workload.metrics[0]) for peer in peers]
    return {
        "title": comparison.workload.title,
        "limits": asdict(comparison.limits),
        "others_share": comparison.others_share,
        "left_out": dict(comparison.left_out),
        "ratios": [asdict(one) for one in ratios],
        "systems": [_measurement(one, sizes) for one in comparison.measurements],
    }


def _measurement(one: Measurement, sizes: WeightSizes) -> dict[str, Any]:
    shares = read_share(one)
    return asdict(one.system) | {
        "rounds": list(one.runs),
        "metrics": {
            name: {"median": one.median(name), "values": one.values(name)} for name in one.workload.metrics
        },
        "wave_seconds": [[wave.seconds for wave in run] for run in one.runs.values()],
        "read_gb_per_s": list(one.reads.values()),
        "cpu_seconds": one.cpu_seconds,
        "num_forwards": one.num_forwards,
        "read_share": median(shares) if shares else None,
        "gflop_per_s": gflop_per_s(one, sizes),
    }


def _judged(target: Target | OwnTarget, verdict: Verdict | None) -> dict[str, Any]:
    found: dict[str, Any] = asdict(target)
    if verdict is not None:
        found |= {
            "system": verdict.system,
            "peer": verdict.peer,
            "value": verdict.value,
            "least": verdict.least,
            "most": verdict.most,
            "is_met": verdict.is_met,
            "reaches_aim": verdict.reaches_aim,
        }
    return found
