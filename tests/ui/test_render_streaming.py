"""An answer grows calmly: what is on show stays, and marks never show before they mean something (P13)."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ui.render import answer_html

ANSWER = r"""<think>
Let me see: **two** things.
</think>

# A title
Hello **bold words** and *it* and `a<b` and ***both*** ~~gone~~. See the docs.
Second line, it costs $5 and $10.

## Code
```python
def f(x):
    return "**no**"  # ``
```

After code, a table:

| name | size |
|------|-----:|
| one  | 1 MB |
| **two** | 2 |

Text:
- first item
- second **item**
  - nested `code`

1. one
2. two

Inline \(x^2 + 1\) done, <https://x.org/ab> too.

\[
x = \frac{1}{2}
\]

> quoted *text*
> goes on

---

The end_of_it has snake_case and 2 * 3 * 4.
"""


def shown_text(text: str, *, is_open: bool = True) -> str:
    """Visible letters; a formula, finished or not, is one sign."""
    shown = re.sub(r"<summary>.*?</summary>", "", answer_html(text, is_open=is_open))
    shown = re.sub(r'<code class="tex">.*?</code>|<math.*?</math>', "∎", shown, flags=re.DOTALL)
    return re.sub(r"\s+", "", html.unescape(re.sub(r"<[^>]*>", "", shown)))


def test_what_is_on_show_stays_and_only_grows():
    before = ""
    for end in range(len(ANSWER) + 1):
        now = shown_text(ANSWER[:end])
        assert now.startswith(before), (ANSWER[max(0, end - 20) : end], before[-20:], now[-20:])
        before = now
    assert before == shown_text(ANSWER, is_open=False)


def test_the_finished_answer_is_what_was_streamed_last():
    assert answer_html(ANSWER, is_open=True) == answer_html(ANSWER)


@pytest.mark.parametrize(
    ("begun", "shown"),
    [
        ("a **bo", "<p>a <strong>bo</strong></p>\n"),
        ("a **bo*", "<p>a <strong>bo</strong></p>\n"),
        ("a **", "<p>a</p>\n"),
        ("a ***bo", "<p>a <em><strong>bo</strong></em></p>\n"),
        ("a *it", "<p>a <em>it</em></p>\n"),
        ("a `x&", "<p>a <code>x&amp;</code></p>\n"),
        ("a ``x`", "<p>a <code>x</code></p>\n"),
        ("a ~~go", "<p>a <s>go</s></p>\n"),
        ("a [lin](http://x", "<p>a lin</p>\n"),
        ("a ![pic](http://x", "<p>a pic</p>\n"),
        ("a <https://x.y/", "<p>a</p>\n"),
        (r"a \(x^", '<p>a <code class="tex">x^</code></p>\n'),
        ("a $x^2", '<p>a <code class="tex">x^2</code></p>\n'),
        ("it costs $5", "<p>it costs $5</p>\n"),
        ("snake_case and 2 * 3", "<p>snake_case and 2 * 3</p>\n"),
        ("a\n-", "<p>a</p>\n"),
        ("a\n``", "<p>a</p>\n"),
        ("a\n\n1.", "<p>a</p>\n"),
        ("- a\n-", "<ul>\n<li>a</li>\n</ul>\n"),
        ("42", "<p>42</p>\n"),
    ],
)
def test_what_is_half_there_is_shown_as_what_it_will_be(begun, shown):
    assert answer_html(begun, is_open=True) == shown


def test_a_table_is_a_table_from_its_first_cell_on():
    for end in range(len("| na"), len("| name | size |\n|---|---|\n| x | y |") + 1):
        assert "<table>" in answer_html("| name | size |\n|---|---|\n| x | y |"[:end], is_open=True)


def test_an_open_fence_is_code_to_its_end():
    shown = answer_html("```py\nx = 1\n``", is_open=True)
    assert shown.replace("\n", "") == answer_html("```py\nx = 1\n```").replace("\n", "")
    assert answer_html("```py\nx **y", is_open=True) == answer_html("```py\nx **y")


def test_an_open_display_formula_is_its_source():
    shown = answer_html("So:\n\\[\nx = \\frac{1", is_open=True)
    assert '<div class="formula"' in shown
    assert '<code class="tex">' in shown
    assert "<math" not in shown


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                " ",
                "*",
                "**",
                "_",
                "`",
                "```",
                "\n",
                "\n\n",
                "|",
                "$",
                r"\(",
                r"\)",
                "[",
                "](",
                ")",
                "<think>",
                "</think>",
                "- ",
                "1. ",
                "~~",
                "\\",
                "x",
            ]
        ),
        max_size=20,
    ).map("".join)
)
def test_letters_are_never_lost_for_good(text):
    """Whatever is held back while an answer grows, the finished one shows every letter."""
    finished = re.sub(r"<summary>.*?</summary>", "", answer_html(text))
    letters = html.unescape(re.sub(r"<[^>]*>", "", finished)).count("a")
    assert letters == text.count("a")
    growing = re.sub(r"<summary>.*?</summary>", "", answer_html(text + "\n\na", is_open=True))
    assert html.unescape(re.sub(r"<[^>]*>", "", growing)).count("a") == letters + 1
