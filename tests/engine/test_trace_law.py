"""The law of the trace on randomised runs: after every step the fold of the events equals the engine's state."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import Fold, Snapshot, TraceEvent, decode_event, encode_event
from tests.engine.support.scripted import ScriptedExecutor, run, scripted_engine, solo

HYBRID = (None, 8, 8, None, 8)
LAYOUTS = {
    "full": (None, None),
    "sliding": (8, 8),
    "hybrid": HYBRID,
    "two windows": (None, 6, 11),
}


class Collector(list):
    def emit(self, event: TraceEvent) -> None:
        self.append(event)


def random_run(seed: int, layout: str, *, failures: bool) -> tuple[Collector, dict[int, object], Counter]:
    """A storm of adds, shared prefixes, aborts and failures over a tight pool; checks every step."""
    rng = random.Random(seed)
    events = Collector()

    def fail_when(plan):
        if not failures or rng.random() > 0.05:
            return False
        if rng.random() < 0.5 and plan.scheduled:
            return {rng.choice(plan.scheduled).request_id: "scripted NaN"}
        return True

    executor = ScriptedExecutor(fail_when=fail_when)
    engine = scripted_engine(
        LAYOUTS[layout],
        executor,
        trace=events,
        block_size=rng.choice([1, 2, 4]),
        num_gpu_blocks_override=rng.choice([10, 16, 24, 60]),
        max_num_batched_tokens=rng.choice([8, 17, 32]),
        max_num_seqs=rng.choice([2, 5, 8]),
        max_model_len=48,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        enable_prefix_caching=rng.random() < 0.8,
        snapshot_interval=rng.choice([7, 20]),
    )
    fold, fed = Fold(), 0
    states = {0: engine.state()}
    prefixes = [[rng.randrange(3, 50) for _ in range(rng.randrange(1, 20))] for _ in range(3)]
    expected: dict[str, list[int]] = {}
    seen = Counter()
    for step in range(150):
        for _ in range(rng.choice([0, 0, 1, 2])):
            prompt = rng.choice(prefixes) + [rng.randrange(3, 50) for _ in range(rng.randrange(0, 8))]
            most = rng.randrange(1, 16)
            request_id = f"r{len(expected)}"
            try:
                engine.add_request(
                    prompt, SamplingParams(max_tokens=most), request_id=request_id, priority=rng.randrange(3)
                )
            except ValueError:
                continue
            expected[request_id] = solo(prompt, most)
        if rng.random() < 0.1 and engine.scheduler.requests:
            engine.abort(rng.choice(list(engine.scheduler.requests)))
        for output in engine.step():
            answer = list(output.outputs[0].token_ids)
            reason = output.outputs[0].finish_reason
            seen[reason] += 1
            # Whatever happened around it, a request's tokens are those of its solo run.
            assert answer == expected[output.request_id][: len(answer)]
        engine.check_integrity()
        for event in events[fed:]:
            fold.apply(event)
        fed = len(events)
        assert fold.state() == engine.state(), f"step {step}"
        states.setdefault(engine.state().step, engine.state())  # an abort after it belongs to the next step
    run(engine)
    engine.check_integrity()
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks, "no block leaks"
    seen.update(event.kind for event in events)
    return events, states, seen


@pytest.mark.parametrize("failures", [False, True], ids=["calm", "failing"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fold_equals_engine_state_after_every_step(layout, failures):
    total = Counter()
    for seed in range(15):
        _, _, seen = random_run(seed, layout, failures=failures)
        total += seen
    # The runs exercised what they claim to.
    for kind in ("RequestPreempted", "BlocksReferenced", "BlockEvicted", "RequestAborted", "Snapshot"):
        assert total[kind] > 0, f"no {kind} in any run"
    assert (total["StepFailed"] > 0) == failures
    if layout != "full":
        assert total["BlocksNulled"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fold_from_any_snapshot_reaches_the_same_states(layout):
    events, states, _ = random_run(3, layout, failures=True)
    starts = [index for index, event in enumerate(events) if isinstance(event, Snapshot)]
    assert len(starts) >= 5
    for start in starts:
        fold = Fold()
        for event, following in zip(events[start:], [*events[start + 1 :], None], strict=True):
            fold.apply(event)
            ends_step = following is None or following.step > event.step
            if ends_step and event.step in states and event.step == states[event.step].step:
                assert fold.state() == states[event.step]


def test_seq_is_gapless_and_step_never_falls():
    events, _, _ = random_run(5, "hybrid", failures=True)
    assert [event.seq for event in events] == list(range(len(events)))
    assert all(a.step <= b.step and a.time <= b.time for a, b in itertools.pairwise(events))


def test_every_event_survives_json():
    events, _, seen = random_run(6, "hybrid", failures=True)
    assert [decode_event(encode_event(event)) for event in events] == events
    assert len([kind for kind in seen if kind and kind[0].isupper()]) >= 14


def test_unknown_kind_is_skipped():
    assert decode_event(b'{"kind": "FromTheFuture", "seq": 1, "engine": "e", "step": 2, "time": 0.5}') is None
