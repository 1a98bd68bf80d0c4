"""One step cursor for all charts of a tab: any step, whose figures are that tab's own, at a cost that is bounded."""

from __future__ import annotations

import itertools
import json

import hypothesis
import hypothesis.strategies
import pytest

import ui.feed.scenes
from tests.ui.support.handles import handle_of
from tests.ui.support.looking import NAMES, StandInHost, Tab, as_sent, put
from tests.ui.support.scripted_engine import params, random_run
from ui.charts.focus import Focus
from ui.charts.registry import CHARTS
from ui.charts.theme import LIGHT, Size
from ui.feed.chart_budget import BURST, BUSY_SHARE, IDLE_SHARE, LONGEST_WAIT, ChartBudget
from ui.feed.frames import Frames, changes
from ui.feed.live import Live
from ui.feed.scenes import thinned
from ui.replay import Replay
from ui.visitors import Visitors


@pytest.fixture
def host(unhurried) -> StandInHost:
    host = StandInHost(num_blocks=24)
    for _ in random_run(host.scripted, 60, seed=3, load=0.4):
        pass
    assert host.told.clock().marks["preempted"], "the run shows what it should"
    return host


def shown_by(view, focus: Focus = Focus()) -> dict:  # noqa: B008  (frozen)
    return {chart.elem_id: as_sent(chart.figure(view, LIGHT, Size(800, 260), focus)) for chart in CHARTS}


def test_a_cursor_shows_that_step_in_every_chart_while_the_engine_goes_on(host):
    visitors = Visitors()
    live = Live(host, visitors)
    past, now = Tab(live, visitors.of_session("a").token), Tab(live, visitors.of_session("b").token)
    for step in (40, 41, 12, 13, 1, 59):
        host.scripted.step()
        clock = past.ask(cursor=step)["clock"]
        assert (clock["step"], clock["is_live"]) == (step, False)
        assert clock["last"] == host.told.clock().last_step
        assert past.figures == shown_by(host.told.view(step))
        newest = now.ask()["clock"]
        assert (newest["step"], newest["is_live"]) == (newest["last"], True)
        assert now.figures == shown_by(host.told.view())


def test_panes_get_the_step_and_the_story_of_the_tab(host):
    class Told:
        def answer(self, ask, visitor, view, replay):
            return view.step

    live = Live(host, Visitors(), panes={"told": Told()})
    assert Tab(live).ask(cursor=17, panes={"told": 1})["panes"] == {"told": 17}


def test_a_paused_tab_costs_no_figures(host):
    live = Live(host, Visitors())
    tab = Tab(live, "somebody")
    tab.ask(cursor=30)
    drawn, folded = live.counters()["own_figures"], host.told.num_folded
    for _ in range(5):
        host.scripted.step()
        assert tab.ask(cursor=30)["charts"] == {}
    assert live.counters()["own_figures"] == drawn
    assert host.told.num_folded == folded


def test_a_cursor_outside_is_moved_to_the_nearest_step(host):
    live = Live(host, Visitors())
    last = host.told.clock().last_step
    assert Tab(live).ask(cursor=0)["clock"]["step"] == 1
    assert Tab(live).ask(cursor=10**9)["clock"]["step"] == last


def test_jumps_go_to_the_next_mark_of_that_kind_and_say_when_there_is_none(host):
    live = Live(host, Visitors())
    tab = Tab(live)
    steps = host.told.clock().marks["preempted"]
    story = tab.ask()["clock"]["story"]

    def jump(cursor, direction, kind="preempted"):
        clock = tab.ask(cursor=cursor, story=story, jump={"kind": kind, "direction": direction})["clock"]
        return clock["jumped"], clock["step"]

    assert jump(1, 1) == (True, next(s for s in steps if s > 1))
    assert jump(steps[0], -1) == (False, steps[0])
    assert jump(None, -1) == (True, steps[-1])
    assert jump(None, 1) == (False, host.told.clock().last_step)
    assert jump(1, 1, "failed") == (False, 1)


def test_a_cursor_of_another_story_means_nothing(host):
    """P23: step 41 of the old engine is not step 41 of the new one."""
    live = Live(host, Visitors())
    tab = Tab(live, "somebody")
    story = tab.ask()["clock"]["story"]
    assert tab.ask(cursor=20, story=story)["clock"]["step"] == 20
    other = StandInHost()
    other.scripted.add_request([*range(60)], params(50))
    for _ in range(30):
        other.scripted.step()
    host.told = other.told
    clock = tab.ask(cursor=20, story=story)["clock"]
    assert clock["story"] != story
    assert (clock["step"], clock["is_live"]) == (30, True)
    assert tab.figures == shown_by(other.told.view()), "nothing of the old figures is left"


def test_marks_are_sent_when_they_changed_and_no_more_than_a_slider_shows(host):
    live = Live(host, Visitors())
    tab = Tab(live)
    clock = tab.ask()["clock"]
    assert {kind: tuple(steps) for kind, steps in clock["marks"].items()} == host.told.clock().marks
    assert "marks" not in tab.ask(marks=clock["marks_version"])["clock"]
    assert "marks" in tab.ask(marks="other")["clock"]
    many = list(range(5, 50_000, 7))
    few = thinned(many)
    assert len(few) <= ui.feed.scenes.MARKS_SHOWN
    assert set(few) <= set(many)
    assert few[0] == 5
    assert max(b - a for a, b in itertools.pairwise(few)) < 3 * 50_000 / ui.feed.scenes.MARKS_SHOWN


def test_seconds_are_those_of_the_step(host):
    live = Live(host, Visitors())
    seconds = [Tab(live).ask(cursor=step)["clock"]["seconds"] for step in (1, 20, 40)]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0
    passed = host.told.view(40).time - host.told.view(1).time
    assert seconds[2] - seconds[0] == pytest.approx(passed, abs=0.002)


def test_a_sample_says_that_it_is_one():
    host = StandInHost()
    host.scripted.add_request([1, 2, 3], params(5))
    host.scripted.step()
    host.told = Replay(host.log, is_sample=True)
    answer = Tab(Live(host, Visitors())).ask()
    assert answer["clock"]["is_sample"] is True
    assert answer["head"]["sample"] is True


# ---------------------------------------------------------------- focus


def test_a_focused_tab_has_figures_of_its_own_and_the_others_keep_theirs(host):
    visitors = Visitors()
    live = Live(host, visitors)
    focused, plain = Tab(live, visitors.of_session("a").token), Tab(live, visitors.of_session("b").token)
    plain.ask()
    shared = live.counters()["shared_figures"]
    view = host.told.view()
    request = next(track.request_id for track in view.requests if track.tables and any(track.tables[0]))
    answer = focused.ask(focus={"request": request, "position": 3})
    assert focused.figures == shown_by(view, Focus(request_id=request, position=3))
    assert focused.figures["kv-block-map"] != plain.figures["kv-block-map"]
    assert plain.ask()["charts"] == {}
    assert live.counters()["shared_figures"] == shared
    assert answer["card"]["label"] == view.request(request).label
    focused.ask()
    assert focused.figures == plain.figures


def test_the_same_focus_of_two_visitors_marks_only_ones_own(host):
    visitors = Visitors()
    mine, other = visitors.of_session("a"), visitors.of_session("b")
    request = host.told.view().requests[-1].request_id
    visitors.begin(mine, handle_of(request))
    live = Live(host, visitors)
    assert Tab(live, mine.token).ask(focus={"request": request})["card"]["yours"] is True
    assert Tab(live, other.token).ask(focus={"request": request})["card"]["yours"] is False


# ---------------------------------------------------------------- what it costs


class Clocks:
    """Wall and processor time in the hands of a test."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def budget(self) -> ChartBudget:
        return ChartBudget(lambda: self.wall, lambda: self.cpu)


def test_a_frame_that_costs_more_comes_less_often_but_once_a_second():
    for cost, expected in ((0.004, 0.1), (0.01, 0.25), (0.03, 0.75), (5.0, LONGEST_WAIT)):
        clocks = Clocks()
        budget = clocks.budget()
        with budget.measured():
            clocks.cpu += cost
        assert budget.wait(is_busy=True) == pytest.approx(min(cost / BUSY_SHARE, LONGEST_WAIT))
        clocks.wall += expected
        assert budget.wait(is_busy=True) == pytest.approx(0, abs=1e-9) or cost == 5.0
    assert IDLE_SHARE > BUSY_SHARE


def test_over_a_minute_the_share_is_kept():
    clocks = Clocks()
    budget = clocks.budget()
    while clocks.wall < 60:
        with budget.measured():
            clocks.cpu += 0.009
        clocks.wall += max(budget.wait(is_busy=True), 0.1)
    assert budget.cpu_seconds / clocks.wall == pytest.approx(BUSY_SHARE, rel=0.05)


@pytest.mark.parametrize("costs", [(0.006,), (0.003, 0.009), (0.005, 0.005, 0.005, 0.014)])
def test_frames_come_as_regularly_as_the_share_allows(costs):
    """A step waits for the next frame, and longest where frames are unevenly far apart."""
    clocks = Clocks()
    budget = clocks.budget()
    budget.note_frame()
    budget.spend(0.08)  # the first figures are whole
    begun, spent, gaps = clocks.wall, budget.cpu_seconds, []
    for number in range(400):
        clocks.wall += (gap := max(budget.wait_for_frame(is_busy=True), 0.02))
        gaps.append(gap)
        budget.note_frame()
        budget.spend(costs[number % len(costs)])
    assert gaps[0] > 0.5, "what was owed is paid first"
    usual = sum(costs) / len(costs) / BUSY_SHARE
    assert max(gaps[40:]) < 1.6 * usual
    assert sorted(gaps[40:])[-len(gaps) // 4] == pytest.approx(usual, rel=0.25)
    assert (budget.cpu_seconds - spent) / (clocks.wall - begun) < 1.02 * BUSY_SHARE


def test_what_is_spent_while_nothing_happens_is_no_frames_cost():
    clocks = Clocks()
    budget = clocks.budget()
    for _ in range(4):
        for _ in range(12):
            clocks.wall += max(budget.wait_for_frame(is_busy=True), 0.1)
            budget.note_frame()
            budget.spend(0.006)
        for _ in range(60):  # a minute of polls
            clocks.wall += 1
            budget.spend(0.005)
        assert budget.wait_for_frame(is_busy=True) == 0
        budget.note_frame()
        assert budget.wait_for_frame(is_busy=True) < 0.3


def test_who_travels_may_draw_at_once_until_too_much_is_owed():
    clocks = Clocks()
    budget = clocks.budget()
    budget.spend(BURST / 2)
    assert budget.wait(is_busy=True, allowance=BURST) == 0
    budget.spend(BURST)
    assert 0 < budget.wait(is_busy=True, allowance=BURST) <= LONGEST_WAIT


def test_a_traveller_who_spends_too_much_is_asked_to_wait_and_nothing_half_is_shown(host, monkeypatch):
    live = Live(host, Visitors())
    tab = Tab(live, "somebody")
    tab.ask(cursor=30)
    monkeypatch.setattr(ChartBudget, "wait", lambda self, **_: 0.4)
    answer = json.loads(live.poll({**tab.looks, "cursor": 12, "charts": {"kv-usage": tab.size}}))
    assert answer["again"] == 400
    assert set(answer) == {"again", "head"}


def test_patches_lead_from_any_kept_version_to_the_newest():
    frames = Frames("f", 4)
    figures = [
        {"data": [{"x": [i, i, 3, 4, 5, 6], "y": list(range(i))}], "layout": {"t": i}} for i in range(5)
    ]
    told = [json.loads(frames.answer("k", i, lambda i=i: figures[i], "")) for i in range(5)]
    assert [t["version"] for t in told] == [f"f-{i}" for i in range(1, 6)]
    for i in range(5):
        held = json.loads(json.dumps(figures[i]))
        answer = frames.answer("k", 4, lambda: figures[4], f"f-{i + 1}")
        if i == 4:
            assert answer == b""
            continue
        for change in json.loads(answer)["patch"]:
            put(held, *change)
        assert held == figures[4]


def test_a_figure_that_did_not_change_keeps_its_version():
    frames = Frames("f", 4)
    version = json.loads(frames.answer("k", 1, lambda: {"data": [1]}, ""))["version"]
    assert frames.answer("k", 2, lambda: {"data": [1]}, version) == b""
    assert frames.num_drawn == 2


def test_changes_are_exact_on_nested_values():
    old = {"a": [1, 2, 3, 4, 5, 6], "b": {"c": "x"}, "d": [[1, None], [3, 4]], "e": []}
    new = {"a": [1, 2, 9, 4, 5, 6], "b": {"c": "y"}, "d": [[1, 2], [3, 4]], "e": [1]}
    found = changes(old, new)
    assert [["a", 2], 9] in found
    for change in found:
        put(old, *change)
    assert old == new
    assert changes(new, new) == []


@pytest.mark.parametrize("drop", [0, 1, 5, 30])
@pytest.mark.parametrize("tail", [0, 1, 5, 30])
@pytest.mark.parametrize("touched", [0, 1, 2, 6])
def test_windows_that_moved_on_send_their_new_end_only(drop, tail, touched):
    steps = [f"step {i}" for i in range(200)]
    old = {"x": steps[:120]}
    new = {
        "x": [*steps[drop : 120 - touched], *(f"now {i}" for i in range(touched)), *steps[120 : 120 + tail]]
    }
    found = changes(old, new)
    assert len(json.dumps(found)) < 60 + 14 * (tail + touched + 4)
    for change in found:
        put(old, *change)
    assert old == new


@hypothesis.given(
    *[hypothesis.strategies.lists(hypothesis.strategies.integers(0, 3), max_size=60) for _ in range(2)],
    hypothesis.strategies.integers(0, 40),
)
def test_any_list_becomes_any_other(old, other, cut):
    for new in (other, old[cut:] + other, old[:cut] + other, old[cut:]):
        held = {"x": list(old), "y": [list(old), list(other)]}
        for change in changes({"x": old, "y": [old, other]}, {"x": new, "y": [new, old]}):
            put(held, *change)
        assert held == {"x": new, "y": [new, old]}


def test_every_chart_is_served(host):
    tab = Tab(Live(host, Visitors()))
    tab.ask()
    assert set(tab.figures) == set(NAMES)
