"""Completion mode: no chat template; the text is continued as it is, and what the model wrote is marked."""

from __future__ import annotations

import pytest

from micro_vllm.trace import RequestQueued
from tests.browser.support.acting import chat_texts, document, send, set_number, wait_for_answers

pytestmark = pytest.mark.browser


@pytest.fixture
def completion(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "8")
    tab.click("#mode input[value=completion]")
    tab.wait_for_selector("#chat .log[data-mode=completion] .example")
    return tab


def test_a_text_goes_on_without_a_template(served, completion):
    tab = completion
    last = served.log.since()[-1].seq if served.log.since() else -1
    send(tab, "Once upon a time *there* <b>was")
    wait_for_answers(tab, 1)
    (request,) = (e for e in served.log.since(last) if isinstance(e, RequestQueued))
    tokenizer = served.host.engine.loaded.tokenizer
    assert request.num_prompt_tokens == len(tokenizer.encode("Once upon a time *there* <b>was"))
    # One text: both parts stand in one line, and only what was generated is marked.
    assert chat_texts(tab)[0] == "Once upon a time *there* <b>was"
    ground = "s => getComputedStyle(document.querySelector(s)).backgroundColor"
    assert tab.evaluate(ground, "#chat .message.user .body") == "rgba(0, 0, 0, 0)"
    assert tab.evaluate(ground, "#chat .message.bot .body") != "rgba(0, 0, 0, 0)"
    assert tab.evaluate("getComputedStyle(document.querySelector('#chat .message.bot')).display") == "inline"

    tab.click("#continue")
    tab.wait_for_function("!document.querySelector('#send').disabled")
    turns = document(tab)["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert len(turns[1]["versions"][0]["token_ids"]) == 16

    # What is written now is a part of the text, too.
    last = served.log.since()[-1].seq
    send(tab, " And then")
    wait_for_answers(tab, 2)
    (request,) = (e for e in served.log.since(last) if isinstance(e, RequestQueued))
    assert request.num_prompt_tokens == len(tokenizer.encode("Once upon a time *there* <b>was")) + 16 + len(
        " And then"
    )


def test_undo_and_retry_work_on_a_text(completion):
    tab = completion
    send(tab, "Once upon")
    wait_for_answers(tab, 1)
    tab.click("#retry")
    tab.wait_for_function("!document.querySelector('#send').disabled")
    assert len(document(tab)["turns"][1]["versions"]) == 2
    tab.click("#undo")
    assert tab.input_value("#prompt textarea") == "Once upon"
    assert document(tab)["turns"] == []


def test_a_change_of_mode_begins_anew_and_keeps_the_chat(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "8")
    send(tab, "a chat")
    wait_for_answers(tab, 1)
    before = document(tab)
    tab.click("#mode input[value=completion]")
    tab.wait_for_selector("#chat .example")
    assert document(tab) == {**before, "mode": "completion", "turns": []}
    tab.click("#earlier-chats")
    tab.click("#earlier-chats-list .earlier button:first-child")
    tab.wait_for_selector("#chat .message.bot")
    assert tab.is_checked("#mode input[value=chat]"), "the chat comes back with its mode"
    assert document(tab) == before


def test_a_beginning_to_start_from_keeps_its_line_breaks(completion):
    tab = completion
    tab.click("#chat .example >> text=is_prime")
    wait_for_answers(tab, 1)
    assert document(tab)["turns"][0]["text"] == "def is_prime(n):\n"
