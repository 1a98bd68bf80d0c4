"""Splits an answer into what the model thought aloud, ``<think>...</think>``, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
_LOOK = re.compile(r"(?m)^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*|(?P<ticks>`+)|(?P<open><think>)")
_FENCE = re.compile(r"(?m)^ {0,3}(?:```|~~~)")
_CODE_SPAN = 2_000
"""Characters in which the end of inline code is looked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of text of one kind."""

    text: str
    is_thought: bool = False
    is_closed: bool = True
    """False for a thought that nothing has ended yet."""


def split_thoughts(text: str, *, is_open: bool = False) -> list[Part]:
    """The parts in order; blank ones are left out. Code that names the tags is code.

    A template may have opened the thought in the prompt: then a lone ``</think>`` ends it. ``is_open``: more text
    will come, so the beginning of a tag at the very end is held back.
    """
    if is_open:
        text = _without_begun_tag(text)
    parts: list[Part] = []
    at = 0
    first = _find_open(text, 0)
    lone = _lone_close(text, first if first is not None else len(text))
    if lone is not None:
        parts.append(Part(text[:lone], is_thought=True))
        at = lone + len(CLOSE)
        first = _find_open(text, at)
    while first is not None:
        parts.append(Part(text[at:first]))
        end = text.find(CLOSE, first)
        parts.append(
            Part(
                text[first + len(OPEN) : end if end >= 0 else len(text)], is_thought=True, is_closed=end >= 0
            )
        )
        at = end + len(CLOSE) if end >= 0 else len(text)
        first = _find_open(text, at)
    parts.append(Part(text[at:]))
    return [part for part in parts if part.text.strip()]


def _find_open(text: str, start: int) -> int | None:
    """Where the next ``<think>`` outside of code begins."""
    if text.find(OPEN, start) < 0:
        return None
    at = start
    while found := _LOOK.search(text, at):
        if found["open"]:
            return found.start("open")
        at = found.end()
        if found["ticks"]:
            at = _end_of_span(text, found["ticks"], at)
        else:
            end = re.compile(rf"(?m)^ {{0,3}}{re.escape(found['fence'])}[`~]*[ \t]*$").search(text, at)
            at = end.end() if end else len(text)
    return None


def _end_of_span(text: str, ticks: str, at: int) -> int:
    blank = text.find("\n\n", at)
    stop = min(at + _CODE_SPAN, len(text) if blank < 0 else blank)
    end = re.compile(rf"(?<!`){ticks}(?!`)").search(text, at, stop)
    return end.end() if end else at


def _lone_close(text: str, stop: int) -> int | None:
    """Where a ``</think>`` stands that nothing opened: at the start or the end of a line, outside of code."""
    place = text.find(CLOSE, 0, stop)
    if place < 0:
        return None
    before = text[text.rfind("\n", 0, place) + 1 : place]
    after = text[place + len(CLOSE) : max(text.find("\n", place), 0) or len(text)]
    is_in_fence = len(_FENCE.findall(text, 0, place)) % 2 == 1
    return None if is_in_fence or (before.strip() and after.strip()) else place


def _without_begun_tag(text: str) -> str:
    for tag in (CLOSE, OPEN):
        for length in range(len(tag) - 1, 0, -1):
            if text.endswith(tag[:length]):
                return text[:-length]
    return text
