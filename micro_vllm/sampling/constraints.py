"""What changes a request's logits before a token is drawn: masks, biases, penalties.

Order and meaning are vLLM's: allowed_token_ids, bad_words, min_tokens, logit_bias, penalties. A request
without any of them has no :class:`LogitConstraints` at all and costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.sampling.penalties import PenaltyRow, TokenCounts, apply_penalties


class LogitConstraints:
    """One live request's constraints, with the part of its history that they look at.

    Ids from ``num_valid_ids`` on are padding of the vocabulary, never drawn anyway, and are dropped.
    """

    def __init__(
        self,
        spec: SamplingSpec,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        num_valid_ids: int,
    ) -> None:
        def valid(ids: Sequence[int]) -> np.ndarray:
            array = np.asarray(ids, dtype=np.int64).reshape(-1)
            return array[array < num_valid_ids]

        self.allowed_ids = None if spec.allowed_token_ids is None else valid(spec.allowed_token_ids)
        self.min_tokens = spec.min_tokens
        self.min_tokens_masked_ids = valid(spec.min_tokens_masked_ids)
        bias = {i: b for i, b in (spec.logit_bias or {}).items() if i < num_valid_ids}
        self.bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self.bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self.penalties = (spec.repetition_penalty, spec.presence_penalty, spec.frequency_penalty)
        self.counts = TokenCounts(prompt_token_ids, output_token_ids) if spec.has_penalties else None
        self._bad_words = [word for word in spec.bad_words_token_ids if word and word[-1] < num_valid_ids]
        self._output = list(output_token_ids) if self._bad_words else []

    @staticmethod
    def needed(spec: SamplingSpec) -> bool:
        """Whether this request ever changes its logits."""
        return bool(
            spec.allowed_token_ids is not None
            or spec.bad_words_token_ids
            or (spec.min_tokens and spec.min_tokens_masked_ids)
            or spec.logit_bias
            or spec.has_penalties
        )

    def append_outputs(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that were generated since the last call."""
        if self.counts is not None:
            self.counts.append(token_ids)
        if self._bad_words:
            self._output.extend(token_ids)

    def masked_ids(self, output_index: int) -> np.ndarray:
        """Ids that must not be drawn now: last tokens of bad words whose beginning was just generated,
        and every end-of-sequence id while fewer than ``min_tokens`` were generated."""
        last_of_bad_words = [word[-1] for word in self._bad_words if self._output_ends_with(word[:-1])]
        masked = np.asarray(last_of_bad_words, dtype=np.int64)
        if output_index < self.min_tokens:
            masked = np.concatenate([masked, self.min_tokens_masked_ids])
        return masked

    def _output_ends_with(self, beginning: tuple[int, ...]) -> bool:
        return not beginning or tuple(self._output[-len(beginning) :]) == beginning


class ConstrainedRow(NamedTuple):
    """A row of the logits whose request has constraints."""

    row: int
    constraints: LogitConstraints


def apply_constraints(
    logits: torch.Tensor, rows: Sequence[ConstrainedRow], output_index: Sequence[int], num_valid_ids: int
) -> None:
    """Change the logits of some rows in place.

    Args:
        logits: (N, V) float32.
        rows: the rows to change, each once.
        output_index: (N) index of the token to draw among its request's outputs.
        num_valid_ids: ids from here on are padding of the vocabulary.
    """

    def put(parts: Sequence[tuple[int, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat (row, column) indices of all parts."""
        at = np.repeat([row for row, _ in parts], [len(ids) for _, ids in parts])
        columns = np.concatenate([ids for _, ids in parts])
        return torch.from_numpy(at).to(logits.device), torch.from_numpy(columns).to(logits.device)

    allowed = [(row, c.allowed_ids) for row, c in rows if c.allowed_ids is not None]
    if allowed:
        where = put(allowed)
        kept = logits[where]
        logits[[row for row, _ in allowed]] = -torch.inf
        logits[where] = kept
    masked = [(row, ids) for row, c in rows if len(ids := c.masked_ids(output_index[row]))]
    if masked:
        logits[put(masked)] = -torch.inf
    biased = [(row, c) for row, c in rows if len(c.bias_ids)]
    if biased:
        values = torch.from_numpy(np.concatenate([c.bias_values for _, c in biased])).to(logits.device)
        logits[put([(row, c.bias_ids) for row, c in biased])] += values
    penalised = [PenaltyRow(row, c.counts, *c.penalties) for row, c in rows if c.counts is not None]
    apply_penalties(logits, penalised, num_valid_ids)
