"""Time travel against the engine's own record: any step, live and from a file, and what a seek may cost."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest

from micro_vllm.trace import JsonlSink, TeeSink, TraceLog
from tests.ui.support.engine_truth import LAYOUTS, check_view, record, start_run
from tests.ui.support.scripted_engine import make_engine, params
from ui.replay import EventList, Replay, requests_of
from ui.story.tape import keyframe_distance
from ui.view import JUMP_KINDS, WINDOW_STEPS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_past_step_is_the_engine_of_that_step_while_it_runs_and_from_the_file(layout, tmp_path):
    log, path = TraceLog(), tmp_path / "trace.jsonl"
    with JsonlSink(path) as file:
        run = start_run(layout, trace=TeeSink(log, file), fail_at=[9, 22], scheduling_policy="priority")
        replay, shown = Replay(log, keyframe_events=40), {}
        for step in record(run, 45, seed=2):
            shown[step] = replay.follow(log)
            for past, state in run.states.items():
                view = replay.view(past)
                assert view == shown[past], "a past step is what was shown when it was the newest"
                check_view(view, state)
    opened = Replay(EventList.read(path), keyframe_events=40)
    for past in random.Random(1).sample(sorted(shown), len(shown)):
        assert opened.view(past) == shown[past]
    seen = Counter(event.kind for event in log.since())
    for kind in ("RequestPreempted", "RequestAborted", "RequestFinished", "StepFailed"):
        assert seen[kind], f"the run must have had a {kind}"
    hits = [e for e in log.since() if e.kind == "BlocksReferenced"]
    assert (seen["BlockEvicted"] and hits) or layout == "no prefix cache"
    assert seen["BlocksNulled"] or layout in ("full", "no prefix cache")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(2))
def test_long_runs_are_the_engine_at_any_step(layout, seed):
    run = start_run(layout, fail_at=[40, 120], max_num_seqs=5 + seed)
    replay, rng = Replay(run.log), random.Random(seed)
    for step in record(run, 200, seed):
        if step % 5 == 0:
            past = rng.randint(1, step)
            check_view(replay.view(past), run.states[past])
    opened = Replay(EventList(run.log.since()))
    for past in rng.sample(sorted(run.states), 60):
        check_view(opened.view(past), run.states[past])
    assert any(event.kind == "RequestAborted" for event in run.log.since())


def finished_run(layout: str = "full", steps: int = 150, seed: int = 3, **settings: object):
    run = start_run(layout, **settings)
    for _ in record(run, steps, seed):
        pass
    return run


# ---------------------------------------------------------------- what it costs


def test_a_seek_folds_at_most_the_distance_of_two_keyframes():
    run, rng = finished_run(steps=200), random.Random(0)
    replay = Replay(EventList(run.log.since()), keyframe_events=100)
    assert len(run.log) > 10 * 100
    costs = []
    for step in rng.choices(sorted(run.states), k=200):
        before = replay.num_folded
        replay.view(step)
        costs.append(replay.num_folded - before)
    assert max(costs) <= 100
    assert sum(costs) > 0
    assert keyframe_distance(256) == 1_000, "what is folded for one step of the page's own pool"


def test_walking_forward_folds_only_the_events_of_each_step():
    run = finished_run(steps=120)
    replay = Replay(EventList(run.log.since()), keyframe_events=10_000)
    replay.view(10)
    events = Counter(event.step for event in run.log.since())
    for step in range(11, 100):
        before = replay.num_folded
        replay.view(step)
        assert replay.num_folded - before == events[step]


def test_the_same_step_again_folds_nothing():
    replay = Replay(EventList(finished_run().log.since()))
    first = replay.view(50)
    folded = replay.num_folded
    assert replay.view(50) is first
    assert replay.num_folded == folded


def test_a_follower_folds_each_event_once_whoever_travels():
    run = start_run("full")
    replay = Replay(run.log, keyframe_events=100)
    for num_views, step in enumerate(record(run, 120, 5), start=1):
        newest = replay.follow(run.log)
        assert newest is replay.follow(run.log), "nothing new, nothing made"
        replay.view(max(1, step - 7))
        assert replay.num_folded <= 100 * num_views
    check_view(replay.follow(run.log), run.engine.state())


# ---------------------------------------------------------------- what can be reached


def test_steps_beyond_either_end_give_the_nearest():
    run = finished_run()
    replay = Replay(run.log)
    clock = replay.clock()
    assert (clock.first_step, clock.last_step) == (1, max(run.states))
    for beyond in (-5, 0, 1):
        check_view(replay.view(beyond), run.states[1])
    assert replay.view(10**9) == replay.view(clock.last_step)


def test_nothing_to_see_before_an_engine_started():
    replay = Replay(TraceLog())
    assert replay.view() is replay.view(3) is replay.clock() is replay.jump("hit", 0, 1) is None
    assert replay.events() == []
    assert not replay.has_steps
    _, log = make_engine(16)
    assert replay.follow(log).step == 0
    clock = replay.clock()
    assert (clock.first_step, clock.last_step) == (0, 0)
    assert replay.view(5).num_used == 0


def test_when_the_log_drops_its_beginning_the_clock_follows():
    log = TraceLog(capacity=600)
    run = start_run("full", trace=log, snapshot_interval=10)
    replay, first_steps = Replay(log, keyframe_events=50), set()
    for step in record(run, 260, 6, load=0.4):
        replay.follow(log)
        clock = replay.clock()
        oldest = log.ends()[0]
        assert clock.first_step == max(1, oldest.step)
        assert clock.last_step == step
        first_steps.add(clock.first_step)
        for past in {clock.first_step, (clock.first_step + step) // 2, step}:
            check_view(replay.view(past), run.states[past])
        assert [event.seq for event in replay.events(limit=10**6)] == [e.seq for e in log.since()][::-1]
        for steps in clock.marks.values():
            assert all(clock.first_step <= mark <= clock.last_step for mark in steps)
    assert len(first_steps) > 3, "the log must have dropped several times"
    assert replay.view(1) == replay.view(replay.clock().first_step)


def test_what_was_told_before_the_drop_is_still_known_after_it():
    """A chart's window reaches back over the edge of the ring buffer, as nobody has to fold from the Snapshot."""
    log = TraceLog(capacity=600)
    run = start_run("full", trace=log, snapshot_interval=10)
    replay = Replay(log)
    for _ in record(run, 200, 6, load=0.4):
        replay.follow(log)
    first = replay.clock().first_step
    assert first > 20
    view = replay.view(first)
    assert [shown.step for shown in view.steps] == list(range(max(1, first - WINDOW_STEPS + 1), first + 1))


def test_a_new_engine_in_the_same_log_begins_a_new_story():
    engine, log = make_engine(32)
    engine.add_request([*range(60)], params(5), request_id="old")
    for _ in range(4):
        engine.step()
    replay = Replay(log)
    replay.view(2)
    other, _ = make_engine(48, trace=log)
    other.add_request([*range(30)], params(9), request_id="new")
    other.step()
    view = replay.follow(log)
    assert len(view.blocks) == 49
    assert [track.request_id for track in view.requests] == ["new"]
    assert (replay.clock().first_step, replay.clock().last_step) == (1, 1)
    assert replay.arrival_of("old") is None
    assert {event.engine for event in replay.events()} == {other.engine_id}
    state = other.state()
    other.step()
    check_view(replay.view(1), state)
    check_view(replay.follow(log), other.state())


def test_another_log_is_another_story():
    first, second = finished_run(seed=1, steps=20), finished_run("hybrid", seed=2, steps=30)
    replay = Replay()
    check_view(replay.follow(first.log), first.engine.state())
    check_view(replay.follow(second.log), second.engine.state())
    check_view(replay.view(7), second.states[7])


def test_followers_and_travellers_on_many_threads_see_whole_steps():
    """Live, the engine writes, tabs follow and others travel, all at once."""
    log = TraceLog(capacity=1500)
    run = start_run("full", trace=log, snapshot_interval=10)
    replay, stop, failures, num_seen = Replay(log, keyframe_events=60), threading.Event(), [], Counter()

    def travel(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not stop.is_set() or num_seen[seed] < 20:
                view = replay.follow(log) if rng.random() < 0.3 else replay.view(rng.randint(1, 200))
                assert [cell.block_id for cell in view.blocks] == list(range(25))
                state = run.states.get(view.step)
                newest = log.ends()[1].step
                if state is not None and view.step < newest - 1:
                    view = replay.view(view.step)
                    if view.step == state.step:
                        check_view(view, state)
                        num_seen[seed] += 1
                replay.clock(), replay.events(request_id="request-3"), replay.arrival_of("request-1")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=travel, args=(seed,)) for seed in range(3)]
    for _ in record(run, 5, 4):
        pass
    for thread in threads:
        thread.start()
    for _ in record(run, 200, 4):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert min(num_seen.values()) >= 20


# ---------------------------------------------------------------- jumps


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_jumps_go_to_the_nearest_step_where_it_happened(layout):
    run = finished_run(layout, steps=160, seed=2, fail_at=[12, 80])
    replay = Replay(run.log)
    steps: dict[str, set[int]] = {kind: set() for kind in JUMP_KINDS}
    for event in run.log.since():
        if event.kind == "RequestPreempted":
            steps["preempted"].add(event.step)
        if event.kind == "PrefixLookup" and event.num_hit_tokens > 0:
            steps["hit"].add(event.step)
        if event.kind == "BlockEvicted":
            steps["evicted"].add(event.step)
        if event.kind == "StepFailed":
            steps["failed"].add(event.step)
    last = replay.clock().last_step
    for kind, marked in steps.items():
        assert marked, f"nothing {kind} in this run"
        assert replay.clock().marks[kind] == tuple(sorted(marked))
        for step in range(-1, last + 3):
            assert replay.jump(kind, step, 1) == min((s for s in marked if s > step), default=None)
            assert replay.jump(kind, step, -1) == max((s for s in marked if s < step), default=None)


def test_where_a_jump_lands_the_charts_show_what_was_looked_for():
    run = finished_run(steps=160, fail_at=[12])
    replay = Replay(run.log)
    for kind, shows in {
        "preempted": lambda shown: shown.num_preempted,
        "hit": lambda shown: shown.num_hit_tokens,
        "evicted": lambda shown: shown.num_evicted,
        "failed": lambda shown: shown.error,
    }.items():
        view = replay.view(replay.jump(kind, 0, 1))
        assert shows(view.steps[-1]), kind
        assert view.steps[-1].step == view.step


def test_what_happens_while_a_step_is_planned_is_not_a_mark_yet():
    run = finished_run(steps=100)
    events = list(run.log.since())
    hit = next(e for e in events if e.kind == "PrefixLookup" and e.num_hit_tokens)
    replay = Replay()
    replay.apply(events[: hit.seq + 1])
    assert replay.clock().last_step == hit.step - 1
    assert replay.clock().marks["hit"] == ()
    assert replay.jump("hit", 0, 1) is None


# ---------------------------------------------------------------- the list of events


def test_events_are_found_by_step_kind_and_request():
    run = finished_run(steps=120, fail_at=[30])
    events = list(run.log.since())
    replay = Replay(run.log)
    assert replay.events() == events[::-1][:200]
    assert replay.events(limit=3) == events[::-1][:3]
    assert replay.events(limit=0) == []
    everything = 10**9
    for until in (0, 1, 60, 500):
        expected = [e for e in events if e.step <= until][::-1]
        assert replay.events(until=until, limit=everything) == expected
    kinds = frozenset({"RequestPreempted", "BlockEvicted", "StepFailed"})
    expected = [e for e in events if e.kind in kinds][::-1]
    assert replay.events(kinds=kinds, limit=everything) == expected
    assert replay.events(kinds=frozenset({"Nonsense"})) == []
    admitted = [e.request_id for e in events if e.kind == "RequestAdmitted"]
    for request_id in (admitted[0], admitted[5], admitted[-1]):
        about = [e for e in events if request_id in requests_of(e)][::-1]
        assert {"RequestQueued", "StepPlanned", "BlocksAllocated", "TokensSampled"} <= {e.kind for e in about}
        assert replay.events(request_id=request_id, limit=everything) == about
        both = [e for e in about if e.kind == "BlocksAllocated" and e.step <= 60]
        found = replay.events(
            request_id=request_id, kinds=frozenset({"BlocksAllocated"}), until=60, limit=everything
        )
        assert found == both
    assert replay.events(request_id="nobody") == []


def test_the_number_of_a_request_outlives_the_window_and_a_gap():
    log = TraceLog(capacity=400)
    engine, _ = make_engine(32, trace=log, snapshot_interval=10)
    replay = Replay(log)
    engine.add_request([1, 2, 3], params(2), request_id="early")
    engine.step()
    replay.follow(log)
    engine.add_request([1, 2, 3], params(2000), request_id="long")
    for _ in range(2 * WINDOW_STEPS + 100):
        engine.step()
    view = replay.follow(log)
    assert view.request("early") is None
    assert replay.clock().first_step > 1, "there was a gap"
    assert (replay.arrival_of("early"), replay.arrival_of("long")) == (0, 1)
    engine.add_request([1, 2, 3], params(2), request_id="newest")
    assert replay.arrival_of("newest") == 2, "it looks before it says no"
    assert replay.arrival_of("nobody") is None
