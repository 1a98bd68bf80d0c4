"""The prefix cache chart against the prefix cache: which blocks, how deep, held by whom, found how often."""

from __future__ import annotations

import functools
from dataclasses import replace

import msgspec
import plotly.graph_objects as go
import pytest

from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts import prefix_cache
from ui.charts.focus import Focus
from ui.charts.palette import contrast, request_color
from ui.charts.prefix_plan import MIN_COLUMN_PX, MIN_ROW_PX, make_plan
from ui.charts.prefix_tree import count_leaves, depth_scale, lay_out, share_rows
from ui.charts.prefix_words import EMPTY
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay
from ui.view import EngineView, PrefixNode

SIZES = [Size(320, 150), Size(800, 180), Size(360, 300)]
HUGE = Size(2000, 4000)


@functools.cache
def view_after(
    num_blocks: int, steps: int, seed: int = 0, *, windows=(None,), load: float = 0.3
) -> EngineView:
    engine, log = make_engine(num_blocks, windows=windows)
    for _ in random_run(engine, steps, seed, load=load):
        pass
    view = Replay().follow(log)
    assert view is not None
    return view


def node(name: str, parent: str = "", depth: int = 0, group: int = 0, **more) -> PrefixNode:
    return PrefixNode(f"{group}:{name}", f"{group}:{parent}" if parent else "", group, depth, (1,), **more)


def chain(name: str, length: int, parent: str = "", depth: int = 0, **more) -> list[PrefixNode]:
    """name0, name1, ... one after the other."""
    nodes = []
    for i in range(length):
        nodes.append(node(f"{name}{i}", parent, depth + i, **more))
        parent = f"{name}{i}"
    return nodes


def with_prefix(view: EngineView, nodes: list[PrefixNode]) -> EngineView:
    return replace(view, prefix=tuple(nodes))


def text_of(figure) -> str:
    return " ".join(note["text"] for note in figure["layout"]["annotations"])


def bars(figure) -> list[dict]:
    found = []
    for trace in figure["data"][1:3]:
        marker = trace["marker"]
        fills = marker["pattern"]["bgcolor"] if "pattern" in marker else marker["color"]
        for i, words in enumerate(trace["hovertext"]):
            top = trace["y"][i] - trace["width"][i] / 2
            found.append(
                {
                    "left": trace["base"][i],
                    "right": trace["base"][i] + trace["x"][i],
                    "top": top,
                    "bottom": top + trace["width"][i],
                    "fill": fills[i],
                    "pattern": marker["pattern"]["shape"][i] if "pattern" in marker else "",
                    "request": trace["customdata"][i],
                    "words": words,
                }
            )
    return found


# ---------------------------------------------------------------- truth


@pytest.mark.parametrize("windows", [(None,), (None, 64)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_every_cached_block_is_in_exactly_one_piece_at_its_depth(windows, seed):
    view = view_after(96, 80, seed, windows=windows)
    plan = make_plan(view, HUGE, Focus())
    shown = [n.key for box in plan.boxes for n in box.piece.nodes]
    assert sorted(shown) == sorted(n.key for n in view.prefix)
    assert plan.num_left_out == 0
    for box in plan.boxes:
        assert [n.depth for n in box.piece.nodes] == list(range(box.piece.start, box.piece.stop))
        for before, after in zip(box.piece.nodes, box.piece.nodes[1:], strict=False):
            assert after.parent == before.key
            assert (after.owners, after.num_hits, after.is_evictable) == (
                before.owners,
                before.num_hits,
                before.is_evictable,
            )


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("windows", [(None,), (None, 64)], ids=str)
def test_boxes_do_not_overlap_and_children_lie_right_of_their_parent(windows, size):
    view = view_after(128, 110, 3, windows=windows)
    plan = make_plan(view, size, Focus())
    boxes = plan.boxes
    for i, one in enumerate(boxes):
        assert 0 <= one.left < one.right <= plan.width + 1e-6
        assert 0 <= one.top < one.bottom <= plan.height + 1e-6
        for other in boxes[i + 1 :]:
            apart = (
                one.right <= other.left + 1e-6
                or other.right <= one.left + 1e-6
                or one.bottom <= other.top + 1e-6
                or other.bottom <= one.top + 1e-6
            )
            assert apart, (one.piece, other.piece)
    ends = {box.piece.nodes[-1].key: box for box in boxes}
    for box in boxes:
        parent = ends.get(box.piece.first.parent)
        if parent is not None:
            assert box.left == pytest.approx(parent.right)
            assert parent.top - 1e-6 <= box.top
            assert box.bottom <= parent.bottom + 1e-6


def test_boxes_have_the_colours_of_those_who_hold_them_and_a_click_follows_each():
    view = view_after(96, 60, 1)
    figure = prefix_cache.figure(view, size=HUGE)
    tracks = {t.request_id: t for t in view.requests}
    held = {r for n in view.prefix for r in n.owners}
    assert held
    assert {bar["request"] for bar in bars(figure)} - {""} == held
    for bar in bars(figure):
        if bar["request"]:
            color = request_color(tracks[bar["request"]].arrival)
            assert (bar["fill"], bar["pattern"]) == (color.fill, color.pattern)
            assert tracks[bar["request"]].label in bar["words"].split("held by ")[1].split("<br>")[0]
        else:
            assert "can be evicted" in bar["words"]


def test_hits_of_a_second_turn_are_counted_outlined_and_written():
    engine, log = make_engine(64, windows=(None,))
    prompt = list(range(48))
    engine.add_request(prompt, params(4))
    while engine.has_unfinished_requests():
        engine.step()
    engine.add_request([*prompt, 1, 2, 3], params(40))
    engine.step()
    view = Replay().follow(log)
    assert view is not None
    assert [n.num_hits for n in view.prefix][:3] == [1, 1, 1]
    figure = prefix_cache.figure(view, size=Size(800, 180))
    outline = figure["data"][4]
    assert min(x for x in outline["x"] if x is not None) == 0, "found just now"
    letters = figure["data"][-1]["text"]
    assert "b ×1" in letters
    assert "found 1 time by later prompts, last in step" in bars(figure)[0]["words"]
    assert "48 of" in text_of(figure) or "(48 of 99)" in text_of(figure)
    engine.step()
    engine.step()
    later = Replay().follow(log)
    assert later is not None
    assert prefix_cache.figure(later, size=Size(800, 180))["data"][4]["x"] == [], "not any more"


def test_blocks_of_a_piece_are_divided_where_each_has_a_column():
    view = with_prefix(view_after(32, 5), chain("a", 9))
    figure = go.Figure(prefix_cache.figure(view, size=Size(800, 180)))
    (dividers,) = figure.layout.shapes
    assert [float(stroke.partition(",")[0]) for stroke in dividers.path.split("M")[1::2]] == [*range(1, 9)]
    nothing = go.Figure(prefix_cache.figure(with_prefix(view, [])))
    assert [shape.visible for shape in nothing.layout.shapes] == [False]


def test_what_was_found_more_often_is_brighter():
    view = view_after(32, 5)
    fills = []
    for hits in (0, 1, 3, 5):
        one = with_prefix(view, [node("a", num_hits=hits, is_evictable=True)])
        fills.append(bars(prefix_cache.figure(one))[0]["fill"])
    toward = [contrast(fill, LIGHT.card) for fill in fills]
    assert toward == sorted(toward)
    assert len(set(fills)) == 4


# ---------------------------------------------------------------- what has no room


def test_a_long_chain_is_one_box_that_says_how_many_blocks_it_is():
    view = view_after(32, 5)
    figure = prefix_cache.figure(with_prefix(view, chain("a", 200, is_evictable=True)), size=Size(320, 150))
    (bar,) = bars(figure)
    assert "<b>200 blocks</b> · tokens 0–3,199" in bar["words"]
    assert figure["data"][-1]["text"] == ["kept · 200 blocks"]


def test_shortening_keeps_order_and_equal_depths_in_one_column():
    nodes = [
        *chain("a", 3, num_hits=1),
        *chain("b", 60, "a2", 3),
        *chain("c", 2, "b59", 63),
        *chain("d", 4, "b59", 63),
    ]
    tree = lay_out(nodes, 0, 10)
    scale = depth_scale(tree.pieces, 20)
    assert scale.num_columns <= 20
    columns = [scale.column(depth) for depth in range(68)]
    assert columns == sorted(columns)
    assert not scale.is_shortened(0)
    assert scale.is_shortened(30)
    assert scale.column(64) - scale.column(63) == 1


@pytest.mark.parametrize("num_chains", [1, 12, 60])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_has_no_room_is_left_out_and_counted(num_chains, size):
    view = view_after(32, 5)
    nodes = [n for i in range(num_chains) for n in chain(f"{i}-", 3, is_evictable=True)]
    shown = make_plan(with_prefix(view, nodes), size, Focus())
    num_shown = sum(len(box.piece.nodes) for box in shown.boxes)
    assert num_shown + shown.num_left_out == len(nodes)
    assert shown.row_px >= MIN_ROW_PX
    assert shown.column_px >= MIN_COLUMN_PX
    words = text_of(prefix_cache.figure(with_prefix(view, nodes), size=size))
    assert ("not shown" in words) == (shown.num_left_out > 0)
    if shown.num_left_out:
        assert f"<b>{shown.num_left_out}</b> of {len(nodes)}" in words


def test_what_is_followed_stays_before_what_is_held_before_what_was_found_before_what_is_new():
    nodes = [
        *chain("old", 2, is_evictable=True),
        *chain("found", 2, num_hits=4, is_evictable=True),
        *chain("held", 2, owners=("r",)),
        *chain("followed", 2, owners=("s",)),
        *chain("new", 2, is_evictable=True),
    ]
    order = ["followed", "held", "found", "new", "old"]
    for room in range(1, 5):
        shown = {p.first.key.split(":")[1].rstrip("0") for p in lay_out(nodes, 0, room, ["s"]).pieces}
        assert shown == set(order[:room])
    rows = [p.first.key for p in lay_out(nodes, 0, 3, ["s"]).pieces]
    assert rows == ["0:found0", "0:held0", "0:followed0"], "in the order in which they were cached"


def test_boxes_stay_where_they_are_while_the_newest_chain_gets_longer():
    view = view_after(32, 5)
    first = [*chain("a", 9, is_evictable=True)]
    places = []
    for length in (9, 10, 11, 12):
        plan = make_plan(
            with_prefix(view, [*first, *chain("b", length, owners=("r",))]), Size(800, 180), Focus()
        )
        places.append([(b.left, b.right, b.top, b.bottom) for b in plan.boxes if b.piece.first.key == "0:a0"])
    assert len({place[0] for place in places}) == 1


def test_a_chain_of_thousands_does_not_overflow_the_stack():
    tree = lay_out(chain("a", 5000), 0, 5)
    assert [len(p.nodes) for p in tree.pieces] == [5000]
    split = [msgspec.structs.replace(n, num_hits=5000 - n.depth) for n in chain("a", 5000)]
    assert len(lay_out(split, 0, 5).pieces) == 5000


# ---------------------------------------------------------------- groups, orphans, focus


def test_groups_lie_apart_each_under_its_name():
    view = view_after(96, 80, 1, windows=(None, 64))
    figure = prefix_cache.figure(view, size=Size(800, 300))
    assert "group 0 · sees all tokens" in text_of(figure)
    assert "group 1 · sees the last 64 tokens" in text_of(figure)
    bottoms = [b["bottom"] for b in bars(figure) if "group 0 ·" in b["words"]]
    tops = [b["top"] for b in bars(figure) if "group 1 ·" in b["words"]]
    assert max(bottoms) < min(tops)


@pytest.mark.parametrize(
    ("wanted", "room", "shares"),
    [([5], 3, [3]), ([2, 9], 8, [2, 6]), ([9, 9], 8, [4, 4]), ([0, 4], 8, [0, 4]), ([9, 9, 9], 2, [1, 1, 1])],
)
def test_rows_that_one_group_does_not_need_go_to_the_others(wanted, room, shares):
    assert share_rows(wanted, room) == shares


def test_a_chain_without_its_beginning_lies_at_its_depth_behind_a_dotted_line():
    view = view_after(32, 5)
    nodes = [*chain("a", 6, is_evictable=True), *chain("z", 2, "gone", 4, is_evictable=True)]
    figure = prefix_cache.figure(with_prefix(view, nodes), size=Size(800, 180))
    orphan = next(bar for bar in bars(figure) if "was evicted" in bar["words"])
    assert "tokens 64–95" in orphan["words"]
    stub = figure["data"][0]
    assert stub["line"]["dash"] == "dot"
    assert stub["x"][1] == orphan["left"]
    assert count_leaves(nodes, 0) == 2


def test_focus_pales_what_others_hold_and_frames_the_block_of_the_token():
    view = view_after(96, 60, 1)
    chosen = next(
        t for t in view.requests if any(t.request_id in n.owners and n.depth == 1 for n in view.prefix)
    )
    focus = Focus(request_id=chosen.request_id, position=view.info.block_size + 3)
    plain, focused = prefix_cache.figure(view, size=HUGE), prefix_cache.figure(view, size=HUGE, focus=focus)
    for before, after in zip(bars(plain), bars(focused), strict=True):
        assert (before["fill"] == after["fill"]) == (before["request"] == chosen.request_id)
    frame = focused["data"][5]
    assert plain["data"][5]["x"] == []
    plan = make_plan(view, HUGE, focus)
    assert frame["x"][:2] == pytest.approx([plan.scale.column(1), plan.scale.column(2)])


# ---------------------------------------------------------------- words and shape


def test_the_hit_rate_is_that_of_the_engine():
    view = view_after(96, 90, 2)
    usage = view.usage[-1]
    assert usage.prefix_hits
    words = text_of(prefix_cache.figure(view, size=Size(800, 180)))
    assert f"({usage.prefix_hits:,} of {usage.prefix_queries:,})" in words
    assert f"<b>{100 * usage.hit_rate:.0f} %</b> of looked-up tokens found" in words


def test_before_anything_is_cached_a_sentence_says_what_will_come():
    view = with_prefix(view_after(32, 2, load=0.0), [])
    assert EMPTY in text_of(prefix_cache.figure(view)).replace("<br>", " ")


def test_an_evictable_box_too_small_for_its_sign_is_dotted():
    view = view_after(32, 5)
    nodes = chain("a", 60, is_evictable=True)
    nodes = [msgspec.structs.replace(n, num_hits=n.depth % 2) for n in nodes]  # sixty pieces of one block
    shown = bars(prefix_cache.figure(with_prefix(view, nodes), size=Size(320, 150)))
    assert len(shown) == 60
    assert {bar["pattern"] for bar in shown} == {"."}


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_plotly_takes_the_figure_and_letters_can_be_read(size, look):
    counts = set()
    for steps, windows in ((1, (None,)), (40, (None,)), (120, (None,)), (120, (None, 64))):
        figure = prefix_cache.figure(view_after(200, steps, windows=windows), look, size)
        go.Figure(figure)
        counts.add(len(figure["data"]))
        letters = figure["data"][-1]
        boxes = bars(figure)
        grounds = figure["data"][3]
        for x, y, color in zip(letters["x"], letters["y"], letters["textfont"]["color"], strict=False):
            on_ground = any(
                abs(gx + gl / 2 - x) < 1e-2 and abs(gy - y) < 1e-2
                for gx, gl, gy in zip(grounds["base"], grounds["x"], grounds["y"], strict=True)
            )
            under = [
                b["fill"] for b in boxes if b["left"] <= x <= b["right"] and b["top"] <= y <= b["bottom"]
            ]
            assert contrast(color, look.card if on_ground else under[0]) >= 4.5
    assert len(counts) == 1
