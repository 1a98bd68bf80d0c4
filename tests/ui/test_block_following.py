"""Following a request in the KV block map: its table, what became of its blocks, and where one token lies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from micro_vllm.trace import BlockEvicted
from tests.ui.support.drawn import SIZE, drawn, rectangles, scatters, view_after
from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts import block_map
from ui.charts.block_follow import follow
from ui.charts.block_words import describe
from ui.charts.focus import Focus
from ui.charts.theme import DARK, LIGHT, Size
from ui.replay import Replay

WORDS_SIZE = Size(1100, 420)
"""Large enough for "g1·3" in a cell."""


def signs_of(figure) -> dict[tuple[int, int], str]:
    """(row, column) -> logical index as it is written."""
    (trace,) = [t for t in scatters(figure, "text") if is_index(t)]
    return {(int(y), int(x)): text for x, y, text in zip(trace.x, trace.y, trace.text, strict=True)}


def is_index(trace) -> bool:
    return bool(trace.text) and all(
        text.startswith(("<b>", "<s>")) or text.endswith("?") for text in trace.text
    )


def frames(figure) -> list[tuple[float, float, float, float]]:
    """Frames of followed blocks, solid, dashed and dotted ones."""
    return [box for trace in frame_traces(figure) for box in rectangles(trace)]


def frame_traces(figure):
    index = figure.data.index(scatters(figure, "markers+text")[0]) + 1
    return figure.data[index : index + 3]


def table_of(view, request_id: str) -> dict[int, tuple[int, int]]:
    tables = view.request(request_id).tables
    return {block: (g, i) for g, table in enumerate(tables) for i, block in enumerate(table) if block}


@pytest.mark.parametrize("windows", [(None,), (None, 32)], ids=["one-group", "hybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_the_blocks_of_a_live_request_are_its_block_table_at_every_step(windows, seed):
    engine, log = make_engine(80, windows=windows)
    replay = Replay()
    compared = 0
    for _ in random_run(engine, 60, seed, load=0.3):
        view = replay.follow(log)
        for track in view.requests:
            if track.status == "done":
                continue
            followed = follow(view, Focus(request_id=track.request_id))
            got = {block: (entry.group, entry.logical_index) for block, entry in followed.blocks.items()}
            assert got == table_of(view, track.request_id)
            assert all(entry.fate == "held" for entry in followed.blocks.values())
            compared += len(got)
    assert compared > 300


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=lambda look: look.name)
def test_followed_blocks_carry_their_logical_index_and_a_frame_and_all_others_fade(look):
    view = view_after(64, 40, 5)
    track = max((t for t in view.requests if t.status == "running"), key=lambda t: t.num_tokens)
    plain = drawn(block_map, view, look)
    figure = drawn(block_map, view, look, SIZE, Focus(request_id=track.request_id))
    table = track.tables[0]
    columns = len(figure.data[0].z[0])
    expected = {divmod(block - 1, columns): f"<b>{i}</b>" for i, block in enumerate(table)}
    assert len(expected) > 2
    assert signs_of(figure) == expected
    assert len(frames(figure)) == len(table)
    assert frames(plain) == []
    labels = {t.label for t in view.requests}
    lettered = {
        int(y) * columns + int(x) + 1
        for trace in scatters(figure, "text")
        for x, y, sign in zip(trace.x, trace.y, trace.text, strict=True)
        if sign in labels
    }
    assert lettered == {c.block_id for c in view.blocks if len(c.owners) == 1 and c.block_id not in table}
    colors, before = _fills(figure, columns), _fills(plain, columns)
    others = [c.block_id for c in view.blocks if len(c.owners) == 1 and c.tokens and c.block_id not in table]
    assert others
    for block in others:
        assert colors[block] != before[block]
    shown = [block for block in table if block in colors]
    assert shown
    for block in shown:
        assert colors[block] == before[block]


def _bars(figure) -> list:
    """The fills of cells with one owner, then the strips of shared ones."""
    return [trace for trace in figure.data if trace.type == "bar"]


def _fills(figure, columns: int) -> dict[int, str]:
    """Block -> colour, of the blocks with one owner."""
    bars = _bars(figure)[0]
    blocks = [int(base) * columns + int(x) + 1 for x, base in zip(bars.x, bars.base, strict=True)]
    return dict(zip(blocks, bars.marker.color, strict=True))


def test_a_shared_block_stays_split_while_it_is_followed_its_larger_part_is_the_followed_ones():
    engine, log = make_engine(64, windows=(None,))
    for _ in range(3):
        engine.add_request([*range(100, 140)], params(20))
        engine.step()
    view = Replay().follow(log)
    (second,) = [t for t in view.requests if t.label == "b"]
    strips = _bars(drawn(block_map, view, LIGHT, SIZE, Focus(request_id=second.request_id)))[1]
    assert len(strips.x) == 2 * 3
    own = [w for w, color in zip(strips.width, strips.marker.color, strict=True) if color == "#E69F00"]
    assert len(own) == 2
    assert all(w > 3 * other for w in own for other in set(strips.width) - set(own))
    words = describe(view.blocks[second.tables[0][0]], view, {t.request_id: t.label for t in view.requests})
    assert "shared by 3: a, b, c" in words


def test_groups_are_told_apart_by_label_frame_and_hover():
    view = view_after(64, 40, 1, windows=(None, 32))
    track = max((t for t in view.requests if t.status == "running"), key=lambda t: t.num_tokens)
    figure = drawn(block_map, view, LIGHT, WORDS_SIZE, Focus(request_id=track.request_id))
    expected = Counter(
        f"<b>g{g}·{i}</b>" for g, table in enumerate(track.tables) for i, block in enumerate(table) if block
    )
    assert Counter(signs_of(figure).values()) == expected
    assert {sign[3:5] for sign in expected} == {"g0", "g1"}
    solid, dashed, _ = frame_traces(figure)
    assert dashed.line.dash != "solid" == solid.line.dash
    assert [len(rectangles(t)) for t in (solid, dashed)] == [sum(map(bool, table)) for table in track.tables]
    hovers = [
        text
        for row in figure.data[0].text
        for text in row
        if f"<b>{track.label}</b>, group 1: logical" in text
    ]
    assert len(hovers) == sum(map(bool, track.tables[1]))


def test_small_cells_of_a_hybrid_model_show_the_index_alone():
    view = view_after(256, 40, 1, windows=(None, 32))
    track = max((t for t in view.requests if t.status == "running"), key=lambda t: t.num_tokens)
    figure = drawn(block_map, view, LIGHT, Size(440, 170), Focus(request_id=track.request_id))
    assert set(signs_of(figure).values()) <= {f"<b>{i}</b>" for i in range(99)}


# ---------------------------------------------------------------- finished requests


@pytest.mark.parametrize("windows", [(None,), (None, 32)], ids=["one-group", "hybrid"])
@pytest.mark.parametrize("seed", range(4))
def test_what_became_of_the_blocks_of_finished_requests_is_told_as_it_is(windows, seed):
    """Against the hashes that their blocks had while they ran and the evictions since: what still has its hash and
    was not evicted still has the tokens."""
    engine, log = make_engine(60, windows=windows)
    replay = Replay()
    had: dict[tuple[str, int], set[str]] = {}  # (request, block) -> hashes while it ran
    evicted: set[tuple[str, int]] = set()
    told: Counter[str] = Counter()
    seq = -1
    for _ in random_run(engine, 140, seed, load=0.3):
        view = replay.follow(log)
        live = {track.request_id for track in view.requests if track.status != "done"}
        for event in log.since(seq):
            seq = event.seq
            if isinstance(event, BlockEvicted):
                for request_id, block in [pair for pair in had if pair[1] == event.block_id]:
                    if request_id in live:  # a block that left its window and came back
                        del had[request_id, block]
                    else:
                        evicted.add((request_id, block))
        for track in view.requests:
            if track.request_id in live:
                for block in table_of(view, track.request_id):
                    had.setdefault((track.request_id, block), set()).update(view.blocks[block].hashes)
                continue
            for block, entry in follow(view, Focus(request_id=track.request_id)).blocks.items():
                hashes = had.get((track.request_id, block))
                if not hashes:  # what became full in its very last step was never seen while it ran
                    continue
                has_same = bool(hashes & set(view.blocks[block].hashes))
                told[entry.fate] += 1
                if entry.fate == "kept":  # or another computed the very same again, into this very block
                    assert has_same, (track.request_id, block)
                if entry.fate in ("given", "lost"):
                    assert not has_same or (track.request_id, block) in evicted, (track.request_id, block)
                if entry.fate == "lost":
                    assert view.blocks[block].state == "free"
    assert told["kept"] > 50
    assert told["given"] > 50
    assert told["unclear"] < 0.05 * told.total(), told


def finished_request(num_blocks: int = 16):
    """``a`` has finished, six blocks hold its tokens, the seventh was not full."""
    engine, log = make_engine(num_blocks, windows=(None,))
    a = engine.add_request([*range(90)], params(8))
    for _ in range(10):
        engine.step()
    return engine, log, a


def test_the_last_table_of_a_finished_request_is_shown_with_what_is_kept_and_what_is_lost():
    _, log, a = finished_request()
    view = Replay().follow(log)
    figure = drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a))
    assert sorted(signs_of(figure).values()) == sorted([*(f"<b>{i}</b>" for i in range(6)), "<s>6</s>"])
    hovers = [t for row in figure.data[0].text for t in row if "logical" in t]
    assert sum("still has its tokens" in t for t in hovers) == 6
    assert sum("cannot be found again" in t for t in hovers) == 1


def test_blocks_that_were_given_away_say_so_and_a_click_follows_who_has_them_now():
    engine, log, a = finished_request()
    b = engine.add_request([*range(500, 690)], params(20))
    for _ in range(4):
        engine.step()
    view = Replay().follow(log)
    followed = follow(view, Focus(request_id=a))
    given = [block for block, entry in followed.blocks.items() if entry.fate == "given"]
    kept = [block for block, entry in followed.blocks.items() if entry.fate == "kept"]
    taken = set(view.request(b).tables[0])
    assert set(given) == set(followed.blocks) & taken
    assert given
    assert kept
    figure = drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a))
    columns = len(figure.data[0].z[0])
    for block in given:
        row, column = divmod(block - 1, columns)
        assert signs_of(figure)[row, column].startswith("<s>")
        assert "given away since" in figure.data[0].text[row][column]
        assert figure.data[0].customdata[row][column] == b
    for block in kept:
        row, column = divmod(block - 1, columns)
        assert figure.data[0].customdata[row][column] == a


def test_without_prefix_caching_nothing_of_a_finished_request_is_kept():
    engine, log = make_engine(16, windows=(None,), enable_prefix_caching=False)
    a = engine.add_request([*range(60)], params(8))
    for _ in range(10):
        engine.step()
    followed = follow(Replay().follow(log), Focus(request_id=a))
    assert {entry.fate for entry in followed.blocks.values()} == {"lost"}


def test_where_the_cache_does_not_say_who_computed_a_content_the_map_says_that_it_may_be_kept():
    """A log that was cut: the fold knows the hashes, but not whose they were."""
    _, log, a = finished_request()
    view = Replay().follow(log)
    view = replace(
        view, prefix=tuple(msgspec.structs.replace(node, first_arrival=None) for node in view.prefix)
    )
    figure = drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a))
    assert sorted(signs_of(figure).values()) == [*(f"{i}?" for i in range(6)), "<s>6</s>"]
    assert sum("may still have its tokens" in t for row in figure.data[0].text for t in row) == 6


# ---------------------------------------------------------------- one token


@pytest.mark.parametrize("position", [0, 15, 16, 37, 59])
def test_a_token_is_a_bar_at_the_height_of_its_slot_in_its_block(position):
    engine, log = make_engine(64, windows=(None,))
    a = engine.add_request([*range(60)], params(30))
    engine.step()
    view = Replay().follow(log)
    figure = drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a, position=position))
    casing, bar = [t for t in scatters(figure, "lines") if len(t.x or ()) == 3]
    assert casing.line.width > bar.line.width
    columns = len(figure.data[0].z[0])
    block, slot = view.request(a).tables[0][position // 16], position % 16
    row, column = divmod(block - 1, columns)
    left, right, _ = bar.x
    assert left < column < column + 1 < right
    assert bar.y[0] == bar.y[1]
    from_below = (row + 1 - bar.y[0]) * 16
    assert from_below == pytest.approx(slot + 0.5, abs=0.7)
    words = f"token {position}: block {block}, slot {slot}"
    assert words in figure.data[0].text[row][column].split("<br>")
    assert figure.layout.annotations[0].text == words


def test_a_token_of_a_hybrid_model_lies_in_one_block_a_group_until_a_window_has_left_it():
    engine, log = make_engine(64, windows=(None, 32))
    a = engine.add_request([*range(60)], params(60))
    engine.step()
    early = follow(Replay().follow(log), Focus(request_id=a, position=37))
    assert [early.blocks[block].group for block in early.token_blocks] == [0, 1]
    for _ in range(40):
        engine.step()
    late = follow(Replay().follow(log), Focus(request_id=a, position=3))
    assert [late.blocks[block].group for block in late.token_blocks] == [0]


def test_the_newest_token_is_not_written_yet_and_a_token_beyond_the_table_has_no_place():
    engine, log = make_engine(64, windows=(None,))
    a = engine.add_request([*range(20)], params(30))
    engine.step()
    view = Replay().follow(log)
    assert view.request(a).num_tokens == 21
    assert follow(view, Focus(request_id=a, position=19)).is_computed
    newest = follow(view, Focus(request_id=a, position=20))
    assert newest.token_blocks
    assert not newest.is_computed
    figure = drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a, position=20))
    assert "(not written)" in figure.layout.annotations[0].text
    for position in (900, -1):
        beyond = follow(view, Focus(request_id=a, position=position))
        assert beyond.position is None
        assert beyond.token_blocks == ()
        drawn(block_map, view, LIGHT, SIZE, Focus(request_id=a, position=position))


# ---------------------------------------------------------------- nothing to follow


def test_an_unknown_request_leaves_the_map_as_it_is():
    view = view_after(64, 20, 2)
    assert block_map.figure(view, LIGHT, SIZE, Focus(request_id="nobody")) == block_map.figure(
        view, LIGHT, SIZE
    )


def test_a_request_that_holds_no_block_says_that_it_waits():
    engine, log = make_engine(64, windows=(None,), max_num_seqs=1)
    engine.add_request([*range(30)], params(30))
    waiting = engine.add_request([*range(30)], params(30))
    engine.step()
    figure = drawn(block_map, Replay().follow(log), LIGHT, SIZE, Focus(request_id=waiting))
    assert "holds no block now" in figure.layout.annotations[0].text


def test_focus_does_not_change_the_number_and_kinds_of_traces():
    view = view_after(64, 40, 5)
    track = view.requests[-1]
    kinds = {
        tuple(
            (t.type, t.mode if t.type == "scatter" else "")
            for t in drawn(block_map, view, LIGHT, SIZE, focus).data
        )
        for focus in (
            Focus(),
            Focus(request_id=track.request_id),
            Focus(request_id=track.request_id, position=3),
        )
    }
    assert len(kinds) == 1
