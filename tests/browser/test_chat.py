"""The chat on the real page, in a real browser."""

from __future__ import annotations

import re
import time

import pytest

from micro_vllm.trace import RequestAborted, StepPlanned
from tests.browser.support.acting import (
    answer_line,
    answer_text,
    plotted,
    send,
    set_number,
    wait_for_tokens,
    wait_until_idle,
)

pytestmark = pytest.mark.browser

CHARTS = ("kv-block-map", "scheduler-timeline", "kv-usage")


def test_text_arrives_in_pieces_and_all_charts_move_on_the_same_nodes(served, open_tab):
    tab = open_tab(served.url)
    tab.wait_for_function("document.querySelectorAll('.mv-plot .main-svg').length >= 3")
    tab.evaluate(
        "window.nodes = Object.fromEntries([...document.querySelectorAll('.mv-plot')].map((n, i) => [i, n]))"
    )
    before = {chart: plotted(tab, chart) for chart in CHARTS}

    send(tab, "Hello there")
    seen: list[str] = []
    shown: dict[str, set[str]] = {chart: set() for chart in CHARTS}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (
        len(set(seen)) >= 4 and all(len(s) >= 3 for s in shown.values())
    ):
        seen.append(answer_text(tab))
        for chart in CHARTS:
            shown[chart].add(plotted(tab, chart))
        tab.wait_for_timeout(100)
    assert len(set(seen)) >= 4, "the answer did not arrive in pieces"
    for chart in CHARTS:
        assert len(shown[chart] - {before[chart]}) >= 2, f"{chart} did not move"
    assert tab.evaluate("[...document.querySelectorAll('.mv-plot')].every((n, i) => window.nodes[i] === n)")
    tab.click("#stop")
    wait_until_idle(tab)
    meta = tab.locator("#chat .meta").last.inner_text()
    assert re.search(
        r"TTFT [\d.]+ m?s · \d+ tok/s · \d+ tokens · \d+ of \d+ prompt tokens cached · stopped", meta
    ), meta


def test_stop_keeps_the_partial_text_and_frees_the_blocks_within_a_second(served, open_tab):
    """P1, open-webui #1166, #1567."""
    tab = open_tab(served.url)
    send(tab, "Tell me a very long story")
    wait_for_tokens(tab, 10)
    assert served.health()["free_blocks"] < served.health()["num_blocks"]
    clicked = served.log.since()[-1].step
    tab.click("#stop")
    health = served.wait_for(lambda h: h["free_blocks"] == h["num_blocks"], 20)
    assert health["running"] == 0
    (aborted,) = (e for e in served.log.since() if isinstance(e, RequestAborted) and e.step >= clicked)
    # A step takes at least 50 ms here: twenty of them are the second that is allowed.
    assert aborted.step - clicked <= 20
    wait_until_idle(tab)
    assert "stopped" in answer_line(tab)
    assert answer_text(tab).strip()
    assert len([e for e in served.log.since() if isinstance(e, StepPlanned) and e.step > aborted.step]) == 0
    send(tab, "And another")  # the chat goes on
    tab.wait_for_function("document.querySelectorAll('#chat .message.user').length == 2")
    tab.click("#stop")
    wait_until_idle(tab)


def test_two_tabs_are_computed_in_one_batch(served, open_tab):
    """P19, P20, gradio #10453: tabs stream together, and neither sees the other's chat."""
    one, two = open_tab(served.url), open_tab(served.url)
    send(one, "First tab")
    send(two, "Second tab")
    served.wait_for(lambda h: h["running"] == 2, 10)
    # Both rows are in both timelines, and only one of them is one's own.
    for tab in (one, two):
        tab.wait_for_function(
            "document.querySelector('#scheduler-timeline .mv-plot').layout.yaxis.ticktext"
            ".filter(t => t.includes('yours')).length === 1"
        )
    assert "Second" not in one.inner_text("#chat")
    assert "First" not in two.inner_text("#chat")
    for tab in (one, two):
        tab.click("#stop")
        wait_until_idle(tab)
    sizes = [len(event.rows) for event in served.log.since() if isinstance(event, StepPlanned)]
    assert 2 in sizes


def test_four_tabs_stream_together(served, open_tab):
    """P20, gradio #10453, #6749: nobody waits for another's answer to end."""
    tabs = [open_tab(served.url) for _ in range(4)]
    # So that no answer is over before the last one is asked for, however busy the machine.
    served.loop.pace = 0.2
    for number, tab in enumerate(tabs):
        set_number(tab, "max-tokens", "300")
        send(tab, f"Tab {number}")
    served.wait_for(lambda h: h["running"] == 4, 20)
    for tab in tabs:
        wait_for_tokens(tab, 4)
        assert "stop" in tab.locator("#stop").inner_text().lower()
    assert served.health()["running"] == 4, "all of them were still being written when each had some tokens"
    served.loop.pace = 0.05
    for tab in tabs:
        tab.click("#stop")
        wait_until_idle(tab)
    served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 10)
    sizes = [len(event.rows) for event in served.log.since() if isinstance(event, StepPlanned)]
    assert 4 in sizes, "one batch held all four"


def test_closing_the_tab_aborts_its_request(served, open_tab):
    """P21, gradio #12159; E32."""
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "900")
    before = sum(isinstance(event, RequestAborted) for event in served.log.since())
    send(tab, "Go on and on")
    served.wait_for(lambda h: h["running"] == 1, 10)
    tab.close()
    served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 20)
    assert sum(isinstance(event, RequestAborted) for event in served.log.since()) == before + 1


def test_html_is_shown_as_typed_and_nothing_runs(served, open_tab):
    """P10, gradio #7198, #10709, #10851."""
    tab = open_tab(served.url)
    tab.evaluate("() => { window.alert = () => { window.alerted = true } }")
    typed = "<b>x</b> <angle> <script>alert(1)</script> <img src=x onerror=alert(2)> *not bold* &lt;"
    send(tab, typed)
    tab.wait_for_selector("#chat .message.user")
    assert tab.locator("#chat .message.user").inner_text().strip() == typed
    assert tab.locator("#chat .message.user b, #chat .message.user em, #chat .message.user img").count() == 0
    tab.click("#stop")
    wait_until_idle(tab)
    assert not tab.evaluate("window.alerted")


def test_a_prompt_that_is_too_long_says_the_numbers_and_is_kept(served, open_tab):
    """P9, llama.cpp #17284, open-webui #1952."""
    tab = open_tab(served.url)
    long = "word " * 400
    send(tab, long)
    toast = tab.wait_for_selector(".toast-body")
    words = toast.inner_text()
    assert re.search(r"2,0\d\d tokens.*1,023.*Shorten", words), words
    assert tab.input_value("#prompt textarea") == long
    assert tab.locator("#chat .message").count() == 0
    send(tab, "short")  # the page is usable at once
    tab.wait_for_selector("#chat .message.bot")
    tab.click("#stop")
    wait_until_idle(tab)


def test_a_value_out_of_range_is_refused_with_the_range(served, open_tab):
    """P18, gradio #2371."""
    tab = open_tab(served.url)
    set_number(tab, "top-p", "99")
    send(tab, "hello")
    words = tab.wait_for_selector(".toast-body").inner_text()
    assert re.search(r"top_p=99.*0 to 1", words), words
    assert tab.input_value("#prompt textarea") == "hello"


def test_retry_answers_again_and_new_chat_empties(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "12")
    set_number(tab, "seed", "5")
    send(tab, "Say something")
    tab.wait_for_function("document.querySelector('#chat .meta')?.innerText.includes('length limit')")
    wait_until_idle(tab)
    first = answer_text(tab).split("\n")[0]
    tab.click("#retry")
    tab.wait_for_function("document.querySelector('#retry').disabled")
    wait_until_idle(tab)
    assert tab.locator("#chat .message.user").count() == 1
    assert tab.locator("#chat .message.bot").count() == 1
    assert answer_text(tab).split("\n")[0] == first, "the same seed gives the same answer"
    tab.click("#new-chat")
    tab.wait_for_selector("#chat .example")
    assert tab.locator("#chat .message").count() == 0


def test_new_chat_in_the_middle_of_an_answer_ends_it(served, open_tab):
    tab = open_tab(served.url)
    send(tab, "Tell me everything")
    served.wait_for(lambda h: h["running"] == 1, 10)
    tab.click("#new-chat")
    served.wait_for(lambda h: h["running"] == 0, 20)
    tab.wait_for_selector("#chat .example")
    tab.wait_for_timeout(700)
    assert tab.locator("#chat .message").count() == 0
    wait_until_idle(tab)


def test_the_next_turn_hits_the_prefix_cache_through_kept_ids(served, open_tab):
    """Random bytes hardly ever survive decoding and encoding: only kept ids can hit the answer's blocks."""
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "48")
    send(tab, "A question of some length, to fill a few blocks")
    tab.wait_for_function("document.querySelector('#chat .meta')?.innerText.includes('length limit')")
    wait_until_idle(tab)
    send(tab, "And a second one")
    tab.wait_for_function("document.querySelectorAll('#chat .meta').length == 2")
    tab.wait_for_function("document.querySelectorAll('#chat .meta')[1].innerText.includes('length limit')")
    wait_until_idle(tab)
    first, second = (tab.locator("#chat .meta").nth(i).inner_text() for i in (0, 1))
    prompt_tokens = int(re.search(r"of (\d+) prompt", first)[1])
    cached = int(re.search(r"(\d+) of", second)[1])
    assert cached >= (prompt_tokens + 47) // 16 * 16 - 16 > prompt_tokens, (first, second)


def test_an_example_starts_a_chat(served, open_tab):
    tab = open_tab(served.url)
    tab.click("#chat .example >> nth=0")
    tab.wait_for_selector("#chat .message.user")
    tab.wait_for_function("!document.querySelector('#stop').disabled")
    tab.click("#stop")
    wait_until_idle(tab)
