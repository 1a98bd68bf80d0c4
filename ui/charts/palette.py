"""Colours: one for each request, stable for its life, told apart also by the colour-blind, and readable text on top.

The first seven are those of Okabe and Ito, "Color Universal Design" (2008), https://jfly.uni-koeln.de/color/,
without black; after them come the same hues once more, mixed towards the middle and with a pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
PATTERNS = ("", "/", ".", "x")
NUM_SLOTS = len(OKABE_ITO) * len(PATTERNS)

INK = "#0f1720"
PAPER = "#ffffff"


@dataclass(frozen=True, slots=True)
class RequestColor:
    """How one request is painted. ``pattern`` is a Plotly pattern shape, "" for a plain fill."""

    fill: str
    pattern: str
    pattern_color: str
    text: str
    """Readable on ``fill`` (WCAG AA, 4.5 : 1)."""


def color_slot(arrival: int) -> int:
    """The slot of the arrival-th request: neighbours differ, and it needs no memory."""
    return arrival % NUM_SLOTS


def slot_color(slot: int) -> RequestColor:
    return _SLOTS[slot % NUM_SLOTS]


def request_color(arrival: int) -> RequestColor:
    return _SLOTS[arrival % NUM_SLOTS]


def _make_slot(slot: int) -> RequestColor:
    base = OKABE_ITO[slot % len(OKABE_ITO)]
    turn = slot // len(OKABE_ITO)
    if turn == 0:
        return RequestColor(base, "", base, readable_on(base))
    # Towards white or black, whichever the text is not, so that the pattern costs no contrast.
    text = readable_on(base)
    away = PAPER if text == INK else INK
    fill = mix(base, away, 0.18 + 0.08 * turn)
    return RequestColor(fill, PATTERNS[turn], mix(fill, away, 0.55), readable_on(fill))


# ---------------------------------------------------------------- arithmetic


@lru_cache(maxsize=4096)
def mix(color: str, other: str, share: float) -> str:
    """``color`` with ``share`` (0 to 1) of ``other``, in sRGB."""
    pairs = zip(_rgb(color), _rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def contrast(one: str, two: str) -> float:
    """WCAG 2.2 contrast ratio, 1 to 21. https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    light, dark = sorted((_luminance(one), _luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@lru_cache(maxsize=1024)
def readable_on(fill: str) -> str:
    """Ink or paper, whichever stands out more."""
    return max((INK, PAPER), key=lambda color: contrast(color, fill))


def _rgb(color: str) -> tuple[int, int, int]:
    value = int(color[1:], 16)
    return value >> 16, value >> 8 & 255, value & 255


def _luminance(color: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


_SLOTS = tuple(_make_slot(slot) for slot in range(NUM_SLOTS))
