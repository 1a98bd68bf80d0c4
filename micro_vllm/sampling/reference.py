"""The sampler's rules as plainly as they can be written: one row, the whole vocabulary sorted, float64.

Slow on purpose; :mod:`micro_vllm.sampling.sampler` is tested against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from micro_vllm.sampling.noise import gumbel_noise
from micro_vllm.sampling.params import SamplingSpec


def processed_logits(
    logits: torch.Tensor, spec: SamplingSpec, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """(V,) logits after masks, bias and penalties. ``logits`` is (V,) of valid ids only."""
    x = logits.to(torch.float64).clone()
    if spec.allowed_token_ids is not None:
        for token_id in range(len(x)):
            if token_id not in spec.allowed_token_ids:
                x[token_id] = -torch.inf
    for *beginning, last in spec.bad_words_token_ids:
        if list(output[len(output) - len(beginning) :]) == beginning:
            x[last] = -torch.inf
    if len(output) < spec.min_tokens:
        for token_id in spec.min_tokens_masked_ids:
            x[token_id] = -torch.inf
    for token_id, bias in (spec.logit_bias or {}).items():
        x[token_id] += bias
    for token_id in {*prompt, *output}:
        r = spec.repetition_penalty
        x[token_id] = x[token_id] / r if x[token_id] > 0 else x[token_id] * r
    for token_id, count in Counter(output).items():
        x[token_id] -= spec.frequency_penalty * count
        x[token_id] -= spec.presence_penalty
    return x


def filtered_probs(logits: torch.Tensor, spec: SamplingSpec) -> torch.Tensor:
    """(V,) the distribution a token is drawn from: temperature, then min_p, top_k, top_p.

    A greedy row has all its mass on the maximum.
    """
    if spec.is_greedy:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    probs = (logits.double() / spec.temperature).softmax(dim=-1)
    probs[probs < spec.min_p * probs.max()] = 0
    order = probs.argsort(descending=True, stable=True)  # likeliest first, equals by id
    if spec.top_k:
        probs[order[spec.top_k :]] = 0
    probs /= probs.sum()
    if spec.top_p < 1:
        mass_before = 0.0
        for token_id in order.tolist():
            mass = float(probs[token_id])
            if mass_before >= spec.top_p:
                probs[token_id] = 0
            mass_before += mass
        probs /= probs.sum()
    return probs


def draw(
    logits: torch.Tensor, spec: SamplingSpec, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> int:
    """The next token after ``prompt`` and ``output``."""
    probs = filtered_probs(processed_logits(logits, spec, prompt, output), spec)
    ids = torch.arange(len(probs))
    noise = gumbel_noise(torch.tensor([spec.seed]), torch.tensor([len(output)]), ids)[0]
    return int((probs.log() + noise.double()).argmax())
