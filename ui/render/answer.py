"""An answer as HTML: Markdown with code, tables and formulas, and what the model thought aloud folded away."""

from __future__ import annotations

import html

from ui.render.markdown import markdown_html
from ui.render.prompt import whole_characters
from ui.render.thoughts import Part, split_thoughts
from ui.render.unfinished import completed

MAX_RENDERED = 200_000
"""Characters; a longer answer is shown as typed."""


def answer_html(text: str, *, is_open: bool = False) -> str:
    """Safe HTML of a model's answer. ``is_open``: it is still being written, and may end in the middle of anything."""
    text = whole_characters(text)
    if len(text) > MAX_RENDERED:
        return f'<div class="typed">{html.escape(text)}</div>'
    parts = split_thoughts(text, is_open=is_open)
    out = []
    for index, part in enumerate(parts):
        grows = is_open and index == len(parts) - 1
        body = _body(part.text, grows)
        out.append(_thought(part, body, grows) if part.is_thought else body)
    return "".join(out)


def _body(text: str, grows: bool) -> str:
    if not grows:
        return markdown_html(text.strip("\n"))
    now = completed(text.strip("\n"))
    return markdown_html(now.text, grows=True, unfinished=now.formula)


def _thought(part: Part, body: str, grows: bool) -> str:
    """Open while it grows. A thought that never ended stays open: the answer may be inside."""
    count = len(part.text.split())
    words = f"{count:,} word{'' if count == 1 else 's'}"
    if part.is_closed:
        return f'<details class="think"><summary>thought for {words}</summary>{body}</details>\n'
    name = "thinking" if grows else "thought without an end"
    return f'<details class="think" open><summary>{name}, {words}</summary>{body}</details>\n'
