"""An answer in the middle of a construct, completed for the moment, so that nothing flickers while it streams."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAIL = 4_000
"""Characters of the last paragraph that are looked at."""
_FENCE = re.compile(r"(?m)^[ \t]*(?:[-*+>][ \t]+)*(`{3,}|~{3,})[^\n]*$")
_BARE_MARKER = re.compile(
    r"(?:^|\n)[ \t]*(?:[-*+]|\d{1,9}[.)]|#{1,6}|>|`{1,2}|~{1,2}|-{2,}|\*{2,}|_{1,3})[ \t]*$"
)
_HALF_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\((?:[^()\n]{0,1000})$")
_HALF_AUTOLINK = re.compile(r"<(?:https?:|mailto:)[^<>\s]*$")
_SPANS = re.compile(r"\\[\s\S]|`+|\*\*|~~|\*|(?<![^\W_])__?(?=\S)|__?(?![^\W_])")
_DELIMITER_ROW = re.compile(r"[|:\- \t]*")


@dataclass(frozen=True, slots=True)
class Completed:
    text: str
    formula: str | None = None
    """Content of a formula at the end that was closed here: to be shown as source."""


def completed(text: str) -> Completed:
    """What to render as long as more will come. Inside of an open code fence nothing is touched but a begun closer."""
    fence = _open_fence(text)
    if fence is not None:
        last = text.rfind("\n") + 1
        stripped = text[last:].strip()
        begun = stripped and not stripped.strip(fence[0]) and len(stripped) < len(fence)
        return Completed(text[:last] if begun else text)
    text = _BARE_MARKER.sub("", text)
    start = max(text.rfind("\n\n") + 2 if "\n\n" in text else 0, len(text) - _TAIL)
    head, tail = text[:start], text[start:]
    tail = _table(tail)
    if tail.startswith("|") or "\n|" in tail:
        return Completed(head + tail)
    return _spans(head, tail)


def _open_fence(text: str) -> str | None:
    """The marks of the fence that is open at the end."""
    fence: str | None = None
    for found in _FENCE.finditer(text):
        if fence is None:
            fence = found[1]
        elif found[1].startswith(fence) and not found[0].strip().strip(fence[0]):
            fence = None
    return fence


def _table(tail: str) -> str:
    """The head of a table is a table from its first cell on."""
    lines = tail.split("\n")
    first = len(lines)
    while first and lines[first - 1].lstrip().startswith("|"):
        first -= 1
    rows = lines[first:]
    if not 1 <= len(rows) <= 2 or (len(rows) == 2 and not _DELIMITER_ROW.fullmatch(rows[1])):
        return tail
    cells = rows[0].strip().strip("|").replace("\\|", "").split("|")
    return "\n".join([*lines[:first], rows[0], "|" + "---|" * len(cells)])


def _spans(head: str, tail: str) -> Completed:
    """Close what is open in the last paragraph: inline code, a formula, a link, emphasis."""
    opened: list[str] = []
    at = 0
    while at < len(tail):
        formula = next((o for o in (r"\(", r"\[", "$$") if tail.startswith(o, at)), None)
        if formula:
            closer = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}[formula]
            close = tail.find(closer, at + 2)
            if close < 0:
                return _open_formula(head, tail, at, closer)
            at = close + 2
            continue
        found = _SPANS.match(tail, at)
        if not found:
            at += 1
            continue
        mark, at = found[0], found.end()
        if mark[0] == "\\":
            continue
        if mark[0] == "`":
            end = re.compile(rf"(?<!`){mark}(?!`)").search(tail, at)
            if end is None:
                if not tail[at:].strip():
                    return Completed(head + tail[: found.start()])
                return (
                    Completed(head + tail + mark)
                    if not tail.endswith("`")
                    else Completed(head + tail.rstrip("`") + mark)
                )
            at = end.end()
        elif mark in opened:
            del opened[opened.index(mark) :]
        elif at < len(tail) and not tail[at].isspace():
            opened.append(mark)
        elif at == len(tail) and mark != "_":
            tail = tail[: found.start()]
    tail = _HALF_LINK.sub(lambda link: link[1], tail)
    tail = _HALF_AUTOLINK.sub("", tail)
    if opened:
        body = tail.rstrip()
        tail = body + "".join(reversed(opened))
    return Completed(head + tail)


def _open_formula(head: str, tail: str, at: int, closer: str) -> Completed:
    content = tail[at + 2 :]
    if closer[0] == content[-1:]:  # half of the closer
        content = content[:-1]
    if not content.strip():
        return Completed(head + tail[:at])
    return Completed(head + tail[: at + 2] + content + closer, content)
