"""The chat as a part of the page: on a phone, by keyboard, for a screen reader, and beside the charts."""

from __future__ import annotations

import pytest

from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import RequestQueued
from tests.browser.support.acting import (
    answer_line,
    chat_texts,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
    wait_until_idle,
)

pytestmark = pytest.mark.browser

LONG = SamplingParams(max_tokens=900, temperature=0)


def test_on_a_phone_every_button_is_in_reach_and_nothing_is_crowded(served, open_tab):
    tab = open_tab(served.url, width=390, height=844, has_touch=True)
    tab.wait_for_selector("#chat .example")
    assert tab.evaluate("document.querySelector('#chat .log').scrollTop") == 0, (
        "a welcome is read from its top"
    )
    set_number(tab, "max-tokens", "900")
    send(tab, "hello")
    wait_for_tokens(tab, 2)
    fits = """() => { const box = document.querySelector('#composer').getBoundingClientRect();
        const all = [...document.querySelectorAll('#buttons button')].map(b => b.getBoundingClientRect())
          .filter(r => r.width).sort((a, b) => a.left - b.left);
        return all.length >= 5 && all[0].left >= box.left && all[all.length - 1].right <= box.right - 4 &&
          all.every((r, i) => !i || r.left >= all[i - 1].right - 0.5) &&
          document.documentElement.scrollWidth <= innerWidth; }"""
    assert tab.evaluate(fits)
    tab.click("#stop")
    wait_until_idle(tab)
    assert tab.evaluate(fits)
    tab.click("#chat-menu")
    tab.wait_for_selector("#export-chat", state="visible")
    assert tab.evaluate("document.querySelector('#chat-menu-list').getBoundingClientRect().left") >= 0


def test_enter_sends_and_shift_enter_is_a_new_line(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "4")
    tab.click("#prompt textarea")
    tab.keyboard.type("one")
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.type("two")
    assert tab.input_value("#prompt textarea") == "one\ntwo"
    tab.keyboard.press("Enter")
    wait_for_answers(tab, 1)
    assert chat_texts(tab)[0] == "one\ntwo"
    assert tab.input_value("#prompt textarea") == ""
    assert tab.evaluate("document.activeElement.closest('#prompt') !== null"), "one can go on writing"


def test_a_screen_reader_hears_who_said_what_and_that_something_comes(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "900")
    send(tab, "hello")
    wait_for_tokens(tab, 2)
    log = tab.locator("#chat .log")
    assert (log.get_attribute("role"), log.get_attribute("aria-busy")) == ("log", "true")
    tab.click("#stop")
    wait_until_idle(tab)
    assert log.get_attribute("aria-busy") == "false"
    names = tab.locator("#chat article").evaluate_all("nodes => nodes.map(n => n.getAttribute('aria-label'))")
    assert names == ["prompt 1", "answer 1"]
    nameless = tab.locator("#room-chat button").evaluate_all(
        "nodes => nodes.filter(n => !(n.getAttribute('aria-label') || n.textContent.trim())).length"
    )
    assert nameless == 0
    # Every button of a message is reached by the Tab key, and shown while it is.
    tab.focus("#chat .turn.user .actions button")
    tab.wait_for_function(
        "getComputedStyle(document.querySelector('#chat .turn.user .actions')).opacity === '1'"
    )


def test_the_letter_of_an_answer_follows_its_request_in_the_charts(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "24")
    send(tab, "hello")
    wait_for_answers(tab, 1)
    tab.evaluate(
        "() => { const old = microVLLM.focus; microVLLM.focus = f => { window.followed = f; old(f); }; }"
    )
    tab.click("#chat .meta .chip")
    (request,) = [e.request_id for e in served.log.since() if isinstance(e, RequestQueued)][-1:]
    assert tab.evaluate("window.followed") == {"request": request}


def test_a_waiting_answer_says_its_place_in_the_queue(serve_page, open_tab):
    """And the line below it is there from the first moment."""
    page = serve_page(pace=0.1)
    seats = page.loop.engine.config.max_num_seqs
    others = [page.loop.submit({"prompt_token_ids": [5]}, LONG) for _ in range(seats + 2)]
    page.wait_for(lambda h: h["running"] == seats and h["waiting"] == 2, 20)
    tab = open_tab(page.url)
    send(tab, "may I?")
    tab.wait_for_selector("#chat .meta")
    tab.wait_for_function("document.querySelector('#chat .meta').innerText.includes('3rd in the queue')")
    others[-1].abort()
    tab.wait_for_function("document.querySelector('#chat .meta').innerText.includes('2nd in the queue')")
    for other in others:
        other.abort()
    wait_for_tokens(tab, 1)
    tab.click("#stop")
    wait_until_idle(tab)


def test_stop_before_the_server_has_heard_of_the_prompt_stops_it(served, open_tab):
    """However slow the line is: Stop is never lost."""
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "900")

    def late(route) -> None:
        tab.wait_for_timeout(600)
        route.continue_()

    tab.route("**/queue/join*", late, times=1)
    send(tab, "stop me")
    tab.click("#stop")
    wait_until_idle(tab)
    served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 20)
    if chat_texts(tab):
        assert "stopped" in answer_line(tab)
    else:
        assert tab.input_value("#prompt textarea") == "stop me"
    set_number(tab, "max-tokens", "4")
    tab.fill("#prompt textarea", "and on")
    tab.keyboard.press("Enter")
    wait_until_idle(tab)


def test_new_chat_before_the_server_has_heard_of_the_prompt_leaves_nothing_running(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "900")

    def late(route) -> None:
        tab.wait_for_timeout(600)
        route.continue_()

    tab.route("**/queue/join*", late, times=1)
    before = sum(isinstance(event, RequestQueued) for event in served.log.since())
    send(tab, "leave me")
    tab.click("#new-chat")
    assert chat_texts(tab) == []
    tab.wait_for_timeout(900)
    served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 20)
    steps = served.log.since()[-1].step
    tab.wait_for_timeout(300)
    assert served.log.since()[-1].step == steps, "it goes on although nobody waits"
    assert sum(isinstance(event, RequestQueued) for event in served.log.since()) <= before + 1
    assert chat_texts(tab) == []
    assert tab.input_value("#prompt textarea") == "leave me"
