"""Trace events as rows: one plain sentence each, nobody else's tokens, and a file that no spreadsheet computes."""

from __future__ import annotations

import csv
import functools
import io
import json
import sys
from types import SimpleNamespace

import pytest

from micro_vllm.errors import InvalidRequestError
from micro_vllm.trace import (
    AnyEvent,
    BlocksAllocated,
    BlocksFreed,
    BlocksNulled,
    BlocksReferenced,
    PrefixLookup,
    RequestFinished,
    RequestMetrics,
    RequestPreempted,
    RequestQueued,
    SampledToken,
    StepFailed,
    TokensSampled,
    TraceLog,
)
from tests.ui.support.handles import handle_of
from tests.ui.support.scripted_engine import make_engine, params, random_run
from ui.charts.palette import color_slot
from ui.events.rows import (
    CSV_COLUMNS,
    KINDS,
    Chip,
    EventRow,
    csv_for,
    kind_words,
    origin_of,
    rows_of,
    rows_to_csv,
)
from ui.events.table import MAX_ROWS, EventTable
from ui.replay import Replay
from ui.view import request_label
from ui.visitors import Visitors

SECRET = 987_654
"""A token id that occurs nowhere else."""


@functools.cache
def run(steps: int = 40, *, windows=(None,), num_blocks: int = 48, **config) -> Replay:
    engine, log = make_engine(num_blocks, windows=windows, **config)
    for _ in random_run(engine, steps, 1):
        pass
    return Replay(log)


def rows(replay: Replay, mine=frozenset(), **filters) -> list[EventRow]:
    view = replay.view()
    assert view is not None
    events = replay.events(limit=sys.maxsize, **filters)
    return rows_of(events, view.info, origin_of(replay), replay.arrival_of, mine)


def words(event, mine=frozenset(), *, windows=(None,)) -> str:
    replay = run(1, windows=windows)
    view = replay.view()
    assert view is not None
    names = {"r0": 0, "r1": 1, "r2": 2}
    (row,) = rows_of([event], view.info, 0.0, names.get, mine)
    return row.text


def event(kind, **fields):
    return kind(seq=7, engine="e", step=3, time=12.5, **fields)


# ---------------------------------------------------------------- sentences


def test_every_kind_that_an_engine_tells_has_a_sentence_of_its_own():
    told = rows(run(120, windows=(None, 64), num_blocks=40, snapshot_interval=50, fail_at=(60,)))
    engine, log = make_engine(9, windows=(None,))  # both prompts fit, both answers do not
    for start in (0, 100):
        engine.add_request(list(range(start, start + 20)), params(100))
    while engine.has_unfinished_requests():
        engine.step()
    told += rows(Replay(log))
    assert {row.kind for row in told} == set(KINDS)
    for row in told:
        assert len(row.text) > 8, row
        assert row.text.isascii(), row
        assert row.seconds >= 0
    by_kind = {row.kind: row.text for row in told}
    assert len(set(by_kind.values())) == len(by_kind)


def test_the_table_knows_every_kind_there_is():
    assert set(KINDS) == {kind.__name__ for kind in AnyEvent.__args__}
    assert kind_words("BlocksAllocated") == "blocks allocated"


def test_rows_are_the_events_in_order_with_letter_and_colour_of_their_requests():
    replay = run(40)
    events = replay.events(limit=sys.maxsize)
    told = rows(replay)
    assert [(r.seq, r.step, r.kind) for r in told] == [(e.seq, e.step, e.kind) for e in events]
    start = events[-2].time  # the first after EngineStarted: an engine may wait for an hour before it
    assert [r.seconds for r in told] == pytest.approx([max(e.time - start, 0) for e in events])
    for row in told:
        for one in row.requests:
            arrival = replay.arrival_of(one.request_id)
            assert one == Chip(one.request_id, request_label(arrival), color_slot(arrival))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            event(BlocksAllocated, request_id="r0", group=0, block_ids=(17, 18), logical_start=0),
            "took blocks 17, 18 from the free list",
        ),
        (
            event(BlocksAllocated, request_id="r0", group=0, block_ids=(17,), logical_start=0),
            "took block 17 from the free list",
        ),
        (
            event(PrefixLookup, request_id="r0", num_tokens=98, num_hit_tokens=64, group_hits=(64,)),
            "prefix lookup: 64 of 98 tokens found",
        ),
        (
            event(PrefixLookup, request_id="r0", num_tokens=98, num_hit_tokens=48, group_hits=(64, 48)),
            "prefix lookup: 48 of 98 tokens found (by group: 64, 48)",
        ),
        (
            event(BlocksReferenced, request_id="r0", group=0, block_ids=(4, 9), logical_start=0),
            "shares cached blocks 4, 9 as its blocks 0 to 1",
        ),
        (
            event(BlocksFreed, request_id="r0", group=0, block_ids=tuple(range(1, 41))),
            "gave back blocks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ... (40 in all)",
        ),
        (
            event(
                RequestPreempted,
                request_id="r0",
                num_tokens=50,
                num_computed_tokens=49,
                num_preemptions=1,
                beneficiary="r2",
            ),
            "preempted, request c needs blocks: 49 tokens will be computed again",
        ),
        (
            event(
                RequestQueued, request_id="r0", priority=3, arrival=0, num_prompt_tokens=98, max_tokens=256
            ),
            "arrived with 98 prompt tokens, may write 256, priority 3",
        ),
        (
            event(
                RequestFinished,
                request_id="r0",
                reason="length",
                num_prompt_tokens=9,
                num_output_tokens=20,
                metrics=RequestMetrics(ttft=0.217, tpot=0.018),
            ),
            "finished after 20 tokens: its length limit was reached; first token after 217 ms, 18 ms a later token",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sentences_are_plain(told, sentence):
    assert words(told) == sentence


def test_sentences_name_the_group_and_its_window_only_where_there_are_several():
    nulled = event(BlocksNulled, request_id="r0", group=1, block_ids=(5,), logical_start=0)
    assert words(nulled, windows=(None, 64)) == "block 5 fell out of the window of 64 tokens (group 1)"
    freed = event(BlocksFreed, request_id="r0", group=0, block_ids=(5,))
    assert words(freed) == "gave back block 5"


def test_seconds_of_a_story_that_was_cut_count_from_its_first_event():
    engine, log = make_engine(48, windows=(None,), snapshot_interval=10, trace=TraceLog(capacity=120))
    for _ in random_run(engine, 80, 1):
        pass
    replay = Replay(log)
    events = replay.events(limit=sys.maxsize)
    assert events[-1].seq > 0
    assert origin_of(replay) == events[-1].time
    assert rows(replay)[-1].seconds == 0


def test_a_request_that_is_forgotten_is_still_named_by_its_place():
    replay = run(1)
    view = replay.view()
    assert view is not None
    freed = event(BlocksFreed, request_id="gone", group=0, block_ids=(5,))
    (row,) = rows_of([freed], view.info, 0.0, lambda request_id: None)
    assert row.requests == (Chip("gone", "?", None),)


# ---------------------------------------------------------------- privacy


def sampled(*request_ids: str):
    tokens = tuple(
        SampledToken(request_id=r, token_id=SECRET + i, logprob=-0.5, alternatives=((SECRET + i, -0.5),))
        for i, r in enumerate(request_ids)
    )
    return event(TokensSampled, tokens=tokens)


def test_token_ids_are_told_to_their_owner_only():
    """DESIGN 4: token ids are text."""
    told = sampled("r0", "r1", "r2")
    for mine in ((), ("r1",), ("r0", "r2")):
        text = words(told, frozenset(mine))
        for i, request_id in enumerate(("r0", "r1", "r2")):
            assert (str(SECRET + i) in text) == (request_id in mine)
    assert words(told) == "a new token for 3 requests"


def test_prompts_are_told_to_nobody():
    told = event(
        RequestQueued,
        request_id="r0",
        priority=0,
        arrival=0,
        num_prompt_tokens=2,
        max_tokens=9,
        prompt_token_ids=(SECRET, SECRET + 1),
    )
    assert str(SECRET)[:4] not in words(told, frozenset({"r0"}))


def test_messages_about_failures_are_told_to_those_whose_request_failed():
    failed = event(StepFailed, error=f"bad token {SECRET}", request_ids=("r0", "r1"))
    ended = event(
        RequestFinished,
        request_id="r0",
        reason="error",
        num_prompt_tokens=1,
        num_output_tokens=0,
        metrics=RequestMetrics(),
        detail=f"bad token {SECRET}",
    )
    for told in (failed, ended):
        assert str(SECRET) not in words(told, frozenset({"r2"}))
        assert str(SECRET) in words(told, frozenset({"r0"}))


# ---------------------------------------------------------------- CSV


def parsed(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_the_file_holds_all_rows_of_the_filter_and_can_be_read_back():
    replay = run(60)
    kinds = ("BlocksAllocated", "PrefixLookup")
    table = parsed(b"".join(csv_for(replay, frozenset(), kinds, None, 40)).decode())
    expected = rows(replay, kinds=frozenset(kinds), until=40)
    assert table[0] == list(CSV_COLUMNS)
    assert len(table) - 1 == len(expected) > 20
    for line, row in zip(table[1:], expected, strict=True):
        assert line == [
            str(row.step),
            f"{row.seconds:.6f}",
            row.kind,
            row.requests[0].label,
            row.requests[0].request_id,
            row.text,
        ]
    assert rows_to_csv(expected) == b"".join(csv_for(replay, frozenset(), kinds, None, 40)).decode()


def test_the_file_is_not_cut_at_the_rows_of_the_table_and_one_request_can_be_taken():
    replay = run(90)
    table = parsed(b"".join(csv_for(replay, frozenset())).decode())
    assert len(table) - 1 == len(replay.events(limit=sys.maxsize)) > MAX_ROWS
    view = replay.view()
    assert view is not None
    request_id = view.requests[0].request_id
    one = parsed(b"".join(csv_for(replay, frozenset(), None, request_id)).decode())
    assert all(request_id in line[4].split() for line in one[1:])
    assert len(one) > 3


@pytest.mark.parametrize("bad", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_the_file_is_a_formula(bad):
    """CSV injection, https://owasp.org/www-community/attacks/CSV_Injection"""
    row = EventRow(1, 2, 3.0, bad, (Chip(bad, bad, None),), f'{bad}"; and, more\nlines')
    (_, line) = parsed(rows_to_csv([row]))
    assert line[:2] == ["2", "3.000000"]
    for cell in line[2:]:
        assert cell[0] == "'"
        assert cell[1:].startswith(bad)


def test_an_unknown_kind_is_refused_before_anything_is_sent():
    with pytest.raises(InvalidRequestError, match="'Nonsense' is unknown; known: RequestQueued"):
        csv_for(run(1), frozenset(), ["RequestQueued", "Nonsense"])


def test_the_file_follows_the_same_privacy_as_the_table():
    engine, log = make_engine(32, windows=(None,))
    mine = engine.add_request(list(range(20)), params(6))
    engine.add_request(list(range(30)), params(6))
    while engine.has_unfinished_requests():
        engine.step()
    replay = Replay(log)
    drawn = [
        (t.request_id, t.token_id) for e in log.since() if isinstance(e, TokensSampled) for t in e.tokens
    ]
    table = parsed(b"".join(csv_for(replay, frozenset({mine}), ["TokensSampled"])).decode())
    told = [
        cell
        for line in table[1:]
        for cell in line[5].replace(";", "").replace(",", "").split()
        if cell.isdecimal()
    ]
    own = [str(token) for request_id, token in reversed(drawn) if request_id == mine]
    assert [cell for cell in told if len(cell) > 1] == [token for token in own if len(token) > 1]


# ---------------------------------------------------------------- the pane


class Table:
    """An EventTable over one engine, as the page has it."""

    def __init__(self, **config) -> None:
        self.engine, self.log = make_engine(48, windows=(None,), **config)
        self.replay = Replay(self.log)
        self.visitors = Visitors()
        host = SimpleNamespace(engine=SimpleNamespace(replay=self.replay))
        self.pane = EventTable(SimpleNamespace(host=host, visitors=self.visitors))
        self.visitor = self.visitors.of_session("tab")

    def ask(self, version: str = "", *, step: int | None = None, replay: Replay | None = None, **filters):
        replay = replay or self.replay
        return self.pane.answer({"version": version, **filters}, self.visitor, replay.view(step), replay)


def steps(table: Table, count: int, seed: int = 0) -> None:
    for _ in random_run(table.engine, count, seed):
        pass


def test_a_tab_gets_the_newest_rows_then_only_what_is_new():
    table = Table()
    steps(table, 60)
    first = table.ask()
    assert first["add"] is False
    assert len(first["rows"]) == MAX_ROWS
    assert first["more"] is True
    assert table.ask(first["version"]) is None, "nothing has happened since"
    held = first["rows"]
    version = first["version"]
    for seed in range(4):
        steps(table, 2, seed)
        told = table.ask(version)
        assert told["add"] is True
        assert 0 < len(told["rows"]) < MAX_ROWS
        held, version = [*told["rows"], *held][:MAX_ROWS], told["version"]
    assert held == table.ask()["rows"], "as if asked for all at once"
    seqs = [row[0] for row in held]
    assert seqs == sorted(seqs, reverse=True)


def test_requests_to_choose_from_are_told_when_they_change_only():
    table = Table()
    one = table.engine.add_request(list(range(20)), params(9))
    table.engine.step()
    first = table.ask()
    assert first["requests"] == [[one, "a"]]
    table.engine.step()
    second = table.ask(first["version"])
    assert (second["add"], second["requests"]) == (True, None)
    two = table.engine.add_request(list(range(20)), params(9))
    assert table.ask(second["version"])["requests"] == [[two, "b"], [one, "a"]]
    assert table.ask(second["version"], kinds=["StepPlanned"])["requests"], "another filter starts anew"


def test_rows_end_at_the_cursor_also_when_it_goes_back():
    table = Table()
    steps(table, 50)
    newest = table.ask()
    back = table.ask(newest["version"], step=20)
    assert back["add"] is False
    assert back["step"] == 20
    assert back["rows"][0][1] == 20
    assert all(row[1] <= 20 for row in back["rows"])
    on = table.ask(back["version"], step=21)
    assert on["add"] is True
    assert {row[1] for row in on["rows"]} == {21}


@pytest.mark.parametrize(
    "filters",
    [{"kinds": ["PrefixLookup"]}, {"request": "one"}, {"kinds": ["BlocksAllocated"], "request": "one"}],
)
def test_what_is_found_step_by_step_is_what_is_found_at_once(filters):
    table = Table()
    name = table.engine.add_request(list(range(40)), params(60))
    if "request" in filters:
        filters = {**filters, "request": name}
    version, held = "", []
    for seed in range(12):
        steps(table, 5, seed)
        told = table.ask(version, **filters)
        if told is not None:
            held = [*told["rows"], *held] if told["add"] else told["rows"]
            version = told["version"]
    kinds = frozenset(filters["kinds"]) if "kinds" in filters else None
    events = table.replay.events(kinds=kinds, request_id=filters.get("request"), limit=MAX_ROWS)
    assert [row[0] for row in held[:MAX_ROWS]] == [e.seq for e in events]
    assert len(held) > 3


def test_a_rare_kind_is_not_looked_for_again_through_the_whole_story():
    table = Table()
    steps(table, 60)
    asked: list[int] = []
    events = table.replay.events

    def counting(**filters):
        asked.append(filters["limit"] if filters.get("kinds") is None else sys.maxsize)
        return events(**filters)

    table.replay.events = counting  # type: ignore[method-assign]
    told = table.ask(kinds=["StepFailed"])
    assert told["rows"] == []
    assert sys.maxsize in asked
    asked.clear()
    steps(table, 1)
    table.ask(told["version"], kinds=["StepFailed"])
    assert asked
    assert max(asked) < 100, "only what is new was read"


def test_other_story_or_filter_is_told_whole():
    table = Table()
    steps(table, 20)
    version = table.ask()["version"]
    other = run(30)
    assert table.ask(version, replay=other)["add"] is False
    assert table.ask(version, kinds=["StepPlanned"])["add"] is False
    assert {row[3] for row in table.ask(kinds=["StepPlanned"])["rows"]} == {"step planned"}


def test_own_tokens_are_told_of_the_engine_that_serves_only_not_of_a_file_with_the_same_ids():
    table = Table()
    mine = table.engine.add_request(list(range(20)), params(8))
    table.visitors.begin(table.visitor, handle_of(mine))
    for _ in range(6):
        table.engine.step()
    assert any("yours" in row[6] for row in table.ask()["rows"])
    opened = Replay(table.log)
    assert not any("yours" in row[6] for row in table.ask(replay=opened)["rows"])
    table.visitor = table.visitors.of_session("somebody else")
    assert not any("yours" in row[6] for row in table.ask()["rows"])
    table.visitor = None
    assert not any("yours" in row[6] for row in table.ask()["rows"])


@pytest.mark.parametrize(
    "ask",
    [
        None,
        3,
        "x",
        [],
        {"kinds": 3, "request": [], "version": {}},
        {"kinds": [["a"], None, "Nonsense"], "version": "9" * 900},
        {"version": "1.2.-5"},
        {"version": "1.2.²"},
        {"request": "x" * 10_000},
    ],
)
def test_odd_questions_are_answered_as_if_nothing_was_asked(ask):
    table = Table()
    steps(table, 10)
    told = table.pane.answer(ask, None, table.replay.view(), table.replay)
    assert told["rows"] == table.ask()["rows"]
    assert len(json.dumps(told)) < 100_000


def test_nothing_to_show_is_no_answer():
    table = Table()
    assert table.pane.answer({}, table.visitor, None, None) is None
