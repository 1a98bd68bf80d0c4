"""The panels below the prompt: what is on the page, folds, tooltips, and both looks."""

from __future__ import annotations

import pytest

from tests.browser.support.acting import send, set_number, wait_until_idle
from ui.host.engine_options import FIELDS as ENGINE_FIELDS
from ui.panels.sampling import FIELDS

pytestmark = pytest.mark.browser

ELEM_IDS = (
    "chat", "prompt", "send", "stop", "retry", "new-chat", "system-prompt",
    "temperature", "top-p", "top-k", "min-p", "max-tokens", "seed", "repetition-penalty", "presence-penalty",
    "frequency-penalty", "stop-strings", "preset", "reset-sampling", "model", "load-model", "cancel-load",
    "model-status", "num-blocks", "block-size", "max-num-seqs", "token-budget", "context-length", "prefix-caching",
    "chunked-prefill", "policy", "attention", "apply-engine", "engine-pause", "engine-step", "pace",
    "kv-block-map", "scheduler-timeline", "kv-usage",
)  # fmt: skip
FOLDS = ("sampling-panel", "system-panel", "model-panel", "engine-panel")


def test_every_control_is_on_the_page_once_from_the_start(served, open_tab):
    tab = open_tab(served.url)
    counts = {elem_id: tab.locator(f"[id='{elem_id}']").count() for elem_id in ELEM_IDS}
    assert counts == dict.fromkeys(ELEM_IDS, 1)


def test_folds_open_and_close_by_mouse_and_keyboard_and_say_so(served, open_tab):
    tab = open_tab(served.url)
    for panel in FOLDS:
        toggle = tab.locator(f"#{panel}-toggle")
        tab.wait_for_selector(f"#{panel}-toggle[aria-expanded='false'][aria-controls='{panel}']")
        assert not tab.is_visible(f"#{panel}")
        toggle.click()
        assert toggle.get_attribute("aria-expanded") == "true"
        assert tab.is_visible(f"#{panel}")
        toggle.press("Enter")
        assert not tab.is_visible(f"#{panel}")
    # What is folded away is not in the way of the Tab key.
    tab.focus("#sampling-panel-toggle")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "system-panel-toggle"
    tab.keyboard.press("Space")
    assert tab.is_visible("#system-prompt textarea")
    tab.keyboard.press("Tab")
    tab.keyboard.type("Be brief.")
    tab.wait_for_function("document.querySelector('#system-panel-toggle').innerText.includes('Be brief.')")
    assert tab.get_attribute("#system-panel-toggle", "aria-expanded") == "true", "a new label keeps it open"


def number(tab, elem_id: str) -> str:
    return tab.input_value(f"#{elem_id} input, #{elem_id} textarea")


def test_presets_fill_the_fields_and_reset_brings_the_start_back(served, open_tab):
    tab = open_tab(served.url)
    tab.click("#sampling-panel-toggle")
    for preset, temperature in (("greedy", "0"), ("creative", "1.1"), ("precise", "0.2")):
        tab.click(f"#preset label:has-text('{preset}')")
        tab.wait_for_function(f"document.querySelector('#temperature input').value === '{temperature}'")
        tab.wait_for_function(
            f"document.querySelector('#sampling-panel-toggle').innerText.includes('Sampling {preset}')"
        )
    set_number(tab, "seed", "77")
    set_number(tab, "top-k", "5")
    tab.wait_for_function("document.querySelector('#sampling-panel-toggle').innerText.includes('your own')")
    tab.click("#reset-sampling")
    tab.wait_for_function(
        "document.querySelector('#sampling-panel-toggle').innerText.trim()"
        " === 'Sampling balanced · temperature 0.7 · top-p 0.95'"
    )
    assert [number(tab, name) for name in ("temperature", "top-k", "seed", "max-tokens")] == [
        "0.7",
        "0",
        "",
        "256",
    ]


def test_a_value_out_of_range_is_refused_at_once_and_again_when_sent(served, open_tab):
    """P18, gradio #2371: type 99 into a field that allows 0 to 2."""
    tab = open_tab(served.url)
    set_number(tab, "temperature", "99")
    tab.wait_for_function("document.querySelector('#sampling-problem').innerText.includes('0 to 2')")
    send(tab, "hello")
    assert "allowed: 0 to 2" in tab.wait_for_selector(".toast-body").inner_text()
    assert tab.input_value("#prompt textarea") == "hello"
    wait_until_idle(tab)
    set_number(tab, "temperature", "2")
    tab.wait_for_selector("#sampling-problem .status", state="detached")


def test_every_sampling_control_has_a_tooltip_in_words(served, open_tab):
    tab = open_tab(served.url)
    for elem_id in (
        *(field.elem_id for field in FIELDS),
        "stop-strings",
        *(o.elem_id for o in ENGINE_FIELDS),
        "pace",
    ):
        tab.wait_for_selector(f"#{elem_id}[title]", state="attached")
        words = tab.get_attribute(f"#{elem_id}", "title")
        assert len(words.split()) >= 8, (elem_id, words)
        field = tab.locator(f"#{elem_id} input, #{elem_id} textarea").first
        assert field.get_attribute("aria-description") == words, (
            "screen readers do not read titles of a frame"
        )


GROUNDS = """() => ['#left', '#chat', '#composer', '#prompt textarea', '.mv-header', '.mv-card', '#num-blocks input',
    '#model-list', '#temperature input', 'body'].map(selector => {
  let node = document.querySelector(selector);
  for (; node; node = node.parentElement) {
    const [r, g, b, a = 1] = getComputedStyle(node).backgroundColor.match(/[\\d.]+/g).map(Number);
    if (a > 0.5) return [selector, (r + g + b) / 3 > 128 ? 'light' : 'dark'];
  }
  return [selector, 'nothing'];
})"""


@pytest.mark.parametrize("system", ["light", "dark"])
def test_every_ground_follows_the_look_whatever_the_system_prefers(served, open_tab, system):
    tab = open_tab(served.url, color_scheme=system)
    other = {"light": "dark", "dark": "light"}[system]

    def assert_all(look: str) -> None:
        tab.wait_for_function(f"({GROUNDS})().every(([, look]) => look === '{look}')")

    assert_all(system)
    send(tab, "hello")
    tab.wait_for_selector("#chat .message.bot")
    tab.click("[data-theme-toggle]")  # in the middle of an answer
    assert_all(other)
    tab.click("#stop")
    wait_until_idle(tab)
    assert_all(other)
    tab.reload()
    tab.wait_for_selector("#send")
    assert_all(other)  # the choice is kept
    tab.click("[data-theme-toggle]")
    assert_all(system)
