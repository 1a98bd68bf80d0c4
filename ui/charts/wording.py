"""Numbers as people read them, and words that fit."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

CHAR_PX = 6.1
"""Width of a character at the size of a headline, on average."""


def longest_that_fits(wordings: Sequence[str], px: float, char_px: float = CHAR_PX) -> str:
    """The first of ``wordings`` (the longest first) that has room, else the last; tags take none."""
    return next((text for text in wordings if visible_length(text) * char_px <= px), wordings[-1])


def wrapped(text: str, px: float, char_px: float = CHAR_PX) -> str:
    """In lines of at most ``px``, as far as its words are short enough."""
    return "<br>".join(textwrap.wrap(text, max(12, int(px / char_px)), break_long_words=False))


def visible_length(text: str) -> int:
    """Characters outside of tags."""
    if "<" not in text:
        return len(text)
    count, is_tag = 0, False
    for char in text:
        is_tag = char == "<" or (is_tag and char != ">")
        count += not is_tag and char != ">"
    return count


def duration(seconds: float) -> str:
    """With a unit, to three digits at most: 0.04 ms, 2.2 ms, 27 ms, 1.25 s, 38 s, 2 min 5 s."""
    if 0 < seconds < 0.000095:
        return f"{1000 * seconds:.2f} ms"
    if seconds < 0.00995:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def percent(share: float) -> str:
    """0.6 %, 41 %: one digit after the point below ten."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def duration_tick(seconds: float) -> str:
    """For the round numbers of an axis: 250 ms, 1.5 s."""
    return f"{seconds:g} s" if seconds >= 1 else f"{1000 * seconds:g} ms"


def round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 6, 8, 10, 15, ... (or 0.8, 0.6, ...): an axis that grows in steps stays still in
    between."""
    step = 1e-6
    while True:
        for digit in (1, 1.5, 2, 3, 4, 6, 8):
            if value <= digit * step * (1 + 1e-9):
                return round(digit * step, 7)
        step *= 10


def power_of_two(value: float, least: int) -> int:
    """The smallest of least, 2 least, 4 least, ... that is not below ``value``."""
    top = least
    while top < value:
        top *= 2
    return top


def counted(number: int, thing: str) -> str:
    """1 block, 2 blocks."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
