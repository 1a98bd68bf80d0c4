"""The replay against the engine itself, on random runs of the real scheduler."""

from __future__ import annotations

import pytest

from micro_vllm.trace import TraceLog
from tests.ui.support.engine_truth import check_view
from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.replay import Replay
from ui.view import WINDOW_STEPS, request_label


@pytest.mark.parametrize(("num_blocks", "windows"), [(24, (None,)), (64, (None, 32)), (200, (48, 48, None))])
@pytest.mark.parametrize("seed", range(3))
def test_the_view_is_the_engine_after_every_step(num_blocks, windows, seed):
    engine, log = make_engine(num_blocks, windows=windows)
    replay = Replay()
    for _ in random_run(engine, 60, seed):
        view = replay.follow(log)
        assert view is not None
        check_view(view, engine.state())


def test_tokens_in_owned_blocks_add_up_to_what_was_computed():
    engine, log = make_engine(64)
    for prompt_len in (5, 16, 40):
        engine.add_request(list(range(100, 100 + prompt_len)), params(4))
    engine.step()
    view = Replay().follow(log)
    for track in view.requests:
        mine = [c.tokens for c in view.blocks if any(o.request_id == track.request_id for o in c.owners)]
        assert sum(mine) == track.num_computed_tokens == track.num_prompt_tokens


def test_a_reader_who_comes_late_folds_from_a_snapshot():
    engine, log = make_engine(32, trace=TraceLog(capacity=60), snapshot_interval=10)
    replay = Replay()
    for _ in random_run(engine, 100, 7, load=0.5):
        pass
    assert log.since()[0].seq > 0, "the log must have dropped its beginning"
    check_view(replay.follow(log), engine.state())


def test_a_reader_who_falls_behind_starts_over_from_a_snapshot():
    engine, log = make_engine(32, trace=TraceLog(capacity=60), snapshot_interval=10)
    replay = Replay()
    run = random_run(engine, 150, 8, load=0.5)
    next(run)
    replay.follow(log)
    for _ in run:
        pass
    check_view(replay.follow(log), engine.state())


def test_usage_has_one_entry_a_step_and_only_the_window():
    engine, log = make_engine(64)
    replay = Replay()
    steps = []
    for step in random_run(engine, WINDOW_STEPS + 40, 1, load=0.6):
        if step % 7 == 0:
            replay.follow(log)
        steps.append(engine.state().step)
    usage = replay.follow(log).usage
    shown = [entry.step for entry in usage]
    assert shown == sorted(set(shown))
    assert shown[-1] == steps[-1]
    assert len(shown) <= WINDOW_STEPS + 1
    assert shown[-WINDOW_STEPS:] == list(range(steps[-1] - WINDOW_STEPS + 1, steps[-1] + 1))


def test_a_request_has_a_span_for_every_step_it_lived():
    engine, log = make_engine(64, max_num_batched_tokens=64)
    engine.add_request([*range(150)], params(10), request_id="long")
    replay = Replay()
    while engine.has_unfinished_requests():
        engine.step()
        view = replay.follow(log)
    track = view.request("long")
    assert [(s.kind, s.start, s.stop, s.tokens) for s in track.spans] == [
        ("prefill", 1, 2, 64),
        ("prefill", 2, 3, 64),
        ("prefill", 3, 4, 22),
        ("decode", 4, 13, 9),
    ]
    assert [(m.kind, m.step, m.tokens, m.text) for m in track.marks] == [("finished", 12, 10, "length")]
    assert track.status == "done"


def test_preemption_shows_cross_wait_and_recompute():
    engine, log = make_engine(8, enable_prefix_caching=False)
    engine.add_request([*range(40)], params(60), request_id="old")
    engine.add_request([*range(200, 230)], params(60), request_id="young")
    replay = Replay()
    while engine.has_unfinished_requests():
        engine.step()
        view = replay.follow(log)
    young = view.request("young")
    (cross,) = [m for m in young.marks if m.kind == "preempted"]
    kinds = [s.kind for s in young.spans]
    assert "waiting" in kinds
    wait = young.spans[kinds.index("waiting")]
    assert wait.start == cross.step
    again = young.spans[kinds.index("waiting") + 1]
    assert again.kind == "prefill"
    assert again.start == wait.stop
    assert sum(s.tokens for s in young.spans) == 30 + 59 + cross.tokens


def test_a_prefix_hit_is_a_mark_with_its_tokens():
    engine, log = make_engine(64)
    prompt = [*range(100, 150)]
    for request_id in ("first", "second"):
        engine.add_request(prompt, params(3), request_id=request_id)
        while engine.has_unfinished_requests():
            engine.step()
    view = Replay().follow(log)
    assert [(m.kind, m.tokens) for m in view.request("second").marks] == [("hit", 48), ("finished", 3)]
    assert view.request("second").spans[0].tokens == 2
    assert view.usage[-1].hit_rate == pytest.approx(48 / 100)


def test_a_failed_step_ends_its_requests_with_a_mark():
    engine, log = make_engine(64, fail_at=[3])
    engine.add_request([1, 2, 3], params(10), request_id="unlucky")
    for _ in range(3):
        engine.step()
    view = Replay().follow(log)
    assert view.request("unlucky").marks[-1].kind == "failed"
    assert view.num_running == 0
    assert view.executed_step == 2


def test_blocks_written_by_the_newest_step_are_marked():
    engine, log = make_engine(64)
    engine.add_request([*range(40)], params(20), request_id="r")
    engine.step()
    replay = Replay()
    assert [c.block_id for c in replay.follow(log).blocks if c.is_written] == [1, 2, 3]
    engine.step()
    assert [c.block_id for c in replay.follow(log).blocks if c.is_written] == [3]


def test_labels_count_like_columns_of_a_sheet():
    assert [request_label(i) for i in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        "a", "b", "z", "aa", "ab", "az", "ba", "zz", "aaa",
    ]  # fmt: skip
