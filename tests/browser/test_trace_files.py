"""Traces as files, with the mouse: the recorded sample, saving, opening, dropping, and wrong files."""

from __future__ import annotations

import json

import pytest

from micro_vllm.trace import read_trace
from tests.browser.support.acting import send, set_number, wait_for_answers, wait_until_idle
from tests.browser.support.clock import assert_charts_show, readout, wait_for_step, watch_steps
from tests.browser.test_clock import PLACES, pressed
from ui.charts.focus import Focus
from ui.replay import Replay
from ui.server import SAMPLE_TRACE
from ui.story.event_list import EventList

pytestmark = pytest.mark.browser
DROP = """async ([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    const target = document.querySelector('#kv-block-map .mv-plot'), right = document.querySelector('#right');
    const happens = kind =>
        target.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: data }));
    // The page answers as soon as its scripts are there: maybe a moment after the first chart.
    for (happens('dragenter'); !right.classList.contains('mv-drop'); happens('dragenter'))
        await new Promise(requestAnimationFrame);
    happens('dragover');
    happens('drop');
}"""


def save(tab, button: str):
    tab.click("#trace-menu > summary")
    with tab.expect_download() as waiting:
        tab.click(f"#{button}")
    return waiting.value


def test_the_sample_is_walked_through_before_the_first_prompt(served, open_tab):
    tab = open_tab(served.url)
    watch_steps(tab)
    assert tab.is_visible(".mv-sample")
    replay = Replay(EventList.read(SAMPLE_TRACE), is_sample=True)
    clock = replay.clock()
    assert all(clock.marks[kind] for kind in ("preempted", "hit", "evicted")), (
        "the sample shows what there is to see"
    )
    assert tab.inner_text("#live .word") == "end"
    for kind in ("preempted", "hit", "evicted"):
        tab.select_option("#jump-kind", kind)
        tab.click("#live")
        wait_for_step(tab, clock.last_step)
        tab.click("#jump-back")
        step = [s for s in clock.marks[kind] if s < clock.last_step][-1]
        wait_for_step(tab, step)
        assert_charts_show(tab, replay.view(step))
    signs = {
        kind: tab.locator(f"#clock .t-{kind}").first.inner_text() for kind in ("preempted", "hit", "evicted")
    }
    assert len(set(signs.values())) == 3, "told apart by shape, not by colour alone"
    assert not tab.is_visible("#clock-note"), "no engine goes on behind a sample"


def test_a_trace_is_saved_opened_walked_through_and_closed_while_the_engine_goes_on(
    served, open_tab, tmp_path
):
    tab = open_tab(served.url)
    watch_steps(tab)
    set_number(tab, "max-tokens", "12")
    send(tab, "Write this down")
    wait_for_answers(tab, 1)
    saved = save(tab, "save-trace")
    assert saved.suggested_filename == "trace.jsonl"
    path = tmp_path / "lesson 1.jsonl"
    saved.save_as(path)
    events = list(read_trace(path))
    assert [e.seq for e in events] == [e.seq for e in served.log.since()]
    perfetto = save(tab, "save-perfetto")
    assert json.loads(perfetto.path().read_text())["traceEvents"]

    send(tab, "The engine goes on")
    wait_for_answers(tab, 2)
    replay = Replay(EventList.read(path))
    last = replay.clock().last_step
    assert served.host.replay().clock().last_step > last
    places = tab.evaluate(PLACES)
    tab.set_input_files("#open-trace", path)
    tab.wait_for_selector("#clock-note:not([hidden])")
    assert tab.inner_text("#clock-note .words") == f"lesson 1.jsonl · {last} steps · opened file"
    wait_for_step(tab, last)
    assert tab.evaluate(PLACES) == places
    mine = Focus(frozenset(track.request_id for track in replay.view().requests))
    assert_charts_show(tab, replay.view(), mine)
    tab.click("#step-back")
    wait_for_step(tab, last - 1)
    assert_charts_show(tab, replay.view(last - 1), mine)
    assert f"looking at step {last - 1}" in tab.inner_text("#clock-note .words")

    other = open_tab(served.url)
    assert not other.is_visible("#clock-note"), "only the tab that opened it sees it"
    other.close()
    set_number(tab, "max-tokens", "6")
    send(tab, "And on")
    wait_for_answers(tab, 3)
    assert readout(tab) == (last - 1, last)
    tab.click("#close-trace")
    wait_for_step(tab, served.host.replay().clock().last_step)
    assert pressed(tab, "live")
    assert not tab.is_visible("#clock-note")


def test_a_file_is_dropped_on_the_charts(served, open_tab):
    tab = open_tab(served.url)
    tab.evaluate(DROP, ["dropped.jsonl", SAMPLE_TRACE.read_text()])
    tab.wait_for_selector("#clock-note:not([hidden])")
    assert tab.inner_text("#clock-note .words").startswith("dropped.jsonl · 118 steps")
    assert "mv-drop" not in tab.get_attribute("#right", "class")
    tab.click("#close-trace")
    tab.wait_for_selector("#clock-note", state="hidden")


def test_an_answer_about_the_engine_that_comes_after_a_file_was_opened_does_not_close_it(served, open_tab):
    """It was taken for the news that the file is gone from the server: now and then a dropped file did not show."""
    tab = open_tab(served.url)
    held, is_open = [], []
    tab.route("**/live", lambda route: route.continue_() if is_open else held.append(route))
    with tab.expect_request("**/live"):
        pass
    with tab.expect_response("**/trace/open"):
        tab.evaluate(DROP, ["dropped.jsonl", SAMPLE_TRACE.read_text()])
    tab.wait_for_function("microVLLM.source() === 'file'")
    is_open.append(True)
    for route in held:
        route.continue_()
    tab.wait_for_selector("#clock-note:not([hidden])")
    assert "not on the server" not in tab.inner_text("#clock-status")
    tab.click("#close-trace")
    tab.wait_for_selector("#clock-note", state="hidden")


def test_wrong_files_are_told_in_plain_words_and_nothing_else_changes(served, open_tab):
    tab = open_tab(served.url, expect_refusal=400)
    tab.fill("#prompt textarea", "half a thought")
    for name, text in (
        ("photo.jsonl", "\x00\x01"),
        ("chat.json", '{"messages": []}'),
        ("<img src=x onerror=alert(1)>.jsonl", ""),
    ):
        tab.evaluate(DROP, [name, text])
        tab.wait_for_selector("#trace-error:not([hidden])")
        words = tab.inner_text("#trace-error .words")
        assert "trace" in words
        assert tab.locator("#trace-error img").count() == 0
        tab.click("#trace-error button")
        assert not tab.is_visible("#trace-error")
    assert tab.input_value("#prompt textarea") == "half a thought"
    assert not tab.is_visible("#clock-note")
    send(tab, "and the page works")
    wait_until_idle(tab)


def test_a_trace_that_the_server_no_longer_has_is_told_and_the_engine_is_shown(served, open_tab):
    tab = open_tab(served.url)
    tab.evaluate(DROP, ["mine.jsonl", SAMPLE_TRACE.read_text()])
    tab.wait_for_selector("#clock-note:not([hidden])")
    token = tab.evaluate("window.microVLLM.viewer()")
    tab.evaluate(
        "token => fetch('trace/close', { method: 'POST', headers: { 'X-Viewer': token } }).then(() => null)",
        token,
    )
    tab.wait_for_function(
        "document.querySelector('#clock-status').innerText.includes('not on the server any more')"
    )
    tab.wait_for_selector("#clock-note", state="hidden")
