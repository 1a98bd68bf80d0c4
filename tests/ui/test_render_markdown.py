"""What an answer looks like: Markdown as answers use it, code untouched (P12), line breaks kept (P13)."""

from __future__ import annotations

import html
import re

import pytest

from ui.render import answer_html


def text_of(shown: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", shown))


def code_of(shown: str) -> str:
    """The text of the only block of code."""
    (code,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", shown, re.DOTALL)
    return text_of(code)


def test_single_newlines_are_line_breaks():
    """P13, gradio #9717."""
    assert answer_html("one\ntwo\n\nthree") == "<p>one<br>\ntwo</p>\n<p>three</p>\n"
    assert answer_html("one\r\ntwo") == answer_html("one\ntwo")


def test_emphasis_lists_quotes_and_rules():
    shown = answer_html("**a** *b* ~~c~~ `d`\n\n1. x\n2. y\n   - z\n\n> q\n\n---\n")
    for tag in (
        "<strong>a</strong>",
        "<em>b</em>",
        "<s>c</s>",
        "<code>d</code>",
        "<ol>",
        "<ul>",
        "<blockquote>",
        "<hr>",
    ):
        assert tag in shown
    assert '<ol start="3">' in answer_html("3. x")


def test_headings_stand_below_those_of_the_page():
    assert answer_html("# a") == "<h3>a</h3>\n"
    assert answer_html("###### a") == "<h6>a</h6>\n"


def test_a_line_above_a_list_does_not_become_a_heading():
    assert "<h" not in answer_html("Animals:\n-")
    assert "<h" not in answer_html("Animals:\n===")


def test_tables_say_where_their_cells_stand_without_inline_styles():
    shown = answer_html("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert '<td class="at-right">2</td>' in shown
    assert "style=" not in shown


@pytest.mark.parametrize(
    "language", ["python", "js", "cpp", "sql", "html", "bash", "json", "diff", "klingon", ""]
)
@pytest.mark.parametrize(
    "code",
    [
        "for i in range(3):\n    print(f'\\(x\\) $5 {i} **no**')  # <b>\n",
        "\n\n  indented\n\ttab \\[ $$x$$ \\]\n\n",
        "<think>not a thought</think>\n[a](http://x.y) | a | b |\n",
        "\x0b\x0c  \u2028 é 🧱\n",
    ],
)
def test_code_is_untouched(code, language):
    """P12, llama.cpp #17221, #21795, #3723."""
    assert code_of(answer_html(f"Look:\n\n```{language}\n{code}```\n\nDone.")) == code


def test_code_has_colours_and_says_its_language():
    shown = answer_html("```python\ndef f(): # c\n    return 'x' + 1\n```")
    assert '<div class="code-head">python</div>' in shown
    for piece in ("hl-keyword", "hl-function", "hl-comment", "hl-string", "hl-number"):
        assert piece in shown
    assert 'aria-label="code, python"' in shown


def test_an_unknown_language_is_plain_and_named():
    shown = answer_html('```klingon"><b>\nx < y\n```')
    assert "hl-" not in shown
    assert "klingon&quot;&gt;&lt;b&gt;" in shown


def test_code_beyond_the_limit_is_plain():
    assert "hl-" in answer_html("```python\n" + "x = 1\n" * 100 + "```")
    assert "hl-" not in answer_html("```python\n" + "x = 1\n" * 10_000 + "```")


def test_markdown_inside_of_inline_code_is_verbatim():
    assert "<code>**a** $x$ \\(y\\) &lt;b&gt;</code>" in answer_html("`**a** $x$ \\(y\\) <b>`")


def test_rendering_blocks_one_by_one_gives_the_same_as_all_at_once():
    """The blocks of an answer are remembered one by one."""
    from ui.render.markdown import _MARKDOWN

    text = (
        "Intro\n- a\n- b\n\n  still b\n\n- c\n\n1. x\n\n2. y\n\n    code of y\n\ntext\n    lazy\n\n    code\n"
        "\n\n    more\n> q\nlazy\n\n> r\n\n| a |\n|---|\n| b |\ntext\n# h\ntext\n```\nf\n\n\ng\n```\n\\[\nx\n\\]\n"
        "***\n\tx\n"
    )
    assert answer_html(text) == _MARKDOWN.render(text.strip("\n"))
    for end in range(len(text)):
        assert answer_html(text[:end]) == _MARKDOWN.render(text[:end].strip("\n"))
