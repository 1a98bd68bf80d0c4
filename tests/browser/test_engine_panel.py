"""Model and engine panels on the real page: loads, rebuilt engines, and the engine's own clock."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request

import pytest

from micro_vllm.model_loader import load_model
from micro_vllm.model_loader.fetch import FetchProgress
from tests.browser.support.acting import (
    answer_text,
    chat_texts,
    send,
    set_number,
    wait_for_answers,
    wait_for_tokens,
)
from tests.browser.support.running_page import page_in_process

pytestmark = pytest.mark.browser

TEXT = "document.querySelector('{}').innerText.includes('{}')"


def open_panel(tab, panel: str) -> None:
    toggle = f"#{panel}-toggle"
    tab.wait_for_selector(f"{toggle}[aria-expanded]")
    if tab.get_attribute(toggle, "aria-expanded") == "false":
        tab.click(toggle)


def wait_for_text(tab, selector: str, words: str) -> None:
    tab.wait_for_function(TEXT.format(selector, words))


def fill(tab, elem_id: str, value: str) -> None:
    tab.fill(f"#{elem_id} input", value)
    tab.press(f"#{elem_id} input", "Tab")


def pick(tab, elem_id: str, value: str) -> None:
    tab.click(f"#{elem_id} input")
    tab.click(f"[role=option]:has-text('{value}')")


@pytest.fixture
def page(tiny_model):
    with page_in_process(str(tiny_model), pace=0.03) as page:
        yield page


def test_apply_rebuilds_the_engine_while_an_answer_streams(page, open_tab):
    tab, other = open_tab(page.url), open_tab(page.url)
    loaded = page.host.engine.loaded
    set_number(tab, "max-tokens", "900")
    send(tab, "Go on and on")
    wait_for_tokens(tab, 8)
    page.loop.pace = 0.25  # so that it cannot be over before Apply is pressed, however busy the machine
    open_panel(tab, "engine-panel")
    fill(tab, "num-blocks", "64")
    wait_for_text(tab, "#engine-summary", "1,024 tokens")
    wait_for_text(tab, "#engine-summary", "MB of memory · not applied yet")
    pick(tab, "policy", "priority")
    tab.click("#prefix-caching input")
    tab.click("#apply-engine")
    page.wait_for(lambda health: health["num_blocks"] == 64, 20)
    assert page.host.engine.loaded is loaded
    info = page.loop.engine.info
    assert (info.policy, info.config["enable_prefix_caching"]) == ("priority", False)

    # Who was being answered is told, and keeps what came so far.
    tab.wait_for_function("document.querySelector('#chat').innerText.includes('rebuilt with other settings')")
    assert len(chat_texts(tab)) == 2
    assert len(answer_text(tab)) > 8
    # All tabs show the new engine: header, panel, and 64 empty blocks, not the sample.
    for one in (tab, other):
        one.wait_for_function("document.querySelector('[data-head=total]').textContent === '64'")
        wait_for_text(one, "#engine-panel-toggle", "64 blocks × 16 · budget 256 · prefix cache off")
        one.wait_for_function("document.querySelector('#num-blocks input').value === '64'")
        one.wait_for_selector(".mv-sample", state="hidden")
    wait_for_text(tab, "#engine-summary", "1,024 tokens")
    assert "not applied" not in tab.inner_text("#engine-summary")
    # And it answers.
    page.loop.pace = 0
    set_number(other, "max-tokens", "6")
    send(other, "and now?")
    other.wait_for_function("document.querySelector('#chat').innerText.includes('length limit')")
    page.loop.check_integrity()


def test_wrong_options_are_refused_with_the_range_and_the_engine_stays(page, open_tab):
    """P18, gradio #2371."""
    tab = open_tab(page.url)
    engine = page.host.engine
    open_panel(tab, "engine-panel")
    for elem_id, value, words in (
        ("num-blocks", "0", "allowed: 1 to 8,192"),
        ("context-length", "5000", "allowed: 2 to 1,024"),
        ("max-num-seqs", "", "seats"),
    ):
        before = tab.input_value(f"#{elem_id} input")
        fill(tab, elem_id, value)
        wait_for_text(tab, "#engine-summary", words)
        tab.click("#apply-engine")
        wait_for_text(tab, "#engine-status", "Not applied")
        wait_for_text(tab, "#engine-status", words)
        fill(tab, elem_id, before)
    assert page.host.engine is engine
    fill(tab, "num-blocks", "32")
    tab.click("#engine-defaults")
    tab.wait_for_function("document.querySelector('#num-blocks input').value === '256'")
    assert page.host.engine is engine


def test_a_paused_engine_says_so_and_goes_step_by_step(page, open_tab):
    tab = open_tab(page.url)
    set_number(tab, "max-tokens", "30")
    open_panel(tab, "engine-panel")
    tab.click("#engine-pause")
    wait_for_text(tab, "#engine-pause", "Resume")
    wait_for_text(tab, "#engine-panel-toggle", "paused: press Resume or One step")
    wait_for_text(tab, "#pace-words", "The engine is paused")
    tab.wait_for_function("document.querySelector('#prompt textarea').placeholder.includes('paused')")
    send(tab, "Go on")
    page.wait_for(lambda health: health["waiting"] == 1, 10)
    for count in range(1, 6):
        tab.click("#engine-step")
        page.wait_for(lambda health: health["running"] == 1, 10)
        wait_for_tokens(tab, count)
    assert page.host.view().executed_step == 5
    # Another tab sees it too, and its button resumes.
    other = open_tab(page.url)
    open_panel(other, "engine-panel")
    wait_for_text(other, "#engine-pause", "Resume")
    other.click("#engine-pause")
    wait_for_answers(tab, 1, "length limit")
    wait_for_text(tab, "#engine-pause", "Pause engine")
    tab.wait_for_function("document.querySelector('#prompt textarea').placeholder.includes('Ask')")
    tab.click("#engine-step")
    wait_for_text(tab, "#pace-words", "nothing to compute: send a prompt")


def test_the_pace_slows_the_engine_and_99_is_refused(page, open_tab):
    """P18, gradio #2371: type 99 into a field that allows 0 to 2."""
    tab = open_tab(page.url)
    open_panel(tab, "engine-panel")
    fill(tab, "pace", "0.2")
    wait_for_text(tab, "#pace-words", "now: 5 steps a second at most")
    wait_for_text(tab, "#engine-panel-toggle", "5 steps a second at most")
    assert page.loop.pace == 0.2
    fill(tab, "pace", "99")
    wait_for_text(tab, "#pace-words", "allowed: 0 to 2 seconds a step")
    assert page.loop.pace == 0.2
    fill(tab, "pace", "0")
    wait_for_text(tab, "#pace-words", "full speed")
    assert page.loop.pace == 0


def test_a_load_shows_how_far_it_is_and_can_be_cancelled(tiny_model, serve_page, open_tab):
    go_on = threading.Event()

    def load(name, progress):
        if name == str(tiny_model):
            return load_model(name, progress=progress)
        while not go_on.is_set():
            progress(FetchProgress("Downloading it", 40, 100))
            time.sleep(0.02)
        return load_model(str(tiny_model), progress=progress)

    page = serve_page(load=load)
    page.wait_for(lambda health: health["status"] == "ok", 60)
    tab = open_tab(page.url)
    engine = page.host.engine
    open_panel(tab, "model-panel")
    assert tab.is_disabled("#cancel-load")
    tab.click("#model-list button[data-model='Qwen3-0.6B']")
    tab.wait_for_function("document.querySelector('#model input').value === 'Qwen3-0.6B'")
    tab.click("#load-model")
    wait_for_text(tab, "#model-status", "Downloading it · 40%")
    wait_for_text(tab, '#model-list tr[data-row="Qwen3-0.6B"]', "loading 40%")
    assert float(tab.get_attribute("#model-status progress", "value")) == pytest.approx(0.4)
    wait_for_text(tab, "#model-panel-toggle", "loading Qwen3-0.6B")
    assert tab.is_disabled("#load-model")
    set_number(tab, "max-tokens", "6")
    send(tab, "the old one answers meanwhile")
    wait_for_answers(tab, 1, "length limit")
    tab.click("#cancel-load")
    wait_for_text(tab, "#model-status", "Loading Qwen3-0.6B was cancelled. tiny-llama still answers.")
    tab.wait_for_function("document.querySelector('#load-model').disabled === false")
    wait_for_text(tab, '#model-list tr[data-row="Qwen3-0.6B"]', "to download")
    assert tab.is_disabled("#cancel-load")
    assert page.host.engine is engine
    # The next load is not cancelled by the last one's word.
    go_on.set()
    tab.click("#load-model")
    page.wait_for(lambda health: page.host.engine is not engine, 30)
    wait_for_text(tab, "#model-status", "is ready")


def test_what_cannot_be_loaded_is_told_in_the_panel(page, tmp_path, open_tab):
    tab = open_tab(page.url)
    open_panel(tab, "model-panel")
    for name, words in (
        (str(tmp_path), "config.json is missing"),
        ("no such model", "there is no model 'no such model'"),
    ):
        tab.fill("#model input", name)
        tab.press("#model input", "Enter")
        tab.click("#load-model")
        tab.wait_for_function(
            "words => document.querySelector('#model-status').innerText.includes(words)", arg=words
        )
    assert page.health()["status"] == "ok"


def test_the_list_tells_licence_size_and_state_of_each_model(page, open_tab):
    tab = open_tab(page.url)
    open_panel(tab, "model-panel")
    rows = tab.locator("#model-list tbody tr").all_inner_texts()
    assert len(rows) == 3
    for row in rows:
        assert "Apache-2.0" in row
        assert re.search(r"\d (MB|GB)", row)
        assert re.search(r"here|answers|to download", row)
    # By keyboard, too.
    tab.focus("#model-list button[data-model='TinyMistral-248M-Chat']")
    tab.keyboard.press("Enter")
    tab.wait_for_function("document.querySelector('#model input').value === 'TinyMistral-248M-Chat'")


def test_the_panels_fit_a_phone(page, open_tab):
    tab = open_tab(page.url, width=390, height=844)
    for panel in ("sampling-panel", "model-panel", "engine-panel"):
        open_panel(tab, panel)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        wide = tab.evaluate(
            "panel => { const box = document.querySelector('#panels'); const right = box.getBoundingClientRect().right;"
            "return [...document.querySelectorAll(`#${panel} input, #${panel} button, #${panel} td, #${panel} p`)]"
            ".filter(n => n.offsetParent && n.getBoundingClientRect().right > right + 1)"
            ".map(n => n.outerHTML.slice(0, 80)); }",
            panel,
        )
        assert wide == []
        tab.click(f"#{panel}-toggle")


def test_a_shared_servers_panels_are_read_only(serve_page, open_tab):
    page = serve_page(is_hosted=True, num_blocks=48)
    tab = open_tab(page.url)
    open_panel(tab, "engine-panel")
    tab.wait_for_function("document.querySelector('#num-blocks input').value === '48'")
    for elem_id in ("num-blocks", "block-size", "context-length", "token-budget", "max-num-seqs"):
        assert tab.is_disabled(f"#{elem_id} input")
    for elem_id in ("prefix-caching", "chunked-prefill", "policy", "attention"):
        assert tab.is_disabled(f"#{elem_id} input")
    for elem_id in ("engine-pause", "engine-step", "pace", "apply-engine", "engine-defaults"):
        assert tab.locator(f"#{elem_id}").count() == 0
    # Not even for a client that sends what no page of it does.
    with urllib.request.urlopen(page.url + "config", timeout=20) as answer:
        names = {event["api_name"] for event in json.load(answer)["dependencies"]}
    assert "refresh" in names
    assert not names & {"on_apply", "on_defaults", "on_pause", "on_step", "on_pace", "on_pick"}
    open_panel(tab, "model-panel")
    for selector in ("#load-model", "#cancel-load", "#model input"):
        assert tab.is_disabled(selector)
    assert tab.locator("#model-list button").count() == 0
