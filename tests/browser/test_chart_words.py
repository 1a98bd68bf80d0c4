"""The words beside the plots, which are HTML, and pictures that are saved, which have to hold them all the same."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.browser.support.acting import send, set_number, wait_for_answers, wait_until_idle

pytestmark = pytest.mark.browser

CHARTS = ("prefix-cache", "step-budget", "kv-usage", "latency")
WORDS = """id => {
    const box = document.querySelector(`#${id} .mv-plot`), outer = box.getBoundingClientRect();
    return [...box.querySelectorAll(".mv-words span")].filter(span => span.parentNode.className === "mv-words")
        .map(span => { const r = span.getBoundingClientRect();
            return { text: span.innerText, left: r.left - outer.left, right: r.right - outer.left,
                     top: r.top - outer.top, bottom: r.bottom - outer.top,
                     width: outer.width, height: outer.height }; });
}"""


def figure_words(tab, chart: str) -> list[str]:
    """Of the figure, without their markup: the annotations that are tied to the paper, and the names of rows."""
    layout = tab.evaluate("id => microVLLM.figure(id).figure.layout", chart)
    notes = [n for n in layout["annotations"] if n.get("visible", True) and n.get("yref") == "paper"]
    texts = [note["text"].replace("<br>", "\n") for note in notes if not note.get("bgcolor")]
    for name, axis in layout.items():
        if name.startswith("yaxis") and "ticktext" in axis:
            low, high = sorted(axis["range"])
            names = zip(axis["ticktext"], axis["tickvals"], strict=True)
            texts += [text for text, value in names if low <= value <= high]
    return [re.sub(r"</?(b|span)[^>]*>", "", text) for text in texts]


@pytest.mark.parametrize("width", [1440, 390])
def test_they_are_those_of_the_figure_inside_the_chart_and_clear_of_each_other(served, open_tab, width):
    tab = open_tab(served.url, width=width, height=960)
    set_number(tab, "max-tokens", "12")
    send(tab, "a few words")
    wait_for_answers(tab, 1)
    for chart in CHARTS:
        if width < 860:
            tab.click(f'.mv-tabs button[data-chart="{chart}"]')
        tab.locator(f"#{chart}").scroll_into_view_if_needed()
        tab.wait_for_function(
            "id => document.querySelectorAll(`#${id} .mv-words span`).length > 0", arg=chart
        )
        tab.wait_for_timeout(300)  # the last answer's figure
        words = tab.evaluate(WORDS, chart)
        assert [one["text"] for one in words] == figure_words(tab, chart), chart
        for one in words:
            assert -1 <= one["left"] <= one["right"] <= one["width"] + 1, (chart, one)
            # Lines are 1.3 times as high as their letters, and padded: air may be shared, or stand out.
            assert -4 <= one["top"] <= one["bottom"] <= one["height"] + 4, (chart, one)
        for one, other in itertools.combinations(words, 2):
            apart = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
            below = one["bottom"] <= other["top"] + 5 or other["bottom"] <= one["top"] + 5
            assert apart or below, (chart, one, other)


def test_of_what_looks_like_markup_only_that_of_plotly_is(served, open_tab):
    tab = open_tab(served.url)
    tab.wait_for_selector("#kv-usage .mv-words span")
    shown = tab.evaluate(
        """() => { const box = document.createElement("div"), font = { family: "sans-serif", size: 12, color: "red" };
        const note = { xref: "paper", yref: "paper", x: 0, y: 1, showarrow: false, font,
            text: 'a <b>bold</b> <span style="color:#0b7a6b">x</span><br><img src=x onerror=alert(1)> & </b><i>i</i>' };
        microVLLM.chartWords(box)({ annotations: [note, { ...note, visible: false }, { ...note, yref: "y" }],
            margin: { l: 0, r: 0, t: 0, b: 0 } }, 100, 50);
        return box.querySelector(".mv-words").innerHTML.replace(/^<span style="[^"]*">/, "<span>"); }"""
    )
    assert shown == (
        '<span>a <b>bold</b> <span style="color: rgb(11, 122, 107);">x</span><br>'
        "&lt;img src=x onerror=alert(1)&gt; &amp; &lt;i&gt;i&lt;/i&gt;</span>"
    )


def test_a_saved_picture_has_the_words_too(served, open_tab):
    tab = open_tab(served.url)
    set_number(tab, "max-tokens", "12")
    send(tab, "a few words")
    wait_for_answers(tab, 1)
    tab.evaluate(
        """() => { const download = Plotly.downloadImage;
        Plotly.downloadImage = (figure, how) => {
            window.saved = figure.layout.annotations;
            return download(figure, how);
        }; }"""
    )
    tab.hover("#kv-usage .mv-plot")
    with tab.expect_download() as download:
        tab.click('#kv-usage .modebar-btn[data-title="Save as a picture"]')
    assert download.value.suggested_filename == "kv-usage.png"
    picture = download.value.path().read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width = int.from_bytes(picture[16:20], "big")
    assert width == 2 * tab.evaluate("microVLLM.figure('kv-usage').width")
    assert any("in use" in note["text"] for note in tab.evaluate("window.saved"))


def test_questions_come_early_while_something_happens_and_at_once_when_somebody_acts(served, open_tab):
    """A question that comes before its frame waits for it; what a visitor does must not."""
    tab = open_tab(served.url)
    asked: list[tuple[bool, bool]] = []

    def note(request) -> None:
        if request.url.endswith("/live"):
            question = request.post_data_json
            asked.append((question["early"], "focus" in question and question["focus"] is not None))

    tab.on("request", note)
    send(tab, "a few words")
    tab.wait_for_function("document.querySelector('[data-head=running]').textContent !== '0'")
    tab.wait_for_timeout(1000)
    assert sum(is_early for is_early, _ in asked) >= 3
    request_id = served.host.view().requests[-1].request_id
    tab.evaluate("id => microVLLM.focus({ request: id })", request_id)
    tab.wait_for_selector("#focus-card:not([hidden])")
    first = next(is_early for is_early, has_focus in asked if has_focus)
    assert not first
    tab.click("#stop")
    wait_until_idle(tab)
