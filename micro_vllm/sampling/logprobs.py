"""Raw log-probabilities of the sampled and of the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class RowLogprobs(NamedTuple):
    """One row's raw log-probabilities: the sampled token first, then the likeliest ones, best first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    """1-based ranks in the vocabulary."""


_MARGIN = 32
"""Extra tokens fetched so that equal logits at the end of the list are ordered by id."""


def gather_logprobs(
    raw_logits: torch.Tensor, sampled: torch.Tensor, num_logprobs: Sequence[int], num_valid_ids: int
) -> list[RowLogprobs]:
    """Log-softmax of the model's own logits, read at the sampled token and at the likeliest ones.

    Normalised over the model's whole vocabulary, as transformers does; padding of the vocabulary is not
    listed and does not count in ranks. Equal logits are ranked by id, the smaller first, as greedy sampling
    takes them.

    Args:
        raw_logits: (N, V) float32 before temperature, masks and penalties.
        sampled: (N,) int64.
        num_logprobs: how many of the likeliest each row lists besides the sampled token.
        num_valid_ids: ids from here on are padding of the vocabulary.
    """
    logprobs = raw_logits.log_softmax(dim=-1)  # (N, V)
    valid = logprobs[:, :num_valid_ids]
    of_sampled = valid.gather(1, sampled[:, None])  # (N, 1)
    smaller_id = torch.arange(valid.shape[1], device=valid.device) < sampled[:, None]
    rank = ((valid > of_sampled) | ((valid == of_sampled) & smaller_id)).sum(dim=-1) + 1  # (N,)
    most = max(num_logprobs)
    top_ids = top_values = torch.empty(len(valid), 0)
    if most:
        ids = valid.topk(min(most + _MARGIN, valid.shape[1]), dim=-1).indices.sort(dim=-1).values
        top_values, order = valid.gather(1, ids).sort(dim=-1, descending=True, stable=True)
        top_ids = ids.gather(1, order)
    return list_logprobs(
        num_logprobs, sampled, of_sampled[:, 0], rank, top_ids[:, :most], top_values[:, :most]
    )


def list_logprobs(
    num_logprobs: Sequence[int],
    sampled: torch.Tensor | np.ndarray,
    of_sampled: torch.Tensor | np.ndarray,
    ranks: torch.Tensor | np.ndarray,
    top_ids: torch.Tensor | np.ndarray,
    top_values: torch.Tensor | np.ndarray,
) -> list[RowLogprobs]:
    """Of (N,) ``sampled`` tokens with (N,) ``of_sampled`` and ``ranks``, and (N, most) of the likeliest."""
    columns = zip(
        num_logprobs, sampled.tolist(), of_sampled.tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(),
        strict=True,
    )  # fmt: skip
    return [
        RowLogprobs(
            token_ids=(token_id, *ids[:count]),
            logprobs=(logprob, *values[:count]),
            ranks=(rank, *range(1, len(ids[:count]) + 1)),
        )
        for count, token_id, logprob, rank, ids, values in columns
    ]
