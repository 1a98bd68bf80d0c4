"""Two answers side by side: which steps of the engine computed both, and where they part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from micro_vllm.trace import StepPlanned

PIECE_SHOWN = 40
"""Characters of a token."""


class Pair:
    """Fed from the trace and from the outputs; no lock of its own."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_together = 0
        self._first_step: dict[str, int] = {}
        self._part: dict[str, Any] | None = None

    def take_step(self, event: StepPlanned, mine: Collection[str]) -> None:
        """A step was planned; ``mine`` are the two requests."""
        rows = [row.request_id for row in event.rows if row.request_id in mine]
        self._num_steps += bool(rows)
        self._num_together += len(rows) == 2
        for request_id in rows:
            self._first_step.setdefault(request_id, event.step)

    def find_part(self, outputs: Sequence[Any], loaded: Any) -> None:
        """The first token in which the two answers differ; ``outputs`` are the newest ones, None for none yet."""
        if self._part is not None or len(outputs) != 2 or any(output is None for output in outputs):
            return
        one, two = (output.outputs[0].token_ids for output in outputs)
        place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
        if place is not None:
            self._part = {"same": place, "pieces": [_piece(loaded, ids[place]) for ids in (one, two)]}

    def to_json(self, request_ids: Sequence[str]) -> dict[str, Any]:
        """``began``: the first step of each, as far as there was one. ``part``: so many tokens are the same, then
        these pieces follow."""
        return {
            "steps": self._num_steps,
            "together": self._num_together,
            "began": [self._first_step.get(request_id) for request_id in request_ids],
            "part": self._part,
        }


def _piece(loaded: Any, token_id: int) -> str:
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return ""
    if token_id in tokenizer.eos_token_ids:
        return "(the end)"
    return tokenizer.token_text(token_id)[:PIECE_SHOWN]
