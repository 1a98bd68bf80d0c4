"""The event table and the charts beside it, in a browser, over the real page."""

from __future__ import annotations

import csv
import io
import sys

import pytest

from micro_vllm.sampling.params import SamplingParams
from tests.browser.support.acting import send, wait_for_answers

pytestmark = pytest.mark.browser

ROWS = "#event-table tbody tr"
READ_ROWS = (
    "() => [...document.querySelectorAll('#event-table tbody tr')]"
    ".map(row => [...row.cells].map(cell => cell.innerText.trim()))"
)
SPEAK_OF = (
    "id => { const rows = [...document.querySelectorAll('#event-table tbody tr')];"
    "const speaks = row => [...row.querySelectorAll('.chip')].some(chip => chip.dataset.request === id);"
    "return rows.length && rows.every(speaks); }"
)
LINE_BEING_READ = (
    "() => { const top = node => Math.round(node.getBoundingClientRect().top);"
    "const box = top(document.querySelector('#event-table .scroll'));"
    "const row = [...document.querySelectorAll('#event-table tbody tr')].find(one => top(one) > box + 40);"
    "return [row.dataset.seq, top(row)]; }"
)


@pytest.fixture(autouse=True)
def quick(served):
    """Nobody has to act in the middle of an answer here."""
    served.loop.pace = 0.0


def show_table(tab) -> None:
    tab.locator("#event-table").scroll_into_view_if_needed()
    tab.wait_for_selector(ROWS)


def table_rows(tab) -> list[list[str]]:
    """step, time, kind, requests, what of each row."""
    return tab.evaluate(READ_ROWS)


def wait_for_kinds(tab, *kinds: str) -> list[list[str]]:
    tab.wait_for_function(
        "kinds => { const rows = [...document.querySelectorAll('#event-table tbody tr')];"
        "return rows.length && rows.every(r => kinds.includes(r.cells[2].innerText)); }",
        arg=list(kinds),
    )
    return table_rows(tab)


def tell(tab, text: str) -> str:
    """One short answer; its line."""
    send(tab, text)
    return wait_for_answers(tab, 1)


def at_rest(page) -> None:
    page.wait_for(lambda health: health["running"] == health["waiting"] == 0, 20)


def test_the_table_is_a_table_with_headings_and_shows_what_the_trace_says(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "hello events")
    at_rest(served)
    show_table(tab)
    assert tab.locator("#event-table th[scope=col]").all_inner_texts()[0] == "step"
    assert tab.get_by_role("region", name="Events").count() == 1
    last = served.log.since()[-1]
    tab.wait_for_function(
        "seq => Number(document.querySelector('#event-table tbody tr').dataset.seq) === seq", arg=last.seq
    )
    rows = table_rows(tab)
    steps = [int(row[0]) for row in rows]
    assert steps == sorted(steps, reverse=True)
    assert any(row[2] == "request finished" and row[4].startswith("finished after") for row in rows)
    chip = tab.locator("#event-table .chip").first
    slot = served.host.engine.replay.arrival_of(chip.get_attribute("data-request")) % 28
    assert f"req-{slot}" in chip.get_attribute("class")


def test_filters_by_family_kind_and_request(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "filter these")
    at_rest(served)
    show_table(tab)
    tab.get_by_role("button", name="prefix", exact=True).click()
    rows = wait_for_kinds(tab, "prefix lookup")
    assert all("tokens found" in row[4] for row in rows)
    tab.click("#event-kinds > summary")
    tab.get_by_label("request finished").check()
    wait_for_kinds(tab, "prefix lookup", "request finished")
    assert tab.get_by_role("button", name="requests", exact=True).get_attribute("aria-pressed") == "mixed"
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.querySelector('#event-kinds').open") is False
    newest = served.log.since()[-1]
    request_id = next(e.request_id for e in reversed(served.log.since()) if getattr(e, "request_id", None))
    tab.select_option("#event-request", request_id)
    tab.wait_for_function(
        "id => { const chips = [...document.querySelectorAll('#event-table tbody .chip')];"
        "return chips.length && chips.every(c => c.dataset.request === id); }",
        arg=request_id,
    )
    assert len(table_rows(tab)) == 2, "its lookup and its end"
    assert newest.seq > 0


def test_what_the_page_follows_the_table_follows_and_a_letter_in_it_is_followed_everywhere(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "follow me")
    at_rest(served)
    show_table(tab)
    tab.locator("#event-table .chip").first.click()
    request_id = tab.locator("#event-table .chip").first.get_attribute("data-request")
    tab.wait_for_function("id => document.querySelector('#event-request').value === id", arg=request_id)
    tab.wait_for_function(
        SPEAK_OF,
        arg=request_id,
    )
    # The charts follow too: the latency chart writes the letter of the one it follows in bold.
    tab.locator("#latency").scroll_into_view_if_needed()
    tab.wait_for_function(
        "() => { const p = document.querySelector('#latency .mv-plot');"
        "return p.layout && p.layout.yaxis.ticktext.some(t => t.startsWith('<b>')); }"
    )
    tab.evaluate("window.microVLLM.focus(null)")
    tab.wait_for_function("() => document.querySelector('#event-request').value === ''")


def test_the_table_ends_at_the_cursor_and_a_step_in_it_moves_the_cursor(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "walk back through this")
    at_rest(served)
    show_table(tab)
    tab.get_by_role("button", name="steps", exact=True).click()
    rows = wait_for_kinds(tab, "step planned", "step executed", "tokens sampled")
    step = int(rows[0][0]) - 5
    tab.locator(f'#event-table td button[data-step="{step}"]').first.click()
    tab.wait_for_function(
        "step => document.querySelector('#event-table tbody tr td').innerText.trim() === String(step)",
        arg=step,
    )
    assert max(int(row[0]) for row in table_rows(tab)) == step
    assert tab.input_value("#step-cursor") == str(step)


def test_a_reader_further_down_keeps_their_line_and_rows_stay_bounded(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "a first answer to have rows")
    at_rest(served)
    show_table(tab)
    box = tab.locator("#event-table .scroll")
    box.evaluate("node => { node.scrollTop = 300; }")
    before = tab.evaluate(LINE_BEING_READ)
    newest = tab.evaluate("document.querySelector('#event-table tbody tr').dataset.seq")
    handle = served.loop.submit({"prompt_token_ids": list(range(5, 25))}, SamplingParams(max_tokens=6))
    tab.wait_for_function(
        "seq => Number(document.querySelector('#event-table tbody tr').dataset.seq) > Number(seq) + 10",
        arg=newest,
    )
    assert tab.evaluate(LINE_BEING_READ) == before
    for _ in handle:
        pass
    handle = served.loop.submit({"prompt_token_ids": list(range(5, 25))}, SamplingParams(max_tokens=80))
    for _ in handle:
        pass
    at_rest(served)
    last = served.log.since()[-1].seq
    tab.wait_for_function(
        "seq => Number(document.querySelector('#event-table tbody tr').dataset.seq) === seq", arg=last
    )
    assert len(table_rows(tab)) == 200
    assert "newest 200 events" in tab.inner_text("#event-table .count")


def test_the_csv_holds_the_filtered_rows(served, open_tab):
    tab = open_tab(served.url)
    tell(tab, "save these as a file")
    at_rest(served)
    show_table(tab)
    tab.get_by_role("button", name="blocks", exact=True).click()
    tab.wait_for_function(
        "() => document.querySelector('#event-table tbody tr').cells[2].innerText.startsWith('block')"
    )
    with tab.expect_download() as waiting:
        tab.click("#event-csv")
    assert waiting.value.suggested_filename == "events.csv"
    with open(waiting.value.path(), encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(io.StringIO(file.read())))
    kinds = frozenset(row["kind"] for row in table)
    assert kinds <= {
        "BlocksReferenced",
        "BlocksAllocated",
        "BlocksNulled",
        "BlocksFreed",
        "BlockCached",
        "BlockEvicted",
    }
    events = served.host.engine.replay.events(kinds=kinds, limit=sys.maxsize)
    assert len(table) == len(events) > 5
    shown = table_rows(tab)
    assert [row["what"] for row in table[: len(shown)]] == [row[4] for row in shown]


def test_no_response_tells_one_tab_the_tokens_of_another(served, open_tab):
    """DESIGN 4: token ids are text. Reads the raw traffic of a tab that looks at somebody else's events."""
    mine, other = open_tab(served.url), open_tab(served.url)
    heard: list[str] = []
    other.on(
        "response", lambda r: heard.append(r.text()) if r.url.endswith(("/live", "/events.csv")) else None
    )
    show_table(other)
    tell(mine, "my own words")
    at_rest(served)
    show_table(mine)
    mine.get_by_role("button", name="steps", exact=True).click()
    wait_for_kinds(mine, "step planned", "step executed", "tokens sampled")
    assert any("; yours:" in row[4] for row in table_rows(mine))
    other.get_by_role("button", name="steps", exact=True).click()
    rows = wait_for_kinds(other, "step planned", "step executed", "tokens sampled")
    with other.expect_download():
        other.click("#event-csv")
    told = [row[4] for row in rows if row[2] == "tokens sampled"]
    assert told
    assert set(told) == {"a new token for 1 request"}
    assert len(heard) > 2
    assert not any("yours: " in text for text in heard)


def point_at(tab, x: float, y: float) -> None:
    """From beside it: a pointer that has not moved hovers over nothing."""
    tab.mouse.move(x - 1, y)
    tab.mouse.move(x, y)


def hover_last_bar(tab) -> None:
    """A chart that is drawn anew forgets what was under the pointer until it moves."""
    for _ in range(60):
        x, y = tab.evaluate(
            "() => { const bars = document.querySelectorAll('#latency .mv-plot .subplot.xy .bars .point path');"
            "const box = bars[bars.length - 1].getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; }"
        )
        point_at(tab, x, y)
        tab.wait_for_timeout(250)
        if tab.locator("#latency .hoverlayer .hovertext").count():
            return
    pytest.fail("no hover over the last bar of the latency chart")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_new_charts_are_drawn_and_a_bar_of_them_can_be_followed(served, open_tab, theme):
    tab = open_tab(served.url, color_scheme=theme)
    tell(tab, "draw my steps and blocks please, all of them")
    at_rest(served)
    for chart in ("prefix-cache", "step-budget", "latency"):
        tab.locator(f"#{chart}").scroll_into_view_if_needed()
        tab.wait_for_function(
            "id => { const p = document.querySelector(`#${id} .mv-plot`);"
            "return p.data && p.data.some(t => t.customdata && t.customdata.length > 0); }",
            arg=chart,
        )
    hover_last_bar(tab)
    tab.mouse.down()
    tab.mouse.up()
    tab.wait_for_function("() => document.querySelector('#event-request').value !== ''")
    request_id = tab.input_value("#event-request")
    tab.evaluate("window.microVLLM.focus(null)")
    tab.wait_for_function("() => document.querySelector('#event-request').value === ''")
    # A decode of the step budget is a cell of an image: it can be followed as well.
    tab.locator("#step-budget").scroll_into_view_if_needed()
    x, y = tab.evaluate(
        "() => { const p = document.querySelector('#step-budget .mv-plot'), l = p._fullLayout, t = p.data[0];"
        "const box = p.getBoundingClientRect(), column = t.z[0].length - 2;"
        "return [box.x + l.xaxis._offset + l.xaxis.c2p(t.x0 + column), box.y + l.yaxis._offset + l.yaxis.c2p(t.y0)]; }"
    )
    point_at(tab, x, y)
    tab.mouse.down()
    tab.mouse.up()
    tab.wait_for_function("id => document.querySelector('#event-request').value === id", arg=request_id)


def test_on_a_phone_the_table_has_its_own_scroll_and_the_page_none_sideways(served, open_tab):
    tab = open_tab(served.url, width=390, height=844)
    tab.locator("#event-table").scroll_into_view_if_needed()
    tab.wait_for_selector(ROWS, state="attached")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    box = tab.locator("#event-table .scroll").bounding_box()
    assert box["width"] <= 390
    assert 150 < box["height"] < 500
