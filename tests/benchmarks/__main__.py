"""``python -m tests.benchmarks [--peers transformers,llama.cpp] [--workloads W1,W2] [--rounds 5] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.benchmarks.systems import PEERS, System
from tests.benchmarks.workloads import ALIASES, DEFAULT_WORKLOADS, WORKLOADS, Shape, shrunk

if TYPE_CHECKING:
    from micro_vllm.model_loader import LoadedModel
    from micro_vllm.native.prepare import NativeParts
    from tests.benchmarks.compare import Comparison
    from tests.benchmarks.overhead import Overhead, WaitingCost

OVERHEAD = "overhead"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DTYPE = "bfloat16"


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Exits like argparse on unknown names, with the list of known ones."""
    known = (*WORKLOADS, OVERHEAD)
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure the engine beside its peers, on the same weights and token ids, taking turns.",
        epilog="Close everything else first: on two cores another program halves what is measured. The quality of the "
        "int8 weights: python -m tests.benchmarks.quality.",
    )
    parser.add_argument(
        "--peers",
        type=_names("peer", tuple(PEERS)),
        default=tuple(PEERS),
        help=f"comma-separated, of: {', '.join(PEERS)}; 'none' for ours alone (default: all)",
    )
    parser.add_argument(
        "--workloads",
        type=_names("workload", known, ALIASES),
        default=(*DEFAULT_WORKLOADS, OVERHEAD),
        help=f"comma-separated, of: {', '.join(known)} (default: {', '.join((*DEFAULT_WORKLOADS, OVERHEAD))})",
    )
    parser.add_argument(
        "--rounds", "--repeats", type=_positive, default=None, help="timed runs of each (default: 5)"
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"a name or a folder (default: {DEFAULT_MODEL})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of tiny requests: shows that everything runs, and measures nothing",
    )
    args = parser.parse_args(argv)
    args.rounds = args.rounds or (1 if args.quick else 5)
    return args


def _names(
    kind: str, known: tuple[str, ...], aliases: dict[str, str] | None = None
) -> Callable[[str], tuple[str, ...]]:
    def split(text: str) -> tuple[str, ...]:
        given = tuple(name.strip() for name in text.split(",") if name.strip())
        if given == ("none",):
            return ()
        names = tuple(dict.fromkeys((aliases or {}).get(name, name) for name in given))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown {kind} {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
            )
        return names

    return split


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def main(argv: Sequence[str]) -> int:
    args = parse_args(argv)
    began = perf_counter()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore")
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    # After the arguments were checked: these import torch.
    from micro_vllm.engine.served_model import ServedModel
    from micro_vllm.model_loader import load_model
    from tests.benchmarks import report
    from tests.benchmarks.compare import HEAT, SECOND_HEAT, WARM_UP, compare
    from tests.benchmarks.machine import LimitProbe, describe_machine
    from tests.benchmarks.micro_vllm_system import MicroVllm, weight_sizes
    from tests.benchmarks.overhead import SHAPE as OVERHEAD_SHAPE
    from tests.benchmarks.overhead import measure_overhead, measure_waiting
    from tests.benchmarks.targets import judge

    if args.quick:
        say("quick: one can see that everything runs; the figures below measure nothing.", "")
    machine = describe_machine()  # before our own work counts as load
    loaded = load_model(args.model, dtype=DTYPE)
    sizes = weight_sizes(loaded)
    num_ids = ServedModel.of(loaded).vocab_size
    parts = _native_parts(loaded)
    # Zeroing a whole pool takes a while.
    settings: dict[str, Any] = {"num_gpu_blocks_override": 512} if args.quick else {}
    systems: list[System] = [] if parts is None else [MicroVllm(loaded, parts, **settings)]
    systems.append(MicroVllm(loaded, **settings))
    for name in args.peers:
        peer = PEERS[name]
        if peer.is_installed():
            systems += peer.build_systems(loaded.path, sizes)
        else:
            say(f"{name} is left out: it is not installed. Install it with: {peer.install}")
    model = f"{loaded.name} ({loaded.badge}), {loaded.num_parameters / 1e6:.0f} million weights"
    probe = LimitProbe(16 << 20) if args.quick else LimitProbe()
    say(*report.head_lines(machine, probe.sample(), model, [system.info for system in systems]))

    def show_run(system: str, number: int) -> None:
        turn = {WARM_UP: "warm-up", HEAT: "choosing a format", SECOND_HEAT: "choosing a format"}.get(number)
        if sys.stderr.isatty():
            turn = turn or f"round {number + 1} of {args.rounds}"
            print(f"\r\x1b[K{system}: {turn}", end="", file=sys.stderr, flush=True)

    comparisons: dict[str, Comparison] = {}
    overheads: list[Overhead] = []
    waiting: WaitingCost | None = None

    def save() -> None:
        """After every workload, so that a failing one does not take the others' figures with it."""
        if args.json:
            figures = report.as_json(machine, model, sizes, comparisons, overheads, waiting)
            figures["is_quick"] = args.quick
            args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")

    for name in args.workloads:
        if name == OVERHEAD:
            continue
        workload = shrunk(WORKLOADS[name]) if args.quick else WORKLOADS[name]
        if not any(system.info.name in workload.systems for system in systems):
            say("", f"{name}: nobody who takes part in it is here.")
            continue
        found = compare(systems, workload, args.rounds, num_ids, probe, on_run=show_run)
        comparisons[name] = found
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
        say("", *report.comparison_lines(found, sizes, [system.info.name for system in systems]))
        save()
    if OVERHEAD in args.workloads:
        shape = Shape(16, 8) if args.quick else OVERHEAD_SHAPE
        overheads = measure_overhead(loaded, parts, min(args.rounds, 2), shape, **settings)
        waiting = measure_waiting(*((100, 4, 20) if args.quick else ()))
        say("", *report.overhead_lines(overheads), *report.waiting_lines(waiting))
    if args.quick:
        say("", "quick: done.")
    else:
        say("", *report.verdict_lines(judge(comparisons)))
    say(f"{perf_counter() - began:.0f} s in all")
    save()
    return 0


def _native_parts(loaded: LoadedModel) -> NativeParts | None:
    """Kernels and int8 weights; None, with the reason printed, where there can be none."""
    from micro_vllm.native.compile import NativeUnavailableError
    from micro_vllm.native.prepare import prepare_native

    try:
        return prepare_native(loaded)
    except NativeUnavailableError as error:
        say(f"native execution is left out: {error}")
        return None


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
