"""The step budget against the steps it was drawn from."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import msgspec
import plotly.graph_objects as go
import pytest

from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts import step_budget
from ui.charts.focus import Focus
from ui.charts.palette import NUM_SLOTS, mix, request_color
from ui.charts.step_limits import LANES
from ui.charts.step_runs import STOP_WORDS, STRETCHED, TokenScale, prefill_runs, stop_runs, token_scale
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay
from ui.view import EngineView, StepRecord, StepRow, request_label

SIZES = [Size(380, 150), Size(800, 180), Size(360, 300)]


@functools.cache
def view_after(num_blocks: int, steps: int, seed: int = 0, *, load: float = 0.3, **config) -> EngineView:
    engine, log = make_engine(num_blocks, windows=(None,), **config)
    for _ in random_run(engine, steps, seed, load=load):
        pass
    view = Replay().follow(log)
    assert view is not None
    return view


def bars(figure) -> list[tuple[str, float, float, float, float]]:
    """(request, first step, end, bottom, top) of each prefill, the plain and the patterned ones."""
    found = []
    for trace in figure["data"][1:3]:
        for i, request_id in enumerate(trace["customdata"]):
            middle, width = trace["x"][i], trace["width"][i]
            base = trace["base"][i]
            found.append((request_id, middle - width / 2, middle + width / 2, base, base + trace["y"][i]))
    return found


def cells(figure) -> dict[tuple[int, int], tuple[str, float]]:
    """(step, row from below) of each decode -> (request, colour code)."""
    trace = figure["data"][0]
    first = round(trace["x0"] - 0.499)
    return {
        (first + column, row): (request_id, trace["z"][row][column])
        for row, ids in enumerate(trace["customdata"])
        for column, request_id in enumerate(ids)
        if request_id
    }


# ---------------------------------------------------------------- truth


@pytest.mark.parametrize("seed", range(3))
def test_every_token_of_every_step_is_drawn_exactly_once(seed):
    view = view_after(48, 90, seed)
    found: Counter = Counter(
        (step, request_id) for (step, _), (request_id, _) in cells(step_budget.figure(view)).items()
    )
    for run in prefill_runs(view.steps):
        for step in range(run.start, run.stop):
            found[step, run.request_id] += run.count
    planned = Counter({(s.step, r.request_id): r.count for s in view.steps for r in s.rows})
    assert found == planned


def test_a_step_is_a_stack_without_gap_decodes_below_up_to_its_tokens():
    view = view_after(48, 90)
    scale = token_scale(view)
    figure = step_budget.figure(view)
    decodes, prefills = cells(figure), bars(figure)
    row_height = figure["data"][0]["dy"]
    for step in view.steps:
        rows = sorted(row for at, row in decodes if at == step.step)
        assert rows == list(range(len(rows)))
        top = len(rows) * row_height
        assert top == pytest.approx(scale.height(len(rows)), abs=2e-4)
        here = sorted((low, high) for _, start, stop, low, high in prefills if start <= step.step < stop)
        assert len(rows) + len(here) == len(step.rows)
        for low, high in here:
            assert low == pytest.approx(top, abs=2e-4)
            top = high
        assert top == pytest.approx(scale.height(step.num_tokens), abs=2e-4)
    assert figure["data"][0]["y0"] == pytest.approx(row_height / 2, abs=1e-5), "cells are centred"


def test_decodes_have_the_colour_of_their_request_and_the_hover_its_letter():
    view = view_after(48, 60)
    trace = step_budget.figure(view)["data"][0]
    arrivals = {t.request_id: t.arrival for t in view.requests}
    scale = trace["colorscale"]
    for row, ids in enumerate(trace["customdata"]):
        for column, request_id in enumerate(ids):
            if request_id:
                share = trace["z"][row][column] / trace["zmax"]
                (color,) = {c for (at, c), (end, _) in pairwise(scale) if at < share < end}
                assert color == mix(request_color(arrivals[request_id]).fill, LIGHT.card, 0.3)
                assert trace["text"][row][column] == request_label(arrivals[request_id])


# ---------------------------------------------------------------- scale


@pytest.mark.parametrize(
    "scale", [TokenScale(8, 256), TokenScale(32, 96), TokenScale(32, 64), TokenScale(64, 64)]
)
def test_the_axis_rises_to_the_budget_without_a_jump(scale):
    heights = [scale.height(tokens) for tokens in range(scale.budget + 1)]
    assert heights[0] == 0
    assert heights[-1] == pytest.approx(1)
    assert all(low < high for low, high in pairwise(heights))
    if scale.is_stretched:
        assert scale.height(scale.fine) == pytest.approx(STRETCHED)
        below = scale.height(scale.fine) - scale.height(scale.fine - 1)
        above = scale.height(scale.fine + 1) - scale.height(scale.fine)
        assert below / above == pytest.approx(scale.factor)


def test_one_decode_is_seen_beside_a_budget_of_256():
    engine, log = make_engine(64, windows=(None,), max_num_batched_tokens=256)
    engine.add_request(list(range(20)), params(30))
    for _ in range(20):
        engine.step()
    view = Replay().follow(log)
    assert view is not None
    figure = step_budget.figure(view, size=Size(380, 180))
    plot_px = (180 - 17 - 18) * (
        figure["layout"]["yaxis"]["domain"][1] - figure["layout"]["yaxis"]["domain"][0]
    )
    assert figure["data"][0]["dy"] * plot_px >= 3
    assert len(cells(figure)) == 19
    words = [note["text"] for note in figure["layout"]["annotations"]]
    assert "budget 256" in words
    assert any("stretched" in text and "31" in text for text in words), "the axis says by how much"


def test_every_tick_stands_at_the_height_of_its_number():
    view = view_after(48, 60)
    scale = token_scale(view)
    axis = step_budget.figure(view, size=Size(800, 300))["layout"]["yaxis"]
    numbers = [int(text.replace(",", "")) for text in axis["ticktext"]]
    assert {scale.fine, scale.budget} <= set(numbers)
    assert axis["tickvals"] == pytest.approx([scale.height(n) for n in numbers], abs=1e-4)


# ---------------------------------------------------------------- why planning stopped


def test_what_stopped_planning_is_told_by_place_and_in_words():
    view = view_after(24, 120, load=0.5)
    assert {s.stopped_by for s in view.steps} >= {"blocks", "nothing_waits"}
    figure = step_budget.figure(view)
    strip = next(t for t in figure["data"] if t.get("yaxis") == "y3" and t["type"] == "bar")
    lanes = [reason for reason, _, _ in LANES]
    shown = {}
    for lane, base, length, words in zip(
        strip["y"], strip["base"], strip["x"], strip["hovertext"], strict=True
    ):
        assert STOP_WORDS[lanes[lane]] in words
        for step in range(base, base + length):
            assert step not in shown
            shown[step] = lanes[lane]
    assert shown == {s.step: s.stopped_by for s in view.steps if s.stopped_by != "nothing_waits"}
    assert len({symbol for _, _, symbol in LANES}) == len(LANES), "a shape of its own for each"
    assert figure["layout"]["yaxis3"]["ticktext"] == [words for _, words, _ in LANES]


def test_runs_of_a_reason_end_where_steps_are_missing():
    steps = [StepRecord(n, 0.0, (), 0, 8, 0, 4, 0, "blocks") for n in (3, 4, 6)]
    assert stop_runs(steps) == [("blocks", 3, 5), ("blocks", 6, 7)]


@pytest.mark.parametrize("reason", [reason for reason, _, _ in LANES])
def test_every_reason_has_its_row(reason):
    view = view_after(48, 5)
    only = replace(view, steps=tuple(msgspec.structs.replace(s, stopped_by=reason) for s in view.steps))
    strip = next(t for t in step_budget.figure(only)["data"] if t.get("yaxis") == "y3" and t["type"] == "bar")
    assert [LANES[lane][0] for lane in strip["y"]] == [reason]
    assert sum(strip["x"]) == len(view.steps)


def test_batch_and_queue_are_stacked_and_hover_says_both():
    view = view_after(24, 100, load=0.5)
    seats, waiting, hover = (t for t in step_budget.figure(view)["data"] if t.get("yaxis") == "y2")
    assert seats["y"][:-1] == [s.num_seats for s in view.steps]
    assert waiting["y"][:-1] == [s.num_waiting for s in view.steps]
    assert max(waiting["y"]) > 0
    assert waiting["fillpattern"]["shape"], "told apart by more than colour"
    assert len(hover["z"][0]) == len(view.steps)
    assert hover["x0"] == view.steps[0].step + 0.5
    assert (hover["y0"] - hover["dy"] / 2, hover["dx"]) == (0, 1)
    for step, words in zip(view.steps, *hover["text"], strict=True):
        assert f"step {step.step}" in words
        assert f"{step.num_seats} of {step.max_num_seqs} seats" in words
        assert f"{step.num_waiting} waiting" in words
        assert STOP_WORDS[step.stopped_by] in words


# ---------------------------------------------------------------- focus, failures, shape


def test_focus_pales_all_others_and_everything_can_be_clicked():
    view = view_after(48, 60)
    chosen = next(r.request_id for s in view.steps for r in s.rows if r.phase == "prefill")
    plain, focused = step_budget.figure(view), step_budget.figure(view, focus=Focus(request_id=chosen))
    before = {(b[0], b[1], b[3]): c for b, c in zip(bars(plain), _colors(plain), strict=True)}
    after = {(b[0], b[1], b[3]): c for b, c in zip(bars(focused), _colors(focused), strict=True)}
    assert before.keys() == after.keys()
    for key, color in before.items():
        assert (after[key] == color) == (key[0] == chosen)
    assert cells(plain).keys() == cells(focused).keys()
    for key, (request_id, code) in cells(plain).items():
        assert cells(focused)[key] == (request_id, code if request_id == chosen else code + NUM_SLOTS)
    ids = {row.request_id for step in view.steps for row in step.rows}
    assert {b[0] for b in bars(plain)} | {request_id for request_id, _ in cells(plain).values()} == ids


def _colors(figure) -> list[str]:
    plain, marked = figure["data"][1:3]
    return [*plain["marker"]["color"], *marked["marker"]["pattern"]["bgcolor"]]


def test_a_failed_step_is_marked_and_its_hover_says_so():
    engine, log = make_engine(32, windows=(None,), fail_at=(4,))
    engine.add_request(list(range(10)), params(20))
    for _ in range(6):
        engine.step()
    view = Replay().follow(log)
    assert view is not None
    failed = step_budget.figure(view)["data"][-1]
    assert failed["x"] == [4.5]
    assert "failed" in failed["hovertext"][0]


def unwrapped(figure) -> list[str]:
    return [note["text"].replace("<br>", " ") for note in figure["layout"]["annotations"]]


def test_before_the_first_step_a_sentence_says_what_will_come():
    view = replace(view_after(48, 1, load=0.0), steps=())
    assert step_budget.EMPTY in unwrapped(step_budget.figure(view))
    assert step_budget.EMPTY not in unwrapped(step_budget.figure(view_after(48, 9)))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_plotly_takes_the_figure_and_its_traces_stay_the_same_in_number(size, look):
    counts = set()
    for steps in (1, 7, 60, 140):
        figure = step_budget.figure(view_after(48, steps, max_num_seqs=12), look, size)
        go.Figure(figure)  # refuses what Plotly does not know
        counts.add(tuple(trace["type"] for trace in figure["data"]))
        heights = [figure["layout"][axis]["domain"] for axis in ("yaxis3", "yaxis2", "yaxis")]
        assert all(low[1] < high[0] for low, high in pairwise(heights))
        assert heights[-1][1] == 1
    assert len(counts) == 1


def test_equal_chunks_in_steps_that_follow_each_other_are_one_bar_a_preemption_begins_another():
    chunks = [("prefill", 0, 8), ("prefill", 8, 8), ("prefill", 16, 3), ("decode", 19, 1), ("prefill", 0, 20)]
    steps = [
        StepRecord(i, 0.0, (StepRow("r", 0, phase, start, n),), n, 64, 1, 4, 0, "budget")
        for i, (phase, start, n) in enumerate(chunks)
    ]
    runs = [(r.start, r.stop, r.count, r.position) for r in prefill_runs(steps)]
    assert runs == [(0, 2, 8, 0), (2, 3, 3, 16), (4, 5, 20, 0)]
