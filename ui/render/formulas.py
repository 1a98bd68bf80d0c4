r"""Where formulas stand in Markdown: ``$x$``, ``$$x$$``, ``\(x\)``, ``\[x\]``. Rules for markdown-it.

Prices are no formulas: a ``$`` opens one only before a character that is no blank, and closes it only behind one and
not before a digit (pandoc's rule); what begins with a digit must hold something that prose does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from ui.render.mathml import MAX_LATEX, math_html, source_html

CLOSERS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$": "$"}
_DOLLAR = re.compile(r"(?<!\\)\$")
_SIGN = re.compile(r"[\\^_={}+<>]|\d\s*[-*/]\s*\d")
_PROSE = re.compile(r"[A-Za-z]{2,}[,.;:]?\s+[A-Za-z]{2,}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def formulas(md: MarkdownIt) -> None:
    """A markdown-it plugin."""
    md.inline.ruler.before("escape", "formula", _inline)
    md.block.ruler.before(
        "fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    md.add_render_rule("formula_inline", _render_inline)
    md.add_render_rule("formula_block", _render_block)


# ---------------------------------------------------------------- inside a paragraph


def _inline(state: StateInline, silent: bool) -> bool:
    found = inline_formula(state.src, state.pos, state.posMax)
    if found is None:
        return False
    opener, content, end = found
    if not silent:
        token = state.push("formula_inline", "math", 0)
        token.content, token.markup = content, opener
    state.pos = end
    return True


def inline_formula(text: str, start: int, stop: int) -> tuple[str, str, int] | None:
    """(opener, content, end) of the formula that begins at ``start``."""
    if text[start] not in "$\\":
        return None
    opener = text[start : start + 2]
    stop = min(stop, start + MAX_LATEX)
    if opener in CLOSERS:
        end = text.find(CLOSERS[opener], start + 2, stop)
        content = text[start + 2 : end]
        return (opener, content, end + 2) if end > 0 and content.strip() else None
    if (
        text[start] != "$"
        or start + 1 >= stop
        or text[start + 1].isspace()
        or text[start - 1 : start].isalnum()
    ):
        return None
    found = _DOLLAR.search(text, start + 1, stop)
    if found is None or text[found.start() - 1].isspace() or text[found.end() : found.end() + 1].isdigit():
        return None
    content = text[start + 1 : found.start()]
    return ("$", content, found.end()) if _is_formula(content) else None


def _is_formula(content: str) -> bool:
    """What stands between two single dollars."""
    if _SIGN.search(content) or _NUMBER.fullmatch(content):
        return True
    return bool(content) and not content[0].isdigit() and not _PROSE.search(content)


def _render_inline(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    if env.get("unfinished") == token.content:
        return source_html(token.content)
    return math_html(token.content, display=token.markup in ("$$", r"\["))


# ---------------------------------------------------------------- on lines of its own


def _block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """From a line that begins with ``$$`` or ``\\[`` to one that ends with its closer; a blank line
    and a second opener end the search."""
    if state.is_code_block(start_line):
        return False
    begin = state.bMarks[start_line] + state.tShift[start_line]
    opener = state.src[begin : begin + 2]
    if opener not in ("$$", r"\["):
        return False
    closer = CLOSERS[opener]
    lines: list[str] = []
    length = 0
    for line in range(start_line, end_line):
        first = begin + 2 if line == start_line else state.bMarks[line] + state.tShift[line]
        text = state.src[first : state.eMarks[line]]
        if line > start_line and (
            not text.strip()
            or state.sCount[line] < state.blkIndent
            or (opener != closer and text.startswith(opener))
        ):
            return False
        length += len(text)
        found = text.find(closer)
        if length > MAX_LATEX or (found >= 0 and text[found + 2 :].strip()):
            return False  # too long, or something behind it: part of a paragraph
        if found >= 0:
            if not silent:
                lines.append(text[:found])
                token = state.push("formula_block", "math", 0)
                token.block, token.markup = True, opener
                token.content = "\n".join(lines)
                token.map = [start_line, line + 1]
                state.line = line + 1
            return True
        lines.append(text)
    return False


def _render_block(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    content = tokens[index].content
    shown = source_html(content) if env.get("unfinished") == content else math_html(content, display=True)
    return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{shown}</div>\n'
