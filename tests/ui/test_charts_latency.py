"""The latency chart against the times and the steps it was drawn from."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import plotly.graph_objects as go
import pytest

from micro_vllm.trace import StepExecuted, TraceEvent
from tests.ui.support.scripted_engine import make_engine, random_run
from ui.charts import latency
from ui.charts.focus import Focus
from ui.charts.latency import EMPTY
from ui.charts.latency_rows import PARTS, overhead_share, part_medians, rows_of, step_top
from ui.charts.theme import DARK, LIGHT, Size
from ui.charts.wording import duration, longest_that_fits, percent, round_up
from ui.replay import Replay
from ui.view import EngineView, RequestTimes, RequestTrack, StepRecord

SIZES = [Size(380, 150), Size(800, 180), Size(360, 300)]


def timed(events) -> Iterator[TraceEvent]:
    """A clock of its own: a step takes 20 ms and 1 ms for each token, a scripted engine takes none."""
    now = 100.0
    for event in events:
        if isinstance(event, StepExecuted):
            seconds = {
                "schedule_seconds": 0.0002,
                "build_seconds": 0.0005,
                "forward_seconds": 0.02 + 0.001 * event.num_tokens,
                "sample_seconds": 0.002,
            }
            now += sum(seconds.values())
            event = msgspec.structs.replace(event, **seconds)
        yield msgspec.structs.replace(event, time=now)


@functools.cache
def view_after(num_blocks: int, steps: int, seed: int = 0, *, load: float = 0.3, **config) -> EngineView:
    engine, log = make_engine(num_blocks, windows=(None,), **config)
    for _ in random_run(engine, steps, seed, load=load):
        pass
    replay = Replay()
    replay.apply(timed(log.since()))
    view = replay.view()
    assert view is not None
    return view


def track(arrival: int, times: RequestTimes, *, tokens: int = 0, status="running", **more) -> RequestTrack:
    return RequestTrack(f"r{arrival}", arrival, 10, 10 + tokens, 10, status, (), (), times=times, **more)


def with_requests(*tracks: RequestTrack, now: float = 10.0) -> EngineView:
    return replace(view_after(48, 5), requests=tracks, time=now)


def row_bars(figure) -> list[dict]:
    found = []
    for trace in figure["data"][:2]:
        marker = trace["marker"]
        shapes = marker["pattern"]["shape"] if "pattern" in marker else [""] * len(trace["y"])
        for i, row in enumerate(trace["y"]):
            found.append(
                {
                    "row": row,
                    "start": trace["base"][i],
                    "seconds": trace["x"][i],
                    "hatched": shapes[i] == "/" and trace["base"][i] == 0,
                    "request": trace["customdata"][i],
                    "words": trace["hovertext"][i],
                }
            )
    return found


def cells(figure) -> list[tuple[str, str]]:
    trace = next(t for t in figure["data"] if t.get("xaxis") == "x3")
    half = len(trace["text"]) // 2
    return list(zip(trace["text"][:half], trace["text"][half:], strict=True))[1:]


def text_of(figure) -> str:
    return " ".join(note["text"] for note in figure["layout"]["annotations"])


# ---------------------------------------------------------------- requests


def test_a_row_is_queue_and_time_to_first_token_and_together_they_are_the_ttft():
    view = view_after(24, 90, load=0.4)
    rows = rows_of(view, 99)
    known = [r for r in rows if r.track.ttft is not None]
    assert any(r.queue > 0.01 for r in known)
    for row in known:
        assert row.queue == pytest.approx(row.track.queue_time)
        assert row.total == pytest.approx(row.track.ttft)
    figure = latency.figure(view, size=Size(800, 2000))
    shown = row_bars(figure)
    for i, row in enumerate(rows):
        queue, first = sorted((bar for bar in shown if bar["row"] == i), key=lambda bar: not bar["hatched"])
        assert (queue["start"], queue["seconds"]) == (0, pytest.approx(row.queue, abs=1e-5))
        assert (first["start"], first["seconds"]) == pytest.approx((row.queue, row.first_token), abs=1e-5)
        assert queue["request"] == first["request"] == row.track.request_id


def test_a_request_without_a_first_token_grows_with_the_clock():
    waiting = track(0, RequestTimes(queued=4.0), status="waiting")
    reading = track(1, RequestTimes(queued=5.0, admitted=7.0))
    for now in (9.0, 9.5):
        view = with_requests(waiting, reading, now=now)
        first, second = rows_of(view, 9)
        assert (first.queue, first.first_token, first.is_open) == (now - 4, 0, True)
        assert (second.queue, second.first_token, second.is_open) == (2, now - 7, True)
        figure = latency.figure(view)
        arrows = next(t for t in figure["data"] if t.get("marker", {}).get("symbol") == "triangle-right")
        assert arrows["x"] == [now - 4, now - 5]
        assert cells(figure) == [(f"{duration(now - 4)} …", "–"), (f"{duration(now - 5)} …", "–")]
    assert "waited 5.50 s so far" in row_bars(figure)[0]["words"] + row_bars(figure)[1]["words"]


def test_a_request_that_ended_without_a_token_stops_growing_and_says_none():
    gone = track(0, RequestTimes(queued=1.0, finished=3.0), status="done", finish_reason="abort")
    early, late = (rows_of(with_requests(gone, now=now), 9)[0] for now in (4.0, 400.0))
    assert (early.total, early.is_open) == (late.total, late.is_open) == (2.0, False)
    assert cells(latency.figure(with_requests(gone))) == [("none", "–")]


def test_tpot_is_a_number_with_a_unit_beside_each_row():
    times = RequestTimes(queued=1.0, admitted=1.5, first_token=2.25, last_token=2.45)
    view = with_requests(track(0, times, tokens=11), track(1, replace(times, last_token=2.25), tokens=1))
    figure = latency.figure(view)
    assert cells(figure) == [("1.25 s", "20 ms"), ("1.25 s", "–")]
    assert "time per later token (TPOT) 20 ms, 11 tokens so far" in row_bars(figure)[0]["words"]
    assert "TTFT <b>1.25 s</b> · TPOT <b>20 ms</b>" in text_of(figure)


def test_where_rows_have_no_room_live_and_new_ones_stay_in_order_of_arrival():
    done = [track(i, RequestTimes(queued=1.0, first_token=2.0), status="done") for i in range(6)]
    live = [track(i, RequestTimes(queued=1.0, first_token=2.0)) for i in (6, 7)]
    view = with_requests(*done, *live)
    assert [r.track.arrival for r in rows_of(view, 4)] == [4, 5, 6, 7]
    assert [r.track.arrival for r in rows_of(view, 4, "r0")] == [0, 5, 6, 7], "who is followed is shown"
    figure = latency.figure(view, size=Size(380, 150))
    assert f"{len(cells(figure))} of 8 requests" in text_of(figure)


def test_rows_carry_letter_and_colour_and_focus_is_in_bold():
    view = view_after(48, 60)
    rows = rows_of(view, 9)
    chosen = rows[3].track
    labels = latency.figure(view, size=Size(800, 180), focus=Focus(request_id=chosen.request_id))["layout"][
        "yaxis"
    ]
    assert [row.track.label in text for row, text in zip(rows, labels["ticktext"], strict=False)] == [
        True
    ] * 9
    assert [("<b>" in text) for text in labels["ticktext"]].count(True) == 1
    assert f"<b>{chosen.label}</b>" in labels["ticktext"][3]


# ---------------------------------------------------------------- steps


def test_the_parts_of_each_step_stack_up_to_its_time():
    view = view_after(48, 80)
    figure = latency.figure(view, size=Size(800, 180))
    areas = [t for t in figure["data"] if t.get("stackgroup") == "parts"]
    assert len(areas) == len(PARTS) == 4
    executed = [s for s in view.steps if s.is_executed]
    assert areas[0]["x"][:-1] == [s.step for s in executed]
    for i, step in enumerate(executed):
        assert sum(area["y"][i] for area in areas) == pytest.approx(step.seconds, abs=1e-5)
    for part, area in zip(PARTS, areas, strict=True):
        assert area["y"][0] == pytest.approx(getattr(executed[0], f"{part}_seconds"), abs=1e-6)


def test_the_overhead_is_told_in_words_and_each_part_beside_the_stack():
    view = view_after(48, 80)
    words = text_of(latency.figure(view, size=Size(800, 180)))
    share = sum(s.schedule_seconds + s.build_seconds for s in view.steps) / sum(s.seconds for s in view.steps)
    assert 0 < share < 0.05
    assert overhead_share(view.steps) == pytest.approx(share)
    assert f"schedule + build <b>{percent(share)}</b>" in words
    for part, seconds in part_medians(view.steps).items():
        assert f"{part} <b>{duration(seconds)}</b>" in words
    assert "sample <b>2.0 ms</b>" in words


def test_one_step_far_beyond_all_others_does_not_flatten_them_but_is_marked():
    usual = [
        StepRecord(i, 0.0, (), 1, 8, 1, 4, 0, "", is_executed=True, forward_seconds=0.02) for i in range(40)
    ]
    slow = msgspec.structs.replace(usual[0], step=40, forward_seconds=3.0)
    assert step_top([*usual, slow]) == pytest.approx(0.03)
    view = replace(view_after(48, 5), steps=(*usual, slow))
    beyond = latency.figure(view)["data"][-1]
    assert beyond["x"] == [40.5]
    assert "3.00 s" in beyond["hovertext"][0]
    assert latency.figure(replace(view, steps=tuple(usual)))["data"][-1]["x"] == []


def test_steps_that_were_planned_but_not_computed_are_not_drawn():
    view = view_after(48, 20)
    open_ = replace(
        view, steps=(*view.steps[:-1], msgspec.structs.replace(view.steps[-1], is_executed=False))
    )
    hover = next(t for t in latency.figure(open_)["data"] if t["type"] == "heatmap")
    assert hover["xaxis"] == "x2"
    assert len(hover["text"][0]) == len(view.steps) - 1


# ---------------------------------------------------------------- shape and words


def test_before_the_first_request_a_sentence_says_what_will_come():
    view = replace(view_after(48, 5), requests=(), steps=())
    assert EMPTY in text_of(latency.figure(view)).replace("<br>", " ")
    assert EMPTY not in text_of(latency.figure(view_after(48, 20))).replace("<br>", " ")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_plotly_takes_the_figure_and_its_parts_do_not_overlap(size, look):
    shapes = set()
    for steps in (1, 30, 130):
        figure = latency.figure(view_after(48, steps), look, size)
        go.Figure(figure)
        shapes.add(tuple(trace["type"] for trace in figure["data"]))
        layout = figure["layout"]
        rows, numbers, beside = (layout[axis]["domain"] for axis in ("xaxis", "xaxis3", "xaxis2"))
        above, below = layout["yaxis"]["domain"], layout["yaxis2"]["domain"]
        assert 0 <= rows[0] < rows[1] <= numbers[0] < numbers[1] <= 1
        assert numbers[1] < beside[0] or below[1] < above[0]
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 ms"),
        (0.00004, "0.04 ms"),
        (0.0004, "0.4 ms"),
        (0.0099, "9.9 ms"),
        (0.00996, "10 ms"),
        (0.217, "217 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (38.4, "38 s"),
        (125, "2 min 5 s"),
    ],
)
def test_durations_have_a_unit_and_three_digits_at_most(seconds, words):
    assert duration(seconds) == words


def test_axes_grow_in_steps():
    assert [round_up(v) for v in (0.0011, 0.016, 0.02, 0.3, 0.31, 7.3, 61)] == [
        0.0015,
        0.02,
        0.02,
        0.3,
        0.4,
        8,
        80,
    ]


def test_the_longest_wording_that_has_room_is_taken_and_tags_take_none():
    assert longest_that_fits(["<b>1234567890</b>", "12345", "1"], 60, 6) == "<b>1234567890</b>"
    assert longest_that_fits(["<b>1234567890</b>", "12345", "1"], 59, 6) == "12345"
    assert longest_that_fits(["1234567890", "12345"], 1, 6) == "12345"
