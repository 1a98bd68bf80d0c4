"""What the line above the cards says: a run in a few numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ui.runs.card import Card

RATE_SECONDS = 2.0
"""Tokens a second are those of this long, while a run goes on."""


class Rate:
    """Tokens a second of a run: of the last moments while it goes on, of all of it after its end."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._tokens = 0
        self._window: deque[tuple[float, int]] = deque()

    def take(self, tokens: int) -> None:
        """Output tokens of the run so far."""
        now = time.monotonic()
        self._tokens = tokens
        self._window.append((now, tokens))
        while now - self._window[0][0] > RATE_SECONDS:
            self._window.popleft()

    def end(self) -> None:
        self._seconds = time.monotonic() - self._began

    def to_json(self) -> dict[str, Any]:
        """``seconds``: None while it goes on."""
        seconds = None if self._seconds is None else round(self._seconds, 2)
        return {"tokens": self._tokens, "rate": round(self._per_second(), 1), "seconds": seconds}

    def _per_second(self) -> float:
        if self._seconds is not None:
            return self._tokens / self._seconds if self._seconds > 0 else 0.0
        if len(self._window) < 2:
            return 0.0
        (then, before), (now, after) = self._window[0], self._window[-1]
        return (after - before) / (now - then) if now > then else 0.0


def totals(cards: Sequence[Card]) -> dict[str, int]:
    """``prompt`` and ``cached`` are prompt tokens of those that have been looked up in the prefix cache."""
    looked_up = [card for card in cards if card.is_admitted]
    states = [card.status for card in cards]
    return {
        "running": sum(state in ("reading", "writing") for state in states),
        "waiting": sum(state in ("queued", "preempted") for state in states),
        "done": states.count("done"),
        "total": len(cards),
        "prompt": sum(card.num_prompt_tokens for card in looked_up),
        "cached": sum(card.num_cached_tokens for card in looked_up),
        "preempted": sum(card.num_preemptions for card in cards),
    }
