"""The decodes of the step budget: who computed the one token of each seat, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from ui.charts.focus import Focus
from ui.charts.palette import NUM_SLOTS, color_slot, mix, slot_color
from ui.charts.step_runs import TokenScale, decode_stack
from ui.charts.theme import Look
from ui.view import StepRecord, request_label

FADE = 0.75
"""How far the colours of those who are not followed go towards the card's."""


def decodes(
    steps: Sequence[StepRecord], scale: TokenScale, bars_px: float, look: Look, focus: Focus
) -> dict[str, Any]:
    """One cell a token, as an image: of thirty requests in a hundred steps bars would be thousands of shapes."""
    first, last = (steps[0].step, steps[-1].step) if steps else (0, 0)
    columns = {step.step: _column(step, focus.request_id) for step in steps}
    whole = [columns.get(step, _NOTHING) for step in range(first, last + 1)]
    z = list(zip_longest(*(column.slots for column in whole)))
    letters = list(zip_longest(*(column.letters for column in whole), fillvalue=""))
    ids = list(zip_longest(*(column.ids for column in whole), fillvalue=""))
    return {
        "type": "heatmap",
        "z": z,
        # Cells are centred; a hair less than the middle, so that the hover's rounding gives the step.
        "x0": first + 0.499,
        "dx": 1,
        "y0": round(scale.height(0.5), 5),
        "dy": round(scale.height(1), 5),
        "zmin": 0,
        "zmax": 2 * NUM_SLOTS,
        "colorscale": _decode_colors(look),
        "showscale": False,
        "ygap": 0.5 if scale.height(1) * bars_px >= 4 else 0,
        "text": letters,
        "customdata": ids,
        "hovertemplate": "<b>request %{text}</b> · decode, one token<br>step %{x:.0f}<extra></extra>",
    }


@dataclass(frozen=True, slots=True)
class _Column:
    """One step, from below."""

    slots: tuple[float, ...] = ()
    letters: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


_NOTHING = _Column()


@lru_cache(maxsize=1024)
def _column(step: StepRecord, followed: str | None) -> _Column:
    stack = decode_stack(step)
    fades = [NUM_SLOTS if followed not in (None, row.request_id) else 0 for row in stack]
    return _Column(
        tuple([color_slot(row.arrival) + fade + 0.5 for row, fade in zip(stack, fades, strict=True)]),
        tuple([request_label(row.arrival) for row in stack]),
        tuple([row.request_id for row in stack]),
    )


@lru_cache(maxsize=8)
def _decode_colors(look: Look) -> tuple[tuple[float, str], ...]:
    """The slots as they are, then all of them faded."""
    fills = [mix(slot_color(slot).fill, look.card, 0.3) for slot in range(NUM_SLOTS)]
    fills += [mix(fill, look.card, FADE) for fill in fills]
    share = 1 / len(fills)
    return tuple([(round((i + end) * share, 6), fill) for i, fill in enumerate(fills) for end in (0, 1)])
