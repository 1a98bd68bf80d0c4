"""Nothing that a person or a model writes becomes HTML (P10), and code, dollars and fences stay as they are (P12)."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ui.markdown import answer_markdown, as_typed, plain


@pytest.mark.parametrize(
    "text",
    [
        "<b>x</b> <script>alert(1)</script>",
        "*a* _b_ `c` # d",
        "1. x\n- y",
        "&lt; &amp;",
        "https://x.y",
        "$5 and $6",
        "\\(x\\)",
    ],
)
def test_a_prompt_is_shown_character_by_character(text):
    shown = as_typed(text)
    assert html.unescape(shown) == text
    assert not re.search(r"[<>*_`#$\\\[\]:.-]", re.sub(r"&(#\d+|nbsp);", "", shown))


def test_indentation_blank_lines_and_double_spaces_of_a_prompt_stay():
    assert as_typed("    a\n\nb  c").split("\n") == ["&nbsp;" * 4 + "a", "&nbsp;", "b&nbsp;&nbsp;c"]


@given(st.text(alphabet="<>&`~ab\n *_$", max_size=60))
def test_html_of_an_answer_is_never_live_outside_of_code(text):
    shown = answer_markdown(text)
    outside = _without_code(shown)
    assert "<" not in outside


def _without_code(text: str) -> str:
    """Drop fenced blocks and code spans, read as CommonMark reads them."""
    out, fence = [], None
    for line in text.split("\n"):
        match = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if fence is None and match:
            fence = match[1]
        elif fence is not None:
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
        else:
            out.append(line)
    prose = "\n".join(out)
    return re.sub(r"(?<!`)(`+)(?!`)(?:(?!\n\n)[\s\S])*?(?<!`)\1(?!`)", "", prose)


def test_code_is_left_alone():
    answer = "Use `a < b` and:\n```html\n<b>&amp;</b>\n```\nthen <b>bold</b> & more"
    assert (
        answer_markdown(answer)
        == "Use `a < b` and:\n```html\n<b>&amp;</b>\n```\nthen &lt;b>bold&lt;/b> &amp; more"
    )


def test_an_open_fence_is_closed_so_that_what_follows_is_not_code():
    assert answer_markdown("```py\nx = 1").endswith("\n```")
    assert answer_markdown("~~~~\nx").endswith("\n~~~~")


def test_dollars_and_latex_delimiters_are_untouched():
    text = r"It costs $5, then $6; \(x\) and \[y\]"
    assert answer_markdown(text) == text


def test_error_messages_are_escaped():
    assert plain("a <b>\nc") == "a &lt;b&gt;<br>c"
