"""An answer in the middle of a construct, completed for the moment, so that nothing flickers while it streams.

Marks that say how text will look are never shown as text: bold text is bold from its first letter on, a table is a
table from its first cell on, and a formula is shown as its source until its end is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ui.render.formulas import CLOSERS, inline_formula

_TAIL = 4_000
"""Characters of the last paragraph that are looked at."""
_FENCE = re.compile(r"(?m)^[ \t]*(?:[-*+>][ \t]+)*(`{3,}|~{3,})[^\n]*$")
_BEGUN_LINE = re.compile(r"(?:^|\n)[ \t]*(?:[-*+_]{1,3}|\d{1,9}[.)]|#{1,6}|>|`{1,2}|~{1,2}|\||\\)[ \t]*$")
_BEGUN_NUMBER = re.compile(r"\n[ \t]*\d{1,3}$")
_LINE_START = re.compile(r"(?m)^[ \t]*(?:[-*+]|\d{1,9}[.)]|#{1,6}|>)[ \t]+")
_HALF_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\](?:\([^()\n]{0,1000})$")
_DELIMITER_ROW = re.compile(r"[|:\- \t]*")
_RUN = re.compile(r"\*+|_+|~+")


def _prefixes(*words: str) -> str:
    return "|".join(word[:length] for word in words for length in range(len(word), 0, -1))


_HALF_AUTOLINK = re.compile(
    rf"<(?:(?:https?://|mailto:)[^<>\s]{{0,1000}}|{_prefixes('https://', 'http://', 'mailto:')})?$"
)


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
        marks = text[last:].strip()
        is_begun = marks != "" and not marks.strip(fence[0]) and len(marks) < len(fence)
        return Completed(text[:last] if is_begun else text)
    text = _BEGUN_NUMBER.sub("", _BEGUN_LINE.sub("", text))
    start = max(text.rfind("\n\n") + 1, len(text) - _TAIL, 0)
    tail = _table(text[start:])
    line = tail[tail.rfind("\n") + 1 :]
    if line.lstrip().startswith("|"):
        cell = max(tail.rfind("|") + 1, 0)
    else:
        cell = max((found.end() for found in _LINE_START.finditer(tail)), default=0)
    return _spans(text[:start] + tail[:cell], tail[cell:])


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


# ---------------------------------------------------------------- inside of the last paragraph


def _spans(head: str, tail: str) -> Completed:
    """Close what is open at the end: inline code, a formula, emphasis, a link."""
    opened: list[list] = []  # [mark, how many of them are open], the innermost last
    at = 0
    while at < len(tail):
        char = tail[at]
        if char == "`":
            marks = re.compile("`+").match(tail, at)[0]  # type: ignore[index]
            close = re.compile(rf"(?<!`){marks}(?!`)").search(tail, at + len(marks))
            if close is None:
                return _open_code(head, tail, at, marks)
            at = close.end()
        elif char in "\\$" and (formula := inline_formula(tail, at, len(tail))):
            at = formula[2]
        elif char in "\\$" and (opener := _opener(tail, at)):
            return _open_formula(head, tail, at, opener)
        elif char == "\\":
            at += 2
        elif found := _RUN.match(tail, at):
            at = found.end()
            _take_run(opened, tail, found.start(), at)
        else:
            at += 1
    tail = _HALF_AUTOLINK.sub("", _HALF_LINK.sub(r"\1", tail))
    if tail.endswith("\\") and not tail.endswith("\\\\"):
        tail = tail[:-1]
    bare = tail.rstrip("*_~")
    if len(bare) < len(tail) and (not bare or bare[-1].isspace()):
        tail = bare  # an opener with nothing behind it yet
    closers = "".join(mark * count for mark, count in reversed(opened))
    return Completed(head + (tail.rstrip() + closers if closers else tail))


def _take_run(opened: list[list], tail: str, start: int, end: int) -> None:
    """One run of ``*``, ``_`` or ``~``: it closes what the same mark has opened, or opens."""
    mark, count = tail[start], end - start
    before, after = tail[start - 1 : start], tail[end : end + 1]
    closes = before != "" and not before.isspace() and not (mark == "_" and after.isalnum())
    opens = after != "" and not after.isspace() and not (mark == "_" and before.isalnum())
    if closes:
        for index in range(len(opened) - 1, -1, -1):
            if opened[index][0] == mark and count:
                used = min(count, opened[index][1])
                count -= used
                opened[index][1] -= used
                del opened[index + bool(opened[index][1]) :]
        if not opens:
            return
    if count and opens and (mark != "~" or count == 2) and count <= 3:
        opened.append([mark, count])


def _opener(tail: str, at: int) -> str | None:
    """The delimiter of a formula that begins at ``at`` and has no end yet."""
    pair = tail[at : at + 2]
    if pair in CLOSERS and CLOSERS[pair] not in tail[at + 2 :]:
        return pair
    content = tail[at + 1 :]
    is_formula = re.match(r"(?!\d)\S[^$]*[\\^_{]", content) and not tail[at - 1 : at].isalnum()
    return "$" if tail[at] == "$" and "$" not in content and is_formula else None


def _open_formula(head: str, tail: str, at: int, opener: str) -> Completed:
    closer = CLOSERS[opener]
    content = tail[at + len(opener) :]
    if len(closer) == 2 and content.endswith(closer[0]):  # half of the closer
        content = content[:-1]
    content = content.rstrip()
    if not content.strip():
        return Completed(head + tail[:at])
    return Completed(head + tail[:at] + opener + content + closer, content)


def _open_code(head: str, tail: str, at: int, marks: str) -> Completed:
    content = tail[at + len(marks) :].rstrip("`")
    if not content.strip():
        return Completed(head + tail[:at])
    return Completed(head + tail[:at] + marks + content + marks)
