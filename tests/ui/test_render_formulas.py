r"""Formulas are set, and dollars that are prices stay dollars (P12)."""

from __future__ import annotations

import pytest

from ui.render import answer_html
from ui.render.mathml import math_html


@pytest.mark.parametrize(
    "formula",
    [
        "$x$",
        "$x^2$",
        r"\(x\)",
        r"$\alpha$",
        "$10$",
        "$2 + 2 = 4$",
        "$a_1, b$",
        r"$$\frac{1}{2}$$",
        r"\[x\]",
        "$3x$ is $4 - 1$",
    ],
)
def test_formulas_are_mathml(formula):
    shown = answer_html(f"So {formula} it is.")
    if formula == "$3x$ is $4 - 1$":  # a number and a letter could be a price; a difference could not
        assert shown.count("<math") == 1
        return
    assert shown.count("<math") == 1
    assert "$" not in shown
    assert "\\" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "from $5 to $10, or $5-$10, or $5/$10",
        "**$5**, then $6",
        "US$5 or A$6 (about 4$)",
        "Save $20 now, or get 30 US$.",
        "The variable $name is set, and the cost is 5$.",
        "$HOME and $PATH are set",
        "a $ b $ c",
        "$$",
        "$5",
        r"\$x\$",
        "costs $1,000.50 or $2,000",
    ],
)
def test_prices_and_variables_are_text(text):
    """P12, llama.cpp #3723."""
    shown = answer_html(text)
    assert "<math" not in shown
    assert "tex" not in shown.replace("text", "")
    assert shown.count("$") == text.count("$")


def test_display_formulas_stand_alone():
    for text in ("\\[\nx\n- y = 1\n\\]", "$$\nx\n- y = 1\n$$", "Text:\n\\[ x - y = 1 \\]\nmore"):
        shown = answer_html(text)
        assert '<div class="formula"' in shown
        assert '<math display="block">' in shown
        assert "<li>" not in shown
    assert '<math display="block">' in answer_html(r"in a line \[x\] too.")
    assert '<math display="inline">' in answer_html(r"in a line \(x\) too")


def test_words_behind_a_display_formula_stay():
    shown = answer_html("\\[\nx\n\\], says he")
    assert "<math" in shown
    assert ", says he" in shown


def test_in_lists_and_tables():
    shown = answer_html(
        "1. one \\(a\\)\n2. two\n   \\[\n   b\n   \\]\n\n| $c_1$ | \\(d\\) |\n|--|--|\n| x | y |"
    )
    assert shown.count("<math") == 4


@pytest.mark.parametrize(
    "latex", [r"\frac{", r"\left( x", "a_b_c", r"\foo{x}", r"\begin{nope}x\end{nope}", "{", r"\verb"]
)
def test_what_cannot_be_set_is_shown_as_its_source(latex):
    shown = answer_html(rf"\({latex}\)")
    assert '<code class="tex">' in shown
    assert "<math" not in shown


def test_common_formulas_are_set():
    for latex in (
        r"x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}",
        r"\sum_{i=1}^{n} i = \frac{n(n+1)}{2}",
        r"\int_0^\infty e^{-x^2}\,dx",
        r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
        r"\begin{aligned} a &= b \\ c &= d \end{aligned}",
        r"\mathbb{R}^n \to \mathbf{x} \cdot \vec{v}",
        r"\lim_{x \to 0} \frac{\sin x}{x} = 1",
        r"\text{if } x > 0",
        r"P(A \mid B) \le 1 \quad \forall x \in \mathcal{X}",
        r"\operatorname{softmax}(x)_i",
        r"f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases}",
    ):
        shown = math_html(latex, display=True)
        assert shown.startswith("<math"), latex
        assert "&amp;" not in shown, latex
