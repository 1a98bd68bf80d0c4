"""From logits to tokens, for all rows of a batch at once, each with its own settings.

Order and meaning are vLLM V1's (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html):
raw log-probabilities; allowed ids, bad words, min_tokens, logit bias, penalties; then greedy rows take the
maximum, the others divide by temperature, filter by min_p, top_k, top_p, and draw. A row costs only what it
asks for: a batch of greedy rows is one maximum over its logits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
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


class SamplingMetadata(msgspec.Struct, frozen=True, eq=False):
    """What the N rows that draw a token in this step ask for."""

    settings: SamplingSettings
    """Best the same object as long as the same requests draw."""
    output_index: Sequence[int]
    """(N) index of the token to draw among its request's outputs."""
    constrained: Sequence[ConstrainedRow] = ()
    """The rows with masks, biases or penalties."""


class SamplerOutput(msgspec.Struct, frozen=True):
    """One token per row; rows in ``failed`` have a reason instead of a meaningful token."""

    token_ids: list[int]
    logprobs: Mapping[int, RowLogprobs] = {}
    failed: Mapping[int, str] = {}


class SamplingKernels(Protocol):
    """What needs whole rows of logits: :class:`PlainSampling`, or faster for float32 on the CPU
    :class:`micro_vllm.native.sampling.NativeSampling`. ``tokens`` is what its own ``maxima`` returned."""

    def maxima(self, logits: torch.Tensor) -> tuple[Any, Any]: ...

    def draw(self, logits: torch.Tensor, tokens: Any, race: Race, output_index: Sequence[int]) -> None: ...

    def logprobs(
        self, logits: torch.Tensor, tokens: Any, asking: Asking, num_valid_ids: int
    ) -> list[RowLogprobs]: ...


class PlainSampling:
    """With PyTorch, on any device."""

    def maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) of each row of (N, V), and (N,) its first id. NaN is the maximum of a row that holds one."""
        if logits.device.type != "cpu" or logits.dtype != torch.float32:
            return logits.max(dim=-1)
        ids = torch.from_numpy(logits.numpy().argmax(axis=-1))  # several times as fast as torch's
        return logits.gather(1, ids[:, None])[:, 0], ids

    def draw(
        self, logits: torch.Tensor, tokens: torch.Tensor, race: Race, output_index: Sequence[int]
    ) -> None:
        """Overwrite ``tokens``, ids of maxima, in the rows of the race with draws at their temperature."""
        at = race.rows
        index = torch.tensor(output_index, device=logits.device)[at]  # (n,)
        rows = logits if race.is_all else logits[at]  # (n, V)
        # Shifted by the maximum first, so that a tiny temperature cannot overflow.
        scaled = rows.float() - rows.gather(1, tokens[at, None]).float()  # (n, V)
        scaled /= race.temperature[:, None]
        if race.filters is None:
            tokens[at] = draw_unfiltered(scaled, race.seeds, index)
        else:
            filters = race.filters
            tokens[at] = draw_filtered(scaled, filters.top_k, filters.top_p, filters.min_p, race.seeds, index)

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, asking: Asking, num_valid_ids: int
    ) -> list[RowLogprobs]:
        """Of the rows of (N, V) that ask."""
        rows = asking.rows
        return gather_logprobs(logits[rows].float(), tokens[rows], asking.num_logprobs, num_valid_ids)


class Sampler:
    """Draws tokens. Keeps nothing from one step to the next but what follows from the settings."""

    def __init__(self, num_valid_ids: int, kernels: SamplingKernels | None = None) -> None:
        """``num_valid_ids``: ids from here on only pad the vocabulary and are never drawn."""
        self.num_valid_ids = num_valid_ids
        self._kernels = kernels or PlainSampling()
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
        maxima, tokens = self._kernels.maxima(valid)  # (N,) each
        failed = dict.fromkeys(_not_finite(maxima.tolist()), _NOT_FINITE)
        if metadata.constrained:
            valid = valid.to(torch.float32, copy=True)
            apply_constraints(valid, metadata.constrained, metadata.output_index, self.num_valid_ids)
            maxima, tokens = self._kernels.maxima(valid)
            for row in _not_finite(maxima.tolist()):
                failed.setdefault(row, _NOTHING_LEFT)
        needs = self._needs(metadata.settings, valid, failed)
        for race in needs.races:
            self._kernels.draw(valid, tokens, race, metadata.output_index)
        logprobs: Mapping[int, RowLogprobs] = {}
        if needs.asking is not None:
            found = self._kernels.logprobs(logits, tokens, needs.asking, self.num_valid_ids)
            logprobs = dict(zip(needs.asking.rows.tolist(), found, strict=True))
        return SamplerOutput(tokens.tolist(), logprobs, failed)

    def _needs(self, settings: SamplingSettings, valid: torch.Tensor, failed: Collection[int]) -> Needs:
        if failed:
            return needs_of(settings, valid.shape[1], valid.device, without=failed)
        if self._last is None or self._last[0] is not settings:
            self._last = (settings, needs_of(settings, valid.shape[1], valid.device))
        return self._last[1]


def _not_finite(maxima: list[float]) -> list[int]:
    """NaN is the maximum of a row that holds one, and an infinite one means that nothing can be drawn."""
    if math.isfinite(sum(maxima)):  # as one of all finite ones of float32 is; and none else
        return []
    return [row for row, value in enumerate(maxima) if not math.isfinite(value)]
