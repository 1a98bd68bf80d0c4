"""The decodes of the step budget: who computed the one token of each seat, step by step."""

from __future__ import annotations

from collections.abc import Sequence
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
    stacks = {step.step: decode_stack(step) for step in steps}
    num_rows = max(map(len, stacks.values()), default=0)
    z: list[list[float | None]] = [[None] * (last - first + 1) for _ in range(num_rows)]
    letters = [[""] * (last - first + 1) for _ in range(num_rows)]
    ids = [[""] * (last - first + 1) for _ in range(num_rows)]
    shown: dict[str, tuple[float, str]] = {}
    for step, stack in stacks.items():
        for i, row in enumerate(stack):
            if row.request_id not in shown:
                is_faded = focus.request_id not in (None, row.request_id)
                slot = color_slot(row.arrival) + (NUM_SLOTS if is_faded else 0)
                shown[row.request_id] = slot + 0.5, request_label(row.arrival)
            z[i][step - first], letters[i][step - first] = shown[row.request_id]
            ids[i][step - first] = row.request_id
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


def _decode_colors(look: Look) -> list[list[Any]]:
    """The slots as they are, then all of them faded."""
    fills = [mix(slot_color(slot).fill, look.card, 0.3) for slot in range(NUM_SLOTS)]
    fills += [mix(fill, look.card, FADE) for fill in fills]
    share = 1 / len(fills)
    return [[round((i + end) * share, 6), fill] for i, fill in enumerate(fills) for end in (0, 1)]
