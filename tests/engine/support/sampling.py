"""Call the sampler with one SamplingSpec and one history per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from micro_vllm.sampling.constraints import ConstrainedRow, LogitConstraints
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.sampling.sampler import Sampler, SamplerOutput, SamplingKernels, SamplingMetadata
from micro_vllm.sampling.settings import NO_LOGPROBS, SamplingSettings

History = tuple[Sequence[int], Sequence[int]]
"""Prompt and output token ids."""


def metadata_of(
    specs: Sequence[SamplingSpec], histories: Sequence[History] | None = None, num_valid_ids: int = 2**31
) -> SamplingMetadata:
    histories = histories or [((), ())] * len(specs)
    return SamplingMetadata(
        SamplingSettings(
            temperature=np.array([s.temperature for s in specs], np.float64),
            top_k=np.array([s.top_k for s in specs], np.int64),
            top_p=np.array([s.top_p for s in specs], np.float64),
            min_p=np.array([s.min_p for s in specs], np.float64),
            seeds=np.array([s.seed for s in specs], np.int64),
            num_logprobs=np.array(
                [NO_LOGPROBS if s.num_logprobs is None else s.num_logprobs for s in specs], np.int64
            ),
        ),
        output_index=[len(output) for _, output in histories],
        constrained=[
            ConstrainedRow(row, LogitConstraints(spec, *history, num_valid_ids))
            for row, (spec, history) in enumerate(zip(specs, histories, strict=True))
            if LogitConstraints.needed(spec)
        ],
    )


def sample(
    logits: torch.Tensor,
    specs: Sequence[SamplingSpec],
    histories: Sequence[History] | None = None,
    num_valid_ids: int | None = None,
    kernels: SamplingKernels | None = None,
) -> SamplerOutput:
    """``logits`` is (N, V) for N specs."""
    num_valid_ids = num_valid_ids or logits.shape[1]
    return Sampler(num_valid_ids, kernels).sample(logits, metadata_of(specs, histories, num_valid_ids))


def draws(
    logits: Sequence[float], count: int = 2000, history: History = ((), ()), **settings
) -> torch.Tensor:
    """Histogram (V,) of what ``count`` seeds draw from one row of logits."""
    specs = [SamplingSpec(seed=seed, **settings) for seed in range(count)]
    row = torch.tensor(logits, dtype=torch.float32)
    output = sample(row.expand(count, -1), specs, [history] * count)
    assert not output.failed
    return torch.tensor(output.token_ids).bincount(minlength=len(row))


def drawn_ids(logits: Sequence[float], count: int = 2000, **settings) -> set[int]:
    """Ids that come up among ``count`` seeds."""
    return set(draws(logits, count, **settings).nonzero()[:, 0].tolist())
