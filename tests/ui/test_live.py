"""What tabs get: whole figures first, small patches after, nothing when nothing changed; odd questions do no harm."""

from __future__ import annotations

import json
import math

import pytest

import ui.feed.live
import ui.feed.scenes
from tests.ui.support.handles import handle_of
from tests.ui.support.looking import NAMES, StandInHost, Tab, as_sent
from tests.ui.support.scripted_engine import params
from ui.charts.focus import Focus
from ui.charts.registry import CHARTS
from ui.charts.theme import LIGHT, Size
from ui.feed.live import Live
from ui.visitors import Visitors


@pytest.fixture
def host(unhurried) -> StandInHost:
    host = StandInHost()
    host.scripted.add_request([*range(60)], params(50), request_id="mine")
    host.scripted.add_request([*range(300, 340)], params(50), request_id="other")
    host.scripted.step()
    return host


def test_patches_applied_one_after_the_other_give_the_whole_figure(host):
    live = Live(host, Visitors())
    tab = Tab(live)
    first = tab.ask()
    assert tab.full == list(NAMES)
    answer = first
    for _ in range(12):
        host.scripted.step()
        answer = tab.ask()
        assert tab.full == []
    assert len(json.dumps(answer["charts"])) < len(json.dumps(first["charts"])) / 2
    fresh = Tab(live)
    fresh.ask()
    assert tab.figures == fresh.figures
    assert tab.versions == fresh.versions
    view = host.told.view()
    for chart in CHARTS:
        assert tab.figures[chart.elem_id] == as_sent(chart.figure(view, LIGHT, Size(800, 260), Focus()))


def test_a_tab_that_missed_a_few_versions_still_gets_patches(host):
    live = Live(host, Visitors())
    slow, quick = Tab(live), Tab(live)
    slow.ask()
    quick.ask()
    for _ in range(4):
        host.scripted.step()
        quick.ask()
    slow.ask()
    assert slow.full == []
    assert slow.figures == quick.figures
    for _ in range(10):
        host.scripted.step()
        quick.ask()
    slow.ask()
    assert slow.full, "what changed is kept for a few versions only"
    assert slow.figures == quick.figures


def test_nothing_is_sent_when_nothing_changed_and_one_figure_serves_all_tabs(host):
    live = Live(host, Visitors())
    tab = Tab(live)
    tab.ask()
    for _ in range(5):
        assert tab.ask()["charts"] == {}
        other = Tab(live)
        other.ask()
        assert set(other.full) == set(NAMES)
    assert live.counters()["shared_figures"] == len(NAMES)


def test_three_tabs_at_once_cost_as_many_figures_as_one(host):
    """Frames are made once for all tabs of the same size and look."""
    live = Live(host, Visitors())
    tabs = [Tab(live) for _ in range(3)]
    for step in range(8):
        if step:
            host.scripted.step()
        for tab in tabs:
            tab.ask()
    assert live.counters()["shared_figures"] == 8 * len(NAMES)
    assert live.counters()["live_views"] == 8
    assert live.counters()["own_figures"] == 0


def test_a_version_of_another_figure_is_answered_with_the_whole(host):
    live = Live(host, Visitors())
    Tab(live).ask()
    host.scripted.step()
    held = Tab(live)
    held.ask()
    for version in ("", "1", "nonsense-7", "-", "x" * 100, held.versions["kv-usage"]):
        tab = Tab(live)
        tab.versions["kv-block-map"] = version
        tab.ask(("kv-block-map",))
        assert tab.full == ["kv-block-map"]
    other_size = Tab(live)
    other_size.size = {"w": 500, "h": 260}
    other_size.versions = held.versions
    other_size.ask(("kv-usage",))
    assert other_size.full == ["kv-usage"]


def test_only_charts_asked_for_are_made(host):
    live = Live(host, Visitors())
    tab = Tab(live)
    tab.ask(("kv-usage",))
    assert tab.full == ["kv-usage"]
    assert live.counters()["shared_figures"] == 1


def test_views_are_no_closer_than_a_frame(host, monkeypatch):
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 3600.0)
    tab = Tab(Live(host, Visitors()))
    tab.ask()
    host.scripted.step()
    answer = tab.ask()
    assert answer["charts"] == {}
    assert answer["next"] > 3_000_000


def test_only_a_question_that_came_early_is_held_and_not_for_long(host, monkeypatch):
    live = Live(host, Visitors())
    Tab(live).ask()
    for ask in ({}, {"early": False}, {"early": "yes"}, None, [], "early"):
        assert live.seconds_to_hold(ask) == 0
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 3600.0)
    assert live.seconds_to_hold({"early": True}) == ui.feed.live.LONGEST_HOLD
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(live.budget, "wait", lambda **_: 0.04)
    assert live.seconds_to_hold({"early": True}) == 0.04
    monkeypatch.setattr(live.budget, "wait", lambda **_: 0.0)
    assert live.seconds_to_hold({"early": True}) == 0


def test_yours_is_marked_by_token_only_and_never_for_others(host):
    visitors = Visitors()
    visitor = visitors.of_session("tab-1")
    visitors.begin(visitor, handle_of("mine"))
    live = Live(host, visitors)

    def yours(viewer: str) -> int:
        tab = Tab(live, viewer)
        tab.ask(("scheduler-timeline",))
        ticks = tab.figures["scheduler-timeline"]["layout"]["yaxis"]["ticktext"]
        return sum("yours" in tick for tick in ticks)

    assert yours(visitor.token) == 1
    for viewer in ("", "tab-1", "x" * 32, visitors.of_session("tab-2").token):
        assert yours(viewer) == 0


@pytest.mark.parametrize(
    "question",
    [
        None, [], "x", 7, {}, {"charts": 5}, {"charts": {"kv-usage": "x"}}, {"viewer": ["a"], "theme": {"x": 1}},
        {"viewer": "x" * 1_000_000, "theme": "dark" * 100},
        {"charts": {"kv-usage": {"w": math.inf, "h": -5, "version": {"a": 1}}}},
        {"charts": {"kv-usage": {"w": math.nan, "h": True, "version": 10**400}}},
        {"charts": {"../../etc/passwd": {"w": 1}, "__class__": {}}},
        {"cursor": "1"}, {"cursor": -1}, {"cursor": math.nan}, {"cursor": 10**400}, {"cursor": [1]}, {"cursor": True},
        {"cursor": 10**9}, {"source": "file"}, {"source": {"a": 1}}, {"story": 5, "cursor": 0},
        {"jump": {"kind": "hit", "direction": 0}}, {"jump": {"kind": ["hit"], "direction": 1}}, {"jump": "hit"},
        {"jump": {"kind": "__class__", "direction": 1}}, {"jump": {"kind": "hit", "direction": {}}},
        {"focus": "mine"}, {"focus": {"request": 5, "position": 3}}, {"focus": {"request": "nobody", "position": -3}},
        {"focus": {"request": "mine", "position": 10**400}}, {"focus": {"request": "mine", "position": 10**12}},
        {"panes": ["strip"]}, {"panes": {"__class__": 1, "strip": {"x": [1]}}},
    ],
)  # fmt: skip
def test_odd_questions_are_answered(host, question):
    answer = json.loads(Live(host, Visitors()).poll(question))
    assert answer["head"]["total"] == 64
    assert set(answer["charts"]) <= set(NAMES)
    assert 1 <= answer["clock"]["step"] <= answer["clock"]["last"]
    assert "broken" not in answer


def test_what_is_kept_for_odd_sizes_is_bounded(host):
    live = Live(host, Visitors())
    for width in range(240, 2400, 20):
        live.poll({"charts": {"kv-usage": {"w": width, "h": 200}}})
        live.poll({"charts": {"kv-usage": {"w": width, "h": 200}}, "cursor": 1, "focus": {"request": "mine"}})
    assert len(live._shared) <= ui.feed.live.SHARED_FIGURES
    assert len(live._own) <= ui.feed.live.OWN_FIGURES


def test_the_answer_holds_no_token_ids(host):
    """Prompts are ids 0..59 and 300..339: look for the name of the field and for long runs of ids."""
    text = Live(host, Visitors()).poll({"charts": {name: {"w": 800, "h": 260} for name in NAMES}}).decode()
    assert "token_id" not in text
    assert "300,301,302" not in text


def test_all_charts_of_all_tabs_show_the_same_step(host, monkeypatch):
    """One clock: a chart that only one tab asks for must not run ahead of those that are shared."""
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 1000.0)
    live = Live(host, Visitors())
    tab = Tab(live)
    tab.ask()
    for _ in range(5):
        host.scripted.step()
    fresh = Tab(live)
    fresh.size = {"w": 600, "h": 300}
    assert fresh.ask()["clock"]["step"] == 1
    assert fresh.figures["kv-usage"]["data"][0]["x"][-1] == 2
    assert fresh.figures["scheduler-timeline"]["layout"]["shapes"][0]["x0"] == 2
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 0.0)
    assert tab.ask()["clock"]["step"] == 6
    assert tab.figures["kv-usage"]["data"][0]["x"][-1] == 7


def test_a_chart_that_fails_does_not_take_the_others_with_it(host, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(ui.feed.live._FIGURES, "kv-usage", fail)
    tab = Tab(Live(host, Visitors()))
    answer = tab.ask()
    assert answer["broken"] == ["chart kv-usage"]
    assert set(tab.full) == set(NAMES) - {"kv-usage"}


def test_a_pane_that_fails_does_not_take_the_charts_with_it(host):
    class Broken:
        def answer(self, ask, visitor, view, replay):
            raise KeyError("x")

    class Sound:
        def answer(self, ask, visitor, view, replay):
            return [ask, visitor, view.step, replay is host.told]

    tab = Tab(Live(host, Visitors(), panes={"broken": Broken(), "sound": Sound()}))
    answer = tab.ask(panes={"broken": {}, "sound": 5})
    assert answer["broken"] == ["pane broken"]
    assert answer["panes"] == {"sound": [5, None, 1, True]}
    assert set(tab.full) == set(NAMES)


def test_a_server_that_shuts_down_says_so():
    """The page must not call Gradio then: it would take the broken answer for a lost connection, and reload."""
    from ui.host.engine_host import EngineHost
    from ui.settings import Settings

    host = EngineHost(Settings())
    live = Live(host, Visitors())
    assert json.loads(live.poll({}))["head"]["closing"] is False
    host.close()
    assert json.loads(live.poll({}))["head"]["closing"] is True


def test_a_tab_of_another_start_of_the_server_is_told_that_it_is_not_known(host):
    visitors = Visitors()
    live = Live(host, visitors)
    assert Tab(live, visitors.of_session("tab").token).ask()["head"]["known"] is True
    assert Tab(live, "token-of-another-start").ask()["head"]["known"] is False


def test_only_charts_named_so_depend_on_whose_requests_they_are(host):
    """The others are shared between visitors."""
    view = host.told.view()
    for chart in CHARTS:
        plain = chart.figure(view, LIGHT, Size(800, 260), Focus())
        marked = chart.figure(view, LIGHT, Size(800, 260), Focus(frozenset({"mine"})))
        assert (plain != marked) == (chart.elem_id in ui.feed.live._MARKS_MINE)
