"""Servers that end, restart or change their model, and tabs that reload, while somebody is in the middle of a chat."""

from __future__ import annotations

import contextlib
import signal

import pytest
from playwright.sync_api import Error as PlaywrightError

from micro_vllm.trace import RequestAborted
from tests.browser.support.acting import (
    answer_text,
    chat_texts,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
)
from tests.browser.support.running_page import free_port, page_as_program, wait_until_ok

pytestmark = pytest.mark.browser


def test_a_reload_in_the_middle_of_an_answer_aborts_it(served, open_tab):
    """P21: nobody waits for the answer any more. (What had come of it stays: test_chat_kept.py.)"""
    tab = open_tab(served.url, expect_offline=True)
    set_number(tab, "max-tokens", "900")
    send(tab, "Go on and on")
    wait_for_tokens(tab, 5)
    tab.reload()
    tab.wait_for_selector("#chat .message.bot")
    served.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 15)
    set_number(tab, "max-tokens", "6")
    send(tab, "still there?")
    assert "length limit" in wait_for_answers(tab, 2)


def until_settled(tab) -> None:
    """The tab shows a page of the server that answers now. Gradio loads the page again by itself if it had lost
    its connection in the middle of an event: wherever that falls, it is over when a document stays for a moment."""
    for _ in range(10):
        tab.wait_for_function(
            "document.querySelector('#chat .log')?.dataset.mode &&"
            "document.querySelector('.mv-header')?.innerText.includes('tiny-llama')"
        )
        tab.evaluate("() => { window.isSettled = true; }")
        tab.wait_for_timeout(2500)  # Gradio asks every two seconds whether the server is back
        with contextlib.suppress(PlaywrightError):  # it was loaded again just now
            if tab.evaluate("window.isSettled === true"):
                return
    raise AssertionError("the page loads itself again and again")


@pytest.mark.parametrize("reloads", [False, True], ids=["stale page", "page that loads itself again"])
def test_a_restarted_server_has_the_chat_and_the_draft_and_the_chat_goes_on(tiny_model, open_tab, reloads):
    """P4, textgen #5837: never a silent wipe."""
    port = str(free_port())
    arguments = ("--model", str(tiny_model), "--port", port)
    with page_as_program(*arguments) as (_, url):
        url = f"http://127.0.0.1:{port}/"
        wait_until_ok(url)
        tab = open_tab(url, expect_offline=True)
        set_number(tab, "max-tokens", "8")
        set_number(tab, "temperature", "0")
        send(tab, "before <b>the</b> restart")
        wait_for_answers(tab, 1)
        before = chat_texts(tab)
    tab.fill("#prompt textarea", "after it")
    tab.wait_for_function(
        "document.querySelector('.mv-header').innerText.includes('no connection to the server')"
    )
    assert chat_texts(tab) == before
    if reloads:  # as somebody does who wonders, or Gradio's script
        tab.click("#send")
        tab.wait_for_function(
            "document.querySelector('#chat .notice')?.innerText.includes('in the box again')"
        )
        assert chat_texts(tab) == before
    with page_as_program(*arguments):
        wait_until_ok(url)
        until_settled(tab)
        if reloads:
            tab.reload()
            until_settled(tab)
        assert chat_texts(tab) == before
        assert tab.input_value("#prompt textarea") == "after it"
        set_number(tab, "max-tokens", "8")
        tab.click("#send")
        wait_for_answers(tab, 2)
        assert chat_texts(tab)[:3] == [*before, "after it"]
        # The engine got the whole chat: two prompts, one answer.
        meta = tab.locator("#chat .meta").last.inner_text()
        assert int(meta.split(" of ")[1].split()[0]) > len("before <b>the</b> restart") + len("after it")
        tab.close()


def test_a_server_that_dies_in_the_middle_of_an_answer_leaves_what_had_come(tiny_model, open_tab):
    """P17: the page notices by itself, keeps the text, and can be used."""
    with page_as_program("--model", str(tiny_model)) as (process, url):
        wait_until_ok(url)
        tab = open_tab(url, expect_offline=True)
        set_number(tab, "max-tokens", "900")
        tab.click("#engine-panel-toggle")
        tab.fill("#pace input", "0.2")
        tab.press("#pace input", "Tab")
        tab.wait_for_function("document.querySelector('#pace-words').innerText.includes('5 steps a second')")
        send(tab, "Go on and on")
        wait_for_tokens(tab, 2)
        process.kill()
        line = wait_for_answers(tab, 1, "connection to the server was lost")
        assert "broke off" in line
        assert answer_text(tab)
        assert tab.is_enabled("#send")
        # Gradio's calls answer with nothing then; the tokens room once threw.
        tab.click('[data-room="tokens"]')
        tab.fill("#tokenizer-input textarea", "how many tokens?")
        for part in (".pieces-part", "#template-preview"):
            assert "does not answer" in tab.wait_for_selector(f"{part} .note:not([hidden])").inner_text()
        tab.close()


@pytest.mark.parametrize("is_answering", [False, True], ids=["idle", "answering"])
def test_the_program_ends_quickly_and_quietly_with_a_tab_open(tiny_model, open_tab, tmp_path, is_answering):
    log = tmp_path / "log"
    with log.open("w") as out, page_as_program("--model", str(tiny_model), output=out) as (process, url):
        wait_until_ok(url)
        tab = open_tab(url, expect_offline=True)
        if is_answering:
            set_number(tab, "max-tokens", "900")
            send(tab, "Go on and on")
            wait_for_tokens(tab, 5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        tab.close()
    words = log.read_text()
    assert "Traceback" not in words, words
    assert "ERROR" not in words, words


def test_a_change_of_model_ends_the_answers_of_others_with_a_reason(serve_page, open_tab):
    page = serve_page(pace=0.05)
    one = open_tab(page.url)
    set_number(one, "max-tokens", "900")
    send(one, "Go on and on")
    wait_for_tokens(one, 8)
    old = page.host.engine
    two = open_tab(page.url)
    two.click("#model-panel-toggle")
    two.click("#load-model")
    page.wait_for(lambda h: page.host.engine is not old, 30)
    line = wait_for_answers(one, 1)
    assert "stopped" in line or "broke off" in line
    assert answer_text(one), "what came so far stays"
    for tab in (one, two):
        set_number(tab, "max-tokens", "6")
        send(tab, "and now?")
    wait_for_answers(one, 2, "length limit")
    wait_for_answers(two, 1, "length limit")


def test_an_error_in_the_middle_of_an_answer_is_told_and_the_next_prompt_works(serve_page, open_tab):
    """P17, gradio #10668."""
    page = serve_page(pace=0.05)
    engine = page.loop.engine
    execute = engine.executor.execute

    def fail_once(plan):
        engine.executor.execute = execute
        raise RuntimeError("the <i>GPU</i> fell off")

    tab = open_tab(page.url)
    send(tab, "hello")
    wait_for_tokens(tab, 5)
    page.loop.call(lambda e: setattr(e.executor, "execute", fail_once))
    line = wait_for_answers(tab, 1, "failed|broke off")
    assert "the <i>GPU</i> fell off" in line
    set_number(tab, "max-tokens", "6")
    send(tab, "again")
    assert "length limit" in wait_for_answers(tab, 2)
    page.loop.check_integrity()


def test_stop_works_while_the_prompt_is_still_being_read(serve_page, open_tab):
    """P1, in the middle of prefill: at this pace reading 900 tokens, 256 a step, takes a quarter of a minute."""
    page = serve_page(pace=5.0)
    tab = open_tab(page.url)
    send(tab, "x" * 900)
    page.wait_for(lambda h: h["running"] == 1, 20)
    tab.click("#stop")
    page.wait_for(lambda h: h["running"] == 0 and h["free_blocks"] == h["num_blocks"], 20)
    (aborted,) = (event for event in page.log.since() if isinstance(event, RequestAborted))
    assert aborted.num_output_tokens == 0, "Stop waited for the prompt to be read"
    wait_for_answers(tab, 1, "stopped")
    assert tab.is_enabled("#retry")
