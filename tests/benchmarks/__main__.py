"""``python -m tests.benchmarks [--peers transformers,llama.cpp] [--workloads ...] [--repeats 5] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.systems import PEERS
from tests.benchmarks.workloads import WORKLOADS

OVERHEAD = "overhead"
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DTYPE = "bfloat16"


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """Exits like argparse on unknown names, with the list of known ones."""
    workloads = (*WORKLOADS, OVERHEAD)
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure the engine beside its peers, on the same weights and token ids, taking turns.",
    )
    parser.add_argument(
        "--peers",
        type=_names("peer", tuple(PEERS)),
        default=tuple(PEERS),
        help=f"comma-separated, of: {', '.join(PEERS)}; 'none' for ours alone (default: all)",
    )
    parser.add_argument(
        "--workloads",
        type=_names("workload", workloads),
        default=workloads,
        help=f"comma-separated, of: {', '.join(workloads)} (default: all)",
    )
    parser.add_argument("--repeats", type=_positive, default=5, help="timed runs of each (default: 5)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    return parser.parse_args(argv)


def _names(kind: str, known: tuple[str, ...]):  # argparse wants a callable
    def split(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if names == ("none",):
            return ()
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
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore")
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    # After the arguments were checked: these import torch.
    from micro_vllm.model_loader import load_model
    from tests.benchmarks import report
    from tests.benchmarks.compare import WARM_UP, compare
    from tests.benchmarks.machine import measure_machine
    from tests.benchmarks.micro_vllm_system import MicroVllm
    from tests.benchmarks.overhead import measure_overhead
    from tests.benchmarks.systems import System

    machine = measure_machine()
    loaded = load_model(args.model, dtype=DTYPE)
    head = loaded.config.vocab_size * loaded.config.hidden_size
    stored = sum(parameter.numel() for parameter in loaded.model.parameters())
    embeddings = head if loaded.config.tie_word_embeddings else 2 * head
    size = report.ModelSize(
        f"{loaded.name} ({loaded.badge})", 2 * (stored - embeddings + head), stored - embeddings, head
    )
    print(*report.machine_lines(machine, size), sep="\n", flush=True)

    systems: list[System] = [MicroVllm(loaded)]
    for name in args.peers:
        peer = PEERS[name]
        if peer.is_installed():
            systems += peer.build_systems(loaded.path, DTYPE)
        else:
            print(f"{name} is left out: it is not installed. Install it with: {peer.install}")

    def show_run(system: str, repeat: int) -> None:
        turn = "warm-up" if repeat == WARM_UP else f"run {repeat + 1} of {args.repeats}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{system}: {turn}", end="", file=sys.stderr, flush=True)

    measurements = []
    for name in args.workloads:
        if name == OVERHEAD:
            continue
        found = compare(systems, WORKLOADS[name], args.repeats, loaded.config.vocab_size, on_run=show_run)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
        print("", *report.workload_lines(found, machine, size), sep="\n", flush=True)
        measurements += found
    for system in systems:
        system.close()
    overhead = None
    if OVERHEAD in args.workloads:
        overhead = measure_overhead(loaded, args.repeats)
        print("", *report.overhead_lines(overhead), sep="\n", flush=True)
    if args.json:
        figures = report.as_json(machine, size, measurements, overhead)
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
