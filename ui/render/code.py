"""Code with colours: Pygments reads it, and nine classes of our own say what a piece is (assets/render.css)."""

from __future__ import annotations

import html
from functools import lru_cache
from itertools import groupby
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

MAX_HIGHLIGHTED = 20_000
"""Characters of one block that are coloured; longer code is shown plain."""
_LANGUAGES = """
bash c c# c++ clojure cmake cpp csharp css cuda dart diff docker dockerfile elixir erlang fortran go golang
graphql haskell hs html ini java javascript js json jsonc jsx julia kotlin kt latex lua make makefile markdown
matlab md nginx ocaml perl php powershell proto py py3 pycon python python3 r rb rs ruby rust scala scss sh
shell sql swift tex toml ts tsx typescript vim vue xml yaml yml zig zsh
"""
LANGUAGES = frozenset(_LANGUAGES.split())
"""Info words that are highlighted. Others are shown plain: a lexer for a rare language may be slow on odd input."""
_KINDS = (
    (Comment.Preproc, "meta"),
    (Comment, "comment"),
    (String, "string"),
    (Number, "number"),
    (Keyword.Type, "type"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Name.Function, "function"),
    (Name.Class, "type"),
    (Name.Exception, "type"),
    (Name.Builtin, "function"),
    (Name.Decorator, "meta"),
    (Name.Tag, "keyword"),
    (Name.Attribute, "function"),
    (Name.Constant, "number"),
    (Generic.Deleted, "deleted"),
    (Generic.Inserted, "inserted"),
    (Generic.Heading, "keyword"),
    (Generic.Subheading, "meta"),
    (Generic.Prompt, "meta"),
)


def code_html(code: str, info: str) -> str:
    """A block of code. ``info``: the words behind the fence, the first of which names the language; "" for none."""
    language = info.split(maxsplit=1)[0].lower() if info else ""
    head = f'<div class="code-head">{html.escape(info)}</div>' if info else ""
    label = html.escape(f"code, {language[:40]}" if language else "code")
    return (
        f'<div class="code-block">{head}<pre tabindex="0" role="group" aria-label="{label}">'
        f"<code>{_highlighted(code, language)}</code></pre></div>\n"
    )


def _highlighted(code: str, language: str) -> str:
    lexer = _lexer(language) if len(code) <= MAX_HIGHLIGHTED else None
    if lexer is None:
        return html.escape(code)
    pieces = [(_kind(kind), text) for kind, text in lexer.get_tokens(code)]
    if "".join(text for _, text in pieces) != code:  # a lexer that changes code is of no use
        return html.escape(code)
    out = []
    for kind, group in groupby(pieces, key=lambda piece: piece[0]):
        text = html.escape("".join(text for _, text in group))
        out.append(f'<span class="hl-{kind}">{text}</span>' if kind else text)
    return "".join(out)


@lru_cache(maxsize=128)
def _lexer(language: str) -> Lexer | None:
    if language not in LANGUAGES:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=1024)
def _kind(token: Any) -> str:
    return next((name for kind, name in _KINDS if token in kind), "")
