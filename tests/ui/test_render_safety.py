"""Nothing that a person or a model writes becomes HTML of its own (P10): tags and attributes are ours alone."""

from __future__ import annotations

import html
import re
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ui.render import answer_html, plain, prompt_html
from ui.render.mathml import math_html

MATHML = set(
    """math menclose mfrac mi mlabeledtr mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt
    mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none""".split()  # noqa: SIM905
)
TAGS = MATHML | set(
    """a blockquote br code del details div em h3 h4 h5 h6 hr li ol p pre s span strong summary table tbody td th
    thead tr ul""".split()  # noqa: SIM905
)
ATTRIBUTES = {
    "a": {"href", "target", "rel"},
    "details": {"class", "open"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "pre": {"tabindex", "role", "aria-label"},
    "code": {"class"},
    "span": {"class"},
    "td": {"class"},
    "th": {"class"},
    "ol": {"start"},
}
MATH_ATTRIBUTE = re.compile(r"[-+]?[A-Za-z0-9.% ]{0,40}")
VOID = {"br", "hr"}


class Checked(HTMLParser):
    """Fails on whatever is not ours, and on tags that do not match."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        for name, value in attrs:
            if tag in MATHML:
                assert not name.startswith("on")
                assert name not in ("style", "class", "href", "src", "xlink:href", "actiontype")
                assert MATH_ATTRIBUTE.fullmatch(value), (name, value)
            else:
                assert name in ATTRIBUTES.get(tag, ()), (tag, name)
            if name == "href":
                assert re.match(r"(https?|mailto):", value, re.IGNORECASE), value
        if tag == "a":
            assert {"noopener", "nofollow"} <= set(dict(attrs)["rel"].split())
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment


def check(shown: str) -> str:
    """The text of HTML that is ours."""
    checked = Checked()
    checked.feed(shown)
    checked.close()
    assert checked.open == []
    return checked.text


PIECES = st.sampled_from(
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<b>", "</p>", "<!--", "-->", "<![CDATA[", "<?",
        "<think>", "</think>", "<details open ontoggle=x>", "[x](javascript:alert(1))", "[x](data:text/html,<b>)",
        "[x](//evil.org)", "[x](http://a.b 'o\"n')", "![x](http://a.b/c.png)", "![<b>](javascript:x)",
        "<http://a.b/\"onclick=x>", "<javascript:x>", "[a]: javascript:x\n\n[a]", "```", "```html onload=x\n", "~~~",
        "```\"><img>\n", "`", "``", "**", "*", "_", "~~", "\n", "\n\n", "    ", "\t", "- ", "1. ", "> ", "# ", "---\n",
        "|a|b|\n|:-|-:|\n|<b>|`|`|\n", "|", "$", "$$", r"\(", r"\)", r"\[", r"\]", r"\text{<img src=x onerror=y>}",
        r"\href{javascript:alert(1)}{x}", r"\class{a onload}{x}", r"\style{color:red}{x}", r'\color{"><img>}x',
        r"\frac{1}{2}", r"\begin{matrix}a&b\end{matrix}", r"\mathrm{<b>}", "{", "}", "&lt;", "&#x3C;", "&amp;", "\\",
        "\0", "\u2028", "é", "🧱", "\ud800", "x", " ", "\r\n", "\"", "'", "<", ">", "&", "!", "[", "]", "(", ")",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join), st.booleans())
def test_whatever_an_answer_holds_the_html_is_ours(text, is_open):
    check(answer_html(text, is_open=is_open))


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join))
def test_a_prompt_is_shown_as_typed(text):
    expected = re.sub("[\ud800-\udfff\0]", "\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    assert check(prompt_html(text)) == expected


@settings(max_examples=300, deadline=None)
@given(
    st.lists(PIECES | st.text(alphabet="abc<>&\"'{}^_\\=123", max_size=5), max_size=8).map("".join),
    st.booleans(),
)
def test_mathml_of_any_latex_is_ours(latex, display):
    check(math_html(latex, display=display))


def test_html_of_an_answer_is_text():
    """P10: gradio #7198, #10709, #10851."""
    text = "<b>x</b> <angle> <script>alert(1)</script> <img src=x onerror=alert(2)> &lt;"
    shown = answer_html(text)
    assert check(shown).strip() == html.unescape(text)
    assert "<b>" not in shown


@pytest.mark.parametrize(
    ("latex", "words"),
    [
        (r"\text{<img src=x onerror=alert(1)>}", "<img\xa0src=x\xa0onerror=alert(1)>"),
        (r"\href{javascript:alert(1)}{x}", "x"),
        (r"\class{a}{y}", "y"),
        (r"\style{position:fixed}{z}", "z"),
        (r"\text{&#x3C;script&#x3E;}", "<script>"),
    ],
)
def test_a_formula_smuggles_nothing(latex, words):
    shown = math_html(latex, display=False)
    assert shown.startswith("<math")
    assert check(shown) == words


def test_a_formula_cannot_be_made_huge():
    assert "99999" not in math_html(r"a\hspace{99999em}b", display=False)
    assert "2em" in math_html(r"a\hspace{2em}b", display=False)


@pytest.mark.parametrize(
    "link",
    ["[a](javascript:alert(1))", "[a](data:text/html,x)", "[a](vbscript:x)", "[a](/x)", "[a](//x.y)", "[a](#x)",
     "[a](file:///etc)", "<javascript:alert(1)>", "[a](&#106;avascript:alert(1))", "[a](java\nscript:x)"],
)  # fmt: skip
def test_only_pages_and_mails_are_linked(link):
    assert "<a" not in answer_html(link)


def test_links_open_elsewhere_and_tell_nothing():
    shown = answer_html("[a](https://x.y/?q=1&r=2) <mailto:a@b.c>")
    assert shown.count("<a ") == 2
    assert 'href="https://x.y/?q=1&amp;r=2"' in shown
    assert shown.count('rel="noopener noreferrer nofollow"') == 2


def test_pictures_are_links_so_that_no_other_host_is_asked():
    shown = answer_html("![a **chart**](https://x.y/z.png)")
    assert "<img" not in shown
    assert '<a href="https://x.y/z.png"' in shown
    assert "image: a chart" in check(shown)


def test_error_messages_are_escaped():
    assert plain("a <b>\nc") == "a &lt;b&gt;<br>c"


# ---------------------------------------------------------------- bounds

BIG = {
    "backticks": lambda n: "`" * n,
    "backticks of all lengths": lambda n: "".join("`" * (i % 50 + 1) + " " for i in range(n // 26)),
    "quotes": lambda n: "> " * (n // 2),
    "list in a line": lambda n: "- " * (n // 2),
    "brackets": lambda n: "[" * n,
    "half links": lambda n: "[a](<b" * (n // 6),
    "pictures": lambda n: "![" * (n // 2),
    "emphasis": lambda n: "**a *b " * (n // 7),
    "underscores": lambda n: "_a" * (n // 2),
    "dollars": lambda n: "$a " * (n // 3),
    "formula openers": lambda n: "\\[\n" * (n // 3),
    "inline openers": lambda n: r"\(" * (n // 2),
    "thoughts": lambda n: "<think>a</think>b" * (n // 17),
    "thought ends": lambda n: "</think>" * (n // 8),
    "code and thoughts": lambda n: "` <think>x</think> `` " * (n // 22),
    "fences": lambda n: "```a\n~~~\n" * (n // 9),
    "cells": lambda n: "|a" * (n // 2) + "\n" + "|-" * (n // 2),
    "newlines": lambda n: "\n" * n + "a",
    "blanks": lambda n: " " * n + "a",
    "one word": lambda n: "a" * n,
    "python quotes": lambda n: "```python\n" + '"' * n,
}  # fmt: skip


def work(text: str, is_open: bool) -> int:
    """Calls and returns of functions, of Python and C, that rendering takes."""
    count = 0

    def tick(*_):
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(tick)
    try:
        answer_html(text, is_open=is_open)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", BIG)
def test_work_grows_no_faster_than_an_odd_answer(name, is_open):
    small, large = BIG[name](5_000), BIG[name](20_000)
    for text in (small, large):  # what is remembered of formulas and lexers costs only once
        answer_html(text, is_open=is_open)
    assert work(large, is_open) < 6 * work(small, is_open) + 5_000
    check(answer_html(BIG[name](100_000), is_open=is_open))


def test_deep_nesting_and_the_longest_answers_stay_text():
    deep = "\n".join("  " * level + "- a" for level in range(300))
    assert check(answer_html(deep)).count("a") == 300
    assert check(answer_html("x **y** " * 40_000)) == "x **y** " * 40_000
    formula = r"\(" + "{" * 500 + "x" + "}" * 500 + r"\)"
    assert check(answer_html(formula)).strip() == formula[2:-2]
    assert "<code" in math_html("x" * 3_000, display=True)
    assert "<code" in math_html(r"\newcommand{\a}{\b\b}\newcommand{\b}{\a\a}\a", display=True)
