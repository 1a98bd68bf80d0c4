"""The line under an answer, and who is on the page."""

from __future__ import annotations

from tests.ui.support.handles import handle_of
from ui.chat.conversation import Answer, AnswerFacts
from ui.chat.meta import meta_line, ordinal
from ui.visitors import Visitors


def line(facts: AnswerFacts, **more) -> str:
    return meta_line(Answer("text", request_id="request-1", facts=facts, **more))


def test_the_line_says_ttft_rate_tokens_cached_and_end():
    words = line(AnswerFacts(57, 27, 32, ttft=0.084, tpot=1 / 61, finish_reason="stop", arrival=3))
    for part in (
        ">d<",
        'data-request="request-1"',
        "<b>84</b> ms",
        "<b>61</b> tok/s",
        "<b>27</b> tokens",
        "<b>32</b> of 57",
        "finished",
    ):
        assert part in words
    assert "finish reason: length" in line(AnswerFacts(1, 1, finish_reason="length"))
    assert "preempted <b>2</b> ×" in line(AnswerFacts(1, 1, num_preemptions=2))
    assert "reading" in line(AnswerFacts(5))
    assert "<b>7</b> more tokens" in line(AnswerFacts(5, 7), num_kept=4, token_ids=(1, 2, 3, 4))


def test_the_line_shows_nothing_as_html_that_was_not_written_here():
    assert "<x>" not in line(AnswerFacts(1, 1, finish_reason="error", error="<x>"))
    assert "<x>" not in line(AnswerFacts(1, 1, finish_reason="<x>"))
    assert "<x>" not in meta_line(Answer(note="<x>"))
    assert '"><x>' not in meta_line(Answer(request_id='"><x>', facts=AnswerFacts(1, 1, arrival=0)))


def test_a_request_of_an_earlier_engine_has_no_letter():
    answer = Answer("text", facts=AnswerFacts(1, 1, arrival=3))
    assert "chip" in meta_line(answer)
    assert "chip" not in meta_line(answer, is_known=False)


def test_what_broke_off_or_was_edited_says_so():
    words = meta_line(Answer("text", note="the engine was closed.", is_edited=True))
    assert "broke off: the engine was closed." in words
    assert "edited" in words


def test_places_in_a_queue_are_counted_as_people_do():
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 22, 111, 1001)
    assert [ordinal(n) for n in numbers] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "111th", "1,001st",
    ]  # fmt: skip


def test_visitors_are_told_apart_and_forgotten():
    visitors = Visitors()
    one, two = visitors.of_session("a"), visitors.of_session("b")
    assert one is visitors.of_session("a")
    assert one.token != two.token
    assert len(one.token) >= 32
    visitors.begin(one, handle_of("r1"))
    assert visitors.mine(one.token) == {"r1"}
    assert visitors.mine(two.token) == visitors.mine("a") == frozenset()
    assert visitors.forget("a") == ("r1",)
    assert visitors.forget("a") == ()
    assert visitors.mine(one.token) == frozenset()
