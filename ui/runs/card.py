"""One request of a run as its card shows it, and what of it a tab does not know yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from ui.charts.palette import color_slot
from ui.view import request_label

Status = Literal["queued", "reading", "writing", "preempted", "done", "stopped", "failed", "refused"]
ENDED: frozenset[Status] = frozenset({"done", "stopped", "failed", "refused"})
PROMPT_SHOWN = 240
"""Characters of a prompt that its card holds."""
_LENGTHS_KEPT = 64


@dataclass(slots=True)
class Card:
    """Changed by the run's follower only, under the run's lock."""

    label: str
    prompt: str
    num_prompt_tokens: int
    status: Status = "queued"
    reason: str = ""
    """Why it waits, or why it ended before its time."""
    request_id: str = ""
    arrival: int | None = None
    """For the letter and colour that the charts give this request."""
    text: str = ""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    ttft: float | None = None
    """Seconds to the first token."""
    tpot: float | None = None
    """Seconds per token after it."""
    finish_reason: str = ""
    is_admitted: bool = False
    """It has been looked up in the prefix cache."""
    version: int = 0
    """The version of the run in which it last changed."""
    _lengths: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_LENGTHS_KEPT))
    """(version, characters of text then), so that a tab gets only what is new."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def grow(self, text: str, version: int) -> None:
        """Take the text as far as it has come."""
        if not text.startswith(self.text):  # then nothing that a tab holds may be kept
            self._lengths.clear()
        self.text = text
        self._lengths.append((version, len(text)))

    # ------------------------------------------------------------ for a tab

    def whole(self) -> dict[str, Any]:
        """All of it but the text, which ``text_since`` gives."""
        return {"label": self.label, "prompt": short(self.prompt), **self.state()}

    def state(self) -> dict[str, Any]:
        """What may change."""
        return {
            "status": self.status,
            "reason": self.reason,
            "request": self.request_id,
            "chip": None if self.arrival is None else [request_label(self.arrival), color_slot(self.arrival)],
            "facts": {
                "prompt": self.num_prompt_tokens,
                "tokens": self.num_output_tokens,
                "cached": self.num_cached_tokens if self.is_admitted else None,
                "ttft": None if self.ttft is None else round(self.ttft, 4),
                "rate": None if not self.tpot else round(1 / self.tpot, 1),
                "preempted": self.num_preemptions,
                "end": self.finish_reason,
            },
        }

    def text_since(self, version: int) -> dict[str, Any]:
        """``{"at": n, "add": text}``: keep n characters of what is there, then add. Empty if nothing is new."""
        known = 0
        for then, length in self._lengths:
            if then > version:
                break
            known = length
        if self._lengths and self._lengths[0][0] > version:
            known = 0  # longer ago than is remembered
        return {} if known == len(self.text) and version else {"at": known, "add": self.text[known:]}


def short(prompt: str) -> str:
    words = " ".join(prompt[: 4 * PROMPT_SHOWN].split())
    return words if len(words) <= PROMPT_SHOWN else f"{words[:PROMPT_SHOWN]}…"
