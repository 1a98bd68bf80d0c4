"""Settings of the rows that draw, as columns, and what each row needs because of them.

The same requests draw in step after step. Whoever builds batches hands out one ``SamplingSettings`` for as long as that
is so, and the sampler sorts the rows by what they need once, not in every step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch

from micro_vllm.sampling.params import GREEDY_TEMPERATURE

NO_LOGPROBS = -1


@dataclass(frozen=True, slots=True, eq=False)
class SamplingSettings:
    """Columns of N rows."""

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
    num_logprobs: np.ndarray
    """(N,) int64; NO_LOGPROBS where none are asked for, 0 for the sampled token's only"""


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """Of n rows."""

    top_k: torch.Tensor
    """(n,) int64, 0 is off and less than the vocabulary"""
    top_p: torch.Tensor
    """(n,) float64"""
    min_p: torch.Tensor
    """(n,) float64"""


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """The n of N rows that draw at their temperature: all with filters, or all without."""

    rows: torch.Tensor
    """(n,) int64"""
    is_all: bool
    """n is N."""
    temperature: torch.Tensor
    """(n,) float32, finite"""
    seeds: torch.Tensor
    """(n,) int64"""
    filters: Filters | None


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """The n of N rows that want log-probabilities."""

    rows: torch.Tensor
    """(n,) int64"""
    is_all: bool
    num_logprobs: tuple[int, ...]
    """(n) how many of the likeliest each lists besides the sampled token."""


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What rows need beside their maximum."""

    races: tuple[Race, ...]
    asking: Asking | None


def needs_of(
    settings: SamplingSettings, vocabulary: int, device: torch.device, without: Collection[int] = ()
) -> Needs:
    """Of all rows but those in ``without``, for a vocabulary of so many valid ids."""
    count = len(settings.temperature)
    takes_part = np.ones(count, np.bool_)
    takes_part[list(without)] = False
    # top_k = 1 leaves the maximum alone in the race.
    random = takes_part & (settings.temperature >= GREEDY_TEMPERATURE) & (settings.top_k != 1)
    top_k = np.where(settings.top_k >= vocabulary, 0, settings.top_k)
    is_filtered = (top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
    # float32's largest number at most: a masked -inf over an infinite temperature would be NaN, and win.
    temperature = np.minimum(settings.temperature, torch.finfo(torch.float32).max).astype(np.float32)

    def race(rows: np.ndarray, filtered: bool) -> Race:
        def column(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values[rows]).to(device)

        return Race(
            rows=torch.from_numpy(rows).to(device),
            is_all=len(rows) == count,
            temperature=column(temperature),
            seeds=column(settings.seeds),
            filters=Filters(column(top_k), column(settings.top_p), column(settings.min_p))
            if filtered
            else None,
        )

    kinds = ((np.flatnonzero(random & ~is_filtered), False), (np.flatnonzero(random & is_filtered), True))
    asking = np.flatnonzero(takes_part & (settings.num_logprobs >= 0))
    return Needs(
        races=tuple(race(rows, filtered) for rows, filtered in kinds if len(rows)),
        asking=Asking(
            rows=torch.from_numpy(asking).to(device),
            is_all=len(asking) == count,
            num_logprobs=tuple(settings.num_logprobs[asking].tolist()),
        )
        if len(asking)
        else None,
    )
