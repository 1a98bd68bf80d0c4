"""The workload room: every workload shows what it says, cards stream, one button stops all, visitors stay apart."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from micro_vllm.trace import PrefixLookup, RequestPreempted, RequestQueued, StepPlanned
from tests.browser.support.acting import set_number
from tests.browser.support.running_page import page_in_process
from ui.settings import Limits

pytestmark = pytest.mark.browser

LIMITS = Limits(max_prompt_tokens=400, max_answer_tokens=40, max_requests_per_visitor=2, max_waiting=24)
STATUSES = "[...document.querySelectorAll('.mv-run-card')].map(card => card.dataset.status)"
TEXTS = "[...document.querySelectorAll('.mv-run-text')].map(node => node.textContent)"
BOXES = """[...document.querySelectorAll('.mv-run-card, .mv-run-sum, #run-workload')]
  .map(node => { const b = node.getBoundingClientRect(); return [b.x, b.y, b.width, b.height].map(Math.round); })"""


def enter(tab) -> None:
    tab.click("[data-room=workload]")
    tab.wait_for_selector("#workload-cards .mv-run")


def choose(tab, name: str) -> None:
    tab.click(f"#workload label:has(input[value={name}])")


def run(tab) -> None:
    before = tab.get_attribute(".mv-run", "data-run")
    tab.click("#run-workload")
    tab.wait_for_function("before => document.querySelector('.mv-run').dataset.run != before", arg=before)


def run_lines(tab, *lines: str, max_tokens: int) -> None:
    choose(tab, "lines")
    tab.fill("#workload-lines textarea", "\n".join(lines))
    set_number(tab, "max-tokens", str(max_tokens))
    tab.wait_for_function(
        "words => document.querySelector('#sampling-panel-toggle').innerText.includes(words)",
        arg=f"max tokens {max_tokens}",
    )
    run(tab)


def run_long(tab) -> int:
    """Answers of hundreds of tokens whatever the model draws; their number. For tests in the middle of a run."""
    choose(tab, "pressure")
    run(tab)
    wait_for_writing(tab, 4)
    return len(tab.evaluate(STATUSES))


def wait_for_end(tab) -> str:
    """The line above the cards once everything has ended and Run can be pressed again."""
    tab.wait_for_selector(".mv-run[data-live=false]", timeout=60_000)
    tab.wait_for_selector("#run-workload:enabled")
    assert tab.is_disabled("#stop-workload")
    return tab.inner_text(".mv-run-sum")


def wait_for_writing(tab, count: int) -> None:
    tab.wait_for_function(
        f"count => {STATUSES}.filter(status => status === 'writing').length >= count", arg=count
    )


def new_events(page, since: int, kind: type) -> list[Any]:
    return [event for event in page.log.since(since) if isinstance(event, kind)]


@pytest.fixture
def fast(served):
    """As many steps as the machine makes: for tests that wait for the end."""
    served.loop.pace = 0
    yield served
    served.loop.pace = 0.05


@pytest.fixture
def slow(served):
    """Few steps, so that a test on a busy machine is still in the middle of a run."""
    served.loop.pace = 0.15
    yield served
    served.loop.pace = 0.05


@pytest.fixture(scope="module")
def hosted(tiny_model):
    with page_in_process(str(tiny_model), pace=0.01, is_hosted=True, limits=LIMITS, num_blocks=600) as page:
        yield page


# ---------------------------------------------------------------- what each of them shows


@pytest.mark.parametrize("name", ["shared", "long", "burst", "pressure", "lines"])
def test_every_workload_runs_to_its_end(fast, open_tab, name):
    since = fast.log.last_seq
    tab = open_tab(fast.url)
    enter(tab)
    assert "Nothing has run yet" in tab.inner_text(".mv-run-sum")
    if name == "lines":
        run_lines(tab, "one", "two", "", "three", max_tokens=12)
    else:
        choose(tab, name)
        run(tab)
    summary = wait_for_end(tab)
    statuses = tab.evaluate(STATUSES)
    assert set(statuses) == {"done"}
    assert summary.startswith(f"{len(statuses)} of {len(statuses)} in ")
    assert len(statuses) == {"shared": 8, "long": 7, "burst": 40, "lines": 3}.get(name, len(statuses))
    assert len(new_events(fast, since, RequestQueued)) == len(statuses)
    assert all(text.strip() for text in tab.evaluate(TEXTS))

    preempted = new_events(fast, since, RequestPreempted)
    told = int(re.search(r"(\d+) preemption", summary).group(1))
    assert told == len(preempted)
    assert bool(preempted) == (name == "pressure")
    plans = new_events(fast, since, StepPlanned)
    if name == "shared":
        hits = [event.num_hit_tokens for event in new_events(fast, since, PrefixLookup)]
        assert sum(hit > 200 for hit in hits) >= 7
    if name == "long":
        beside = [
            p for p in plans if any(r.count > 64 for r in p.rows) and any(r.phase == "decode" for r in p.rows)
        ]
        assert beside, "the long prompt was not read beside answers"
    if name == "burst":
        assert max(plan.num_waiting for plan in plans) > 0
        assert max(plan.num_seats for plan in plans) == fast.loop.engine.config.max_num_seqs
    assert fast.health()["free_blocks"] == fast.health()["num_blocks"]
    fast.loop.check_integrity()


def test_each_choice_says_what_to_watch_and_how_many(served, open_tab):
    tab = open_tab(served.url)
    enter(tab)
    for name, words in (
        ("burst", "seats"),
        ("pressure", "preempted"),
        ("long", "chunks"),
        ("shared", "prefix cache"),
    ):
        choose(tab, name)
        tab.wait_for_function(
            "words => document.querySelector('#workload-watch').innerText.includes(words)", arg=words
        )
        tab.wait_for_function(
            "shown => !!document.querySelector('#workload-size').offsetParent === shown",
            arg=name in ("burst", "shared"),
        )
        assert not tab.is_visible("#workload-lines")
    choose(tab, "lines")
    tab.wait_for_selector("#workload-lines textarea", state="visible")


# ---------------------------------------------------------------- the cards


def test_cards_stream_in_pieces_and_nothing_moves(slow, open_tab):
    tab = open_tab(slow.url)
    enter(tab)
    count = run_long(tab)
    boxes = tab.evaluate(BOXES)
    tab.evaluate(
        """() => { window.lengths = [];
        new MutationObserver(() => {
          const length = document.querySelectorAll('.mv-run-text')[2].textContent.length;
          if (length !== window.lengths.at(-1)) window.lengths.push(length);
        }).observe(document.querySelector('.mv-run-grid'), {subtree: true, childList: true, characterData: true}); }"""
    )
    tab.wait_for_function("window.lengths.length >= 4")
    assert tab.evaluate(BOXES) == boxes
    slow.loop.pace = 0
    wait_for_end(tab)
    assert tab.evaluate(BOXES) == boxes
    lengths = tab.evaluate("window.lengths")
    assert lengths == sorted(lengths), "text was taken back"
    chips = tab.locator(".mv-run-card .chip").all_inner_texts()
    assert len(set(chips)) == count
    facts = tab.inner_text(".mv-run-card >> nth=0")
    for words in ("TTFT", "tokens", "tok/s", "cached", "cut at its length limit", "done", "lighthouse"):
        assert words in facts, facts


def test_a_reader_who_scrolled_up_is_left_alone_and_others_follow(slow, open_tab):
    tab = open_tab(slow.url)
    enter(tab)
    tab.add_style_tag(
        content=".mv-run-card { height: 92px !important }"
    )  # a line or two: full after some tokens
    run_long(tab)
    tab.wait_for_function(
        "[...document.querySelectorAll('.mv-run-text')].slice(0, 2).every(t => t.scrollHeight > t.clientHeight + 10)"
    )
    tab.evaluate("document.querySelectorAll('.mv-run-text')[0].scrollTop = 0")
    length = tab.evaluate(f"{TEXTS}[0].length")
    tab.wait_for_function(f"length => {TEXTS}[0].length > length + 10", arg=length)
    tops = tab.evaluate("[...document.querySelectorAll('.mv-run-text')].map(t => t.scrollTop)")
    assert tops[0] == 0
    assert tops[1] > 0
    tab.click("#stop-workload")
    wait_for_end(tab)


def test_a_chip_follows_its_request_in_the_charts(fast, open_tab):
    tab = open_tab(fast.url)
    enter(tab)
    run_lines(tab, "follow me", max_tokens=20)
    wait_for_end(tab)
    tab.evaluate("window.addEventListener('mv:focus', event => { window.focused = event.detail; })")
    tab.click(".mv-run-card .chip")
    tab.wait_for_function("window.focused && window.focused.request")
    assert tab.evaluate("window.focused.request") == new_events(fast, -1, RequestQueued)[-1].request_id


# ---------------------------------------------------------------- Stop, and who leaves


def test_one_button_stops_all_and_frees_the_blocks(slow, open_tab):
    tab = open_tab(slow.url)
    enter(tab)
    count = run_long(tab)
    assert tab.is_disabled("#run-workload")
    tab.click("#stop-workload")
    slow.wait_for(lambda h: h["running"] + h["waiting"] == 0 and h["free_blocks"] == h["num_blocks"], 5)
    summary = wait_for_end(tab)
    assert summary.startswith(f"0 of {count} in ")
    assert tab.evaluate(STATUSES) == ["stopped"] * count
    assert all(tab.evaluate(TEXTS)), "what was written is lost"
    assert "you pressed Stop" in tab.inner_text(".mv-run-card >> nth=0")
    run_lines(tab, "again", max_tokens=5)
    wait_for_end(tab)
    assert tab.evaluate(STATUSES) == ["done"]


def test_a_closed_tab_takes_its_run_along(slow, open_tab):
    tab = open_tab(slow.url)
    enter(tab)
    run_long(tab)
    tab.close()
    slow.wait_for(lambda h: h["running"] + h["waiting"] == 0, 15)


def test_two_tabs_share_the_batch_and_not_the_cards(slow, open_tab):
    since = slow.log.last_seq
    tabs = [open_tab(slow.url) for _ in range(2)]
    for tab in tabs:
        enter(tab)
    choose(tabs[0], "long")
    run(tabs[0])
    count = run_long(tabs[1])
    slow.loop.call(lambda engine: None)
    mine = [
        set(
            tab.evaluate(
                "[...document.querySelectorAll('.mv-run-card .chip')].map(chip => chip.dataset.request)"
            )
        )
        for tab in tabs
    ]
    assert not mine[0] & mine[1]
    together = [
        plan
        for plan in new_events(slow, since, StepPlanned)
        if all({row.request_id for row in plan.rows} & ids for ids in mine)
    ]
    assert together, "no step computed requests of both tabs"
    tabs[1].click("#stop-workload")
    wait_for_end(tabs[1])
    assert tabs[1].evaluate(STATUSES) == ["stopped"] * count
    slow.loop.pace = 0
    wait_for_end(tabs[0])
    assert tabs[0].evaluate(STATUSES) == ["done"] * 7
    prompts = tabs[0].inner_text(".mv-run-grid")
    assert "chronicle" in prompts
    assert "at length" not in prompts


# ---------------------------------------------------------------- odd input, a model that is not there yet


def test_wrong_input_is_told_and_what_was_typed_stays(served, open_tab, caplog, capfd):
    """P18, gradio #2371, for the number of requests; nothing of it is an error of the server."""
    tab = open_tab(served.url)
    enter(tab)
    for typed, words in (
        ("0", "requests=0 is out of range; allowed: 2 to 64."),
        ("999", "requests=999 is out of range; allowed: 2 to 64."),
        ("2.5", "requests=2.5 is not a whole number; allowed: 2 to 64."),
        ("", "requests is empty; allowed: 2 to 64."),
    ):
        tab.fill("#workload-size input", typed)
        tab.press("#workload-size input", "Tab")
        tab.click("#run-workload")
        assert words in tab.wait_for_selector(".toast-body").inner_text()
        assert tab.input_value("#workload-size input") == typed
        tab.click(".toast-close")
        tab.wait_for_selector(".toast-body", state="detached")
    assert "Traceback" not in caplog.text + capfd.readouterr().err
    choose(tab, "lines")
    tab.click("#run-workload")
    assert "one prompt a line" in tab.wait_for_selector(".toast-body").inner_text()
    tab.click(".toast-close")
    tab.wait_for_selector(".toast-body", state="detached")
    typed = "\n".join(f"{i}" for i in range(70))
    tab.fill("#workload-lines textarea", typed)
    tab.click("#run-workload")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "70 lines" in words
    assert "at most 64" in words
    assert tab.input_value("#workload-lines textarea") == typed
    assert tab.is_enabled("#run-workload")


def test_markup_and_a_line_that_is_too_long_harm_nobody(fast, open_tab):
    tab = open_tab(fast.url)
    enter(tab)
    run_lines(tab, "<img src=x onerror=alert(1)> <b>x</b>", "w" * 1500, "fine", max_tokens=10)
    wait_for_end(tab)
    assert tab.evaluate(STATUSES) == ["done", "refused", "done"]
    assert tab.inner_text(".mv-run-card >> nth=0").count("<img src=x") == 1
    refused = tab.inner_text(".mv-run-card >> nth=1")
    assert re.search(r"1,5\d\d tokens", refused)
    assert "1,023" in refused


def test_while_the_model_is_loaded_run_says_so(serve_page, open_tab):
    gate = threading.Event()

    def load(name: str, **_: Any) -> None:
        gate.wait(60)
        raise RuntimeError("not today")

    page = serve_page("nothing", load=load)
    tab = open_tab(page.url)
    enter(tab)
    tab.click("#run-workload")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "still being loaded" in words
    assert tab.is_enabled("#run-workload")
    gate.set()
    page.wait_for(lambda health: health["status"] == "error", 20)
    tab.click(".toast-close")
    tab.wait_for_selector(".toast-body", state="detached")
    tab.click("#run-workload")
    assert "not today" in tab.wait_for_selector(".toast-body").inner_text()


# ---------------------------------------------------------------- a shared server, a keyboard, a phone


def test_a_shared_server_runs_a_workload_two_at_a_time_and_says_so(hosted, open_tab):
    tab = open_tab(hosted.url)
    enter(tab)
    assert "2 of your requests at a time" in tab.inner_text("#workload-limits")
    run(tab)
    tab.wait_for_function(
        "/\\d+ waiting \\(\\d+ here\\)/.test(document.querySelector('.mv-run-sum').innerText)"
    )
    wait_for_end(tab)
    assert tab.evaluate(STATUSES) == ["done"] * 8
    assert max(len(plan.rows) for plan in new_events(hosted, -1, StepPlanned)) == 2

    # The system prompt is ours, so another visitor finds it; nothing else is shared.
    since = hosted.log.last_seq
    other = open_tab(hosted.url)
    enter(other)
    run(other)
    wait_for_end(other)
    hits = [event.num_hit_tokens for event in new_events(hosted, since, PrefixLookup)]
    assert len(hits) == 8
    assert len(set(hits)) == 1
    assert hits[0] >= 128

    choose(tab, "pressure")
    tab.click("#run-workload")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert "600 blocks" in words


def test_it_works_by_keyboard_on_a_phone(slow, open_tab):
    tab = open_tab(slow.url, width=390, height=844)
    tab.evaluate("window.microVLLM.room('workload')")
    tab.focus("#workload input[value=shared]")
    for _ in range(4):
        tab.keyboard.press("ArrowDown")
    tab.wait_for_selector("#workload-lines textarea", state="visible")
    tab.keyboard.press("Tab")
    tab.keyboard.type("by keyboard")
    tab.focus("#workload input[value=lines]")
    tab.keyboard.press("ArrowUp")
    tab.wait_for_selector("#workload-lines textarea", state="hidden")
    tab.focus("#run-workload")
    tab.keyboard.press("Enter")
    wait_for_writing(tab, 4)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.focus("#stop-workload")
    tab.keyboard.press("Enter")
    wait_for_end(tab)
    assert set(tab.evaluate(STATUSES)) == {"stopped"}
