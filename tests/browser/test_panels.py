"""The panels below the prompt: what is on the page, folds, tooltips, and both looks."""

from __future__ import annotations

import pytest

from tests.browser.support.acting import send, wait_until_idle
from ui.panels.sampling import FIELDS

pytestmark = pytest.mark.browser

ELEM_IDS = (
    "chat", "prompt", "send", "stop", "retry", "new-chat", "system-prompt",
    "temperature", "top-p", "top-k", "min-p", "max-tokens", "seed", "repetition-penalty", "presence-penalty",
    "frequency-penalty", "stop-strings", "model", "load-model", "model-status",
    "kv-block-map", "scheduler-timeline", "kv-usage",
)  # fmt: skip
FOLDS = ("sampling-panel", "system-panel", "model-panel")


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


def test_every_sampling_control_has_a_tooltip_in_words(served, open_tab):
    tab = open_tab(served.url)
    for elem_id in (*(field.elem_id for field in FIELDS), "stop-strings"):
        tab.wait_for_selector(f"#{elem_id}[title]", state="attached")
        words = tab.get_attribute(f"#{elem_id}", "title")
        assert len(words.split()) >= 8, (elem_id, words)
        field = tab.locator(f"#{elem_id} input, #{elem_id} textarea").first
        assert field.get_attribute("aria-description") == words, (
            "screen readers do not read titles of a frame"
        )


GROUNDS = """() => ['#left', '#chat', '#chat .bubble-wrap', '#composer', '#prompt textarea', '.mv-header', '.mv-card',
    '#temperature input', 'body'].map(selector => {
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
