"""Repetition, presence and frequency penalties over the tokens a request has seen.

Counts are sparse: a request's distinct tokens, not a row of the vocabulary. They grow with every output
token and are rebuilt from its token ids when the request resumes after a preemption.

Source: vLLM's ``apply_penalties``; Keskar et al., "CTRL" (repetition penalty).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

_LIMITS = np.finfo(np.float32)


class TokenCounts:
    """Which distinct tokens a request holds, and how often each was generated."""

    def __init__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        self._slot = {token_id: slot for slot, token_id in enumerate(dict.fromkeys(prompt_token_ids))}
        self._token_ids = np.zeros(max(64, 2 * len(self._slot)), dtype=np.int64)
        self._token_ids[: len(self._slot)] = list(self._slot)
        self._output_counts = np.zeros(len(self._token_ids), dtype=np.int64)
        self.append(output_token_ids)

    def append(self, output_token_ids: Sequence[int]) -> None:
        """Count tokens that were generated since the last call."""
        for token_id in output_token_ids:
            slot = self._slot.setdefault(token_id, len(self._slot))
            if slot == len(self._token_ids):
                self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
                self._output_counts = np.concatenate(
                    [self._output_counts, np.zeros_like(self._output_counts)]
                )
            self._token_ids[slot] = token_id
            self._output_counts[slot] += 1

    @property
    def token_ids(self) -> np.ndarray:
        """(U,) distinct tokens of prompt and output."""
        return self._token_ids[: len(self._slot)]

    @property
    def output_counts(self) -> np.ndarray:
        """(U,) how often each of them was generated; 0 where it is in the prompt only."""
        return self._output_counts[: len(self._slot)]


@dataclass(frozen=True, slots=True)
class PenaltyRow:
    """One row's penalties; neutral values are 1, 0, 0."""

    row: int
    counts: TokenCounts
    repetition: float
    presence: float
    frequency: float


def apply_penalties(logits: torch.Tensor, penalised: Sequence[PenaltyRow], num_valid_ids: int) -> None:
    """Penalise tokens in place.

    Per token of prompt or output: a positive logit is divided by the repetition penalty, a negative one
    multiplied by it. Then, per token of the output: minus frequency penalty x count, minus presence penalty.

    Args:
        logits: (N, V) float32.
        penalised: the rows with penalties, each once.
        num_valid_ids: ids from here on are padding of the vocabulary and are left alone.
    """
    rows, cols, counts, repetition, presence, frequency = [], [], [], [], [], []
    for entry in penalised:
        valid = entry.counts.token_ids < num_valid_ids
        token_ids = entry.counts.token_ids[valid]  # (U,)
        cols.append(token_ids)
        counts.append(entry.counts.output_counts[valid])
        rows.append(np.full(len(token_ids), entry.row, dtype=np.int64))
        times = np.clip(entry.repetition, _LIMITS.tiny, _LIMITS.max)  # neither 0 nor infinite in float32
        repetition.append(np.full(len(token_ids), times, dtype=np.float32))
        presence.append(np.full(len(token_ids), entry.presence, dtype=np.float32))
        frequency.append(np.full(len(token_ids), entry.frequency, dtype=np.float32))

    def flat(parts: list[np.ndarray]) -> torch.Tensor:  # (all U,)
        return torch.from_numpy(np.concatenate(parts)).to(logits.device)

    if not rows:
        return
    where = (flat(rows), flat(cols))
    values, times, output_count = logits[where], flat(repetition), flat(counts)
    values = torch.where(values > 0, values / times, values * times).clamp_(max=float(_LIMITS.max))
    values -= flat(frequency) * output_count
    values -= flat(presence) * (output_count > 0)
    logits[where] = values
