"""LaTeX to MathML. latex2mathml builds the tree; it is written out here, because its own writer lets HTML through
(``\\text{<img onerror=...>}``, ``\\href{javascript:...}``)."""

from __future__ import annotations

import html
import re
from functools import lru_cache
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter

MAX_LATEX = 2_000
"""Characters of a formula that is converted; a longer one is shown as its source."""
MAX_DEPTH = 30
_TAG_NAMES = """
math menclose mfrac mi mlabeledtr mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt
mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none
"""
_TAGS = frozenset(_TAG_NAMES.split())
_ATTRIBUTE_NAMES = """
accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop
linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel
separator stretchy voffset width
"""
_ATTRIBUTES = frozenset(_ATTRIBUTE_NAMES.split())
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([^{}]*)\}")
_KNOWN = """
array matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix cases split substack align* equation equation*
"""
_ENVIRONMENTS = {name: name for name in _KNOWN.split()} | {
    "align": "align*",
    "aligned": "align*",
    "eqnarray": "align*",
    "eqnarray*": "align*",
    "gather": "align*",
    "gather*": "align*",
    "gathered": "align*",
    "multline": "align*",
    "multline*": "align*",
    "dcases": "cases",
}
"""What latex2mathml knows, and what it can stand for; it drops others silently."""
_VALUE = re.compile(r"[-+]?[A-Za-z0-9.% ]{0,40}")
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_REFERENCE = re.compile(r"&#x([0-9A-Fa-f]{1,6});")
_DEFINITION = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|def|let|gdef|edef|DeclareMathOperator)(?![A-Za-z])"
)


def math_html(latex: str, *, display: bool) -> str:
    """A formula as MathML, or as its source where that does not work. ``display``: on lines of its own."""
    latex = latex.strip()
    mathml = _mathml(latex, display)
    return mathml if mathml is not None else source_html(latex)


def source_html(latex: str) -> str:
    """A formula that is not finished, or that cannot be set."""
    return f'<code class="tex">{html.escape(latex)}</code>'


@lru_cache(maxsize=512)
def _mathml(latex: str, display: bool) -> str | None:
    # Definitions could expand without bounds; a page of formulas does without.
    if not latex or len(latex) > MAX_LATEX or _DEFINITION.search(latex) or _depth(latex) > MAX_DEPTH:
        return None
    try:
        known = _ENVIRONMENT.sub(lambda found: rf"\{found[1]}{{{_ENVIRONMENTS[found[2].strip()]}}}", latex)
        tree = Converter(display="block" if display else "inline").convert_to_element(known)
        out: list[str] = []
        _write(tree, out)
    except Exception:  # latex2mathml raises whatever the place at which it gave up raises
        return None
    return "".join(out)


def _depth(latex: str) -> int:
    depth = deepest = 0
    for char in latex:
        depth += (char == "{") - (char == "}")
        deepest = max(deepest, depth)
    return deepest + latex.count("\\left") + latex.count("\\begin")


def _write(element: Element, out: list[str]) -> None:
    """Only known elements, known attributes with harmless values, and text."""
    if element.tag not in _TAGS:
        raise ValueError(element.tag)
    attributes = "".join(
        f' {name}="{html.escape(value)}"'
        for name, value in element.attrib.items()
        if _is_harmless(name, value)
    )
    out.append(f"<{element.tag}{attributes}>")
    if element.text:
        text = _REFERENCE.sub(lambda found: chr(int(found[1], 16)), element.text)
        if text.startswith("\\") and len(text) > 1:
            raise ValueError(text)  # a command that it does not know
        out.append(html.escape(text))
    for child in element:
        _write(child, out)
    out.append(f"</{element.tag}>")


def _is_harmless(name: str, value: str) -> bool:
    return (
        name in _ATTRIBUTES
        and _VALUE.fullmatch(value) is not None
        and all(float(number) <= 100 for number in _NUMBER.findall(value))
    )
