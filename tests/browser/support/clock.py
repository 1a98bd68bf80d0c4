"""What a visitor reads from the clock and the charts, and what the server would draw for the same step."""

from __future__ import annotations

import json
import re
from typing import Any

from ui.charts.focus import Focus
from ui.charts.registry import CHARTS
from ui.charts.theme import LIGHT
from ui.feed.frames import changes
from ui.feed.questions import read_question


def wait_for_step(tab, step: int) -> None:
    """Until all charts in view show ``step``."""
    tab.wait_for_function("step => window.shownStep === step", arg=step)


def watch_steps(tab) -> None:
    """From now on ``window.shownStep`` is the step of the charts, ``window.shownSteps`` all of them."""
    tab.evaluate(
        "window.shownSteps = [];"
        "window.addEventListener('mv:drawn', ({ detail: { step } }) => {"
        "  window.shownStep = step; window.shownSteps.push(step); });"
    )


def readout(tab) -> tuple[int, int]:
    """(step on show, last step)."""
    at, of = re.findall(r"[\d,]+", tab.inner_text("#clock .readout").split("\n")[0])
    return int(at.replace(",", "")), int(of.replace(",", ""))


def held_figures(tab) -> dict[str, Any]:
    """By chart: {figure, width, height} of those that have one."""
    names = [chart.elem_id for chart in CHARTS]
    held = tab.evaluate("names => names.map(name => [name, window.microVLLM.figure(name)])", names)
    return {name: one for name, one in held if one}


def assert_charts_show(tab, view: Any, focus: Focus = Focus()) -> None:  # noqa: B008  (frozen)
    """Every chart on the screen is the one that Python draws for this view."""
    seen = 0
    draw = {chart.elem_id: chart.figure for chart in CHARTS}
    for name, held in held_figures(tab).items():
        if not in_view(tab, name):
            continue
        ask = {"charts": {name: {"w": held["width"], "h": held["height"]}}}
        (one,) = read_question(ask).charts
        drawn = json.loads(json.dumps(draw[name](view, LIGHT, one.size, focus)))
        wrong = changes(drawn, held["figure"])
        assert wrong == [], f"{name} does not show step {view.step}: {wrong[:3]}"
        seen += 1
    assert seen >= 3


def in_view(tab, name: str) -> bool:
    return tab.evaluate(
        "id => { const r = document.querySelector('#' + id + ' .mv-plot').getBoundingClientRect();"
        "return r.height > 0 && r.top < innerHeight && r.bottom > 0; }",
        name,
    )
