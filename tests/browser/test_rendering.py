"""Answers on the page: Markdown, code, tables, formulas and thoughts, while they stream and after; prompts as typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.browser.support.acting import send, set_number, wait_for_answers
from tests.browser.support.running_page import RunningPage, page_in_process
from tests.browser.support.scripted_answers import always_answer

pytestmark = pytest.mark.browser

BODY = "#chat .message.bot .body"


@pytest.fixture(scope="module")
def scripted(tiny_model) -> Iterator[RunningPage]:
    with page_in_process(str(tiny_model), pace=0.01) as page:
        yield page


@pytest.fixture
def answered(scripted, open_tab) -> Callable:
    """``answered(text)`` -> a tab whose chat holds one finished answer, ``text``. ``watch`` runs before it is asked."""

    def answer(text: str, *, watch: str = "", prompt: str = "say it", **options):
        always_answer(scripted, text)
        tab = open_tab(scripted.url, **options)
        set_number(tab, "max-tokens", "900")
        if watch:
            tab.evaluate(watch)
        send(tab, prompt)
        assert "finished" in wait_for_answers(tab, 1)
        return tab

    return answer


def test_a_prompt_is_shown_as_typed_and_runs_nothing(answered):
    """P10: gradio #7198, #10709, #10851."""
    prompt = (
        "<b>x</b> <angle> <script>window.ran = 1</script> <img src=x onerror='window.ran = 2'>\n"
        "  two  blanks $5 **no**"
    )
    tab = answered("Fine.", prompt=prompt)
    assert tab.locator("#chat .message.user .body").inner_text() == prompt
    assert tab.locator("#chat .message.user").locator("b, img, script, strong").count() == 0
    assert tab.evaluate("window.ran") is None


def test_html_in_an_answer_is_text_and_runs_nothing(answered):
    text = (
        "<b>x</b> <script>window.ran = 1</script> <img src=x onerror='window.ran=2'> [l](javascript:window.ran=3) "
        "\\(\\text{<img src=x onerror=window.ran=4>}\\)"
    )
    tab = answered(text)
    body = tab.locator(BODY)
    assert body.locator("img, script, b, a").count() == 0
    assert "<img src=x onerror='window.ran=2'>" in body.inner_text()
    assert tab.evaluate("window.ran") is None


CONTRAST = """node => {
  const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
  const share = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * share(r) + 0.7152 * share(g) + 0.0722 * share(b);
  const isClear = (n) => (rgb(getComputedStyle(n).backgroundColor)[3] ?? 1) === 0;
  let ground = node;
  while (isClear(ground)) ground = ground.parentElement;
  const colors = [getComputedStyle(node).color, getComputedStyle(ground).backgroundColor];
  const [high, low] = colors.map((c) => light(rgb(c))).sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05); }"""
CODE = 'def f(x: int) -> str:\n    """Docs."""\n    return f"\\(x\\) $5 {x} **no**" + str(3.5)  # <b> & c\n'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_is_untouched_coloured_and_readable(answered, scheme):
    """P12, llama.cpp #17221, #21795."""
    tab = answered(f"Look:\n\n```python\n{CODE}```\n\nDone with `a<b`.", color_scheme=scheme)
    body = tab.locator(BODY)
    assert body.locator("pre code").text_content() == CODE
    assert body.locator(".code-head").inner_text().startswith("python")
    pieces = body.locator("pre span")
    kinds = set(pieces.evaluate_all("nodes => nodes.map(n => n.className)"))
    assert {"hl-keyword", "hl-function", "hl-string", "hl-comment", "hl-number"} <= kinds
    for index in range(pieces.count()):
        assert pieces.nth(index).evaluate(CONTRAST) >= 4.5
    assert len(set(pieces.evaluate_all("nodes => nodes.map(n => getComputedStyle(n).color)"))) >= 4
    assert body.locator("p code").evaluate(CONTRAST) >= 4.5


def test_formulas_are_set_and_prices_are_prices(answered):
    """P12, llama.cpp #3723."""
    tab = answered(
        "It costs $5 and $10.\n\nSo \\(x_1\\) and\n\n\\[\n\\frac{a}{b} = \\sqrt{2}\n\\]\n\nbut \\(\\frac{\\) is not."
    )
    body = tab.locator(BODY)
    assert "It costs $5 and $10." in body.inner_text()
    assert body.locator("math").count() == 2
    fraction = body.locator("mfrac")
    parts = fraction.locator("mi").evaluate_all("nodes => nodes.map(n => n.getBoundingClientRect().toJSON())")
    assert parts[0]["bottom"] <= parts[1]["top"] + 1, "the browser sets the one above the other"
    assert body.locator("code.tex").inner_text() == "\\frac{"


def test_tables_links_and_pictures(answered):
    tab = answered(
        "| a | b |\n|---|--:|\n| 1 | 2 |\n\n[page](https://example.org/x) ![shot](https://example.org/y.png)"
    )
    body = tab.locator(BODY)
    assert body.locator("td").all_inner_texts() == ["1", "2"]
    assert body.locator("td").nth(1).evaluate("n => getComputedStyle(n).textAlign") == "right"
    for link, address in zip(
        body.locator("a").all(), ("https://example.org/x", "https://example.org/y.png"), strict=True
    ):
        assert link.get_attribute("href") == address
        assert {"noopener", "nofollow"} <= set(link.get_attribute("rel").split())
        assert link.get_attribute("target") == "_blank"
    assert body.locator("img").count() == 0  # open_tab fails if another host is asked


WATCH = """() => { window.seen = [];
  new MutationObserver(() => { const n = document.querySelector('#chat .message.bot .body');
    const isOpen = (d) => d.open;
    if (n) window.seen.push({ text: n.innerText, open: [...n.querySelectorAll('details')].map(isOpen) }); })
  .observe(document.querySelector('#chat'),
    { subtree: true, childList: true, characterData: true, attributes: true }); }"""


def test_a_thought_is_open_while_it_is_thought_and_folded_after(answered):
    """P11: what comes after is visible."""
    thought = "Let me think about it for a while, word by word. " * 3
    tab = answered(
        f"<think>\n{thought}\n</think>\n\nThe answer is **4**, and that is all there is to say about it.",
        watch=WATCH,
    )
    seen = tab.evaluate("window.seen")
    assert any(one["open"] == [True] and "word by word" in one["text"] for one in seen)
    assert not any("<think" in one["text"] or "</think" in one["text"] for one in seen)
    details = tab.locator(f"{BODY} details.think")
    assert details.get_attribute("open") is None
    assert "thought for" in details.locator("summary").inner_text()
    assert tab.locator(f"{BODY} > p").inner_text().startswith("The answer is 4")
    details.locator("summary").click()
    assert details.locator("p").is_visible()


def test_a_thought_that_never_ends_leaves_its_text_on_show(answered):
    """P11, open-webui #9421."""
    tab = answered("<think>\nMaybe the answer is 4")
    assert tab.locator(f"{BODY} details.think p").is_visible()
    assert tab.locator("#chat .meta").is_visible()


def test_marks_never_show_while_an_answer_streams(answered):
    """P13, gradio #9717: no half marks, and line breaks as in the finished text."""
    text = (
        "Roses are **red and bold**,\nviolets are *blue*.\n\n```python\nx = 1  # one\n```\n\n"
        "| name | size |\n|------|------|\n| a | b |\n\n- first `code` item\n- second [link](https://example.org/a)\n\n"
        "The end \\(x^2\\) is near."
    )
    tab = answered(text, watch=WATCH)
    seen = [one["text"] for one in tab.evaluate("window.seen")]
    assert len(seen) > 10
    for shown in seen:
        for marks in ("**", "`", "|", "](", "\\(", "---"):
            assert marks not in shown, (marks, shown)
    rows = [one.split("\n")[:2] for one in seen if "violets" in one]
    assert all(row[0] == "Roses are red and bold," and row[1].startswith("violets") for row in rows)
    assert seen[-1] == tab.locator(BODY).inner_text()


def test_long_lines_of_code_scroll_by_themselves_on_a_phone(answered):
    tab = answered(
        "```\n" + "x" * 300 + "\n```\n\n| " + " | ".join(["wide column"] * 12) + " |\n" + "|--" * 12 + "|\n",
        width=390,
        height=844,
    )
    assert tab.evaluate(
        "document.querySelector('#chat .log').scrollWidth <= document.querySelector('#chat .log').clientWidth"
    )
    for box in (f"{BODY} pre", f"{BODY} .table"):
        assert tab.locator(box).evaluate("n => n.scrollWidth > n.clientWidth && n.tabIndex === 0")
