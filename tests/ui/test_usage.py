"""KV use against the EngineView it was drawn from: the stack, its waste, its scale and its labels."""

from __future__ import annotations

import itertools

import pytest

from tests.ui.support.drawn import SIZE, drawn, view_after
from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts import usage
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay


@pytest.mark.parametrize("seed", range(3))
def test_the_stack_adds_up_to_the_pool_in_every_step(seed):
    view = view_after(48, 70, seed)
    figure = drawn(usage, view)
    filled, waste, cached, free, rate, *bar = figure.data
    for u, *parts in zip(view.usage, filled.y, waste.y, cached.y, free.y, strict=False):
        assert sum(parts) == pytest.approx(48), u.step
        assert parts[0] + parts[1] == pytest.approx(u.used)
        assert parts[2:] == [u.cached, u.free]
    assert list(filled.x)[:-1] == [u.step for u in view.usage]
    assert rate.y[-1] == pytest.approx(100 * view.usage[-1].hit_rate, abs=0.05)
    parts = sorted((base, length) for part in bar for base, length in zip(part.base, part.y, strict=True))
    assert [length for _, length in parts] == [t.y[-1] for t in figure.data[:4]], "the bar is the pool now"
    assert [base for base, _ in parts] == pytest.approx([0, *itertools.accumulate(n for _, n in parts[:-1])])


@pytest.mark.parametrize("seed", range(3))
def test_waste_is_the_empty_slots_of_the_blocks_in_use(seed):
    """Counted from the blocks, not from the usage: a shared block once, a block that is kept for reuse not at all."""
    view = view_after(48, 70, seed, windows=(None,))
    used = [cell for cell in view.blocks if cell.state == "used"]
    empty = sum(view.info.block_size - cell.tokens for cell in used)
    assert used
    assert empty > 0
    figure = drawn(usage, view)
    assert figure.data[1].y[-1] == pytest.approx(empty / view.info.block_size, abs=0.01)
    share = empty / (len(used) * view.info.block_size)
    assert usage.waste(view.usage[-1], view.info.block_size) == pytest.approx(share)
    (label,) = [note.text for note in figure.layout.annotations if "waste" in note.text]
    number = float(label.removeprefix("<b>").partition(" %")[0])
    assert number == pytest.approx(100 * share, abs=0.05 if share < 0.0995 else 0.5)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_waste_is_hatched_in_the_stack_and_in_the_bar_and_nothing_else_is(look):
    figure = drawn(usage, view_after(48, 70, 1), look)
    hatched = [t.name for t in figure.data if t.type == "scatter" and t.fillpattern.shape]
    assert hatched == ["waste"]
    plain, marked = [t for t in figure.data if t.type == "bar"]
    assert plain.marker.pattern.shape is None
    assert list(marked.marker.pattern.shape) == ["/"]
    assert "internal fragmentation" in marked.hovertext[0]
    assert figure.data[1].fillpattern.fgcolor == figure.data[0].fillcolor, "in the colour of what is in use"
    assert "internal fragmentation" in figure.data[1].hovertemplate


def test_a_prompt_that_ends_on_the_edge_of_a_block_wastes_nothing():
    engine, log = make_engine(64, windows=(None,))
    engine.add_request([*range(48)], params(20))
    engine.step()
    view = Replay().follow(log)
    assert usage.waste(view.usage[-1], 16) == 0
    engine.step()
    view = Replay().follow(log)
    assert view.usage[-1].used == 4
    assert usage.waste(view.usage[-1], 16) == pytest.approx(15 / 64)


def test_an_empty_pool_wastes_nothing():
    engine, log = make_engine(64)
    view = Replay().follow(log)
    figure = drawn(usage, view)
    assert [note.text for note in figure.layout.annotations][:2] == ["<b>0</b> in use", "<b>0 %</b> waste"]
    assert engine.stats().num_running == 0


def test_labels_name_the_counts_of_the_newest_step():
    view = view_after(48, 70, 2)
    now = view.usage[-1]
    words = [note.text for note in drawn(usage, view).layout.annotations]
    assert [words[0], *words[2:4]] == [
        f"<b>{now.used}</b> in use",
        f"<b>{now.cached}</b> kept",
        f"<b>{now.free}</b> free",
    ]
    assert now.prefix_queries
    assert words[4] == f"<b>{now.hit_rate:.0%}</b> prefix hits".replace("%", " %")


def test_before_anything_was_looked_up_there_is_no_hit_rate_as_in_the_header():
    view = Replay().follow(make_engine(64)[1])
    assert view.usage[-1].prefix_queries == 0
    assert [note.text for note in drawn(usage, view).layout.annotations][4] == "<b>–</b> prefix hits"


def test_a_large_pool_with_little_in_it_is_seen_enlarged_beside_the_whole_pool():
    engine, log = make_engine(256)
    engine.add_request([*range(100, 200)], params(20))
    engine.step()
    view = Replay().follow(log)
    assert view.usage[-1].used == 7
    layout = drawn(usage, view).layout
    assert layout.yaxis.range == (0, 32)
    assert list(layout.yaxis.ticktext) == ["0", "16", "32"]
    assert layout.yaxis3.range == (0, 256), "the bar keeps the true scale"
    top = layout.shapes[1]
    assert top.y0 == pytest.approx(layout.yaxis.domain[1])
    assert top.y1 == pytest.approx(layout.yaxis.domain[1] * 32 / 256), "the wedge marks what is enlarged"


def test_the_scale_grows_in_steps_and_never_shrinks():
    assert [usage.scale_for(peak, 256) for peak in (0, 28, 29, 56, 57, 113, 114, 256)] == [
        32, 32, 64, 64, 128, 128, 256, 256,
    ]  # fmt: skip
    assert usage.scale_for(5, 20) == 20
    assert usage.scale_for(300, 2000) == 512
    engine, log = make_engine(200)
    replay, scales = Replay(), []
    for _ in random_run(engine, 200, 3, load=0.35):
        view = replay.follow(log)
        scales.append(usage.scale_for(view.peak_blocks, 200))
        assert max(u.used + u.cached for u in view.usage) <= view.peak_blocks
    assert scales == sorted(scales)
    assert len(set(scales)) >= 3


@pytest.mark.parametrize(
    "counts",
    [(0, 0, 0, 256), (255, 1, 0, 0), (1, 0.5, 0.5, 254), (100, 2, 100, 54), (250, 4, 2, 0), (0, 0, 256, 0)],
)
@pytest.mark.parametrize("height", [124, 274], ids=["card", "phone"])
def test_labels_of_thin_bands_do_not_overlap(counts, height):
    names = ("in use", "waste", "kept", "free")
    labels = usage._band_labels(list(zip(names, counts, strict=True)), 256, height, LIGHT)
    pixels = [label["y"] * height for label in labels]
    assert all(b - a >= 14 for a, b in itertools.pairwise(pixels))
    assert all(-8 <= y <= height * usage._STACK_TOP for y in pixels)


def test_labels_have_room_beside_the_bar_at_the_size_of_the_card():
    layout = drawn(usage, view_after(48, 70, 2), LIGHT, Size(380, 150)).layout
    longest = max(len(note.text.replace("<b>", "").replace("</b>", "")) for note in layout.annotations)
    assert longest * 6.3 + 8 <= layout.margin.r
    assert SIZE.width > 380
