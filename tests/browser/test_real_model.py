"""The page as a visitor meets it: ``python app.py`` with SmolLM2, in a real browser."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.browser.support.acting import answer_text, send, set_number, wait_for_answers
from tests.browser.support.running_page import page_as_program, wait_until_ok

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.real_model]

WATCH = """() => {
  window.nodes = [...document.querySelectorAll(':is(#kv-block-map, #scheduler-timeline, #step-budget) .mv-plot')];
  window.texts = []; window.drawn = window.nodes.map(() => 0);
  window.nodes.forEach((node, i) => node.on('plotly_afterplot', () => { window.drawn[i] += 1; }));
  new MutationObserver(() => {
    const all = document.querySelectorAll('#chat .message.bot .body');
    const text = all.length ? all[all.length - 1].textContent.trim() : '';
    if (text && text !== window.texts[window.texts.length - 1]) window.texts.push(text);
  }).observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true});
}"""


def zoom(tab, left: float, right: float) -> None:
    """As a drag over the timeline does: by Plotly's own interaction, which uirevision keeps."""
    box = tab.locator("#scheduler-timeline .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] * left, y)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * right, y, steps=4)
    tab.mouse.up()


RANGE = "document.querySelector('#scheduler-timeline .mv-plot')._fullLayout.xaxis.range.map(v => Math.round(v * 100))"


def test_a_visitor_chats_with_smollm2_and_watches(open_tab):
    with page_as_program() as (_, url):
        wait_until_ok(url, 300)
        tab = open_tab(url)
        tab.set_default_timeout(120_000)
        tab.wait_for_function("document.querySelectorAll('.mv-plot .main-svg').length >= 3")
        tab.evaluate(WATCH)
        tab.click("#sampling-panel-toggle")
        tab.click("#preset label:has-text('greedy')")
        tab.wait_for_function("document.querySelector('#temperature input').value === '0'")
        set_number(tab, "max-tokens", "500")  # seconds, also with the native kernels

        send(tab, "Write a short story about a lighthouse keeper.")
        tab.wait_for_function("window.texts.length >= 3")
        zoom(tab, 0.1, 0.4)
        zoomed = tab.evaluate(RANGE)
        assert zoomed[1] - zoomed[0] < 4000, "the drag did not zoom: the whole is 40 to 120 steps"
        drawn = tab.evaluate("window.drawn")
        tab.wait_for_function("drawn => window.drawn.every((n, i) => n >= drawn[i] + 2)", arg=drawn)
        assert tab.evaluate(RANGE) == zoomed, "a live update threw the zoom away"
        tab.locator("#scheduler-timeline .nsewdrag").first.dblclick()
        tab.wait_for_function(f"(r => r[1] - r[0] >= 4000)({RANGE})")
        wait_for_answers(tab, 1)

        texts = tab.evaluate("window.texts")
        assert len(set(texts)) >= 4, texts
        assert all(len(after) > len(before) for before, after in itertools.pairwise(texts)), texts
        assert tab.evaluate("window.nodes.every(n => n.isConnected && n.querySelector('.main-svg'))")

        send(tab, "What is the capital of France?")
        meta = wait_for_answers(tab, 2)
        assert "Paris" in answer_text(tab)
        cached, prompt = map(int, re.search(r"(\d+) of (\d+) prompt", meta).groups())
        assert 64 <= cached < prompt, meta
        tab.close()
