"""From logits to tokens, for all rows of a batch at once, each with its own settings.

Order and meaning are vLLM V1's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html):
raw log-probabilities; allowed ids, bad words, min_tokens, logit bias, penalties; then greedy rows take the
maximum, the others divide by temperature, filter by min_p, top_k, top_p, and draw. A row costs only what it
asks for: a batch of greedy rows is one maximum over its logits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from micro_vllm.sampling.constraints import ConstrainedRow, apply_constraints
from micro_vllm.sampling.logprobs import RowLogprobs, gather_logprobs
from micro_vllm.sampling.settings import Asking, Needs, Race, SamplingSettings, needs_of
from micro_vllm.sampling.truncation import draw_filtered, draw_unfiltered

_NOT_FINITE = "the model's logits are not finite (NaN, +inf, or -inf everywhere)"
_NOTHING_LEFT = (
    "no token is left to draw: allowed_token_ids, bad_words, min_tokens, logit_bias and penalties together "
    "rule out every token; relax one of them"
)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """What the N rows that draw a token in this step ask for."""

    settings: SamplingSettings
    """Best the same object as long as the same requests draw."""
    output_index: np.ndarray
    """(N,) int64 index of the token to draw among its request's outputs"""
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
        self, logits: torch.Tensor, tokens: torch.Tensor, race: Race, output_index: np.ndarray
    ) -> None: ...

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, asking: Asking, num_valid_ids: int
    ) -> list[RowLogprobs]: ...


class Sampler:
    """Draws tokens. Keeps nothing from one step to the next but what follows from the settings."""

    def __init__(self, num_valid_ids: int, kernels: SamplingKernels | None = None) -> None:
        """``num_valid_ids``: ids from here on only pad the vocabulary and are never drawn."""
        self.num_valid_ids = num_valid_ids
        self._kernels = kernels
        self._last: tuple[SamplingSettings, Needs] | None = None

    def sample(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """One token for every row.

        Args:
            logits: (N, V) in any float type, straight from the model; left unchanged.
            metadata: of N rows.

        A row whose logits are not numbers, or whose masks leave nothing to draw, ends up in ``failed``;
        the others are not affected.
        """
        if not logits.shape[0]:
            return SamplerOutput(token_ids=[])
        valid = logits  # (N, V')
        if logits.shape[1] > self.num_valid_ids:
            valid = logits[:, : self.num_valid_ids]  # a view, no copy
        maxima, tokens = self._maxima(valid)  # (N,) the maximum is NaN or infinite if anything is wrong
        failed = dict.fromkeys(_not_finite(maxima), _NOT_FINITE)
        if metadata.constrained:
            valid = valid.to(torch.float32, copy=True)
            apply_constraints(valid, metadata.constrained, metadata.output_index, self.num_valid_ids)
            maxima, tokens = self._maxima(valid)
            for row in _not_finite(maxima):
                failed.setdefault(row, _NOTHING_LEFT)
        needs = self._needs(metadata.settings, valid, failed)
        for race in needs.races:
            if self._kernels is not None:
                self._kernels.draw(valid, tokens, race, metadata.output_index)
            else:
                _draw(valid, maxima, tokens, race, metadata.output_index)
        logprobs: Mapping[int, RowLogprobs] = {}
        if needs.asking is not None:
            logprobs = self._logprobs(logits, tokens, needs.asking)
        return SamplerOutput(tokens.tolist(), logprobs, failed)

    def _maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) of each row, and (N,) its first id. NaN is the maximum of a row that holds one."""
        if self._kernels is not None:
            return self._kernels.maxima(logits)
        if logits.device.type != "cpu" or logits.dtype != torch.float32:
            return logits.max(dim=-1)
        ids = torch.from_numpy(logits.numpy().argmax(axis=-1))  # several times as fast as torch's
        return logits.gather(1, ids[:, None])[:, 0], ids

    def _needs(self, settings: SamplingSettings, valid: torch.Tensor, failed: Collection[int]) -> Needs:
        if failed:
            return needs_of(settings, valid.shape[1], valid.device, without=failed)
        if self._last is None or self._last[0] is not settings:
            self._last = (settings, needs_of(settings, valid.shape[1], valid.device))
        return self._last[1]

    def _logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, asking: Asking) -> dict[int, RowLogprobs]:
        if self._kernels is not None:
            found = self._kernels.logprobs(logits, tokens, asking, self.num_valid_ids)
        else:
            rows = asking.rows
            found = gather_logprobs(
                logits[rows].float(), tokens[rows], asking.num_logprobs, self.num_valid_ids
            )
        return dict(zip(asking.rows.tolist(), found, strict=True))


def _draw(
    logits: torch.Tensor, maxima: torch.Tensor, tokens: torch.Tensor, race: Race, output_index: np.ndarray
) -> None:
    """Overwrite ``tokens`` in the rows of the race with draws at their temperature."""
    at = race.rows
    index = torch.from_numpy(output_index).to(logits.device)[at]  # (n,)
    # Shifted by the maximum first, so that a tiny temperature cannot overflow.
    scaled = (logits if race.is_all else logits[at]).float() - maxima[at, None].float()  # (n, V')
    scaled /= race.temperature[:, None]
    if race.filters is None:
        tokens[at] = draw_unfiltered(scaled, race.seeds, index)
    else:
        filters = race.filters
        tokens[at] = draw_filtered(scaled, filters.top_k, filters.top_p, filters.min_p, race.seeds, index)


def _not_finite(maxima: torch.Tensor) -> list[int]:
    values = maxima.tolist()
    if math.isfinite(
        sum(values)
    ):  # a sum with anything else in it is not; it cannot overflow, being of float32
        return []
    return [row for row, value in enumerate(values) if not math.isfinite(value)]
