"""A chat as JSON: what comes back is what went out, and nothing that a client sends ends in a traceback."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from micro_vllm.errors import InvalidRequestError
from ui.chat.conversation import Answer, AnswerFacts, Chat, Turn
from ui.chat.document import (
    MAX_CHARACTERS,
    MAX_TOKEN_IDS,
    MAX_TURNS,
    MAX_VERSIONS,
    from_document,
    to_document,
)
from ui.chat.shown import render

FACTS = AnswerFacts(57, 2, 32, 0.08, 0.02, "stop", "END", "", 3, 1)
CHAT = Chat(
    (
        Turn("user", "hi <b> & *x*\n\n    if a  < b:"),
        Turn(
            "assistant", versions=(Answer("yo", (5, 6), 1, "key", "request-1", FACTS), Answer("ho")), shown=0
        ),
        Turn("user", ""),
        Turn("assistant", versions=(Answer("mine", is_edited=True, note="it broke"),)),
    )
)


def test_a_chat_comes_back_from_json_as_it_was():
    assert from_document(json.loads(json.dumps(to_document(CHAT)))) == CHAT
    assert from_document(to_document(Chat((), "completion"))) == Chat((), "completion")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(["user", "assistant", "chat", "completion", "micro-vllm-chat", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["format", "version", "mode", "turns", "role", "text", "versions", "shown", "facts"]
            )
            | st.sampled_from(["token_ids", "num_kept", "model_key", "request_id", "is_edited", "note", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=24,
)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_whatever_a_client_sends_is_a_chat_or_refused_in_words(data):
    for sent in (
        data,
        {"turns": data},
        {"turns": [data]},
        {"turns": [{"role": "assistant", "versions": [data]}]},
    ):
        told = render(sent, None)
        json.dumps(told).encode("utf-8")
        if "error" in told:
            assert len(told["error"]) < 400
        else:
            assert to_document(from_document(told["document"])) == told["document"]
            assert len(told["shown"]) == len(told["document"]["turns"])


def answer(**changes) -> Answer:
    data = to_document(CHAT)
    data["turns"][1]["versions"][0].update(changes)
    return from_document(data).turns[1].answer


@pytest.mark.parametrize(
    "ids", ["5 6", [5, "6"], [5, -1], [5, 2**31], [True], [1.0], {}, [1] * (MAX_TOKEN_IDS + 1)]
)
def test_ids_that_are_none_are_left_out_and_the_text_stays(ids):
    odd = answer(token_ids=ids)
    assert (odd.text, odd.token_ids, odd.num_kept) == ("yo", (), 0)


def test_an_edited_answer_has_no_ids():
    assert answer(is_edited=True).token_ids == ()


@pytest.mark.parametrize(
    "facts", [[], {"num_prompt_tokens": -1}, {"num_prompt_tokens": "7"}, {"finish_reason": 5}, "x"]
)
def test_odd_facts_are_left_out(facts):
    assert answer(facts=facts).facts is None


def test_html_of_a_client_is_never_shown():
    data = to_document(CHAT)
    data["turns"][0]["html"] = data["turns"][1]["versions"][0]["html"] = "<script>alert(1)</script>"
    data["turns"][1]["versions"][0]["meta"] = "<script>alert(1)</script>"
    data["turns"][3]["versions"][0]["note"] = "<script>alert(1)</script>"
    assert "<script" not in json.dumps(render(data, None)["shown"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "something else"}, "not a chat"),
        ({"version": 2}, "version “2”"),
        ({"mode": "poem"}, "mode “poem”"),
        ({"turns": None}, "no list of turns"),
        ({"turns": [{"role": "user", "text": ""}] * (MAX_TURNS + 1)}, f"at most {MAX_TURNS:,}"),
        ({"turns": [{"role": "user", "text": "x" * (MAX_CHARACTERS + 1)}]}, f"at most {MAX_CHARACTERS:,}"),
        ({"turns": [{"role": "system", "text": "x"}]}, "turn 1"),
        ({"turns": [{"role": "user", "text": 7}]}, "turn 1"),
        ({"turns": [{"role": "assistant", "versions": []}]}, f"1 to {MAX_VERSIONS} versions"),
        ({"turns": [{"role": "assistant", "versions": [{"text": "x"}] * (MAX_VERSIONS + 1)}]}, "versions"),
    ],
)
def test_what_is_no_chat_is_refused_in_words(change, words):
    with pytest.raises(InvalidRequestError, match=words):
        from_document({**to_document(CHAT), **change})


def test_half_a_character_becomes_the_sign_for_one():
    assert from_document({"turns": [{"role": "user", "text": "a\ud83d"}]}).turns[0].text == "a\ufffd"
