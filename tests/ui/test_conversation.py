"""Turns to messages and to what the Chatbot shows."""

from __future__ import annotations

from ui.chat.conversation import AnswerFacts, Turn, from_chatbot, meta_line, to_chatbot, to_messages
from ui.visitors import Visitors

TURNS = (Turn("user", "hi <b>"), Turn("assistant", "yo", (5, 6), "model-a", "<div class='meta'>m</div>"))


def test_answers_carry_their_ids_to_the_model_that_wrote_them_only():
    assert to_messages(TURNS, " ", "model-a") == [
        {"role": "user", "content": "hi <b>"},
        {"role": "assistant", "content": "yo", "token_ids": [5, 6]},
    ]
    assert "token_ids" not in to_messages(TURNS, "", "model-b")[1]
    assert to_messages(TURNS, "Be brief.", "model-a")[0] == {"role": "system", "content": "Be brief."}


def test_the_chatbot_gets_escaped_text_and_the_line_below():
    user, answer = to_chatbot(TURNS)
    assert "<" not in user["content"]
    assert answer["content"] == "yo\n\n<div class='meta'>m</div>"


def test_the_line_says_ttft_rate_tokens_cached_and_end():
    facts = AnswerFacts(57, 27, 32, ttft=0.084, tpot=1 / 61, finish_reason="stop", arrival=3)
    line = meta_line(facts)
    for words in (
        ">d<",
        "<b>84</b> ms",
        "<b>61</b> tok/s",
        "<b>27</b> tokens",
        "<b>32</b> of 57",
        "finished",
    ):
        assert words in line
    assert "finish reason: length" in meta_line(AnswerFacts(1, 1, finish_reason="length"))
    assert "<x>" not in meta_line(AnswerFacts(1, 1, finish_reason="error", error="<x>"))
    assert "reading" in meta_line(AnswerFacts(5))


def test_visitors_are_told_apart_and_forgotten():
    visitors = Visitors()
    one, two = visitors.of_session("a"), visitors.of_session("b")
    assert one is visitors.of_session("a")
    assert one.token != two.token
    assert len(one.token) >= 32
    visitors.begin(one, "r1")
    assert visitors.mine(one.token) == {"r1"}
    assert visitors.mine(two.token) == visitors.mine("a") == frozenset()
    assert visitors.forget("a") == ("r1",)
    assert visitors.forget("a") == ()
    assert visitors.mine(one.token) == frozenset()


def test_a_chat_whose_session_was_lost_comes_back_from_what_the_page_shows():
    """P4, textgen #5837: the server was started anew, the page was not."""
    turns = (
        Turn("user", "hi <b> & *x*\n\n    if a  < b:"),
        Turn(
            "assistant",
            "Use `a < b`:\n```\n<i>\n```\nand <b> & c",
            (5, 6),
            "model-a",
            meta_line(AnswerFacts(3, 2)),
        ),
        Turn("user", "ok"),
    )
    shown = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in to_chatbot(turns)]
    back = from_chatbot(shown)
    assert [(t.role, t.text) for t in back] == [(t.role, t.text) for t in turns]
    assert back[1].meta == turns[1].meta
    assert back[1].token_ids == ()
    assert from_chatbot([]) == ()
