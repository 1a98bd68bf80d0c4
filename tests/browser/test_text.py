"""What is written is what is shown: prompts as typed, answers as Markdown without HTML, while they stream and after.

The answers are scripted below the engine: a wrapper of the real executor puts in the bytes that the test wants.
"""

from __future__ import annotations

import dataclasses

import pytest

from micro_vllm.trace import RequestQueued
from tests.browser.support.acting import (
    answer_text,
    chat_texts,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
    wait_until_idle,
)
from tests.browser.support.running_page import page_in_process

pytestmark = pytest.mark.browser


class ScriptedAnswers:
    """The real executor, except that every request gets the same bytes, then the end token."""

    def __init__(self, executor, token_ids: list[int]) -> None:
        self._executor = executor
        self._script = token_ids
        self._given: dict[str, int] = {}

    def __getattr__(self, name: str):
        return getattr(self._executor, name)

    def execute(self, plan):
        result = self._executor.execute(plan)
        token_ids = {}
        for request_id in result.token_ids:
            at = self._given.get(request_id, 0)
            self._given[request_id] = at + 1
            token_ids[request_id] = self._script[min(at, len(self._script) - 1)]
        return dataclasses.replace(result, token_ids=token_ids)


@pytest.fixture
def answering(tiny_model, open_tab):
    """``answering(text)`` -> a tab of a page whose model always answers ``text``, at most 50 tokens a second."""
    tabs = []
    with page_in_process(str(tiny_model), pace=0.02) as page:

        def serve(text: str):
            tokenizer = page.host.engine.loaded.tokenizer
            ids = [*tokenizer.encode(text, add_special_tokens=False), 299]
            page.loop.call(lambda e: setattr(e, "executor", ScriptedAnswers(e.executor, ids)))
            tab = open_tab(page.url)
            tabs.append(tab)
            set_number(tab, "max-tokens", "700")
            return tab

        yield serve
        for tab in tabs:
            tab.close()


def ask(tab) -> None:
    send(tab, "say it")
    assert "finished" in wait_for_answers(tab, 1)


def test_html_in_an_answer_is_text(answering):
    """P10, the other way round: the model writes it."""
    text = "<b>x</b> <angle> <script>alert(1)</script> <img src=x onerror=alert(2)> &lt; a<b [l](javascript:alert(3))"
    tab = answering(text)
    tab.evaluate("() => { window.alert = () => { window.alerted = true } }")
    ask(tab)
    shown = answer_text(tab)
    assert "<b>x</b> <angle> <script>alert(1)</script> <img src=x onerror=alert(2)> &lt; a<b" in shown
    bot = tab.locator("#chat .message.bot")
    assert bot.locator("img, script, b:not(.meta b), a[href^='javascript']").count() == 0
    assert not tab.evaluate("window.alerted")


def test_markdown_code_dollars_and_latex(answering):
    r"""P12, llama.cpp #17221, #21795, #3723."""
    code = "for i in range(3):\n    print(f'\\(x\\) $5 {i} **no**')  # <b>"
    text = (
        f"It costs **$5**, then $6. Use `a < b` and `\\(x\\)`:\n\n```python\n{code}\n```\n\n"
        "1. one\n2. two\n\nEuler: \\(e^x\\) and $$x^2$$ stay."
    )
    tab = answering(text)
    ask(tab)
    bot = tab.locator("#chat .message.bot")
    assert bot.locator("pre code").inner_text().strip("\n") == code
    assert bot.locator("strong").first.inner_text() == "$5"
    assert bot.locator("ol li").all_inner_texts() == ["one", "two"]
    assert bot.locator(".katex").count() == 0
    shown = answer_text(tab)
    for words in ("$5, then $6", "a < b", "$$x^2$$"):
        assert words in shown


def test_emoji_arrive_whole_and_newlines_stay(answering):
    """P13, gradio #9717: no half character is ever on show."""
    text = "🧱👩‍👩‍👧 Grüße, 世界 🇫🇷\n\nzweiter Absatz ✅ " + "é🎉" * 12
    tab = answering(text)
    tab.evaluate("""() => { window.bad = [];
        new MutationObserver(() => { const t = document.querySelector('#chat').innerText;
            if (t.includes('\\ufffd')) window.bad.push(t); })
        .observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true}); }""")
    ask(tab)
    assert tab.evaluate("window.bad") == []
    shown = tab.locator("#chat .message.bot").inner_text()
    assert "🧱👩‍👩‍👧 Grüße, 世界 🇫🇷" in shown
    assert "zweiter Absatz ✅ " + "é🎉" * 12 in shown
    assert tab.locator("#chat .message.bot p").count() >= 2


def test_an_open_code_fence_does_not_swallow_the_line_below(answering):
    tab = answering("Look:\n```\nnever closed\n")
    ask(tab)
    assert tab.locator("#chat .message.bot .meta").is_visible()
    assert "never closed" in tab.locator("#chat .message.bot pre").inner_text()
    assert "tok/s" not in tab.locator("#chat .message.bot pre").inner_text()


def test_stop_strings_end_the_answer_and_are_not_shown(answering):
    tab = answering("one two STOP three")
    tab.fill("#stop-strings textarea", "STOP\nnever")
    tab.press("#stop-strings textarea", "Tab")
    send(tab, "count")
    assert "ended at a stop string" in wait_for_answers(tab, 1)
    assert answer_text(tab).split("\n")[0].strip() == "one two"
    tab.wait_for_function(
        "document.querySelector('#sampling-panel-toggle').innerText.includes('2 stop strings')"
    )


def test_a_reader_who_scrolls_up_is_left_in_peace(answering):
    """P14, gradio #12044."""
    tab = answering("\n\n".join(f"line {i}" for i in range(60)))
    send(tab, "long")
    box = (
        "[...document.querySelectorAll('#chat *')].find(n => n.scrollHeight > n.clientHeight + 400 &&"
        " /auto|scroll/.test(getComputedStyle(n).overflowY))"
    )
    tab.wait_for_function(f"!!({box})")
    tab.evaluate(f"() => {{ window.box = {box}; }}")
    at_end = "window.box.scrollHeight - window.box.scrollTop - window.box.clientHeight < 4"
    assert tab.evaluate(at_end), "who does not scroll sees the newest line"
    tab.click("#sampling-panel-toggle")
    tab.wait_for_function(at_end)
    tab.hover("#chat .message.bot")
    tab.mouse.wheel(0, -5000)
    tab.wait_for_function("window.box.scrollTop < 5")
    height = tab.evaluate("window.box.scrollHeight")
    tab.wait_for_function(f"window.box.scrollHeight > {height} + 80")
    assert tab.evaluate("window.box.scrollTop") < 5
    tab.click("#stop")
    wait_until_idle(tab)


def test_empty_and_blank_prompts_send_nothing(served, open_tab):
    tab = open_tab(served.url)
    last = served.log.since()[-1].seq
    for text in ("", "   ", "\n\n \t"):
        send(tab, text)
        wait_until_idle(tab)
    set_number(tab, "max-tokens", "4")
    send(tab, "x")  # comes after them
    wait_for_answers(tab, 1)
    assert chat_texts(tab)[0] == "x"
    queued = [e for e in served.log.since(last) if isinstance(e, RequestQueued)]
    assert len(queued) == 1


def test_the_same_seed_gives_the_same_answer_in_two_tabs(served, open_tab):
    """P19: settings are a tab's own, the seed's meaning is not."""
    tabs = [open_tab(served.url) for _ in range(3)]
    for tab, seed in zip(tabs, ("11", "11", "12"), strict=True):
        set_number(tab, "max-tokens", "24")
        set_number(tab, "seed", seed)
        send(tab, "the same prompt")
    for tab in tabs:
        wait_for_answers(tab, 1, "length limit")
    one, same, other = (tab.locator("#chat .message.bot p").all_inner_texts() for tab in tabs)
    assert one == same != other


def test_a_second_enter_while_an_answer_is_written_loses_nothing(served, open_tab):
    tab = open_tab(served.url)
    send(tab, "first")
    wait_for_tokens(tab, 2)
    tab.fill("#prompt textarea", "second, too early")
    tab.press("#prompt textarea", "Enter")
    wait_for_tokens(tab, 8)
    assert tab.locator("#chat .message.user").count() == 1
    assert tab.input_value("#prompt textarea") == "second, too early"
    tab.click("#stop")
    wait_for_answers(tab, 1)
    assert tab.input_value("#prompt textarea") == "second, too early"
