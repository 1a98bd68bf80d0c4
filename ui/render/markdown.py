"""Markdown as answers use it, to safe HTML: markdown-it without raw HTML, and with render rules of our own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml, unescapeAll
from markdown_it.token import Token

from ui.render.code import code_html
from ui.render.formulas import formulas
from ui.render.prompt import prompt_html

MAX_NESTING = 20
"""Levels of quotes and lists; deeper ones are text."""
MAX_BLOCK = 50_000
"""Characters of a block; a longer one, unless it is code, is shown as typed."""
MAX_REMEMBERED = 4_000
"""Characters of a block that is remembered, of at most 512 blocks."""
_SCHEMES = ("http", "https", "mailto")


def markdown_html(text: str, *, grows: bool = False, unfinished: str | None = None) -> str:
    """``grows``: more text will come. ``unfinished``: the content of a formula at the end that was closed only for
    now; it is shown as source.

    Top-level blocks are rendered one by one and remembered: while an answer grows, only its last block is new.
    """
    blocks = _blocks(text)
    if not grows or not blocks:
        return "".join(map(_finished, blocks))
    return "".join(map(_finished, blocks[:-1])) + _rendered(blocks[-1], {"unfinished": unfinished})


def _blocks(text: str) -> list[str]:
    """The source of each top-level block. Each means the same alone: there are no references between them."""
    tokens: list[Token] = []
    _MARKDOWN.block.parse(text, _MARKDOWN, {}, tokens)
    lines = text.split("\n")
    return [
        "\n".join(lines[slice(*token.map)])
        for token in tokens
        if token.level == 0 and token.nesting >= 0 and token.map is not None and token.type != "inline"
    ]


def _finished(block: str) -> str:
    return _remembered(block) if len(block) <= MAX_REMEMBERED else _rendered(block, {})


@lru_cache(maxsize=512)
def _remembered(block: str) -> str:
    return _rendered(block, {})


def _rendered(block: str, env: dict[str, Any]) -> str:
    if len(block) > MAX_BLOCK and not block.lstrip().startswith(("```", "~~~")):
        return prompt_html(block)
    return str(_MARKDOWN.render(block, env))


# ---------------------------------------------------------------- the parser


def _make() -> MarkdownIt:
    md = MarkdownIt(
        "commonmark", {"html": False, "breaks": True, "xhtmlOut": False, "maxNesting": MAX_NESTING}
    )
    md.enable(["table", "strikethrough"])
    # "lheading" makes a heading of the line above a "-" that begins a list; a "reference" far below would change what
    # stands above; HTML is text.
    md.disable(["lheading", "reference", "html_block", "html_inline"])
    md.validateLink = _is_harmless  # type: ignore[method-assign]
    formulas(md)
    for name, rule in _RULES.items():
        md.add_render_rule(name, rule)
    return md


def _is_harmless(url: str) -> bool:
    """Only what leads to another page or writes a mail."""
    try:
        return urlsplit(url.strip()).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def _fence(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return code_html(tokens[index].content, unescapeAll(tokens[index].info).strip())


def _code_block(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return code_html(tokens[index].content, "")


def _image(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A link: a picture would make the reader's browser ask another host."""
    token = tokens[index]
    url = str(token.attrGet("src") or "")
    alt = renderer.renderInlineAsText(token.children, options, env).strip()
    return f'<a href="{escapeHtml(url)}"{_LINK}>image: {escapeHtml(alt or url)}</a>'


def _link_open(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return f'<a href="{escapeHtml(str(tokens[index].attrGet("href") or ""))}"{_LINK}>'


_LINK = ' target="_blank" rel="noopener noreferrer nofollow"'


def _heading(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Two levels down: the page has headings of its own above."""
    token = tokens[index]
    level = min(int(token.tag[1]) + 2, 6)
    return f"<h{level}>" if token.nesting == 1 else f"</h{level}>\n"


def _cell(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    side = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} class="at-{side}">' if side in ("left", "right", "center") else f"<{token.tag}>"


def _table(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    if tokens[index].nesting == 1:
        return '<div class="table" tabindex="0" role="group" aria-label="table"><table>\n'
    return "</table></div>\n"


_RULES = {
    "fence": _fence,
    "code_block": _code_block,
    "image": _image,
    "link_open": _link_open,
    "heading_open": _heading,
    "heading_close": _heading,
    "th_open": _cell,
    "td_open": _cell,
    "table_open": _table,
    "table_close": _table,
}
_MARKDOWN = _make()
