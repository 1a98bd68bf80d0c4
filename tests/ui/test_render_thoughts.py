"""What a model thinks aloud is folded away, and an answer is never hidden with it (P11)."""

from __future__ import annotations

import re

import pytest

from ui.render import answer_html
from ui.render.thoughts import split_thoughts


def folded(shown: str) -> list[tuple[bool, str, str]]:
    """(open, summary, content) of each thought."""
    found = re.findall(
        r'<details class="think"( open)?><summary>(.*?)</summary>(.*?)</details>', shown, re.DOTALL
    )
    return [(bool(is_open), summary, content) for is_open, summary, content in found]


def test_a_thought_is_folded_and_the_answer_is_not():
    shown = answer_html("<think>\nI **wonder** about it.\n</think>\n\nIt is 4.")
    assert folded(shown) == [(False, "thought for 4 words", "<p>I <strong>wonder</strong> about it.</p>\n")]
    assert shown.endswith("<p>It is 4.</p>\n")


def test_a_thought_is_open_while_it_grows():
    shown = answer_html("<think>\nI wonder", is_open=True)
    assert folded(shown) == [(True, "thinking, 2 words", "<p>I wonder</p>\n")]


def test_a_thought_is_closed_as_soon_as_its_end_is_there():
    ((is_open, summary, _),) = folded(answer_html("<think>a b</think>\nThe", is_open=True))
    assert not is_open
    assert summary == "thought for 2 words"


def test_a_thought_that_never_ends_is_closed_at_the_end_and_stays_visible():
    """P11, open-webui #9421: the answer may be inside."""
    shown = answer_html("<think>so the answer is **4**")
    ((is_open, _, content),) = folded(shown)
    assert is_open
    assert "<strong>4</strong>" not in content or "4" in content
    assert shown.count("<details") == shown.count("</details>") == 1


def test_text_behind_the_end_is_the_answer():
    """P11, open-webui #15234, #9232."""
    for text in ("<think>a</think>b", "<think>a</think> b", "<think>a\n</think>\nb"):
        assert answer_html(text).endswith("</details>\n<p>b</p>\n")


def test_a_thought_that_the_prompt_began():
    shown = answer_html("first this\n</think>\n\nthe answer")
    assert [content for _, _, content in folded(shown)] == ["<p>first this</p>\n"]
    assert shown.endswith("<p>the answer</p>\n")


def test_an_empty_thought_is_nothing():
    assert answer_html("<think>\n\n</think>\n\nYes.") == "<p>Yes.</p>\n"


@pytest.mark.parametrize(
    "text",
    [
        "Write `<think>` first, then `</think>`.",
        "```\n<think>\nx\n</think>\n```",
        "```xml\n<think>a</think>\n```\nand ``a ` <think>``",
        "say </think> in the middle",
    ],
)
def test_code_that_names_the_tags_is_code(text):
    assert folded(answer_html(text)) == []
    assert "&lt;/think&gt;" in answer_html(text) or "&lt;think&gt;" in answer_html(text)


def test_a_fence_in_a_thought_cannot_swallow_the_answer():
    shown = answer_html("<think>\n```\ncode\n</think>\nanswer")
    assert shown.endswith("<p>answer</p>\n")


def test_a_tag_that_has_begun_is_held_back_while_more_comes():
    for length in range(1, len("<think>")):
        assert answer_html("<think>"[:length], is_open=True) == ""
    for length in range(1, len("</think>")):
        assert answer_html("<think>a" + "</think>"[:length], is_open=True) == answer_html(
            "<think>a", is_open=True
        )
    assert "&lt;thi" in answer_html("a <thi")


def test_several_thoughts():
    parts = split_thoughts("<think>a</think>b<think>c</think>d")
    assert [(part.text, part.is_thought) for part in parts] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", False),
    ]
