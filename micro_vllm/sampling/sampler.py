"""From logits to tokens, for all rows of a batch at once, each with its own settings.

Order and meaning are vLLM V1's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html):
raw log-probabilities; allowed ids, bad words, min_tokens, logit bias, penalties; then greedy rows take the
maximum, the others divide by temperature, filter by min_p, top_k, top_p, and draw. A row costs only what it
asks for: a batch of greedy rows is one maximum over its logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from micro_vllm.sampling.constraints import ConstrainedRow, apply_constraints
from micro_vllm.sampling.logprobs import RowLogprobs, gather_logprobs
from micro_vllm.sampling.params import GREEDY_TEMPERATURE
from micro_vllm.sampling.truncation import draw_filtered, draw_unfiltered

NO_LOGPROBS = -1

_NOT_FINITE = "the model's logits are not finite (NaN, +inf, or -inf everywhere)"
_NOTHING_LEFT = (
    "no token is left to draw: allowed_token_ids, bad_words, min_tokens, logit_bias and penalties together "
    "rule out every token; relax one of them"
)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """Settings of the N rows that draw a token in this step, as columns."""

    temperature: np.ndarray
    """(N,) float64"""
    top_k: np.ndarray
    """(N,) int64, 0 is off"""
    top_p: np.ndarray
    """(N,) float64, 1 is off"""
    min_p: np.ndarray
    """(N,) float64, 0 is off"""
    seeds: np.ndarray
    """(N,) int64"""
    output_index: np.ndarray
    """(N,) int64 index of the token to draw among its request's outputs"""
    num_logprobs: np.ndarray
    """(N,) int64; NO_LOGPROBS where none are asked for, 0 for the sampled token's only"""
    constrained: Sequence[ConstrainedRow] = ()
    """The rows with masks, biases or penalties."""


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One token per row; rows in ``failed`` have a reason instead of a meaningful token."""

    token_ids: list[int]
    logprobs: Mapping[int, RowLogprobs] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)


class SamplingKernels(Protocol):
    """Faster ways for float32 on the CPU; see :class:`micro_vllm.native.sampling.NativeSampling`."""

    def maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        likeliest: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        output_index: torch.Tensor,
    ) -> torch.Tensor: ...

    def draw_filtered(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        likeliest: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        output_index: torch.Tensor,
    ) -> torch.Tensor: ...

    def logprobs(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        sampled: torch.Tensor,
        num_logprobs: Sequence[int],
        num_valid_ids: int,
    ) -> list[RowLogprobs]: ...


class Sampler:
    """Draws tokens. Keeps nothing from one step to the next."""

    def __init__(self, num_valid_ids: int, kernels: SamplingKernels | None = None) -> None:
        """``num_valid_ids``: ids from here on only pad the vocabulary and are never drawn."""
        self.num_valid_ids = num_valid_ids
        self._kernels = kernels

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """One token for every row.

        Args:
            logits: (N, V) in any float type, straight from the model; left unchanged.
            metadata: columns of N rows.

        A row whose logits are not numbers, or whose masks leave nothing to draw, ends up in ``failed``;
        the others are not affected.
        """
        if not len(logits):
            return SamplerOutput(token_ids=[])
        valid = logits[:, : self.num_valid_ids]  # (N, V') views, no copy
        maxima, tokens = self._maxima(valid)  # (N,) the maximum is NaN or infinite if anything is wrong
        failed = dict.fromkeys(_not_finite(maxima), _NOT_FINITE)
        if metadata.constrained:
            valid = valid.to(torch.float32, copy=True)
            apply_constraints(valid, metadata.constrained, metadata.output_index, self.num_valid_ids)
            maxima, tokens = self._maxima(valid)
            for row in _not_finite(maxima):
                failed.setdefault(row, _NOTHING_LEFT)
        # top_k = 1 leaves the maximum alone in the race.
        random = (metadata.temperature >= GREEDY_TEMPERATURE) & (metadata.top_k != 1)
        random[list(failed)] = False
        if random.any():
            self._draw(valid, maxima, tokens, metadata, np.flatnonzero(random))
        asking = [row for row in np.flatnonzero(metadata.num_logprobs >= 0).tolist() if row not in failed]
        logprobs = {}
        if asking:
            counts = metadata.num_logprobs[asking].tolist()
            if self._kernels is not None:
                rows = torch.tensor(asking)
                gathered = self._kernels.logprobs(logits, rows, tokens[rows], counts, self.num_valid_ids)
            else:
                gathered = gather_logprobs(logits[asking].float(), tokens[asking], counts, self.num_valid_ids)
            logprobs = dict(zip(asking, gathered, strict=True))
        return SamplerOutput(tokens.tolist(), logprobs, failed)

    def _maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) of each row, and (N,) its first id. NaN is the maximum of a row that holds one."""
        if self._kernels is not None:
            return self._kernels.maxima(logits)
        if logits.device.type != "cpu" or logits.dtype != torch.float32:
            return logits.max(dim=-1)
        ids = torch.from_numpy(logits.numpy().argmax(axis=-1))  # several times as fast as torch's
        return logits.gather(1, ids[:, None])[:, 0], ids

    def _draw(
        self,
        logits: torch.Tensor,
        maxima: torch.Tensor,
        tokens: torch.Tensor,
        metadata: SamplingMetadata,
        rows: np.ndarray,
    ) -> None:
        """Overwrite ``tokens`` in ``rows`` with draws at their temperature."""
        vocabulary = logits.shape[1]
        top_k = np.where(metadata.top_k >= vocabulary, 0, metadata.top_k)
        filtered = (top_k > 0) | (metadata.top_p < 1) | (metadata.min_p > 0)

        def column(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values[part]).to(logits.device)

        for part, is_filtered in ((rows[~filtered[rows]], False), (rows[filtered[rows]], True)):
            if not len(part):
                continue
            at = torch.from_numpy(part).to(logits.device)
            whole = len(part) == len(logits)
            # float32's largest number at most: a masked -inf over an infinite temperature would be NaN, and win.
            temperature = column(np.minimum(metadata.temperature, torch.finfo(torch.float32).max)).float()
            seeds, output_index = column(metadata.seeds), column(metadata.output_index)
            if self._kernels is not None:
                row = (logits, at, tokens[at], temperature)
                if is_filtered:
                    filters = (column(top_k), column(metadata.top_p), column(metadata.min_p))
                    tokens[at] = self._kernels.draw_filtered(*row, *filters, seeds, output_index)
                else:
                    tokens[at] = self._kernels.draw(*row, seeds, output_index)
                continue
            # Shifted by the maximum first, so that a tiny temperature cannot overflow.
            scaled = (logits if whole else logits[at]).float() - maxima[at, None].float()  # (n, V')
            scaled /= temperature[:, None]
            if is_filtered:
                top_p, min_p = column(metadata.top_p), column(metadata.min_p)
                tokens[at] = draw_filtered(scaled, column(top_k), top_p, min_p, seeds, output_index)
            else:
                tokens[at] = draw_unfiltered(scaled, seeds, output_index)


def _not_finite(maxima: torch.Tensor) -> list[int]:
    return [row for row, value in enumerate(maxima.tolist()) if not math.isfinite(value)]
