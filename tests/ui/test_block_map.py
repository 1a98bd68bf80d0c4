"""The KV block map against the EngineView it was drawn from: places, fills, letters, hovers, clicks."""

from __future__ import annotations

import json

import pytest

from tests.ui.support.drawn import SIZE, drawn, rectangles, scatters, view_after
from tests.ui.support.scripted_engine import make_engine, params
from ui.charts import block_map
from ui.charts.block_grid import lay_out
from ui.charts.block_scene import LABEL_MIN_PX, MAX_STRIPS
from ui.charts.block_words import describe
from ui.charts.palette import PATTERNS, request_color
from ui.charts.theme import DARK, LIGHT, Size
from ui.feed.frames import changes
from ui.replay import Replay


@pytest.mark.parametrize("num_blocks", [1, 7, 64, 256, 2000])
@pytest.mark.parametrize("width", [240, 390, 800, 1600])
def test_the_grid_holds_every_block_once_and_wastes_less_than_a_row(num_blocks, width):
    grid = lay_out(num_blocks, Size(width, 270))
    assert grid.columns * (grid.rows - 1) < num_blocks <= grid.columns * grid.rows
    boxes = [grid.box(block) for block in range(1, num_blocks + 1)]
    assert len(set(boxes)) == num_blocks
    assert all(
        0 <= left < right <= grid.columns and 0 <= top < bottom <= grid.rows
        for left, top, right, bottom in boxes
    )


def test_cells_are_large_for_few_blocks_and_letters_go_where_they_fit():
    sizes = [lay_out(n, SIZE).cell_px for n in (64, 256, 2000)]
    assert sizes[0] > sizes[1] > sizes[2] > 6
    assert sizes[1] >= LABEL_MIN_PX > sizes[2]


def test_256_blocks_have_letters_at_the_size_of_the_card_and_on_a_phone():
    assert lay_out(256, Size(440, 170)).cell_px >= LABEL_MIN_PX
    assert lay_out(256, Size(360, 300)).cell_px >= LABEL_MIN_PX


@pytest.mark.parametrize("num_blocks", [64, 256, 2000])
@pytest.mark.parametrize("seed", range(2))
def test_fills_say_who_owns_a_block_and_how_full_it_is(num_blocks, seed):
    view = view_after(num_blocks, 50, seed)
    grid = lay_out(num_blocks, SIZE)
    shown: dict[int, list[tuple[str, int]]] = {}
    for trace in [t for t in drawn(block_map, view).data if t.type == "bar"]:
        for x, base, y, color in zip(trace.x, trace.base, trace.y, trace.marker.color, strict=True):
            if y:
                block = int(base) * grid.columns + int(x) + 1
                height = -y / (1 - 2 * grid.pad_y)
                shown.setdefault(block, []).append((color, round(height * view.info.block_size)))
    tracks = {t.request_id: t for t in view.requests}
    expected = {
        cell.block_id: sorted(
            (request_color(tracks[o.request_id].arrival).fill, cell.tokens) for o in cell.owners[:MAX_STRIPS]
        )
        for cell in view.blocks
        if cell.owners and cell.tokens
    }
    assert expected
    assert {block: sorted(fills) for block, fills in shown.items()} == expected


def test_strips_of_a_shared_cell_fill_its_width_without_overlap():
    engine, log = make_engine(64, windows=(None,))
    for _ in range(3):
        engine.add_request([*range(100, 140)], params(20))
        engine.step()
    view = Replay().follow(log)
    grid = lay_out(64, SIZE)
    (shared,) = [t for t in drawn(block_map, view).data if t.type == "bar" and isinstance(t.width, tuple)]
    strips = sorted(zip(shared.x, shared.width, strict=True))[:3]
    edges = [(x - w / 2, x + w / 2) for x, w in strips]
    assert edges[0][0] == pytest.approx(grid.lefts[0], abs=0.005)
    assert edges[2][1] == pytest.approx(grid.rights[0], abs=0.005)
    assert edges[0][1] == pytest.approx(edges[1][0], abs=0.005)


def test_state_is_shown_by_more_than_colour():
    view = view_after(64, 60, 3)
    assert {"used", "cached", "free"} <= {cell.state for cell in view.blocks}
    figure = drawn(block_map, view)
    signs = [text for trace in scatters(figure, "text") for text in trace.text or ()]
    assert signs.count("∅") == 1
    dots, *_ = [t for t in figure.data if t.type == "scatter" and t.fill == "toself"]
    assert dots.fillpattern.shape == "."
    assert len(rectangles(dots)) == sum(cell.state == "cached" for cell in view.blocks)
    outlined = sum(
        len(rectangles(trace))
        for trace in scatters(figure, "lines")
        if trace.line.color == LIGHT.outline and trace.x
    )
    assert outlined == sum(cell.is_written for cell in view.blocks) > 0


def test_letters_name_the_owner_of_every_block_with_one():
    view = view_after(256, 60, 3)
    labels = {t.request_id: t.label for t in view.requests}
    grid = lay_out(256, SIZE)
    found = {
        (int(y) * grid.columns + int(x) + 1): sign
        for trace in scatters(drawn(block_map, view), "text")
        for x, y, sign in zip(trace.x, trace.y, trace.text, strict=True)
        if sign in labels.values()
    }
    assert found == {
        cell.block_id: labels[cell.owners[0].request_id] for cell in view.blocks if len(cell.owners) == 1
    }
    assert len(found) > 10


def test_small_cells_kept_for_reuse_are_dotted_and_tints_of_a_hue_have_their_pattern():
    view = view_after(2000, 90, 3, load=0.6)
    figure = drawn(block_map, view)
    dots, *textures = [t for t in figure.data if t.type == "scatter" and t.fill == "toself"]
    assert dots.fillpattern.shape == "."
    assert len(rectangles(dots)) == sum(cell.state == "cached" for cell in view.blocks) > 0
    arrivals = {t.request_id: t.arrival for t in view.requests}
    owned = [
        request_color(arrivals[cell.owners[0].request_id]).pattern
        for cell in view.blocks
        if len(cell.owners) == 1 and cell.tokens
    ]
    assert [t.fillpattern.shape for t in textures] == [p for p in PATTERNS if p]
    assert [len(rectangles(t)) if t.x else 0 for t in textures] == [owned.count(p) for p in PATTERNS if p]
    assert sum(map(bool, owned)) > 0


def test_a_shared_block_is_counted_and_its_hover_names_who_shares_it():
    engine, log = make_engine(64)
    prompt = [*range(100, 140)]
    for _ in range(3):
        engine.add_request(prompt, params(20))
        engine.step()
    view = Replay().follow(log)
    shared = [cell for cell in view.blocks if cell.ref_count == 3]
    assert len(shared) == 2
    (counts,) = scatters(drawn(block_map, view), "markers+text")
    assert list(counts.text) == ["3", "3"]
    words = describe(shared[0], view, {t.request_id: t.label for t in view.requests})
    for part in ("shared by 3: a, b, c", "hash ", "16 of 16 slots", "3 references", "logical 0, tokens 0–15"):
        assert part in words


def test_the_hover_of_every_cell_names_its_block():
    view = view_after(64, 40, 1, windows=(None, 32))
    ground = drawn(block_map, view).data[0]
    words = [text for row in ground.text for text in row if text]
    assert [text.split("</b>")[0] for text in words] == [f"<b>block {i}" for i in range(1, 65)]
    assert any("group 1 (window 32): logical" in text for text in words)


def test_lines_of_a_hover_fit_beside_a_cell_on_a_phone():
    view = view_after(256, 120, 1, windows=(None, 32), load=0.6)
    lines = {
        line for row in drawn(block_map, view).data[0].text for text in row for line in text.split("<br>")
    }
    assert max(map(len, lines)) <= 50


def test_a_click_on_a_cell_names_the_request_that_owns_it():
    view = view_after(64, 40, 1)
    ids = [i for row in drawn(block_map, view).data[0].customdata for i in row]
    for cell, request_id in zip(view.blocks[1:], ids, strict=False):
        assert request_id == (cell.owners[0].request_id if cell.owners else "")
    assert ids[64:] == [""] * (len(ids) - 64)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
@pytest.mark.parametrize("num_blocks", [16, 64, 256])
def test_letters_stay_inside_their_cells(num_blocks, look):
    view = view_after(num_blocks, 20, 2)
    figure = drawn(block_map, view, look)
    grid = lay_out(num_blocks, SIZE)
    for trace in scatters(figure, "text"):
        for x, y in zip(trace.x or (), trace.y or (), strict=True):
            assert -1 - grid.numbers <= x < grid.columns
            assert 0.2 < y % 1 < 0.8


def test_a_decode_step_changes_a_few_entries_and_no_whole_array_over_cells():
    """Four requests write a token each: what is sent must not grow with the pool."""
    for num_blocks in (256, 2000):
        engine, log = make_engine(num_blocks, windows=(None,), max_num_batched_tokens=512)
        replay = Replay()
        for i in range(4):
            engine.add_request([*range(100 * i, 100 * i + 85)], params(60))
        for _ in range(3):
            engine.step()
        before = block_map.figure(replay.follow(log), LIGHT, Size(440, 170))
        engine.step()
        after = block_map.figure(replay.follow(log), LIGHT, Size(440, 170))
        found = changes(before, after)
        assert found
        assert len(json.dumps(found)) < 2000
        assert all(not isinstance(value, list) or len(value) < 50 for _, value in found)


@pytest.mark.parametrize("num_blocks", [256, 2001, 8192])
def test_the_words_of_the_first_row_are_whole_however_low_it_is(num_blocks):
    """At 2,001 blocks the upper half of the first row's number and of the null block's sign was cut off."""
    size = Size(440, 170)
    figure = block_map.figure(Replay().follow(make_engine(num_blocks)[1]), LIGHT, size)
    row_px = lay_out(num_blocks, size).cell_height
    for words in [trace for trace in figure["data"] if trace.get("mode") == "text" and 0.5 in trace["y"]]:
        over = words["textfont"]["size"] * 0.75 / 2 - row_px / 2  # digits are three quarters of their size
        assert over <= 0 or words["cliponaxis"] is False
        assert over <= figure["layout"]["margin"]["t"]
