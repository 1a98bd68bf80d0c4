"""What nobody can point at is painted by the page, and words are HTML: all looks as Plotly would have drawn it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.ui.support.scripted_engine import make_engine, random_run
from ui.charts.focus import NO_FOCUS, Focus
from ui.charts.registry import CHARTS
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay

pytestmark = pytest.mark.browser

FIGURES = {chart.elem_id: chart.figure for chart in CHARTS}
WIDTH, HEIGHT = 560, 240
DRAW = """async ([figure, ground, width, height]) => {
    document.querySelectorAll(".mv-compared").forEach((node) => node.remove());
    const box = (left) => {
        const node = document.createElement("div");
        node.className = "mv-compared mv-plot";
        node.style.cssText = `position: fixed; z-index: 999; top: 0; left: ${left}px; width: ${width}px; ` +
            `height: ${height}px; min-height: 0; background: ${ground}`;
        document.body.append(node);
        return node;
    };
    const ours = box(0), theirs = box(width);
    const sized = new Promise((resolve) => { window.compared = microVLLM.plot(ours, "compared", "", resolve); });
    await sized;
    await window.compared.update({ full: structuredClone(figure), version: "1" });
    await Plotly.newPlot(theirs, figure.data, { ...figure.layout, width, height }, { displayModeBar: false });
    return [theirs.data.length, ours.data.length, ours.querySelectorAll(".mv-letters span").length];
}"""


def view_of(num_blocks: int, num_steps: int, **config):
    engine, log = make_engine(num_blocks, windows=(None,), **config)
    for _ in random_run(engine, num_steps, seed=3, load=0.5):
        pass
    view = Replay(log).view()
    assert view is not None
    return view


def shot(tab, left: int) -> np.ndarray:
    """Softened by a pixel: letters and edges may lie between two pixels in one and on one in the other."""
    clip = {"x": left, "y": 0, "width": WIDTH, "height": HEIGHT}
    picture = Image.open(io.BytesIO(tab.screenshot(clip=clip))).convert("RGB")
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(1.5)), dtype=float)


def followed(view) -> Focus:
    track = max(view.requests, key=lambda track: sum(map(len, track.tables)))
    return Focus(request_id=track.request_id, position=3)


SCENES = {
    "letters": (64, 90, LIGHT, False),
    "followed": (64, 90, LIGHT, True),
    "dark": (64, 90, DARK, True),
    "no room for letters": (2048, 150, LIGHT, False),
    "no room, followed": (2048, 150, DARK, True),
}


@pytest.mark.parametrize("scene", SCENES)
def test_it_looks_as_plotly_would_have_drawn_it(served, open_tab, scene):
    num_blocks, num_steps, look, is_followed = SCENES[scene]
    view = view_of(num_blocks, num_steps, max_num_seqs=32)
    focus = followed(view) if is_followed else NO_FOCUS
    tab = open_tab(served.url)
    tab.wait_for_function("window.Plotly !== undefined")
    num_ours = 0
    for name, figure in FIGURES.items():
        drawn = figure(view, look, Size(WIDTH, HEIGHT), focus)
        theirs, ours, _ = tab.evaluate(DRAW, [drawn, look.card, WIDTH, HEIGHT])
        num_ours += theirs - ours
        mine, plotlys = shot(tab, 0), shot(tab, WIDTH)
        assert (apart := difference(mine, plotlys)) < 0.01, (scene, name, apart)
        if name == "kv-block-map":
            hide(tab, "quiet", "letters")
            assert difference(shot(tab, 0), plotlys) > 0.015, "nothing of it was ours"
    assert num_ours >= 10


def hide(tab, *classes: str) -> None:
    chosen = ", ".join(f".mv-compared .mv-{name}" for name in classes)
    tab.evaluate("s => document.querySelectorAll(s).forEach(n => n.style.visibility = 'hidden')", chosen)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The share of pixels that clearly differ."""
    return float((np.abs(one - other).max(axis=2) > 48).mean())


def drag(tab, chart: str, left: float, right: float) -> None:
    box = tab.locator(f"#{chart} .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * left, box["y"] + box["height"] * 0.2)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * right, box["y"] + box["height"] * 0.8, steps=4)
    tab.mouse.up()


def middle(tab, chart: str) -> tuple[float, float]:
    box = tab.locator(f"#{chart} .nsewdrag").first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


NUM_QUIET = "id => document.querySelectorAll(`#${id} .mv-letters span`).length"
NUM_TRACES = "id => document.querySelector(`#${id} .mv-plot`).data.length"


def test_where_somebody_zooms_in_or_pans_plotly_draws_all_of_it(served, open_tab):
    """Only it knows what lies beyond the edge, and moves it with the pointer."""
    tab = open_tab(served.url)
    chart = "kv-block-map"
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') > 5")  # the sample trace
    letters, traces = tab.evaluate(NUM_QUIET, chart), tab.evaluate(NUM_TRACES, chart)
    drag(tab, chart, 0.3, 0.6)
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === 0")
    assert tab.evaluate(NUM_TRACES, chart) > traces
    tab.hover(f"#{chart} .mv-plot")
    tab.click(f'#{chart} .modebar-btn[data-title^="Show everything"]')
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === {letters}")
    assert tab.evaluate(NUM_TRACES, chart) == traces
    tab.click(f'#{chart} .modebar-btn[data-title="Pan"]')
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === 0")
    tab.click(f'#{chart} .modebar-btn[data-title="Zoom"]')
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === {letters}")
    tab.keyboard.down("Shift")  # pans as well, and nobody is told before it is over
    tab.mouse.move(*middle(tab, chart))
    tab.mouse.down()
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === 0")
    tab.mouse.up()
    tab.keyboard.up("Shift")
    tab.wait_for_function(f"({NUM_QUIET})('{chart}') === {letters}")


def test_letters_are_text_and_never_markup(served, open_tab):
    tab = open_tab(served.url)
    tab.wait_for_function("window.Plotly !== undefined")
    view = view_of(64, 40, max_num_seqs=32)
    figure = FIGURES["kv-block-map"](view, LIGHT, Size(WIDTH, HEIGHT), NO_FOCUS)
    for trace in figure["data"]:
        if trace.get("mode") == "text" and trace.get("hoverinfo") == "skip":
            trace["text"] = ["<img src=x onerror=alert(1)>"] * len(trace["text"])
    _, _, letters = tab.evaluate(DRAW, [figure, LIGHT.card, WIDTH, HEIGHT])
    assert letters > 5
    assert tab.locator(".mv-letters img").count() == 0
