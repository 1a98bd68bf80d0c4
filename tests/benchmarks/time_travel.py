"""``python -m tests.benchmarks.time_travel [--events 100000] [--blocks 256,4096] [--json FILE]``: what it costs to
follow an engine and to go to any step of a long trace. Real scheduler and blocks, scripted tokens, no model.

Seconds are those of the thread's own CPU time, so that a busy machine does not blur them; wall time stands beside.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from micro_vllm.trace import TraceEvent, TraceLog, write_trace
from tests.ui.support.scripted_engine import VOCAB, make_engine, params
from ui.host.serving import keep_for_good
from ui.replay import EventList, Replay
from ui.view import JUMP_KINDS

RUNNING = 16
TARGET_SECONDS = 0.1
STEPS_A_POLL = 4
"""Engine steps between two looks of the page: five looks a second at 50 ms a step."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one kind of question, asked ``count`` times; seconds."""

    name: str
    count: int
    median: float
    p95: float
    longest: float
    wall_p95: float
    folded: int
    """Most events folded for one answer."""


@dataclass(frozen=True, slots=True)
class TravelFigures:
    """One trace of one pool."""

    num_events: int
    num_steps: int
    num_blocks: int
    open_seconds: float
    """Reading the file and folding all of it once."""
    replay_megabytes: float
    """Keyframes, index and views, without the events."""
    follow_seconds_a_step: float
    """Folding and one view for every ``STEPS_A_POLL`` steps, at 16 running requests."""
    costs: tuple[Cost, ...]


def measure_time_travel(
    num_events: int, num_blocks: int, *, repeats: int = 200, seed: int = 0
) -> TravelFigures:
    """A trace of ``num_events``: followed while it is written, then opened from its file and walked through."""
    rng = random.Random(seed)
    log = TraceLog(capacity=2 * num_events)
    follow_seconds, num_steps = _run_engine(log, num_events, num_blocks, rng)
    events = list(log.since())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(events, path)
        begin = thread_time()
        replay = Replay(EventList.read(path))
        open_seconds = thread_time() - begin
    costs = _walk(replay, repeats, rng)
    return TravelFigures(
        num_events=len(events),
        num_steps=num_steps,
        num_blocks=num_blocks,
        open_seconds=open_seconds,
        replay_megabytes=_megabytes(events),
        follow_seconds_a_step=follow_seconds / num_steps,
        costs=(*costs, *_views(events, repeats)),
    )


def _run_engine(log: TraceLog, num_events: int, num_blocks: int, rng: random.Random) -> tuple[float, int]:
    """(CPU seconds that following took, steps)."""
    engine, _ = make_engine(
        num_blocks, trace=log, windows=(None,), max_num_seqs=RUNNING, max_num_batched_tokens=256
    )
    follower = Replay(log)
    beginning = [rng.randrange(VOCAB) for _ in range(128)]
    seconds, num_steps = 0.0, 0
    while len(log) < num_events:
        while len(engine.scheduler.requests) < RUNNING + 4:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(16, 240))]
            if rng.random() < 0.4:
                prompt = beginning[: rng.choice((32, 64, 128))] + prompt[:40]
            engine.add_request(prompt, params(rng.randint(20, 160)))
        engine.step()
        num_steps += 1
        if num_steps % STEPS_A_POLL == 0:
            begin = thread_time()
            follower.follow(log)
            follower.clock()
            seconds += thread_time() - begin
    return seconds, num_steps


def _walk(replay: Replay, repeats: int, rng: random.Random) -> list[Cost]:
    clock = replay.clock()
    assert clock is not None
    first, last = clock.first_step, clock.last_step
    middle = rng.randint(first, max(first, last - repeats))
    back = rng.randint(min(last, first + repeats), last)

    def jump(_: int) -> None:
        start, kind = rng.randint(first, last), rng.choice(JUMP_KINDS)
        found = replay.jump(kind, start, rng.choice((1, -1)))
        replay.view(start if found is None else found)

    return [
        _cost("any step", repeats, lambda _: replay.view(rng.randint(first, last)), replay),
        _cost("one step back", repeats, lambda i: replay.view(max(first, back - i)), replay),
        _cost("one step forward", repeats, lambda i: replay.view(min(last, middle + i)), replay),
        _cost("jump to a mark", repeats, jump, replay),
        _cost(
            "events of one kind",
            repeats,
            lambda _: replay.events(kinds=frozenset(["RequestFinished"])),
            replay,
        ),
    ]


def _views(events: Sequence[TraceEvent], repeats: int) -> list[Cost]:
    """The view alone: made from nothing, and after one more step."""
    replay = Replay(EventList(events[: len(events) // 2]))
    story = replay._tape.newest  # what is timed is a part of view()
    stories = [story.copy() for _ in range(min(repeats, 20))]
    costs = [_cost("view from nothing", len(stories), lambda i: stories[i].view(), replay)]
    rest = iter(events[len(events) // 2 :])
    story.view()

    def next_step(_: int) -> None:
        for event in rest:
            story.apply(event)
            if event.kind == "StepExecuted":
                break
        story.view()

    return [*costs, _cost("fold one step and view", repeats, next_step, replay)]


def _cost(name: str, count: int, ask: Callable[[int], Any], replay: Replay) -> Cost:
    cpu, wall, folded = [], [], []
    for index in range(count):
        before = replay.num_folded
        begin, wall_begin = thread_time(), perf_counter()
        ask(index)
        cpu.append(thread_time() - begin)
        wall.append(perf_counter() - wall_begin)
        folded.append(replay.num_folded - before)
    p95 = int(0.95 * (count - 1))
    return Cost(name, count, median(cpu), sorted(cpu)[p95], max(cpu), sorted(wall)[p95], max(folded))


def _megabytes(events: Sequence[TraceEvent]) -> float:
    gc.collect()
    tracemalloc.start()
    replay = Replay(EventList(events))
    replay.view(1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 1e6


def travel_lines(found: TravelFigures) -> list[str]:
    lines = [
        f"{found.num_blocks:,} blocks: {found.num_events:,} events in {found.num_steps:,} steps",
        f"  following   {found.follow_seconds_a_step * 1e3:.2f} ms a step (16 running, a look every "
        f"{STEPS_A_POLL} steps)",
        f"  opening     {found.open_seconds:.2f} s, {found.replay_megabytes:.0f} MB beside the events",
    ]
    for cost in found.costs:
        is_slow = cost.p95 >= TARGET_SECONDS
        lines.append(
            f"  {cost.name:22} median {cost.median * 1e3:6.2f} ms, p95 {cost.p95 * 1e3:6.2f}, longest "
            f"{cost.longest * 1e3:6.2f} (wall p95 {cost.wall_p95 * 1e3:6.2f}); at most {cost.folded:,} events folded"
            f"{f': over the aim of {TARGET_SECONDS * 1e3:.0f} ms' if is_slow else ''}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.time_travel", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events of the trace (default: 100,000)")
    parser.add_argument(
        "--blocks",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[256, 4096],
        help="comma-separated pool sizes (default: 256,4096)",
    )
    parser.add_argument("--repeats", type=int, default=200, help="questions of each kind (default: 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    args = parser.parse_args(argv)
    figures = []
    for num_blocks in args.blocks:
        figures.append(measure_time_travel(args.events, num_blocks, repeats=args.repeats))
        print(*travel_lines(figures[-1]), sep="\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    keep_for_good()  # the collector comes as often as in the page's process
    main()
