"""Noise that depends on (seed, output index, token id) and on nothing else.

A draw is the Gumbel-max race ``argmax(logits / temperature + noise)``, which samples exactly from the
softmax. The noise of a token is a hash of its coordinates (SplitMix64, used as a counter-based generator), so
it is the same in any batch and any order, after a preemption, and whether or not top_k / top_p took other
tokens out of the race; and it can be computed for a few candidates without drawing the whole vocabulary.

Sources: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (SplitMix64);
Maddison, Tarlow, Minka, "A* sampling" (Gumbel-max).
"""

from __future__ import annotations

import torch

# SplitMix64's odd constants, as the signed numbers that torch.int64 wraps around.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

_SMALLEST = 2.0**-64
_LARGEST = 1.0 - 2.0**-24


def gumbel_noise(seeds: torch.Tensor, output_index: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of some tokens in each of N draws.

    Args:
        seeds: (N,) int64, any value, negative ones too.
        output_index: (N,) int64, index of the token to draw among its request's outputs.
        token_ids: (M,) or (N, M) int64.

    Returns:
        (N, M) float32, finite.
    """
    keys = _mix_(_mix_(seeds + _GAMMA) + (output_index + 1) * _GAMMA)  # (N,)
    bits = _mix_(keys[:, None] + (token_ids + 1) * _GAMMA)  # (N, M)
    # A float32 of 63 bits is fine-grained near 0, where the winners of a race over many tokens come from.
    uniform = bits.bitwise_and_(2**63 - 1).to(torch.float32).mul_(2.0**-63).clamp_(_SMALLEST, _LARGEST)
    exponential = uniform.neg_().log1p_().neg_()  # Exp(1)
    return exponential.log_().neg_()


def _mix_(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser, in place."""
    bits ^= _shift_right(bits, 30)
    bits *= _MIX_1
    bits ^= _shift_right(bits, 27)
    bits *= _MIX_2
    bits ^= _shift_right(bits, 31)
    return bits


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift: torch's own shift of a signed number drags the sign bit along."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)
