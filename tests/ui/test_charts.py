"""Each chart against the EngineView it was drawn from: counts, places and colours, no browser."""

from __future__ import annotations

import itertools

import pytest

from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts import block_map, timeline, usage
from ui.charts.palette import NUM_SLOTS, OKABE_ITO, contrast, request_color, slot_color
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay
from ui.view import EngineView

SIZE = Size(800, 270)


def view_after(
    num_blocks: int, steps: int, seed: int = 0, *, windows=(None,), load: float = 0.3
) -> EngineView:
    engine, log = make_engine(num_blocks, windows=windows)
    for _ in random_run(engine, steps, seed, load=load):
        pass
    view = Replay().follow(log)
    assert view is not None
    return view


def rectangles(trace) -> list[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of each polygon in a path."""
    found = []
    for is_gap, points in itertools.groupby(zip(trace.x, trace.y, strict=True), key=lambda p: p[0] is None):
        if not is_gap:
            xs, ys = zip(*points, strict=True)
            found.append((min(xs), min(ys), max(xs), max(ys)))
    return found


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
    from ui.charts.palette import readable_on

    assert contrast(readable_on(look.cell_cached), look.cell_cached) >= 4.5


def test_colours_are_okabe_ito_first_and_no_two_slots_look_alike():
    assert [request_color(i).fill for i in range(7)] == list(OKABE_ITO)
    looks = {(slot_color(s).fill, slot_color(s).pattern) for s in range(NUM_SLOTS)}
    assert len(looks) == NUM_SLOTS
    assert all(slot_color(s).pattern for s in range(7, NUM_SLOTS)), (
        "tints are told apart by a pattern as well"
    )


# ---------------------------------------------------------------- block map


@pytest.mark.parametrize("num_blocks", [1, 7, 64, 256, 2000])
@pytest.mark.parametrize("width", [240, 390, 800, 1600])
def test_the_grid_holds_every_block_once_and_wastes_less_than_a_row(num_blocks, width):
    grid = block_map.lay_out(num_blocks, Size(width, 270))
    assert grid.columns * (grid.rows - 1) < num_blocks <= grid.columns * grid.rows
    boxes = [grid.box(block) for block in range(1, num_blocks + 1)]
    assert len(set(boxes)) == num_blocks
    assert all(
        0 <= left < right <= grid.columns and 0 <= top < bottom <= grid.rows
        for left, top, right, bottom in boxes
    )


def test_cells_are_large_for_few_blocks_and_letters_go_where_they_fit():
    sizes = [block_map.lay_out(n, SIZE).cell_px for n in (64, 256, 2000)]
    assert sizes[0] > sizes[1] > sizes[2] > 6
    assert sizes[1] >= block_map.LABEL_MIN_PX > sizes[2]


@pytest.mark.parametrize("num_blocks", [64, 256, 2000])
@pytest.mark.parametrize("seed", range(2))
def test_fills_say_who_owns_a_block_and_how_full_it_is(num_blocks, seed):
    view = view_after(num_blocks, 50, seed)
    grid = block_map.lay_out(num_blocks, SIZE)
    figure = block_map.figure(view, LIGHT, SIZE)
    drawn = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.fill == "toself" and trace.fillcolor != LIGHT.cell_cached:
            for left, top, right, bottom in rectangles(trace):
                block = int(bottom) * grid.columns + int((left + right) / 2) + 1
                height = (bottom - top) / (1 - 2 * grid.pad_y)
                drawn.setdefault(block, []).append((trace.fillcolor, round(height * view.info.block_size)))
    tracks = {t.request_id: t for t in view.requests}
    expected = {
        cell.block_id: sorted(
            (request_color(tracks[o.request_id].arrival).fill, cell.tokens)
            for o in cell.owners[: block_map.MAX_STRIPS]
        )
        for cell in view.blocks
        if cell.owners and cell.tokens
    }
    assert {block: sorted(fills) for block, fills in drawn.items()} == expected


def test_state_is_shown_by_more_than_colour():
    view = view_after(64, 60, 3)
    assert {"used", "cached", "free"} <= {cell.state for cell in view.blocks}
    figure = block_map.figure(view, LIGHT, SIZE)
    signs = [text for trace in figure.data for text in (trace.text or ()) if isinstance(text, str)]
    assert signs.count("#") == sum(cell.state == "cached" for cell in view.blocks)
    assert signs.count("∅") == 1
    outlined = sum(
        len(rectangles(trace))
        for trace in figure.data
        if trace.type == "scatter"
        and trace.mode == "lines"
        and trace.line.color == LIGHT.outline
        and not trace.fill
    )
    assert outlined == sum(cell.is_written for cell in view.blocks) > 0


def test_small_cells_kept_for_reuse_are_dotted():
    view = view_after(2000, 60, 3)
    figure = block_map.figure(view, LIGHT, SIZE)
    (kept,) = [t for t in figure.data if t.type == "scatter" and t.fillcolor == LIGHT.cell_cached]
    assert kept.fillpattern.shape == "."
    assert len(rectangles(kept)) == sum(cell.state == "cached" for cell in view.blocks) > 0


def test_a_shared_block_is_split_and_counted():
    engine, log = make_engine(64)
    prompt = [*range(100, 140)]
    for _ in range(3):
        engine.add_request(prompt, params(20))
        engine.step()
    view = Replay().follow(log)
    shared = [cell for cell in view.blocks if cell.ref_count == 3]
    assert len(shared) == 2
    figure = block_map.figure(view, LIGHT, SIZE)
    (counts,) = [t for t in figure.data if t.type == "scatter" and t.mode == "markers+text"]
    assert list(counts.text) == ["3", "3"]
    words = block_map.describe(shared[0], view, {t.request_id: t for t in view.requests})
    assert "a, b, c" in words
    assert "shared by 3" in words
    assert "hash" in words
    assert "16 of 16" in words


def test_the_hover_of_every_cell_names_its_block():
    view = view_after(64, 40, 1, windows=(None, 32))
    (ground,) = [t for t in block_map.figure(view, LIGHT, SIZE).data if t.type == "heatmap"]
    words = [text for row in ground.text for text in row if text]
    assert [text.split("</b>")[0] for text in words] == [f"<b>block {i}" for i in range(1, 65)]
    assert any("of group 1 (window 32)" in text for text in words)


def test_the_number_of_traces_never_changes():
    """Patches and Plotly.react need it."""
    for make in (block_map.figure, timeline.figure, usage.figure):
        counts = {
            len(make(view_after(n, steps, 2), LIGHT, SIZE).data) for n in (16, 64, 2000) for steps in (1, 40)
        }
        assert len(counts) == 1


# ---------------------------------------------------------------- timeline


def bars(figure, width: float) -> list[tuple[int, int, float]]:
    (trace,) = [t for t in figure.data if t.type == "bar" and t.width == width]
    return sorted(zip(trace.base, trace.x, trace.y, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_every_span_is_a_bar_in_its_row(seed):
    view = view_after(48, 80, seed)
    figure = timeline.figure(view, LIGHT, Size(800, 900))
    rows = timeline.choose_rows(view.requests, 1000)
    for kind in ("waiting", "prefill", "decode"):
        expected = sorted(
            (span.start, span.stop - span.start, row + timeline._OFFSET[kind])
            for row, track in enumerate(rows)
            for span in track.spans
            if span.kind == kind
        )
        assert bars(figure, timeline._HEIGHT[kind]) == expected
    crosses = [t for t in figure.data if t.type == "scatter" and t.marker.symbol == "diamond"]
    assert len(crosses[0].x) == sum(m.kind == "hit" for t in rows for m in t.marks)


def test_own_rows_say_yours():
    view = view_after(64, 30, 1)
    mine = view.requests[1].request_id
    labels = timeline.figure(view, LIGHT, SIZE, frozenset([mine])).layout.yaxis.ticktext
    assert ["yours" in label for label in labels] == [
        t.request_id == mine for t in timeline.choose_rows(view.requests, 99)
    ]


def test_live_requests_are_kept_when_rows_are_scarce():
    view = view_after(400, 120, 4, load=0.6)
    rows = timeline.choose_rows(view.requests, 6)
    assert len(rows) == 6
    live = [t for t in view.requests if t.status != "done"]
    assert all(t.status != "done" for t in rows) or len(live) < 6
    assert [t.arrival for t in rows] == sorted(t.arrival for t in rows)


def test_prefill_counts_and_hits_are_written_where_they_fit():
    engine, log = make_engine(64)
    engine.add_request([*range(100, 150)], params(40))
    engine.step()
    engine.add_request([*range(100, 150)], params(40))
    for _ in range(20):
        engine.step()
    (notes,) = [
        t
        for t in timeline.figure(Replay().follow(log), LIGHT, SIZE).data
        if t.type == "scatter" and t.mode == "text"
    ]
    assert list(notes.text) == ["50 prefilled", "48 cached + 2 prefilled"]


def test_the_window_slides_and_young_engines_get_a_short_one():
    assert timeline.step_range(view_after(64, 10)) == (0, 40)
    left, right = timeline.step_range(view_after(64, 200, load=0.7))
    assert right - left == 120


# ---------------------------------------------------------------- use


@pytest.mark.parametrize("seed", range(3))
def test_the_stack_adds_up_to_the_pool_in_every_step(seed):
    view = view_after(48, 70, seed)
    figure = usage.figure(view, LIGHT, SIZE)
    used, cached, free, rate, *bar = figure.data
    for step, (a, b, c) in enumerate(zip(used.y, cached.y, free.y, strict=True)):
        assert a + b + c == 48, step
    assert list(used.x)[:-1] == [u.step for u in view.usage]
    assert rate.y[-1] == pytest.approx(100 * view.usage[-1].hit_rate)
    assert [part.y[0] for part in bar] == [used.y[-1], cached.y[-1], free.y[-1]], "the bar is the pool now"
    words = [note.text for note in figure.layout.annotations]
    now = view.usage[-1]
    assert words[:3] == [
        f"<b>{now.used}</b> in use",
        f"<b>{now.cached}</b> kept for reuse",
        f"<b>{now.free}</b> free",
    ]


def test_a_large_pool_with_little_in_it_is_seen_enlarged_beside_the_whole_pool():
    engine, log = make_engine(256)
    engine.add_request([*range(100, 200)], params(20))
    engine.step()
    view = Replay().follow(log)
    assert view.usage[-1].used == 7
    layout = usage.figure(view, LIGHT, SIZE).layout
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
    "counts", [(0, 0, 256), (256, 0, 0), (1, 1, 254), (100, 100, 56), (254, 2, 0), (0, 256, 0)]
)
def test_labels_of_thin_bands_do_not_overlap(counts):
    names = ("in use", "kept for reuse", "free")
    labels = usage._band_labels(list(zip(names, counts, strict=True)), 256, 150, LIGHT)
    pixels = [label["y"] / 256 * 150 * usage._STACK_TOP for label in labels]
    assert all(b - a >= 14 for a, b in itertools.pairwise(pixels))
    assert all(-25 <= y <= 150 * usage._STACK_TOP for y in pixels)
