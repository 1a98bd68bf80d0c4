"""Traces that are cut, damaged, from another version or from an engine that failed: they work, or say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from micro_vllm.errors import TraceFileError, TraceLawError
from micro_vllm.trace import (
    EngineStarted,
    SampledToken,
    ScheduledRow,
    Snapshot,
    TraceEvent,
    TraceLog,
    write_trace,
)
from tests.ui.support.engine_truth import RecordedRun, check_view, record, start_run
from tests.ui.support.scripted_engine import make_engine, params
from ui.replay import EventList, Replay


@pytest.fixture
def run() -> RecordedRun:
    run = start_run("full", snapshot_interval=20, fail_at=[7])
    for _ in record(run, 50, 2):
        pass
    return run


def saved(events: list[TraceEvent], path: Path) -> Path:
    write_trace(events, path)
    return path


def opened(path: Path) -> Replay:
    return Replay(EventList.read(path), title=path.name)


def test_a_file_that_begins_in_the_middle_is_refused(run, tmp_path):
    middle = [event for event in run.log.since() if not isinstance(event, EngineStarted | Snapshot)][40:]
    with pytest.raises(TraceFileError, match=r"cut\.jsonl, line 1: a trace begins with"):
        opened(saved(middle, tmp_path / "cut.jsonl"))
    with pytest.raises(TraceFileError, match=r"none of the .* events says how the engine began"):
        EventList(middle)
    with pytest.raises(TraceFileError, match="none of the 0 events"):
        EventList([])


def test_a_file_that_begins_with_a_snapshot_works(run, tmp_path):
    """As a log is saved after its ring buffer went round."""
    events = list(run.log.since())
    start = next(i for i, e in enumerate(events) if isinstance(e, Snapshot))
    replay = opened(saved(events[start:], tmp_path / "late.jsonl"))
    assert replay.clock().first_step == events[start].step == 20
    for step in run.states:
        check_view(replay.view(step), run.states[max(step, 20)])
    assert replay.has_steps


def test_events_before_the_beginning_are_passed_over(run):
    events = list(run.log.since())
    start = next(i for i, e in enumerate(events) if isinstance(e, Snapshot))
    replay = Replay(EventList(events[start - 9 :]))
    assert replay.clock().first_step == 20
    check_view(replay.view(30), run.states[30])
    assert replay.events(limit=10**6)[-1] is events[start]


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_gap_is_named(run, tmp_path, where):
    events = list(run.log.since())
    hole = int(len(events) * where)
    path = saved(events[:hole] + events[hole + 3 :], tmp_path / "gap.jsonl")
    with pytest.raises(TraceFileError) as caught:
        opened(path)
    words = str(caught.value)
    assert words.startswith(f"gap.jsonl: event {hole + 3} (")
    assert f"event {hole + 3} follows {hole - 1}: events are missing" in words
    assert "save the trace again" in words


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("RequestAdmitted", {"request_id": "nobody"}),
        ("RequestFinished", {"request_id": "nobody"}),
        ("BlocksAllocated", {"block_ids": (999,)}),
        ("BlocksReferenced", {"block_ids": (999,)}),
        ("BlocksFreed", {"block_ids": (24, 24, 24)}),
        ("BlockCached", {"block_id": 999}),
        ("BlockEvicted", {"hash": "00"}),
        ("StepPlanned", {"rows": (ScheduledRow(request_id="nobody", phase="decode", start=1, count=1),)}),
        ("TokensSampled", {"tokens": (SampledToken(request_id="nobody", token_id=1),)}),
    ],
)
def test_an_event_that_speaks_of_what_is_not_there_is_named(run, tmp_path, kind, damage):
    events = list(run.log.since())
    found = next(i for i, e in enumerate(events) if e.kind == kind)
    events[found] = msgspec.structs.replace(events[found], **damage)
    with pytest.raises(TraceFileError, match=rf"bad\.jsonl: event {found} \({kind}, step \d+\) does not fit"):
        opened(saved(events, tmp_path / "bad.jsonl"))


def test_steps_that_go_back_are_named(run, tmp_path):
    events = list(run.log.since())
    back = msgspec.structs.replace(events[200], step=1)
    with pytest.raises(TraceFileError, match=r"event 200 .* step 1 follows step"):
        opened(saved([*events[:200], back, *events[201:]], tmp_path / "back.jsonl"))


def test_a_log_that_contradicts_itself_is_no_wrong_file(run):
    events = list(run.log.since())
    log = TraceLog()
    for event in events[:50] + events[60:]:
        log.emit(event)
    with pytest.raises(TraceLawError, match="events are missing"):
        Replay(log)


def test_kinds_of_a_later_version_do_no_harm(run, tmp_path):
    """They have numbers of their own; left out, they would look like a gap."""
    path = saved(list(run.log.since()), tmp_path / "future.jsonl")
    lines, seq = [], 0
    for line in path.read_text().splitlines():
        event = json.loads(line) | {"seq": seq}
        lines.append(event)
        seq += 1
        if event["kind"] == "StepExecuted":
            news = {"kind": "FromTheFuture", "heat": [1, 2]}
            lines.append(news | {key: event[key] for key in ("engine", "step", "time")} | {"seq": seq})
            seq += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay = opened(path)
    for step, state in run.states.items():
        check_view(replay.view(step), state)
    everything = replay.events(limit=10**6)
    assert [event.seq for event in everything] == list(range(seq))[::-1]
    again = opened(saved(everything[::-1], tmp_path / "again.jsonl"))
    assert again.view() == replay.view(), "saved once more, there is still no gap"


def test_a_file_of_an_engine_that_failed_or_was_killed_works(run, tmp_path):
    events = list(run.log.since())
    failed = next(i for i, e in enumerate(events) if e.kind == "StepFailed")
    replay = opened(saved(events[: failed + 1], tmp_path / "failed.jsonl"))
    view = replay.view()
    assert (view.step, view.executed_step) == (7, 6)
    assert view.steps[-1].error == "RuntimeError: scripted failure"
    assert replay.jump("failed", 0, 1) == 7
    for stop in range(failed + 20, failed + 90):  # killed anywhere, also within a line
        path = saved(events[:stop], tmp_path / "killed.jsonl")
        path.write_bytes(path.read_bytes()[:-7])
        replay = opened(path)
        assert replay.view().seq == stop - 2
        past = replay.clock().last_step - 1
        check_view(replay.view(past), run.states[past])


def test_a_file_with_nothing_but_a_start_shows_an_empty_engine(run, tmp_path):
    replay = opened(saved(list(run.log.since())[:1], tmp_path / "start.jsonl"))
    assert not replay.has_steps
    assert replay.view().num_used == 0
    assert replay.view(5) is replay.view()
    assert (replay.clock().first_step, replay.clock().last_step) == (0, 0)


def test_a_file_of_two_engines_shows_the_later_one(tmp_path):
    log = TraceLog()
    for prompt_len in (20, 33):
        engine, _ = make_engine(24, trace=log)
        engine.add_request([*range(prompt_len)], params(4))
        engine.step()
    events = list(log.since())
    for same_name in (False, True):
        if same_name:  # engines of two processes
            events = [msgspec.structs.replace(event, engine="engine-0") for event in events]
        replay = opened(saved(events, tmp_path / "two.jsonl"))
        assert replay.view().requests[0].num_prompt_tokens == 33
        check_view(replay.view(1), engine.state())
