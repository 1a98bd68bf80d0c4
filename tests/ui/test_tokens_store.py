"""The token strip's data: pieces give back the text (P24), each token its alternatives, each visitor only their own."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from micro_vllm.engine.output import CompletionOutput, Logprob, RequestOutput
from micro_vllm.tokenizer import Tokenizer
from tests.engine.support.models import save_tiny_model
from tests.ui.support.handles import handle_of
from ui.replay import Replay
from ui.tokens import store as store_module
from ui.tokens.store import ALTERNATIVES, TokenStore
from ui.visitors import Visitors


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = save_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny", tokenizer=True, vocab_size=300, eos_token_id=299
    )
    return Tokenizer.from_folder(folder)


def make_engine(tokenizer) -> SimpleNamespace:
    return SimpleNamespace(loaded=SimpleNamespace(tokenizer=tokenizer), replay=Replay())


@pytest.fixture
def engine(tokenizer):
    return make_engine(tokenizer)


@pytest.fixture
def visitors():
    return Visitors()


def logprobs_of(token_id: int) -> dict[int, Logprob]:
    """The token itself at rank 7 and five likelier ones."""
    best = {i: Logprob(math.log(0.3 / i), i) for i in range(1, ALTERNATIVES + 1)}
    return {token_id: Logprob(math.log(0.01), 7)} | {i: p for i, p in best.items() if i != token_id}


def output(prompt, ids, text="", *, finished=False, name="request-0") -> RequestOutput:
    answer = CompletionOutput(
        index=0,
        text=text,
        token_ids=list(ids),
        logprobs=[logprobs_of(i) for i in ids],
        finish_reason="stop" if finished else None,
    )
    return RequestOutput(name, None, list(prompt), [answer], finished)


def begin(visitors, name="request-0", session="one"):
    visitor = visitors.of_session(session)
    visitors.begin(visitor, handle_of(name))
    return visitor


def ask(store, visitor, name="request-0", since=0, finished=False, table=0, view=None, replay=None):
    return store.answer(
        {"request": name, "since": since, "finished": finished, "table": table}, visitor, view, replay
    )


def read_all(store, visitor, name="request-0"):
    """As the script does: piece by piece, replacing from ``from`` on."""
    held: list = []
    finished = False
    while (told := ask(store, visitor, name, len(held), finished)) is not None:
        held[told["from"] :] = told["tokens"]
        finished = told["finished"]
    return held


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40), steps=st.lists(st.integers(1, 7), max_size=12))
def test_pieces_joined_give_back_the_text(tokenizer, text, steps):
    """P24, textgen #6485: blanks and characters of several bytes included, whatever the pace."""
    text = text.encode("utf-8", "replace").decode()
    ids = [*tokenizer.encode(text, add_special_tokens=False), 299]
    visitors, store, engine = Visitors(), TokenStore(), make_engine(tokenizer)
    visitor = begin(visitors)
    at = 0
    for step in steps:
        at = min(at + step, len(ids))
        store.update(visitor, engine, output([1, 2], ids[:at]))
        read = "".join(token[1] for token in read_all(store, visitor))
        assert tokenizer.decode(ids).startswith(read)
    store.update(visitor, engine, output([1, 2], ids, tokenizer.decode(ids), finished=True))
    held = read_all(store, visitor)
    assert [token[0] for token in held] == ids
    assert "".join(token[1] for token in held) == tokenizer.decode(ids)


def test_a_tab_that_follows_along_gets_each_token_once_and_the_end(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    ids = tokenizer.encode("a 🧱 b", add_special_tokens=False)
    held: list = []
    num_sent = 0
    for length in range(1, len(ids) + 1):
        store.update(visitor, engine, output([1], ids[:length]))
        told = ask(store, visitor, since=len(held))
        num_sent += len(told["tokens"])
        held[told["from"] :] = told["tokens"]
    assert num_sent == len(ids)
    assert ask(store, visitor, since=len(held)) is None
    store.update(visitor, engine, output([1], ids, "a 🧱 b", finished=True))
    told = ask(store, visitor, since=len(held))
    assert told["finished"]
    assert ask(store, visitor, since=len(held), finished=True) is None


@pytest.fixture
def store_and_more(visitors, engine, tokenizer):
    return TokenStore(), begin(visitors), engine, tokenizer


def test_half_a_character_at_the_end_is_shown_when_the_answer_ends(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    ids = [*tokenizer.encode("é🧱", add_special_tokens=False)[:4]]
    store.update(visitor, engine, output([1], ids))
    held = ask(store, visitor)["tokens"]
    assert "".join(token[1] for token in held) == "é"
    store.update(visitor, engine, output([1], [*ids, 299], "é\ufffd", finished=True))
    assert "".join(token[1] for token in read_all(store, visitor)) == "é\ufffd"
    told = ask(store, visitor, since=len(ids))
    held[told["from"] :] = told["tokens"]
    assert "".join(token[1] for token in held) == "é\ufffd"


def test_each_token_has_its_probability_and_the_likeliest_others(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    store.update(visitor, engine, output([1, 2, 3], [65]))
    told = ask(store, visitor)
    (token,) = told["tokens"]
    token_id, piece, word, special, probability, rank, best = token
    assert (token_id, piece, word, special, probability, rank) == (
        65,
        tokenizer.token_text(65),
        "",
        0,
        0.01,
        7,
    )
    assert [row[0] for row in best] == [1, 2, 3, 4, 5]
    assert [row[2] for row in best] == [0.3, 0.15, 0.1, 0.075, 0.06]
    assert best[0][1] == tokenizer.token_text(1)
    assert told["start"] == 3


def test_special_tokens_are_marked_and_not_part_of_the_text(store_and_more):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65, 299], "a", finished=True))
    last = ask(store, visitor)["tokens"][-1]
    assert last[1] == ""
    assert last[2] != ""
    assert last[3] == 1


def test_what_was_kept_of_an_answer_is_shown_without_probabilities(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    kept = tokenizer.encode("Hi é", add_special_tokens=False)
    more = tokenizer.encode(" you", add_special_tokens=False)
    store.update(visitor, engine, output([1, 2, *kept], more), kept=len(kept))
    told = ask(store, visitor)
    assert told["start"] == 2
    assert told["kept"] == len(kept)
    assert "".join(token[1] for token in told["tokens"]) == "Hi é you"
    assert [token[4] is None for token in told["tokens"]] == [True] * len(kept) + [False] * len(more)
    assert told["tokens"][0][6] == []


def test_a_stop_string_is_marked_as_left_out(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    ids = tokenizer.encode("abcSTOP", add_special_tokens=False)
    store.update(visitor, engine, output([1], ids, "abc", finished=True))
    told = ask(store, visitor)
    assert "".join(token[1] for token in told["tokens"][: told["cut"]]) == "abc"
    assert told["cut"] < len(ids)
    store.update(visitor, engine, output([1], [*ids, 299], "abcSTOP", finished=True, name="other"))
    visitor.mine.append("other")
    assert ask(store, visitor, "other")["cut"] is None


def test_nobody_reads_the_tokens_of_somebody_else(visitors, engine):
    """The page's privacy: token ids are text."""
    store = TokenStore()
    owner, other = begin(visitors), visitors.of_session("other")
    store.update(owner, engine, output([1], [65, 66]))
    assert ask(store, owner)["tokens"]
    gone = {"request": "request-0", "gone": True}
    assert ask(store, other) == gone
    assert ask(store, None) == gone
    visitors.begin(other, handle_of("request-0"))  # the same name, with another engine
    assert ask(store, other) is None
    visitors.end(other, "request-0")
    assert ask(store, other) == gone
    assert ask(store, owner, "request-1") == {"request": "request-1", "gone": True}


def test_a_request_that_waits_for_its_first_token_is_not_gone(store_and_more):
    store, visitor, _, _ = store_and_more
    assert ask(store, visitor) is None


def test_a_name_that_comes_again_with_another_engine_is_another_answer(store_and_more):
    store, visitor, engine, tokenizer = store_and_more
    store.update(visitor, engine, output([1], [65, 66, 67]))
    store.update(visitor, make_engine(tokenizer), output([1], [70]))
    told = ask(store, visitor, since=3)
    assert told["from"] == 0
    assert [token[0] for token in told["tokens"]] == [70]


def test_new_tokens_cost_what_they_are_and_not_what_came_before(store_and_more, monkeypatch):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65] * 500))
    pushed = []
    record = store.get(visitor, "request-0")
    push = record._stream.push
    monkeypatch.setattr(record, "_stream", SimpleNamespace(push=lambda i: (pushed.append(i), push(i))[1]))
    store.update(visitor, engine, output([1], [65] * 502))
    assert pushed == [65, 65]
    store.update(visitor, engine, output([1], [65] * 400))  # an older one that comes late
    assert len(record) == 502
    assert len(ask(store, visitor, since=500)["tokens"]) == 2


def test_a_long_answer_comes_in_parts(store_and_more):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65] * 1000))
    told = ask(store, visitor)
    assert len(told["tokens"]) == store_module.TOKENS_PER_REPLY
    assert told["more"]
    assert len(read_all(store, visitor)) == 1000


def test_answers_are_bounded_for_a_visitor_and_in_all(visitors, engine, monkeypatch):
    store = TokenStore()
    visitor = visitors.of_session("one")
    for number in range(store_module.ANSWERS_PER_VISITOR + 5):
        visitors.begin(visitor, handle_of(f"r{number}"))
        store.update(visitor, engine, output([1], [65], name=f"r{number}"))
        visitors.end(visitor, f"r{number}")
    assert ask(store, visitor, "r4")["gone"]
    assert ask(store, visitor, "r5")["tokens"]
    monkeypatch.setattr(store_module, "MAX_TOKENS", 100)
    other = begin(visitors, "big", "other")
    store.update(other, engine, output([1], [65] * 99, name="big"))
    visitors.begin(other, handle_of("next"))
    store.update(other, engine, output([1], [65], name="next"))
    assert len(store._answers) <= 3
    assert ask(store, other, "next")["tokens"]


def test_tokens_go_with_their_tab(visitors, engine):
    store = TokenStore()
    begin(visitors)
    store.update(visitors.of_session("one"), engine, output([1], [65]))
    visitors.forget("one")
    visitor = begin(visitors, "later", "two")
    store.update(visitor, engine, output([1], [66], name="later"))
    assert [key[1] for key in store._answers] == ["later"]


def view_of(blocks, request="request-0"):
    track = SimpleNamespace(tables=(tuple(blocks),), num_computed_tokens=20)
    return SimpleNamespace(
        info=SimpleNamespace(block_size=16), request=lambda name: track if name == request else None
    )


def test_blocks_are_those_of_the_step_that_the_tab_looks_at(store_and_more):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65]))
    told = ask(store, visitor, view=view_of([12, 13]), replay=engine.replay)
    assert told["table"]["size"] == 16
    assert told["table"]["blocks"] == [12, 13]
    version = told["table"]["version"]
    again = {"since": 1, "table": version, "replay": engine.replay}
    assert ask(store, visitor, view=view_of([12, 13]), **again) is None
    assert ask(store, visitor, view=view_of([12]), **again)["table"]["blocks"] == [12]


def test_blocks_of_another_story_are_not_those_of_the_answer(store_and_more):
    """A sample or an opened file may hold a request of the same name."""
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65]))
    assert "table" not in ask(store, visitor, view=view_of([12]), replay=Replay())


@pytest.mark.parametrize(
    "asked",
    [
        None, 7, [], "x", {}, {"request": 7}, {"request": ""}, {"request": "x" * 1000},
        {"request": "request-0", "since": -1}, {"request": "request-0", "since": True},
        {"request": "request-0", "since": 1.5}, {"request": "request-0", "since": 2**70},
        {"request": "request-0", "table": "x"}, {"request": ["request-0"]},
    ],
)  # fmt: skip
def test_odd_questions_are_not_answered(store_and_more, asked):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65]))
    assert store.answer(asked, visitor, None, None) is None


def test_answers_are_json(store_and_more):
    store, visitor, engine, _ = store_and_more
    store.update(visitor, engine, output([1], [65, 200, 299], finished=True))
    json.dumps(ask(store, visitor), allow_nan=False)


def test_a_model_without_a_tokenizer_shows_ids(visitors):
    store, engine = TokenStore(), make_engine(None)
    visitor = begin(visitors)
    store.update(visitor, engine, output([1], [65], finished=True))
    assert ask(store, visitor)["tokens"][0][:3] == [65, "", "#65"]
