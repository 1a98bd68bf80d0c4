"""Text for Gradio's Chatbot, which renders Markdown with HTML inside: nothing anybody wrote may become HTML.

An answer keeps its Markdown, but ``<`` and ``&`` outside of code are escaped (inside of code the renderer does
that). A prompt is shown exactly as typed.
"""

from __future__ import annotations

import re

from ui.render.plain import plain

__all__ = ["answer_markdown", "as_typed", "plain"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def as_typed(text: str) -> str:
    """Every character as it is: each punctuation mark becomes an entity, which Markdown does not interpret."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(_typed_line(line) for line in lines)


def _typed_line(line: str) -> str:
    if not line.strip():
        # Markdown swallows empty lines; a space that does not break keeps them.
        return "&nbsp;"
    body = _PUNCTUATION.sub(lambda m: f"&#{ord(m.group())};", line.lstrip(" \t"))
    # "1. x" would begin a list; the dot is an entity by now, so only indentation is left to be guarded.
    indent = line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4)
    return "&nbsp;" * len(indent) + re.sub(" {2,}", lambda m: "&nbsp;" * len(m.group()), body)


def answer_markdown(text: str) -> str:
    """A model's answer as Markdown without raw HTML, an open code fence closed."""
    out: list[str] = []
    prose: list[str] = []
    fence: str | None = None

    def flush() -> None:
        if prose:
            out.append(_escape_prose("\n".join(prose)))
            prose.clear()

    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence is None and match:
            flush()
            fence = match.group(1)
            out.append(_escape_info(line))
        elif fence is not None:
            out.append(line)
            closes = match and match.group(1).startswith(fence) and not line.strip().strip(fence[0])
            if closes:
                fence = None
        else:
            prose.append(line)
    flush()
    if fence is not None:
        out.append(fence)
    return "\n".join(out)


def _escape_info(line: str) -> str:
    """The words after an opening fence go into an attribute."""
    return line.replace("&", "&amp;").replace("<", "&lt;")


def _escape_prose(text: str) -> str:
    """Escape outside of inline code, which is a run of backticks up to the next run as long, in the same paragraph."""
    parts: list[str] = []
    at = 0
    while match := _TICKS.search(text, at):
        end = _closing_run(text, match.end(), match.group())
        if end is None:
            parts.append(_escape(text[at : match.end()]))
            at = match.end()
        else:
            parts.append(_escape(text[at : match.start()]))
            parts.append(text[match.start() : end])
            at = end
    parts.append(_escape(text[at:]))
    return "".join(parts)


def _closing_run(text: str, start: int, run: str) -> int | None:
    paragraph_end = text.find("\n\n", start)
    stop = len(text) if paragraph_end < 0 else paragraph_end
    for match in _TICKS.finditer(text, start, stop):
        if match.group() == run:
            return match.end()
    return None


def _escape(text: str) -> str:
    # Four spaces in front would make a code block of a line that may hold what was escaped here.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"(?m)^(?: {4,}|\t+)(?=\S)", lambda m: "   ", escaped)
