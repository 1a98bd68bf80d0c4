"""What axe-core finds on the page (WCAG 2.1 A and AA), in every room, light and dark, wide and on a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.support.acting import send, set_number, wait_for_answers

pytestmark = pytest.mark.browser

ROOMS = ("chat", "compare", "workload", "tokens")
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}


def serious(tab) -> list[str]:
    """Serious and critical violations, each with its rule and where it is."""
    found = Axe().run(tab, options=RULES).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} ({node.get('failureSummary', '')[:200]})"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.fixture(params=["light", "dark"])
def used_tab(request, served, open_tab):
    """A page after one answer, so that charts, strip and meta line have something in them."""
    tab = open_tab(served.url, color_scheme=request.param)
    set_number(tab, "max-tokens", "12")
    send(tab, "Is this page for everybody?")
    wait_for_answers(tab, 1)
    return tab


def test_no_room_has_a_serious_violation(used_tab):
    found = []
    for room in ROOMS:
        used_tab.evaluate("name => microVLLM.room(name)", room)
        found += [f"{room}: {words}" for words in serious(used_tab)]
    assert found == []


def test_open_folds_and_the_help_sheet_have_none(used_tab):
    for toggle in ("sampling-panel", "system-panel", "model-panel", "engine-panel"):
        if used_tab.get_attribute(f"#{toggle}-toggle", "aria-expanded") != "true":
            used_tab.click(f"#{toggle}-toggle")
    assert serious(used_tab) == []
    used_tab.click("#help-toggle")
    used_tab.wait_for_selector(".mv-sheet[open]")
    assert serious(used_tab) == []


def test_a_phone_has_none(served, open_tab):
    tab = open_tab(served.url, width=390, height=844)
    found = []
    for room in ROOMS:
        tab.evaluate("name => microVLLM.room(name)", room)
        found += [f"{room}: {words}" for words in serious(tab)]
    assert found == []
    width = tab.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "nothing makes the page scroll sideways"
