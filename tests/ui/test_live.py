"""What tabs get: whole figures first, small patches after, nothing when nothing changed; odd questions do no harm."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

import ui.live
from tests.ui.support.scripted_engine import make_engine, params
from ui.engine_host import HostState
from ui.live import CHARTS, Live, changes
from ui.replay import Replay
from ui.visitors import Visitors


class StandInHost:
    """A host whose engine is stepped by the test."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.scripted, self.log = make_engine(num_blocks)
        self.replay = Replay()
        self.state = HostState(status="ready", serving="scripted", version=3)
        self.engine = SimpleNamespace(
            loop=SimpleNamespace(stats=self.scripted.stats),
            loaded=SimpleNamespace(badge="none", dtype="torch.float32"),
        )
        self.num_views = 0

    def view(self):
        self.num_views += 1
        return self.replay.follow(self.log)


@pytest.fixture
def host(monkeypatch) -> StandInHost:
    monkeypatch.setattr(ui.live, "FRAME_SECONDS", 0.0)
    host = StandInHost()
    host.scripted.add_request([*range(60)], params(50), request_id="mine")
    host.scripted.add_request([*range(300, 340)], params(50), request_id="other")
    host.scripted.step()
    return host


def ask(live: Live, versions: dict[str, str] | None = None, **more) -> dict:
    charts = {name: {"w": 800, "h": 260, "version": (versions or {}).get(name, "")} for name in CHARTS}
    return json.loads(live.poll({"viewer": "", "theme": "light", "charts": charts, **more}))


def put(figure, path, value) -> None:
    for key in path[:-1]:
        figure = figure[key]
    figure[path[-1]] = value


def test_patches_applied_one_after_the_other_give_the_whole_figure(host):
    live = Live(host, Visitors())
    answer = ask(live)
    held = {name: chart["full"] for name, chart in answer["charts"].items()}
    versions = {name: chart["version"] for name, chart in answer["charts"].items()}
    assert set(held) == set(CHARTS)
    whole_size = len(json.dumps(held))
    for _ in range(12):
        host.scripted.step()
        answer = ask(live, versions)
        for name, chart in answer["charts"].items():
            assert "full" not in chart
            for path, value in chart["patch"]:
                put(held[name], path, value)
            versions[name] = chart["version"]
    assert len(json.dumps(answer["charts"])) < whole_size / 3
    fresh = ask(live)
    assert held == {name: chart["full"] for name, chart in fresh["charts"].items()}
    assert versions == {name: chart["version"] for name, chart in fresh["charts"].items()}


def test_nothing_is_sent_when_nothing_changed_and_one_figure_serves_all_tabs(host, monkeypatch):
    drawn = []
    for name, draw in list(CHARTS.items()):
        monkeypatch.setitem(CHARTS, name, lambda *a, _n=name, _d=draw: (drawn.append(_n), _d(*a))[1])
    live = Live(host, Visitors())
    versions = {name: chart["version"] for name, chart in ask(live)["charts"].items()}
    for _ in range(5):
        assert ask(live, versions)["charts"] == {}
        assert set(ask(live)["charts"]) == set(CHARTS)
    assert sorted(drawn) == sorted(CHARTS)


def test_a_version_of_another_figure_is_answered_with_the_whole(host):
    live = Live(host, Visitors())
    ask(live)
    host.scripted.step()
    ask(live)
    for version in ("", "1", "nonsense-7", ask(live)["charts"]["kv-usage"]["version"]):
        answer = json.loads(live.poll({"charts": {"kv-block-map": {"w": 800, "h": 260, "version": version}}}))
        assert "full" in answer["charts"]["kv-block-map"]
    other_size = json.loads(live.poll({"charts": {"kv-usage": {"w": 500, "h": 260, "version": version}}}))
    assert "full" in other_size["charts"]["kv-usage"]


def test_only_charts_asked_for_are_made(host):
    answer = json.loads(Live(host, Visitors()).poll({"charts": {"kv-usage": {}}}))
    assert set(answer["charts"]) == {"kv-usage"}


def test_at_most_five_figures_a_second(host, monkeypatch):
    monkeypatch.setattr(ui.live, "FRAME_SECONDS", 3600.0)
    live = Live(host, Visitors())
    versions = {name: chart["version"] for name, chart in ask(live)["charts"].items()}
    host.scripted.step()
    assert ask(live, versions)["charts"] == {}


def test_yours_is_marked_by_token_only_and_never_for_others(host):
    visitors = Visitors()
    visitor = visitors.of_session("tab-1")
    visitors.begin(visitor, "mine")
    live = Live(host, visitors)

    def yours(viewer: str) -> int:
        ticks = ask(live, viewer=viewer)["charts"]["scheduler-timeline"]["full"]["layout"]["yaxis"][
            "ticktext"
        ]
        return sum("yours" in tick for tick in ticks)

    assert yours(visitor.token) == 1
    for viewer in ("", "tab-1", "x" * 32, visitors.of_session("tab-2").token):
        assert yours(viewer) == 0


@pytest.mark.parametrize(
    "question",
    [
        None, [], "x", 7, {}, {"charts": 5}, {"charts": {"kv-usage": "x"}}, {"viewer": ["a"], "theme": {"x": 1}},
        {"viewer": "x" * 10_000_000},
        {"charts": {"kv-usage": {"w": math.inf, "h": -5, "version": {"a": 1}}}},
        {"charts": {"kv-usage": {"w": math.nan, "h": True, "version": 10**400}}},
        {"charts": {"../../etc/passwd": {"w": 1}, "__class__": {}}},
    ],
)  # fmt: skip
def test_odd_questions_are_answered(host, question):
    answer = json.loads(Live(host, Visitors()).poll(question))
    assert answer["head"]["total"] == 64
    assert set(answer["charts"]) <= set(CHARTS)


def test_what_is_kept_for_odd_sizes_is_bounded(host):
    live = Live(host, Visitors())
    for width in range(240, 2400, 10):
        live.poll({"charts": {"kv-usage": {"w": width, "h": 200}}})
    assert len(live._frames) <= ui.live._MAX_FIGURES


def test_the_answer_holds_no_token_ids(host):
    """Prompts are ids 0..59 and 300..339: look for the name of the field and for long runs of ids."""
    text = Live(host, Visitors()).poll({"charts": {name: {"w": 800, "h": 260} for name in CHARTS}})
    assert "token_id" not in text
    assert "300,301,302" not in text


def test_changes_are_exact_on_nested_values():
    old = {"a": [1, 2, 3, 4, 5, 6], "b": {"c": "x"}, "d": [[1, None], [3, 4]], "e": []}
    new = {"a": [1, 2, 9, 4, 5, 6], "b": {"c": "y"}, "d": [[1, 2], [3, 4]], "e": [1]}
    found = changes(old, new)
    assert [["a", 2], 9] in found
    for path, value in found:
        put(old, path, value)
    assert old == new
    assert changes(new, new) == []


def test_all_charts_of_all_tabs_show_the_same_step(host, monkeypatch):
    """One clock: a chart that only one tab asks for must not run ahead of those that are shared."""
    monkeypatch.setattr(ui.live, "FRAME_SECONDS", 1000.0)
    live = Live(host, Visitors())
    ask(live)
    for _ in range(5):
        host.scripted.step()
    fresh = json.loads(live.poll({"charts": {name: {"w": 600, "h": 300, "version": ""} for name in CHARTS}}))[
        "charts"
    ]
    now = fresh["scheduler-timeline"]["full"]["layout"]["shapes"][0]["x0"]
    assert fresh["kv-usage"]["full"]["data"][0]["x"][-1] == now == 2
    assert ask(live)["charts"]["kv-usage"]["full"]["data"][0]["x"][-1] == 2
    monkeypatch.setattr(ui.live, "FRAME_SECONDS", 0.0)
    assert ask(live)["charts"]["kv-usage"]["full"]["data"][0]["x"][-1] == 7
