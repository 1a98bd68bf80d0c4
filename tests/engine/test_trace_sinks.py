"""The sinks: ring buffer, JSON lines, Chrome trace; and a sink that fails."""

from __future__ import annotations

import json
import random

import pytest

from micro_vllm.errors import TraceFileError, TraceLawError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import (
    Fold,
    JsonlSink,
    Snapshot,
    TeeSink,
    TraceLog,
    read_trace,
    write_chrome_trace,
    write_trace,
)
from tests.engine.support.scripted import run, scripted_engine


def busy_engine(sink, *, requests: int = 40, **settings):
    rng = random.Random(1)
    engine = scripted_engine(
        trace=sink, **{"num_gpu_blocks_override": 24, "snapshot_interval": 10, **settings}
    )
    for index in range(requests):
        prompt = [rng.randrange(3, 50) for _ in range(rng.randrange(1, 20))]
        engine.add_request(prompt, SamplingParams(max_tokens=12), request_id=f"r{index}")
    return engine


def test_ring_buffer_drops_only_up_to_a_snapshot_and_stays_foldable():
    log = TraceLog(capacity=300)
    engine = busy_engine(log)
    while engine.has_unfinished_requests():
        engine.step()
        assert Fold(log.since()).state() == engine.state()
    held = log.since()
    assert held[0].seq > 0, "something was dropped"
    assert isinstance(held[0], Snapshot)
    assert len(log) == len(held) <= 400
    assert log.last_seq == held[-1].seq


def test_since_gives_only_what_is_new_and_all_after_a_gap():
    log = TraceLog(capacity=300)
    engine = busy_engine(log)
    read = []
    seq = -1
    while engine.has_unfinished_requests():
        engine.step()
        new = log.since(seq)
        read += new
        seq = read[-1].seq
    assert [event.seq for event in read] == list(range(len(read)))
    assert log.since(seq) == []
    late = log.since(5)  # events 6.. are gone: the answer starts over from a snapshot
    assert isinstance(late[0], Snapshot)
    assert late[0].seq > 6


def test_jsonl_written_live_reads_back_the_same_and_folds(tmp_path):
    log, path = TraceLog(), tmp_path / "trace.jsonl"
    with JsonlSink(path) as file:
        engine = busy_engine(TeeSink(log, file))
        run(engine)
    events = list(read_trace(path))
    assert events == list(log.since())
    assert Fold(events).state() == engine.state()
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["kind"], first["format"]) == ("EngineStarted", 1)


def test_unknown_kinds_in_a_file_are_skipped_and_a_cut_last_line_ends_it(tmp_path):
    path = tmp_path / "trace.jsonl"
    log = TraceLog()
    run(busy_engine(log, requests=2))
    write_trace(log.since(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    future = b'{"kind":"FromTheFuture","seq":0,"engine":"e","step":0,"time":0.0}\n'
    path.write_bytes(lines[0] + future + b"".join(lines[1:]) + lines[-1][: len(lines[-1]) // 2])
    assert list(read_trace(path)) == list(log.since())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello\n", "line 1: not a trace event"),
        (b'{"kind":"StepPlanned"}\n', "line 1: not a trace event"),
        (b'{"a": 1}\n', "line 1: not a trace event"),
        (b"\xff\xfe\x00\n", "line 1: not a trace event"),
    ],
)
def test_wrong_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=message) as caught:
        list(read_trace(path))
    assert "wrong.jsonl" in str(caught.value)


def test_missing_events_are_noticed():
    log = TraceLog()
    run(busy_engine(log, requests=3))
    events = list(log.since())
    with pytest.raises(TraceLawError, match="events are missing"):
        Fold(events[:10] + events[11:])


def test_failing_sink_never_fails_a_step(caplog):
    class Broken:
        def emit(self, event):
            raise OSError("disk full")

    good = TraceLog()
    engine = busy_engine(TeeSink(Broken(), good), requests=3)
    assert len(run(engine)) == 3
    assert Fold(good.since()).state() == engine.state(), "the other sink got everything"
    assert engine.tracer.num_failures == len(good)
    assert sum("trace sink" in record.message for record in caplog.records) == 1, "told once, not flooded"


def test_without_a_sink_no_event_object_is_built(monkeypatch):
    from micro_vllm.trace.events import TraceEvent

    built = []
    monkeypatch.setattr("micro_vllm.trace.sinks.Tracer.emit", lambda *a, **k: built.append(a))
    engine = busy_engine(None, requests=3)
    run(engine)
    assert engine.tracer is None
    assert built == []
    assert issubclass(Snapshot, TraceEvent)


def test_chrome_trace_has_steps_requests_and_counters(tmp_path):
    log = TraceLog()
    engine = busy_engine(log, requests=6)
    run(engine)
    path = tmp_path / "trace.json"
    write_chrome_trace(log.since(), path)
    rows = json.loads(path.read_text())["traceEvents"]
    steps = [row for row in rows if row["ph"] == "X" and row["name"].startswith("step ")]
    assert len(steps) == engine.state().step
    tracks = {row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert tracks == {f"r{i}" for i in range(6)}
    assert {row["name"] for row in rows if row["ph"] == "C"} == {"KV blocks", "token budget"}
    for row in rows:
        if row["ph"] == "C" and row["name"] == "KV blocks":
            assert sum(row["args"].values()) == 24
        if row["ph"] == "X":
            assert row["dur"] >= 0
    assert {"waiting", "prefill", "decode"} <= {row["name"] for row in rows if row["ph"] == "X"}
