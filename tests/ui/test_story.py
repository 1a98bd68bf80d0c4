"""What the story adds to the state, against an independent reading of the same events; copies; half-told steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from micro_vllm.errors import TraceLawError
from micro_vllm.trace import BlockCached, BlockEvicted, Fold, Snapshot, TraceEvent
from tests.ui.support.engine_truth import LAYOUTS, check_view, record, start_run
from tests.ui.support.scripted_engine import make_engine, params
from ui.story import Story
from ui.view import WINDOW_STEPS, StepRecord


def told(events: Sequence[TraceEvent]) -> Story:
    story = Story()
    for event in events:
        story.apply(event)
    return story


def events_of(layout: str, steps: int = 80, seed: int = 2) -> list[TraceEvent]:
    run = start_run(layout, fail_at=[15, 40], scheduling_policy="priority")
    for _ in record(run, steps, seed):
        pass
    return list(run.log.since())


def parts(events: Sequence[TraceEvent], count: int) -> list[int]:
    """``count`` places to stop, spread over all events: also in the middle of steps."""
    return [len(events) * (i + 1) // count for i in range(count)]


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_records_say_what_the_events_of_each_step_said(layout):
    events = events_of(layout)
    arrivals = {e.request_id: e.arrival for e in events if e.kind == "RequestQueued"}
    shown = told(events).view().steps
    assert [row.step for row in shown] == list(range(1, shown[-1].step + 1))
    for row in shown:
        of_step: dict[str, list] = {}
        for event in events:
            if event.step == row.step:
                of_step.setdefault(event.kind, []).append(event)
        (plan,) = of_step["StepPlanned"]
        assert row.time == plan.time
        assert [(r.request_id, r.phase, r.start, r.count) for r in row.rows] == [
            (r.request_id, r.phase, r.start, r.count) for r in plan.rows
        ]
        assert [r.arrival for r in row.rows] == [arrivals[r.request_id] for r in plan.rows]
        assert sum(r.count for r in row.rows) == row.num_tokens <= row.token_budget
        names = ("num_tokens", "token_budget", "num_seats", "max_num_seqs", "num_waiting", "stopped_by")
        assert [getattr(row, name) for name in names] == [getattr(plan, name) for name in names]
        assert row.num_preempted == len(of_step.get("RequestPreempted", ()))
        assert row.num_evicted == len(of_step.get("BlockEvicted", ()))
        assert row.num_hit_tokens == sum(e.num_hit_tokens for e in of_step.get("PrefixLookup", ()))
        assert row.is_executed == ("StepExecuted" in of_step)
        for end in of_step.get("StepExecuted", ()):
            assert row.schedule_seconds == end.schedule_seconds > 0
            assert (row.build_seconds, row.forward_seconds, row.sample_seconds) == (
                end.build_seconds,
                end.forward_seconds,
                end.sample_seconds,
            )
            assert row.seconds >= end.schedule_seconds
        assert row.error == ("RuntimeError: scripted failure" if "StepFailed" in of_step else "")
    assert [r.step for r in shown if r.error] == [15, 40]
    assert sum(r.num_preempted for r in shown) > 0


def test_a_step_that_is_being_computed_is_shown_as_planned():
    events = events_of("full", 30)
    planned = [i for i, e in enumerate(events) if e.kind == "StepPlanned"]
    story = Story()
    for event in events[: planned[-1] + 1]:
        story.apply(event)
    before: StepRecord = story.view().steps[-1]
    assert (before.is_executed, before.error) == (False, "")
    assert story.view().executed_step == before.step - 1
    for event in events[planned[-1] + 1 :]:
        story.apply(event)
    after = story.view().steps[-1]
    assert after.is_executed
    assert after.rows == before.rows


def test_steps_are_those_of_the_window():
    engine, log = make_engine(64)
    engine.add_request([1, 2, 3], params(500))
    for _ in range(WINDOW_STEPS + 37):
        engine.step()
    view = told(log.since()).view()
    assert [step.step for step in view.steps] == list(range(view.first_step, view.step + 1))
    assert len(view.steps) == WINDOW_STEPS


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("layout", LAYOUTS)
def test_times_and_counts_of_requests_are_those_of_their_events(layout):
    events = events_of(layout)
    view = told(events).view()
    num_done = 0
    for track in view.requests:
        about = [e for e in events if getattr(e, "request_id", "") == track.request_id]
        tokens = [
            e.time
            for e in events
            if e.kind == "TokensSampled" and any(t.request_id == track.request_id for t in e.tokens)
        ]
        times = {kind: [e.time for e in about if e.kind == kind] for kind in {e.kind for e in about}}
        assert track.times.queued == times["RequestQueued"][0]
        assert track.times.admitted == next(iter(times.get("RequestAdmitted", ())), None)
        assert track.times.first_token == next(iter(tokens), None)
        assert track.times.last_token == (tokens[-1] if tokens else None)
        admitted = [e for e in about if e.kind == "RequestAdmitted"]
        assert track.num_cached_tokens == (admitted[0].num_computed_tokens if admitted else 0)
        assert track.num_preemptions == len(times.get("RequestPreempted", ()))
        assert track.num_output_tokens == len(tokens)
        (queued,) = [e for e in about if e.kind == "RequestQueued"]
        assert (track.priority, track.num_prompt_tokens) == (queued.priority, queued.num_prompt_tokens)
        if tokens:
            assert 0 <= track.queue_time <= track.ttft
            assert (track.tpot is None) == (len(tokens) == 1)
        end = about[-1]
        if end.kind not in ("RequestFinished", "RequestAborted"):
            assert (track.finish_reason, track.times.finished) == ("", None)
            continue
        num_done += 1
        assert track.status == "done"
        assert track.times.finished == end.time
        assert track.finish_reason == ("abort" if end.kind == "RequestAborted" else end.reason)
        assert track.num_preemptions == end.metrics.num_preemptions
        before = Fold(events[: events.index(end)])
        assert track.tables == tuple(map(tuple, before.requests[track.request_id].tables))
    reasons = {track.finish_reason for track in view.requests}
    assert {"", "length", "abort", "error"} <= reasons
    assert num_done > 5


def test_an_ended_request_keeps_its_last_table_until_the_window_forgets_it():
    engine, log = make_engine(64)
    engine.add_request([*range(40)], params(3), request_id="short")
    engine.add_request([1, 2], params(400), request_id="long")
    for _ in range(3):
        engine.step()
    table = told(log.since()).view().request("short").tables
    assert len(table[0]) == 3
    for _ in range(WINDOW_STEPS - 1):
        engine.step()
    assert told(log.since()).view().request("short").tables == table
    for _ in range(3):
        engine.step()
    assert told(log.since()).view().request("short") is None


# ---------------------------------------------------------------- the prefix cache


@dataclass
class CountedContent:
    first_arrival: int
    depth: int
    num_hits: int = 0
    last_hit_step: int | None = None
    blocks: list[int] = field(default_factory=list)


def counted_contents(events: Sequence[TraceEvent]) -> dict[str, CountedContent]:
    """The plain way: a table of contents, read through from the beginning."""
    arrivals = {e.request_id: e.arrival for e in events if e.kind == "RequestQueued"}
    contents: dict[str, CountedContent] = {}
    for event in events:
        if event.kind == "BlockCached":
            key = f"{event.group}:{event.hash}"
            fresh = CountedContent(arrivals[event.request_id], event.logical_index)
            contents.setdefault(key, fresh).blocks.append(event.block_id)
        elif event.kind == "BlockEvicted":
            key = f"{event.group}:{event.hash}"
            contents[key].blocks.remove(event.block_id)
            if not contents[key].blocks:
                del contents[key]
        elif event.kind == "BlocksReferenced":
            for block in event.block_ids:
                (content,) = [c for c in contents.values() if block in c.blocks]
                content.num_hits += 1
                content.last_hit_step = event.step
    return contents


@pytest.mark.parametrize("layout", ["full", "sliding", "hybrid", "two windows"])
def test_hits_of_a_content_are_counted_from_when_it_was_cached(layout):
    events = events_of(layout)
    total = 0
    for stop in parts(events, 12):
        view = told(events[:stop]).view()
        shown = {
            n.key: CountedContent(n.first_arrival, n.depth, n.num_hits, n.last_hit_step, list(n.block_ids))
            for n in view.prefix
        }
        assert shown == counted_contents(events[:stop])
        total += sum(n.num_hits for n in view.prefix)
    assert total > 0


def test_a_parent_that_was_evicted_and_cached_again_comes_before_its_child():
    """As in a window: the beginning of a prompt is let go first, and computed again by the next who asks."""
    engine, log = make_engine(16, block_size=4, windows=(None,))
    engine.add_request([*range(9)], params(1), request_id="first")
    engine.step()
    events = list(log.since())
    story = told(events)
    parent, child = story.view().prefix
    assert child.parent == parent.key
    seq, step, time = events[-1].seq, events[-1].step + 1, events[-1].time
    base = {"engine": events[0].engine, "step": step, "time": time, "group": 0}
    evicted = next(e for e in events if e.kind == "BlockCached" and e.hash == parent.key[2:])
    story.apply(BlockEvicted(seq=seq + 1, block_id=evicted.block_id, hash=evicted.hash, **base))
    (orphan,) = story.view().prefix
    assert (orphan.key, orphan.parent, orphan.depth) == (child.key, parent.key, 1), "it keeps its place"
    story.apply(
        BlockCached(
            seq=seq + 2, block_id=9, hash=evicted.hash, parent="", request_id="first", logical_index=0, **base
        )
    )
    assert [node.key for node in story.view().prefix] == [parent.key, child.key]
    assert story.copy().view() == story.view()


# ---------------------------------------------------------------- the pool


def test_a_shared_block_counts_once_as_filled():
    engine, log = make_engine(64)
    prompt = [*range(100, 140)]  # two full blocks and a half one
    for _ in range(3):
        engine.add_request(prompt, params(20))
        engine.step()
    now = told(log.since()).view().usage[-1]
    assert now.used == 2 + 3
    # In their half blocks they hold 8 tokens, and those that have decoded 2 and 1 more.
    assert now.filled_slots == 2 * 16 + 3 * 8 + 2 + 1


# ---------------------------------------------------------------- copies and half-told steps


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_made_from_what_changed_is_the_view_made_from_nothing(layout):
    events = events_of(layout, 45)
    often, seldom = Story(), Story()
    for index, event in enumerate(events):
        often.apply(event)
        seldom.apply(event)
        assert often.view() == often.copy().view(), f"event {index}: {event}"
        if index % 97 == 0:
            assert seldom.view() == often.view()
    assert seldom.view() == often.view() == told(events).view()


def test_a_view_that_follows_forgets_what_one_made_from_nothing_has_forgotten():
    """An ended request is drawn once, but not for ever: the window passes over it piece by piece."""
    engine, log = make_engine(64, max_num_batched_tokens=32)
    engine.add_request([*range(150)], params(20), request_id="chunks")
    engine.add_request([1, 2], params(400), request_id="long")
    story, seq, lengths = Story(), -1, set()
    for _ in range(WINDOW_STEPS + 40):
        engine.step()
        for event in log.since(seq):
            story.apply(event)
            seq = event.seq
        assert story.view() == story.copy().view()
        track = story.view().request("chunks")
        if track is not None and track.status == "done":
            assert all(span.stop >= story.view().first_step - 1 for span in track.spans)
            lengths.add(len(track.spans))
    assert len(lengths) > 3, "span after span"
    assert track is None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_goes_its_own_way(layout):
    events = events_of(layout, 60)
    end = told(events).view()
    story, copies = Story(), []
    for index, event in enumerate(events):
        story.apply(event)
        if index % 61 == 0:
            copies.append((index, story.copy(), story.view()))
    assert len(copies) > 3
    for index, copy, view in copies:
        assert copy.view() == view, "what came after it did not change it"
        for event in events[index + 1 :]:
            copy.apply(event)
        assert copy.view() == end
    assert story.view() == end


def test_the_same_view_is_given_until_another_event_comes():
    events = events_of("full", 10)
    story = told(events[:-1])
    assert story.view() is story.view()
    before = story.view()
    story.apply(events[-1])
    assert story.view() is not before


# ---------------------------------------------------------------- from a snapshot


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_story_that_begins_with_a_snapshot_shows_the_same_engine(layout):
    run = start_run(layout, snapshot_interval=10)
    for _ in record(run, 70, 4):
        pass
    events = list(run.log.since())
    starts = [index for index, event in enumerate(events) if isinstance(event, Snapshot)]
    assert len(starts) >= 5
    for start in starts:
        story = told(events[start : start + 1])
        check_view(story.view(), run.states[events[start].step])
        for event in events[start + 1 :]:
            story.apply(event)
        check_view(story.view(), run.engine.state())


def test_what_a_snapshot_does_not_say_is_left_open():
    engine, log = make_engine(64, snapshot_interval=2, windows=(None,))
    prompt = [*range(100, 140)]
    engine.add_request(prompt, params(30), request_id="early")
    for _ in range(2):
        engine.step()
    events = list(log.since())
    story = told(events[-1:])
    assert isinstance(events[-1], Snapshot)
    view = story.view()
    assert [(n.depth, n.first_arrival, n.num_hits) for n in view.prefix] == [(0, None, 0), (1, None, 0)]
    (early,) = view.requests
    assert early.times == type(early.times)()
    engine.add_request(prompt, params(3), request_id="late")
    while engine.has_unfinished_requests():
        engine.step()
    for event in log.since(events[-1].seq):
        story.apply(event)
    view = story.view()
    early, late = view.requests
    assert (early.ttft, early.tpot, early.queue_time) == (None, None, None)
    assert early.times.finished is not None
    assert (late.num_cached_tokens, late.ttft is None) == (32, False)
    assert [(n.num_hits, n.last_hit_step) for n in view.prefix[:2]] == [(1, 3), (1, 3)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: {"ref_counts": state.ref_counts[:-3]},
        lambda state: {"free": (*state.free, 10_000)},
        lambda state: {"hash_table": dict.fromkeys(state.hash_table, (-1,))},
        lambda state: {"hash_table": {"no group": (1,)}, "parents": {"no group": ""}},
        lambda state: {"parents": {}},
        lambda state: {
            "requests": {k: msgspec.structs.replace(r, tables=((10**6,),)) for k, r in state.requests.items()}
        },
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(damage):
    engine, log = make_engine(16, snapshot_interval=2, windows=(None,))
    engine.add_request([*range(40)], params(30))
    for _ in range(2):
        engine.step()
    good = log.since()[-1]
    assert Story().view() is None
    assert told([good]).view() is not None
    bad = msgspec.structs.replace(good, state=msgspec.structs.replace(good.state, **damage(good.state)))
    with pytest.raises((TraceLawError, LookupError, ValueError)):
        told([bad])
