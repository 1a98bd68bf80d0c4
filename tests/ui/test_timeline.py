"""The scheduler timeline against the EngineView it was drawn from."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.ui.support.drawn import SIZE, drawn, scatters, view_after
from tests.ui.support.scripted_engine import make_engine, params
from ui.charts import timeline
from ui.charts.focus import Focus
from ui.charts.theme import DARK, LIGHT, Size
from ui.charts.timeline_bars import OFFSET
from ui.charts.timeline_words import numbers
from ui.feed.frames import changes
from ui.replay import Replay
from ui.view import RequestTimes, request_label

TALL = Size(800, 4000)
MONO_12_PX = 7.25
"""Width of a character in the font of the labels."""
WAITING, DECODE, TOUCH, PREFILL = range(4)
SYMBOLS = {
    "hit": "diamond",
    "finished": "line-ns-open",
    "preempted": "x",
    "aborted": "square-open",
    "failed": "x",
}


def pressed():
    """A pool so small that requests are preempted, and more requests than seats."""
    view = view_after(16, 120, 2, windows=(None,), load=0.5, max_num_seqs=4)
    assert any(m.kind == "preempted" for t in view.requests for m in t.marks)
    return view


@pytest.mark.parametrize("seed", range(3))
def test_every_span_is_a_bar_in_its_row(seed):
    view = view_after(48, 80, seed)
    figure = drawn(timeline, view, LIGHT, TALL)
    rows = timeline.choose_rows(view.requests, 1000)
    for index, kind in ((WAITING, "waiting"), (PREFILL, "prefill"), (DECODE, "decode")):
        trace = figure.data[index]
        expected = sorted(
            (span.start, span.stop - span.start, row + OFFSET[kind])
            for row, track in enumerate(rows)
            for span in track.spans
            if span.kind == kind
        )
        assert sorted(zip(trace.base, trace.x, trace.y, strict=True)) == expected


def test_every_mark_has_its_symbol_at_its_step():
    view = pressed()
    figure = drawn(timeline, view, LIGHT, TALL)
    rows = timeline.choose_rows(view.requests, 1000)
    for trace, kind in zip(scatters(figure, "markers"), SYMBOLS, strict=True):
        marks = [(t.request_id, m.step) for t in rows for m in t.marks if m.kind == kind]
        assert trace.marker.symbol == SYMBOLS[kind]
        at_end = kind in ("finished", "aborted", "failed")
        assert list(zip(trace.customdata or (), trace.x or (), strict=True)) == [
            (request_id, step + 1 if at_end else step) for request_id, step in marks
        ]


def test_bars_and_marks_name_their_request_for_a_click_and_what_is_thin_has_a_row_high_target():
    view = pressed()
    figure = drawn(timeline, view, LIGHT, TALL)
    rows = timeline.choose_rows(view.requests, 1000)
    touched = [
        (t.request_id, s.start, row, s.stop - s.start)
        for row, t in enumerate(rows)
        for s in t.spans
        if s.kind != "prefill"
    ]
    touch = figure.data[TOUCH]
    assert list(zip(touch.customdata, touch.base, touch.y, touch.x, strict=True)) == touched
    assert touch.width == 0.8
    assert {figure.data[WAITING].hoverinfo, figure.data[DECODE].hoverinfo} == {"skip"}
    prefills = [t.request_id for t in rows for s in t.spans if s.kind == "prefill"]
    assert list(figure.data[PREFILL].customdata) == prefills


def hovers(figure) -> list[str]:
    """All hovers as they are read: with the numbers that they refer to."""
    meta = figure.layout.meta
    templates = [h for t in figure.data if isinstance(t.hovertemplate, tuple) for h in t.hovertemplate]
    return [re.sub(r"%\{meta\[(\d+)\]\}", lambda m: meta[int(m[1])], h) for h in templates]


def test_every_hover_carries_the_numbers_of_its_own_request():
    view = pressed()
    figure = drawn(timeline, view, LIGHT, TALL)
    by_label = {track.label: numbers(track) for track in view.requests}
    found = hovers(figure)
    assert len(found) > 30
    for words in found:
        label = re.match(r"<b>(\w+)</b> · ", words)[1]
        assert by_label[label] in words


def test_the_numbers_of_a_request_are_prompt_cached_computed_output_times_and_preemptions():
    view = view_after(64, 10)
    track = replace(
        view.requests[0],
        num_prompt_tokens=1200,
        num_cached_tokens=640,
        num_computed_tokens=1210,
        num_tokens=1211,
        num_preemptions=2,
        times=RequestTimes(queued=5.0, admitted=5.012, first_token=5.2, last_token=5.5),
    )
    assert numbers(track).split("<br>") == [
        "prompt 1,200 · cached 640",
        "computed 1,210 · output 11",
        "queue 12 ms · TTFT 200 ms · TPOT 30 ms",
        "preempted 2 times",
    ]
    young = replace(track, num_tokens=1200, num_preemptions=0, times=RequestTimes(queued=5.0))
    assert numbers(young).split("<br>") == ["prompt 1,200 · cached 640", "computed 1,210 · output 0"]


def test_a_prefill_chunk_says_from_which_token_to_which():
    engine, log = make_engine(64, windows=(None,), max_num_batched_tokens=32)
    engine.add_request([*range(100, 180)], params(4))
    for _ in range(4):
        engine.step()
    figure = drawn(timeline, Replay().follow(log))
    chunks = [h.split("<br>")[0] for h in figure.data[PREFILL].hovertemplate]
    assert chunks == [
        "<b>a</b> · prefill chunk, tokens 0–31 (32)",
        "<b>a</b> · prefill chunk, tokens 32–63 (32)",
        "<b>a</b> · prefill chunk, tokens 64–79 (16)",
    ]


def test_a_prefill_chunk_of_a_step_that_the_window_does_not_hold_says_how_many_tokens():
    view = replace(view_after(64, 10), steps=())
    chunks = list(drawn(timeline, view).data[PREFILL].hovertemplate)
    assert chunks
    assert all(re.match(r"<b>\w+</b> · prefill chunk, \d+ tokens?<br>", chunk) for chunk in chunks)


def test_own_rows_say_yours():
    view = view_after(64, 30, 1)
    mine = view.requests[1].request_id
    labels = drawn(timeline, view, LIGHT, SIZE, Focus(frozenset([mine]))).layout.yaxis.ticktext
    assert ["yours" in label for label in labels] == [
        t.request_id == mine for t in timeline.choose_rows(view.requests, 99)
    ]


@pytest.mark.parametrize("arrival", [25, 26, 701, 702])
def test_the_label_of_an_own_row_has_room(arrival):
    """After 26 requests a label has two letters, after 702 three: the margin once cut the y of "yours"."""
    view = view_after(64, 30, 1)
    last = replace(view.requests[-1], arrival=arrival)
    mine = Focus(frozenset([last.request_id]))
    layout = timeline.figure(replace(view, requests=(*view.requests[:-1], last)), LIGHT, TALL, mine)["layout"]
    label = re.sub("<[^>]*>", "", layout["yaxis"]["ticktext"][-1])
    assert label == f"yours {request_label(arrival)} ■"
    assert len(label) * MONO_12_PX <= layout["margin"]["l"] - 3


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_the_followed_row_lies_on_a_band_and_the_others_fade(look):
    view = view_after(64, 30, 1)
    followed = view.requests[1]
    plain = drawn(timeline, view, look, TALL)
    figure = drawn(timeline, view, look, TALL, Focus(request_id=followed.request_id))
    row = timeline.choose_rows(view.requests, 99).index(followed)
    band = figure.layout.shapes[1]
    assert (band.y0, band.y1) == (row - 0.5, row + 0.5)
    assert [f"<b>{followed.label}</b>" in text for text in figure.layout.yaxis.ticktext] == [
        i == row for i in range(len(figure.layout.yaxis.ticktext))
    ]
    for y, before, after in zip(
        plain.data[PREFILL].y,
        plain.data[PREFILL].marker.color,
        figure.data[PREFILL].marker.color,
        strict=True,
    ):
        assert (before == after) == (y == row)
    assert len(plain.layout.shapes) == 1


def test_live_requests_are_kept_when_rows_are_scarce():
    view = view_after(400, 120, 4, load=0.6)
    rows = timeline.choose_rows(view.requests, 6)
    assert len(rows) == 6
    live = [t for t in view.requests if t.status != "done"]
    assert all(t.status != "done" for t in rows) or len(live) < 6
    assert [t.arrival for t in rows] == sorted(t.arrival for t in rows)


def test_what_runs_comes_before_what_waits_and_the_followed_one_is_always_there():
    engine, log = make_engine(400, windows=(None,), max_num_seqs=4)
    for i in range(12):
        engine.add_request([*range(i * 50, i * 50 + 20)], params(30 if i else 2))
    for _ in range(6):
        engine.step()
    view = Replay().follow(log)
    rows = timeline.choose_rows(view.requests, 5)
    assert [t.status for t in rows] == ["running"] * 4 + ["waiting"]
    assert [t.label for t in rows] == ["b", "c", "d", "e", "f"]
    first = view.requests[0]
    assert first.status == "done"
    assert first in timeline.choose_rows(view.requests, 5, first.request_id)


def test_how_many_requests_have_no_row_is_said_in_a_row_of_its_own():
    engine, log = make_engine(400, windows=(None,), max_num_seqs=4)
    for i in range(45):
        engine.add_request([*range(i * 20, i * 20 + 20)], params(30 if i > 2 else 2))
    for _ in range(6):
        engine.step()
    view = Replay().follow(log)
    figure = drawn(timeline, view, LIGHT, Size(800, 180))
    num_rows = len(figure.layout.yaxis.ticktext)
    (note,) = figure.layout.annotations
    assert note.text == f"{45 - num_rows} more not shown: {41 - (num_rows - 4) - 3} waiting, 3 finished"
    assert note.y == num_rows
    assert figure.layout.yaxis.range[0] == num_rows + 0.5
    narrow = drawn(timeline, view, LIGHT, Size(260, 180)).layout.annotations[0].text
    assert narrow == f"{45 - num_rows} more not shown"
    assert not drawn(timeline, view, LIGHT, TALL).layout.annotations


def test_prefill_counts_and_hits_are_written_where_they_fit():
    engine, log = make_engine(64)
    engine.add_request([*range(100, 150)], params(40))
    engine.step()
    engine.add_request([*range(100, 150)], params(40))
    for _ in range(20):
        engine.step()
    (notes,) = scatters(drawn(timeline, Replay().follow(log)), "text")
    assert list(notes.text) == ["50 prefilled", "48 cached + 2 prefilled"]


def test_the_window_slides_and_young_engines_get_a_short_one():
    assert timeline.step_range(view_after(64, 10)) == (0, 40)
    left, right = timeline.step_range(view_after(64, 200, load=0.7))
    assert right - left == 120


def test_the_line_stands_behind_the_newest_step():
    view = view_after(64, 25)
    line = drawn(timeline, view).layout.shapes[0]
    assert line.x0 == line.x1 == view.executed_step + 1


def test_a_decode_step_sends_the_numbers_of_a_request_once():
    engine, log = make_engine(400, windows=(None,), max_num_batched_tokens=64)
    replay = Replay()
    for i in range(6):
        engine.add_request([*range(100 * i, 100 * i + 90)], params(60))
    for _ in range(20):
        engine.step()
    before = timeline.figure(replay.follow(log), LIGHT, Size(800, 180))
    engine.step()
    found = changes(before, timeline.figure(replay.follow(log), LIGHT, Size(800, 180)))
    assert len(json.dumps(found)) < 2500
    assert json.dumps(found).count("computed") == 6
