"""Runs on the real engine loop: what cards tell, limits, Stop, visitors who leave, engines that close."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ui.runs.runs
from micro_vllm.engine.loop import EngineLoop
from micro_vllm.errors import InvalidRequestError
from micro_vllm.trace import RequestQueued, StepPlanned
from tests.ui.support.scripted_engine import make_engine, params
from tests.ui.support.waiting import wait_until
from ui.admission import UNREAD, Admission, BusyError
from ui.host.engine_host import ServingEngine
from ui.replay import Replay
from ui.runs.card import Card
from ui.runs.run import RunItem
from ui.runs.runs import MAX_CARDS, Runs
from ui.settings import Limits
from ui.visitors import Visitor, Visitors


class Words:
    """A tokenizer as far as two answers need one to say where they part."""

    eos_token_ids = ()

    def token_text(self, token_id: int) -> str:
        return f" w{token_id}"


class Updates:
    """Stands in for the store of the token strip."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def update(self, visitor: Visitor, engine: Any, output: Any) -> None:
        self.seen.append((visitor.token, output.request_id, len(output.outputs[0].token_ids)))


class Page:
    """One engine, its admission and its runs; visitors by name."""

    def __init__(self, num_blocks: int = 64, limits: Limits | None = None, **config: Any) -> None:
        scripted, self.log = make_engine(num_blocks, **config)
        self.loop = EngineLoop(scripted)
        loaded = SimpleNamespace(name="scripted", path="", tokenizer=Words())
        self.engine = ServingEngine(loaded, self.loop, self.log, Replay())
        limits = limits or Limits()
        settings = SimpleNamespace(limits=limits, is_hosted=limits.max_requests_per_visitor is not None)
        self.host = SimpleNamespace(engine=self.engine, settings=settings)
        self.visitors = Visitors()
        self.tokens = Updates()
        self.admission = Admission(self.host, self.visitors)
        self.runs = Runs(self.admission, self.tokens)

    def visitor(self, name: str = "ada") -> Visitor:
        return self.visitors.of_session(name)

    def start(self, items: list[RunItem], name: str = "ada", room: str = "workload") -> str:
        return self.runs.start(self.visitor(name), room, self.engine, items)

    def told(self, name: str = "ada", room: str = "workload", run: str = "", version: int = 0) -> dict:
        answer = self.runs.answer({"room": room, "run": run, "version": version}, self.visitor(name))
        return json.loads(json.dumps(answer)) if answer else {}

    def statuses(self, name: str = "ada", room: str = "workload") -> list[str]:
        return [card["status"] for card in self.told(name, room)["cards"]]

    def ended(self, name: str = "ada", room: str = "workload") -> dict:
        wait_until(lambda: not self.told(name, room)["live"])
        return self.told(name, room)

    @property
    def num_free(self) -> int:
        return self.loop.call(lambda engine: engine.stats().num_free_blocks)


@pytest.fixture
def open_page(monkeypatch) -> Iterator[Callable[..., Page]]:
    monkeypatch.setattr(ui.runs.runs, "TICK_SECONDS", 0.005)
    pages: list[Page] = []

    def open_one(*args: Any, **settings: Any) -> Page:
        pages.append(Page(*args, **settings))
        return pages[-1]

    yield open_one
    for page in pages:
        page.loop.close()


def item(
    label: str = "1",
    length: int = 20,
    max_tokens: int = 8,
    first: int = 0,
    *,
    logprobs: int | None = None,
    **more: Any,
) -> RunItem:
    ids = tuple((first + i) % 1000 for i in range(length))
    return RunItem(label, f"prompt {label}", ids, params(max_tokens).clone(logprobs=logprobs), **more)


def items(count: int, **more: Any) -> list[RunItem]:
    return [item(str(i), first=100 * i, **more) for i in range(1, count + 1)]


# ---------------------------------------------------------------- the cards


def test_every_request_ends_on_its_card_with_its_facts(open_page):
    page = open_page()
    page.start(items(5))
    told = page.ended()
    assert told["size"] == len(told["cards"]) == 5
    for number, card in enumerate(told["cards"], start=1):
        assert (card["label"], card["prompt"], card["status"]) == (str(number), f"prompt {number}", "done")
        facts = card["facts"]
        assert (facts["prompt"], facts["tokens"], facts["cached"], facts["end"]) == (20, 8, 0, "length")
        assert facts["ttft"] > 0
        assert facts["rate"] > 0
        assert card["chip"] == ["abcde"[number - 1], number - 1]
    assert told["sum"] | {"rate": 0, "seconds": 0} == {
        "running": 0, "waiting": 0, "unsent": 0, "done": 5, "total": 5, "tokens": 40, "rate": 0, "seconds": 0,
        "prompt": 100, "cached": 0, "preempted": 0, "paused": False,
    }  # fmt: skip
    assert page.visitors.live(page.visitor()) == ()
    assert page.num_free == 64


def test_the_token_strip_gets_the_answers_that_ask_for_alternatives(open_page):
    """The others would only push out what it can show."""
    page = open_page()
    page.start([item("1", logprobs=5), item("2", first=300), item("3", first=600, logprobs=5)])
    requests = [card["request"] for card in page.ended()["cards"]]
    last = {request: count for _, request, count in page.tokens.seen}
    assert last == {requests[0]: 8, requests[2]: 8}
    assert {token for token, _, _ in page.tokens.seen} == {page.visitor().token}


def test_all_that_starts_together_is_planned_by_one_step(open_page):
    """Even while the engine is busy: the requests are queued between two of its steps."""
    page = open_page()
    page.loop.pace = 0.01  # grace is still writing when ada comes, however slow this test is at looking
    page.start([item(max_tokens=400)], "grace")
    wait_until(lambda: page.statuses("grace") == ["writing"])
    page.start(items(6), "ada")
    page.ended("ada")
    mine = {event["request"] for event in page.told("ada")["cards"]}
    queued = [e for e in page.log.since() if isinstance(e, RequestQueued) and e.request_id in mine]
    assert len({event.step for event in queued}) == 1
    planned = [e for e in page.log.since() if isinstance(e, StepPlanned)]
    first = next(e for e in planned if mine & {row.request_id for row in e.rows})
    assert mine == {row.request_id for row in first.rows} & mine | mine & set(first.waiting)


def test_a_tab_gets_only_what_it_does_not_know(open_page):
    page = open_page()
    page.loop.pause()
    run = page.start(items(4))
    wait_until(lambda: all(card["chip"] for card in page.told()["cards"]))
    told = page.told()
    assert [card["i"] for card in told["cards"]] == [0, 1, 2, 3]
    assert page.told(run=run, version=told["version"]) == {}
    page.loop.resume()
    done = page.ended()
    change = page.told(run=run, version=told["version"])
    assert change["version"] == done["version"]
    assert all("prompt" not in card for card in change["cards"]), "what never changes was sent again"
    assert page.told(run=run, version=done["version"]) == {}
    assert page.told(run="another", version=done["version"])["cards"] == done["cards"]


def test_text_travels_in_pieces_that_add_up():
    card = Card("1", "p", 3)
    versions = {0: ""}
    held = {0: ""}
    text = ""
    for version in range(1, 200):
        text += f"{version} "
        card.grow(text, version)
        versions[version] = text
        for known in (version - 1, version - 2, 1, version - 150):
            if 0 <= known < version:
                piece = card.text_since(known)
                held[version] = versions[known][: piece["at"]] + piece["add"]
                assert held[version] == text
        assert len(card.text_since(version - 1)["add"]) <= 5
        assert card.text_since(version) == {}
    card.grow("other", 200)
    assert card.text_since(199) == {"at": 0, "add": "other"}


def test_two_visitors_never_see_each_others_cards(open_page):
    page = open_page()
    page.loop.pause()
    page.start(items(2), "ada")
    run = page.start(items(3), "grace")
    assert len(page.told("ada")["cards"]) == 2
    assert len(page.told("grace")["cards"]) == 3
    assert page.told("ada", run=run)["size"] == 2
    assert page.told("somebody") == {}
    page.runs.stop(page.visitor("ada"), "workload")
    wait_until(lambda: page.statuses("ada") == ["stopped"] * 2)
    assert page.runs.is_live(page.visitor("grace"), "workload")
    assert "stopped" not in page.statuses("grace")


@pytest.mark.parametrize(
    "ask", [None, [], "x", 7, {}, {"room": "chat"}, {"room": ["workload"]}, {"room": None, "run": 1}]
)
def test_odd_questions_are_not_answered(open_page, ask):
    page = open_page()
    page.start(items(1))
    assert page.runs.answer(ask, page.visitor()) is None
    assert page.runs.answer({"room": "workload"}, None) is None


@pytest.mark.parametrize("version", [None, "1", 1e300, True, -5, [1]])
def test_odd_versions_get_everything(open_page, version):
    page = open_page()
    run = page.start(items(1))
    page.ended()
    answer = page.runs.answer({"room": "workload", "run": run, "version": version}, page.visitor())
    assert len(answer["cards"]) == 1


def test_who_waits_reads_or_writes_is_told(open_page):
    page = open_page(max_num_batched_tokens=32, max_num_seqs=2)
    page.loop.pause()
    page.start([item("1", 20, 40), item("2", 60, 40, 300), item("3", 20, 40, 600)])
    wait_until(lambda: all(card["chip"] for card in page.told()["cards"]))
    assert page.statuses() == ["queued"] * 3
    assert page.told()["sum"]["paused"] is True
    page.loop.step_once()
    wait_until(lambda: page.statuses() == ["writing", "reading", "queued"])
    told = page.told()
    assert (told["sum"]["running"], told["sum"]["waiting"]) == (2, 1)
    assert told["cards"][1]["facts"]["cached"] == 0
    assert told["cards"][2]["facts"]["cached"] is None
    page.loop.resume()
    assert page.ended()["sum"]["done"] == 3


def test_who_is_pushed_out_is_told_and_finishes_all_the_same(open_page):
    page = open_page(10)
    page.loop.pause()
    page.start([item(str(i), 30, 60, 100 * i) for i in range(3)])
    wait_until(lambda: all(card["chip"] for card in page.told()["cards"]))
    for _ in range(400):
        if "preempted" in page.statuses():
            break
        step = page.loop.call(lambda engine: engine.state().step)
        page.loop.step_once()
        wait_until(lambda step=step: page.loop.call(lambda engine: engine.state().step) > step)
        seq = page.log.last_seq
        wait_until(lambda seq=seq: page.runs._kept[(page.visitor().token, "workload")]._seq >= seq)
    assert "preempted" in page.statuses()
    assert page.told()["sum"]["waiting"] >= 1
    page.loop.resume()
    told = page.ended()
    assert [card["facts"]["tokens"] for card in told["cards"]] == [60] * 3
    assert told["sum"]["preempted"] == sum(card["facts"]["preempted"] for card in told["cards"]) > 0
    assert page.num_free == 10


def test_one_that_comes_later_is_sent_when_the_first_has_written_enough(open_page):
    page = open_page()
    page.loop.pause()
    page.start([item("1", 20, 60), item("late", 20, 4, 500, after_tokens=10)])
    wait_until(lambda: page.told()["cards"][0]["chip"])
    page.loop.resume()
    told = page.ended()
    first, late = (card["request"] for card in told["cards"])
    steps = [e for e in page.log.since() if isinstance(e, StepPlanned)]
    of_first = [e.step for e in steps if first in {row.request_id for row in e.rows}]
    of_late = [e.step for e in steps if late in {row.request_id for row in e.rows}]
    assert of_late[0] >= of_first[0] + 10
    assert told["sum"]["done"] == 2


# ---------------------------------------------------------------- side by side


def test_two_compared_answers_share_their_steps_and_part_at_a_token(open_page):
    page = open_page()
    page.start([item("A", 20, 30), item("B", 20, 12)], room="compare")
    told = page.ended(room="compare")
    pair = told["pair"]
    a, b = (card["request"] for card in told["cards"])
    rows = [{r.request_id for r in e.rows} & {a, b} for e in page.log.since() if isinstance(e, StepPlanned)]
    assert pair["together"] == rows.count({a, b}) == 12
    assert pair["steps"] == len([row for row in rows if row]) == 30
    assert pair["began"] == [1, 1]
    # The scripted model draws at random: the first tokens differ.
    assert pair["part"]["same"] == 0
    assert all(piece.startswith(" w") for piece in pair["part"]["pieces"])
    assert [card["facts"]["cached"] for card in told["cards"]] == [0, 0], "same step, so no hit"
    page.start([item("A", 20, 4), item("B", 20, 4)], room="compare")
    assert [c["facts"]["cached"] for c in page.ended(room="compare")["cards"]] == [16, 16]


# ---------------------------------------------------------------- limits and refusals


def test_what_a_visitor_may_not_have_at_once_waits_here(open_page):
    page = open_page(limits=Limits(1000, 100, 2, 24))
    page.loop.pace = 0.01
    most = 0

    def watch() -> bool:
        nonlocal most
        most = max(most, len(page.visitors.live(page.visitor())))
        return not page.told()["live"]

    page.start(items(9))
    wait_until(watch)
    assert 1 <= most <= 2
    told = page.told()
    assert [card["status"] for card in told["cards"]] == ["done"] * 9
    seats = [e.num_seats for e in page.log.since() if isinstance(e, StepPlanned)]
    assert max(seats) == 2


def test_a_full_queue_is_waited_for(open_page):
    """Others fill the queue of a shared server: that is no fault of this run."""
    page = open_page(limits=Limits(1000, 500, 4, 2), max_num_seqs=2)
    page.loop.pause()
    page.start([item(str(i), 20, 30, 100 * i) for i in range(4)], "grace")
    page.start(items(3), "ada")
    wait_until(lambda: page.told("grace")["sum"]["unsent"] == 0)
    assert page.statuses("ada") == ["queued"] * 3
    assert page.told("ada")["sum"]["unsent"] == 3
    page.loop.resume()
    assert page.ended("ada")["sum"]["done"] == 3
    assert page.ended("grace")["sum"]["done"] == 4


def test_what_the_engine_has_ended_takes_nobodys_place(open_page):
    """A server that is slow to read the last word of an answer must not refuse the next prompt for it."""
    page = open_page(limits=Limits(1000, 500, max_requests_per_visitor=2, max_waiting=1), max_num_seqs=2)
    page.loop.pace = 0.01
    unread = []
    for _ in range(UNREAD):
        asked = [page.admission.submit(page.engine, page.visitor(), range(20), params(400)) for _ in range(2)]
        with pytest.raises(BusyError, match="2 of your answers"):
            page.admission.submit(page.engine, page.visitor(), range(20), params(400))
        wait_until(lambda: page.loop.stats().num_running == 2)
        waits = page.admission.submit(page.engine, page.visitor("bob"), range(20), params(400))
        with pytest.raises(BusyError, match="1 requests are waiting"):
            page.admission.submit(page.engine, page.visitor("eve"), range(20), params(400))
        for handle in (*asked, waits):  # and nobody calls admission.end
            handle.abort()
            handle.result()
        unread += asked
    with pytest.raises(BusyError, match="8 of your answers"):  # who never reads does not fill the server
        page.admission.submit(page.engine, page.visitor(), range(20), params(400))
    page.admission.end(page.visitor(), unread[0])
    page.admission.submit(page.engine, page.visitor(), range(20), params(1)).result()
    assert page.num_free == 64


def test_one_that_is_too_long_is_refused_with_numbers_and_the_others_go_on(open_page):
    page = open_page()
    own = item("own", refusal="This line is 9,999 tokens long.")
    page.start([item("1"), item("long", 1100), own, item("4", first=400)])
    told = page.ended()
    assert [card["status"] for card in told["cards"]] == ["done", "refused", "refused", "done"]
    assert "1,100" in told["cards"][1]["reason"]
    assert "1,024" in told["cards"][1]["reason"]
    assert told["cards"][2]["reason"] == own.refusal
    assert told["sum"]["done"] == 2


def test_a_run_is_bounded(open_page):
    page = open_page()
    for count in (0, MAX_CARDS + 1):
        with pytest.raises(InvalidRequestError, match=f"{count} requests"):
            page.start(items(count))
    assert page.told() == {}


def test_runs_of_visitors_who_left_make_room_and_too_many_are_refused(open_page, monkeypatch):
    monkeypatch.setattr(ui.runs.runs, "MAX_KEPT", 3)
    page = open_page()
    page.loop.pause()
    for name in ("a", "b", "c"):
        page.start(items(1), name)
    with pytest.raises(InvalidRequestError, match="3 runs of all visitors"):
        page.start(items(1), "d")
    page.visitors.forget("b")
    page.start(items(1), "d")
    assert page.told("d")["size"] == 1
    page.runs.stop(page.visitor("a"), "workload")
    wait_until(lambda: not page.told("a")["live"])
    page.start(items(1), "e")
    assert page.told("a") == {}, "the oldest that is over goes first"
    assert page.told("c")["live"]


# ---------------------------------------------------------------- ends


def test_stop_ends_all_of_it_and_frees_the_blocks(open_page):
    page = open_page(limits=Limits(1000, 500, 3, 24))
    page.loop.pace = 0.01
    page.start([item(str(i), 20, 400, 100 * i) for i in range(8)])
    wait_until(lambda: page.statuses()[:3] == ["writing"] * 3)
    page.runs.stop(page.visitor(), "workload")
    told = page.ended()
    assert [card["status"] for card in told["cards"]] == ["stopped"] * 8
    assert all(card["facts"]["tokens"] > 0 for card in told["cards"][:3]), "what was written is lost"
    assert told["cards"][7]["reason"] == "you pressed Stop"
    assert page.num_free == 64
    page.loop.check_integrity()
    page.runs.stop(page.visitor(), "workload")  # once more does nothing
    page.start(items(2))
    assert page.ended()["sum"]["done"] == 2


def test_stop_in_another_room_ends_the_rest_too(open_page):
    """The chat's Stop aborts all requests of a visitor; none may follow them."""
    page = open_page(limits=Limits(1000, 500, 2, 24))
    page.loop.pace = 0.01
    page.start([item(str(i), 20, 400, 100 * i) for i in range(5)])
    wait_until(lambda: page.statuses()[:2] == ["writing"] * 2)
    for request_id in page.visitors.live(page.visitor()):
        page.loop.abort(request_id)
    told = page.ended()
    assert [card["status"] for card in told["cards"]] == ["stopped"] * 5
    assert page.num_free == 64


def test_a_visitor_who_leaves_takes_the_run_along(open_page):
    page = open_page(limits=Limits(1000, 500, 2, 24))
    page.loop.pace = 0.01
    page.start([item(str(i), 20, 400, 100 * i) for i in range(5)])
    wait_until(lambda: page.statuses()[:2] == ["writing"] * 2)
    page.visitors.forget("ada")
    wait_until(lambda: page.runs._follower is None)
    assert page.num_free == 64
    queued = [e for e in page.log.since() if isinstance(e, RequestQueued)]
    assert len(queued) == 2, "requests followed after the visitor had left"


def test_a_closed_engine_ends_the_run_with_its_reason(open_page):
    page = open_page(limits=Limits(1000, 500, 2, 24))
    page.loop.pace = 0.01
    page.start([item(str(i), 20, 400, 100 * i) for i in range(4)])
    wait_until(lambda: page.statuses()[:2] == ["writing"] * 2)
    page.loop.close(reason="the engine was rebuilt; send it again.")
    told = page.ended()
    assert [card["status"] for card in told["cards"]] == ["failed"] * 4
    assert {card["reason"] for card in told["cards"]} == {"the engine was rebuilt; send it again."}
    assert told["cards"][0]["facts"]["tokens"] > 0


def test_an_engine_that_is_closed_before_anything_was_sent_says_so(open_page):
    page = open_page()
    page.loop.close(reason="another model was loaded.")
    page.start(items(2))
    told = page.ended()
    assert {card["reason"] for card in told["cards"]} == {"another model was loaded."}


def test_a_failed_step_fails_its_cards_and_the_rest_go_on(open_page):
    page = open_page(fail_at=(3,), max_num_seqs=2)
    page.start(items(4))
    told = page.ended()
    assert [card["status"] for card in told["cards"]] == ["failed", "failed", "done", "done"]
    assert "scripted failure" in told["cards"][0]["reason"]


def test_a_fault_in_following_ends_the_run_and_not_the_follower(open_page, monkeypatch):
    page = open_page()
    page.loop.pace = 0.01

    def fail(*_: Any) -> None:
        raise RuntimeError("the strip is torn")

    monkeypatch.setattr(page.tokens, "update", fail)
    page.start([item("1", 20, 400, logprobs=5)], "ada")
    told = page.ended("ada")
    assert told["cards"][0]["status"] == "failed"
    assert "the strip is torn" in told["cards"][0]["reason"]
    assert page.num_free == 64
    monkeypatch.undo()
    page.start(items(2), "ada")
    assert page.ended("ada")["sum"]["done"] == 2


def test_a_new_run_takes_the_place_of_the_old_one(open_page):
    page = open_page()
    page.loop.pace = 0.01
    first = page.start([item("old", 20, 400)])
    wait_until(lambda: page.statuses() == ["writing"])
    old = page.told()["cards"][0]["request"]
    second = page.start(items(2))
    assert page.told(run=first)["run"] == second
    page.ended()
    wait_until(lambda: old not in page.visitors.live(page.visitor()))
    assert page.num_free == 64


def test_one_run_a_room_goes_on_beside_the_other(open_page):
    page = open_page()
    page.loop.pace = 0.01
    page.start([item("w", 20, 300)])
    page.start([item("A", 20, 300, 200), item("B", 20, 300, 400)], room="compare")
    wait_until(lambda: page.statuses(room="compare") == ["writing"] * 2)
    page.runs.stop(page.visitor(), "compare")
    assert page.ended(room="compare")["sum"]["done"] == 0
    assert page.statuses() == ["writing"]
