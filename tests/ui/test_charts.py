"""What all charts have in common: colours, plain data that Plotly takes, captions, and a stable set of traces."""

from __future__ import annotations

import re
import subprocess
import sys

import orjson
import pytest

from tests.ui.support.drawn import drawn, view_after
from tests.ui.support.scripted_engine import make_engine
from ui.charts import block_map, timeline, usage
from ui.charts.focus import Focus
from ui.charts.palette import NUM_SLOTS, OKABE_ITO, contrast, readable_on, request_color, slot_color
from ui.charts.registry import CHARTS as REGISTERED
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay
from ui.view import EngineView

CHARTS = (block_map, timeline, usage)
SENTENCE_PX = 6.5
"""Width of a character at 12.5 pixels, on average."""

# ---------------------------------------------------------------- colours


def test_every_request_colour_carries_readable_text():
    for slot in range(NUM_SLOTS):
        color = slot_color(slot)
        assert contrast(color.fill, color.text) >= 4.5, slot


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_words_of_both_looks_pass_wcag_aa(look):
    for color in (look.text, look.muted, look.accent, look.danger):
        assert contrast(color, look.card) >= 4.5
    assert contrast(look.text, look.cell_used) >= 4.5
    assert contrast(readable_on(look.cell_cached), look.cell_cached) >= 4.5


def test_colours_are_okabe_ito_first_and_no_two_slots_look_alike():
    assert [request_color(i).fill for i in range(7)] == list(OKABE_ITO)
    looks = {(slot_color(s).fill, slot_color(s).pattern) for s in range(NUM_SLOTS)}
    assert len(looks) == NUM_SLOTS
    assert all(slot_color(s).pattern for s in range(7, NUM_SLOTS)), (
        "tints are told apart by a pattern as well"
    )


# ---------------------------------------------------------------- figures


@pytest.fixture(scope="module")
def views() -> list[EngineView]:
    """Before the first step, one block, several groups, a busy small pool, a large one with small cells."""
    return [
        Replay().follow(make_engine(64)[1]),
        Replay().follow(make_engine(1)[1]),
        view_after(64, 40, 1, windows=(None, 32)),
        view_after(16, 60, 2, load=0.5),
        view_after(2000, 20),
    ]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.TITLE)
@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_plotly_takes_every_figure_and_json_holds_all_of_it(chart, look, views):
    for view in views:
        for size in (Size(240, 80), Size(360, 300), Size(440, 170), Size(2400, 1200)):
            figure = chart.figure(view, look, size)
            assert orjson.loads(orjson.dumps(figure)) == figure
        drawn(chart, view, look, Size(440, 170))
        if view.requests:
            focus = Focus(frozenset([view.requests[0].request_id]), view.requests[-1].request_id, 3)
            drawn(chart, view, look, Size(440, 170), focus)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.TITLE)
def test_the_traces_of_a_chart_are_always_the_same_in_the_same_order(chart):
    """Patches and Plotly.react need it."""
    kinds = {
        tuple(
            (trace.type, getattr(trace, "mode", None)) for trace in drawn(chart, view_after(n, steps, 2)).data
        )
        for n, steps in ((16, 1), (64, 40), (2000, 40))
    }
    assert len(kinds) == 1


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.TITLE)
def test_the_same_view_gives_the_same_figure(chart):
    view = view_after(64, 40, 1)
    assert chart.figure(view, LIGHT, Size()) == chart.figure(view, LIGHT, Size())


@pytest.mark.parametrize("width", [240, 316, 380, 560, 840])
@pytest.mark.parametrize("chart", REGISTERED, ids=lambda chart: chart.title)
def test_the_sentence_of_an_empty_chart_has_room_in_its_plot(chart, width, views):
    layout = chart.figure(views[0], LIGHT, Size(width, 180))["layout"]
    room = width - layout["margin"]["l"] - layout["margin"]["r"]
    for words in [
        n["text"] for n in layout["annotations"] if "will stand here" in n["text"].replace("<br>", " ")
    ]:
        assert max(map(len, words.split("<br>"))) * SENTENCE_PX <= max(room, 12 * SENTENCE_PX), words


def test_charts_do_not_load_plotly():
    """Its figure classes cost milliseconds at every step and a second at the start."""
    code = (
        "import sys, ui.charts.block_map, ui.charts.timeline, ui.charts.usage; print('plotly' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.TITLE)
def test_captions_are_one_short_line_whose_terms_have_tooltips(chart):
    words = re.sub(r"<[^>]*>", "", chart.CAPTION)
    assert len(words) <= 96
    assert chart.CAPTION.count("<abbr title=") == chart.CAPTION.count("</abbr>") >= 3
