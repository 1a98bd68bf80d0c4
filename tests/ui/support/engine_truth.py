"""What a view must show, worked out from the state that the engine itself reports: nothing of the trace in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from micro_vllm.engine.engine import Engine
from micro_vllm.trace import EngineState, TraceLog
from tests.ui.support.scripted_engine import VOCAB, make_engine, params
from ui.view import EngineView

LAYOUTS: dict[str, dict] = {
    "full": {"num_blocks": 24, "windows": (None,)},
    "sliding": {"num_blocks": 24, "windows": (24,)},
    "hybrid": {"num_blocks": 90, "windows": (None, 24, 24)},
    "two windows": {"num_blocks": 75, "windows": (28, 40, None)},
    "no prefix cache": {"num_blocks": 24, "windows": (None,), "enable_prefix_caching": False},
}
"""Pools so tight that requests are preempted and blocks evicted."""


@dataclass
class RecordedRun:
    """A random run of the real engine, and what it said of itself after every step."""

    engine: Engine
    log: TraceLog
    states: dict[int, EngineState] = field(default_factory=dict)


def start_run(layout: str, *, trace: TraceLog | None = None, **settings: object) -> RecordedRun:
    """An engine at rest, of one of LAYOUTS."""
    engine, log = make_engine(trace=trace, **{"block_size": 4, **LAYOUTS[layout], **settings})
    return RecordedRun(engine, log)


def record(run: RecordedRun, num_steps: int, seed: int, *, load: float = 0.4) -> Iterator[int]:
    """Random arrivals (half of them share a beginning), priorities, aborts and steps; yields the number of each
    step once it is over."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(VOCAB) for _ in range(rng.choice((8, 16, 24)))] for _ in range(3)]
    for _ in range(num_steps):
        while rng.random() < load:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(2, 30))]
            if rng.random() < 0.5:
                prompt = rng.choice(beginnings) + prompt[:12]
            run.engine.add_request(prompt, params(rng.randint(8, 60)), priority=rng.randrange(3))
        if run.engine.scheduler.requests and rng.random() < 0.06:
            run.engine.abort(rng.choice(sorted(run.engine.scheduler.requests)))
        run.engine.step()
        state = run.engine.state()
        # What came after a step, and was followed by none, carries the number of the next one.
        if state.step and run.states.setdefault(state.step, state) is state:
            yield state.step


def check_view(view: EngineView, state: EngineState) -> None:
    """Blocks, prefix tree, queues and counts of the view are those of the state."""
    assert view.step == state.step
    _check_blocks(view, state)
    _check_prefix(view, state)
    _check_requests(view, state)


def owners_of(state: EngineState) -> dict[int, list[tuple[str, int, int]]]:
    """block -> (request, group, logical index), in order of arrival."""
    owners: dict[int, list[tuple[str, int, int]]] = {}
    for request in sorted(state.requests.values(), key=lambda r: r.arrival):
        for group, table in enumerate(request.tables):
            for index, block in enumerate(table):
                if block:
                    owners.setdefault(block, []).append((request.request_id, group, index))
    return owners


def filled_slots(view: EngineView, state: EngineState) -> list[int]:
    """Per block: slots with a token that somebody can still read."""
    size = view.info.block_size
    filled = [0] * (view.info.num_blocks + 1)
    for block, held in owners_of(state).items():
        for request_id, _, index in held:
            computed = state.requests[request_id].num_computed_tokens
            filled[block] = max(filled[block], min(size, computed - index * size))
    for blocks in state.hash_table.values():
        for block in blocks:
            filled[block] = size  # only full blocks are hashed, and they stay full until they are handed out
    return filled


def _check_blocks(view: EngineView, state: EngineState) -> None:
    free, owners, filled = set(state.free), owners_of(state), filled_slots(view, state)
    keys: dict[int, list[str]] = {}
    for key, blocks in state.hash_table.items():
        for block in blocks:
            keys.setdefault(block, []).append(key)
    shown = [
        (c.block_id, c.state, [(o.request_id, o.group, o.logical_index) for o in c.owners], c.ref_count)
        for c in view.blocks
    ]
    expected = [(0, "null", [], 0)]
    for block in range(1, view.info.num_blocks + 1):
        kind = "used" if block not in free else "cached" if block in keys else "free"
        expected.append((block, kind, owners.get(block, []), state.ref_counts[block]))
    assert shown == expected
    assert [c.tokens for c in view.blocks] == filled
    assert {c.block_id: list(c.hashes) for c in view.blocks if c.hashes} == keys
    usage = view.usage[-1]
    assert usage.step == state.step
    assert usage.used == view.info.num_blocks - len(free)
    assert usage.cached == len(free & keys.keys())
    assert usage.used + usage.cached + usage.free == view.info.num_blocks
    assert usage.filled_slots == sum(filled[block] for block in owners)
    assert (usage.prefix_queries, usage.prefix_hits) == (state.prefix_queries, state.prefix_hits)


def _check_prefix(view: EngineView, state: EngineState) -> None:
    owners = owners_of(state)
    assert {node.key: node.block_ids for node in view.prefix} == state.hash_table
    seen: dict[str, int] = {}
    for node in view.prefix:
        group, parent = node.key.partition(":")[0], state.parents[node.key]
        assert node.group == int(group)
        assert node.parent == (f"{group}:{parent}" if parent else "")
        holders = {owner[0] for block in node.block_ids for owner in owners.get(block, ())}
        assert set(node.owners) == holders
        assert len(node.owners) == len(holders)
        assert node.is_evictable == (not holders)
        for block in node.block_ids:
            assert {index for _, _, index in owners.get(block, ())} <= {node.depth}
        if node.parent in state.hash_table:
            assert node.parent in seen, "parents come before children"
            assert node.depth == seen[node.parent] + 1
        seen[node.key] = node.depth


def _check_requests(view: EngineView, state: EngineState) -> None:
    live = [track for track in view.requests if track.status != "done"]
    assert [track.arrival for track in view.requests] == sorted(track.arrival for track in view.requests)
    assert {t.request_id for t in live if t.status == "running"} == set(state.running)
    assert {t.request_id for t in live if t.status == "waiting"} == set(state.waiting)
    assert (view.num_running, view.num_waiting) == (len(state.running), len(state.waiting))
    for track in live:
        request = state.requests[track.request_id]
        assert (track.arrival, track.priority) == (request.arrival, request.priority)
        assert track.num_prompt_tokens == request.num_prompt_tokens
        assert track.num_tokens == request.num_tokens
        assert track.num_computed_tokens == request.num_computed_tokens
        assert track.tables == request.tables
        assert track.finish_reason == ""
