"""What is written is what is shown, while it streams and after; and the reader is left in peace.

How Markdown, code and formulas look is in test_rendering.py.
"""

from __future__ import annotations

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
from tests.browser.support.scripted_answers import always_answer

pytestmark = pytest.mark.browser


@pytest.fixture
def answering(tiny_model, open_tab):
    """``answering(text)`` -> a tab of a page whose model always answers ``text``, at most 50 tokens a second."""
    tabs = []
    with page_in_process(str(tiny_model), pace=0.02) as page:

        def serve(text: str, pace: float = 0.02):
            page.loop.pace = pace
            always_answer(page, text)
            tab = open_tab(page.url)
            tab.page_of_test = page
            tabs.append(tab)
            set_number(tab, "max-tokens", "700")
            return tab

        yield serve
        for tab in tabs:
            tab.close()


def ask(tab) -> None:
    send(tab, "say it")
    assert "finished" in wait_for_answers(tab, 1)


def test_emoji_arrive_whole_and_newlines_stay(answering):
    """P13, gradio #9717: no half character is ever on show."""
    text = "🧱👩‍👩‍👧 Grüße, 世界 🇫🇷\n\nzweiter Absatz ✅ " + "é🎉" * 12
    tab = answering(text)
    tab.evaluate("""() => { window.bad = [];
        new MutationObserver(() => { const t = document.querySelector('#chat .message.bot .body')?.innerText || '';
            if (t.includes('\\ufffd')) window.bad.push(t); })
        .observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true}); }""")
    ask(tab)
    assert tab.evaluate("window.bad") == []
    shown = answer_text(tab)
    assert "🧱👩‍👩‍👧 Grüße, 世界 🇫🇷" in shown
    assert "zweiter Absatz ✅ " + "é🎉" * 12 in shown
    assert tab.locator("#chat .message.bot p").count() >= 2


def test_stop_strings_end_the_answer_and_are_not_shown(answering):
    tab = answering("one two STOP three")
    tab.fill("#stop-strings textarea", "STOP\nnever")
    tab.press("#stop-strings textarea", "Tab")
    send(tab, "count")
    assert "ended at a stop string" in wait_for_answers(tab, 1)
    assert answer_text(tab).strip() == "one two"
    tab.wait_for_function(
        "document.querySelector('#sampling-panel-toggle').innerText.includes('2 stop strings')"
    )


def test_a_reader_who_scrolls_up_is_left_in_peace(answering):
    """P14, gradio #12044."""
    tab = answering("\n\n".join(f"line {i}" for i in range(60)))
    send(tab, "long")
    tab.evaluate("() => { window.box = document.querySelector('#chat .log'); }")
    tab.wait_for_function("window.box.scrollHeight > window.box.clientHeight + 400")
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


def test_who_has_just_begun_to_move_up_is_not_pulled_back(served, open_tab):
    """The browser tells of a move a frame later, and text may come before that; a wheel moves little at first."""
    tab = open_tab(served.url)
    gaps = tab.evaluate("""async () => {
        const box = document.createElement('div'), frame = () => new Promise(requestAnimationFrame);
        box.style.cssText = 'width: 90px; height: 100px; overflow: auto; position: fixed; top: 0';
        document.body.append(box);
        const end = window.microVLLM.keepAtEnd(box);
        const grow = () => {
            const line = document.createElement('p');
            line.style.cssText = 'height: 40px; margin: 0';
            box.append(line);
            end.toEnd();
            return box.scrollHeight - box.scrollTop - box.clientHeight;
        };
        const gaps = {};
        for (let i = 0; i < 9; i++) gaps.follows = grow();
        await frame();
        box.scrollTop -= 2;
        gaps.moved = grow();
        await frame();
        gaps.still = grow();
        box.scrollTop = box.scrollHeight;
        await frame();
        await frame();
        gaps.back = grow();
        await frame();
        box.dispatchEvent(new WheelEvent('wheel', { deltaY: -40 }));
        gaps.wheel = grow();
        box.replaceChildren();
        end.follow();
        for (let i = 0; i < 9; i++) gaps.anew = grow();
        box.lastChild.remove();
        await frame();
        gaps.shorter = grow();
        box.remove();
        return gaps; }""")
    assert gaps == {"follows": 0, "moved": 42, "still": 82, "back": 0, "wheel": 40, "anew": 0, "shorter": 0}


def test_the_page_does_not_go_on_typing_after_the_engine_has_finished(answering):
    """P5, textgen #6722, gradio #6847: a fast model and a long answer."""
    tab = answering("A sentence of the answer, one of many. " * 17, pace=0.0)
    tab.evaluate("""() => { window.texts = [];
        new MutationObserver(() => { const text = document.querySelector('#chat .message.bot .body')?.textContent;
            if (text !== window.texts[window.texts.length - 1]) window.texts.push(text); })
        .observe(document.querySelector('#chat .log'), {subtree: true, childList: true, characterData: true}); }""")
    page = tab.page_of_test
    send(tab, "say it all")
    page.wait_for(lambda h: h["running"] == 1, 20)
    page.wait_for(lambda h: h["running"] == 0, 60)
    texts = tab.evaluate("window.texts.length")
    wait_for_answers(tab, 1)
    # The update that was on its way when the engine finished, and the last one.
    assert tab.evaluate("window.texts.length") - texts <= 2
    assert len(answer_text(tab)) > 600


def test_a_selection_and_an_open_fold_outlive_the_stream(answering):
    """Only what has changed is touched while an answer grows."""
    tab = answering("<think>first this</think>\n\nA first paragraph.\n\n" + "more and more words " * 12)
    send(tab, "go")
    tab.wait_for_function("document.querySelector('#chat .message.bot')?.innerText.includes('more and')")
    tab.click("#chat details.think summary")
    tab.evaluate("""() => {
        const p = [...document.querySelectorAll('#chat .body > p')].find(p => p.innerText.includes('first paragraph'));
        getSelection().selectAllChildren(p);
        window.kept = p; }""")
    length = len(answer_text(tab))
    tab.wait_for_function(
        "n => document.querySelector('#chat .message.bot .body').innerText.length > n + 40", arg=length
    )
    assert tab.evaluate("getSelection().toString().trim()") == "A first paragraph."
    assert tab.evaluate("window.kept.isConnected")
    assert tab.evaluate("document.querySelector('#chat details.think').open")
    wait_for_answers(tab, 1)
    assert tab.evaluate("getSelection().toString().trim()") == "A first paragraph."
    assert tab.evaluate("document.querySelector('#chat details.think').open")


def test_a_fold_stays_as_its_reader_left_it_though_an_update_comes_at_the_same_moment(served, open_tab):
    """The browser tells of a toggle later than the click; an update between the two once closed the fold again."""
    tab = open_tab(served.url)
    found = tab.evaluate("""() => {
        const log = document.createElement('div'), view = window.microVLLM.chatView(log, {});
        document.querySelector('#chat').append(log);  // a click on a summary does nothing outside of a page
        const turn = {role: 'assistant', shown: 0, versions: [{text: ''}]};
        const show = (words, open) => {
            turn.versions[0].html = `<details ${open}><summary>thought</summary>this</details><p>${words}</p>`;
            view.sync({mode: 'completion', turns: [turn]}, turn);
            return log.querySelector('details').open; };
        show('a word', '');
        log.querySelector('summary').click();
        const opened = show('a word more', '');
        log.querySelector('summary').click();
        const closed = show('and more', 'open');
        log.remove();
        return {opened, closed}; }""")
    assert found == {"opened": True, "closed": False}


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
    one, same, other = (answer_text(tab) for tab in tabs)
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
