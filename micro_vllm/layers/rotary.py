"""Rotary positions: default, linear, llama3, yarn, and dynamic up to its original length.

Sources: https://arxiv.org/abs/2104.09864 (rope), https://arxiv.org/abs/2309.00071 (yarn),
https://github.com/meta-llama/llama-models (llama3 scaling). Numbers follow transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from micro_vllm.layers.rope_config import RopeConfig


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions. Computed once per step, shared by all layers."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device | str) -> None:
        super().__init__()
        inverse_frequencies, self.scaling = rotary_frequencies(rope, head_dim)
        # A plain attribute: no checkpoint holds it, and it stays float32 whatever the model's dtype.
        self.inverse_frequencies = inverse_frequencies.to(device)  # (D / 2,)

    def forward(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:  # (T,) int64 -> (T, 1, D), (T, 1, D)
        """Cosines, and sines whose first half is negated, as :func:`apply_rotary` wants them."""
        cos, sin = self.half_angles(positions)
        return (
            torch.cat((cos, cos), dim=-1)[:, None].to(dtype),
            torch.cat((-sin, sin), dim=-1)[:, None].to(dtype),
        )

    def half_angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions ``(T,) int64``, ``(T, D / 2) float32`` each, scaled."""
        angles = positions[:, None].float() * self.inverse_frequencies
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Turn heads ``x (T, heads, D)`` by their positions: ``x * cos + rotate_half(x) * sin``.

    ``rotate_half`` swaps the halves and negates the first; the sign lives in ``signed_sin``, so a roll does.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies ``(head_dim / 2,) float32`` and the factor on cosines and sines."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim  # (D / 2,)
    plain = 1.0 / (rope.theta**exponents)
    parameters = rope.parameters
    if rope.type == "linear":
        return plain / parameters["factor"], 1.0
    if rope.type == "llama3":
        return _llama3_frequencies(plain, parameters), 1.0
    if rope.type == "yarn":
        return _yarn_frequencies(plain, rope.theta, head_dim, parameters), _yarn_scaling(parameters)
    # default; and dynamic, which equals it up to the original length (longer is refused by ModelConfig)
    return plain, 1.0


def _llama3_frequencies(plain: torch.Tensor, parameters: Mapping[str, Any]) -> torch.Tensor:
    """Short waves stay, long waves are stretched by ``factor``, in between the two are mixed."""
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = parameters["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    mixed = (1 - smooth) * plain / factor + smooth * plain
    stretched = torch.where(wavelengths > original / low, plain / factor, mixed)
    return torch.where(wavelengths < original / high, plain, stretched)


def _yarn_frequencies(
    plain: torch.Tensor, theta: float, head_dim: int, parameters: Mapping[str, Any]
) -> torch.Tensor:
    """Interpolate slow dimensions by ``factor``, leave fast ones, ramp in between ("NTK by parts")."""
    original = parameters["original_max_position_embeddings"]

    def dimension_of(rotations: float) -> float:
        """Dimension whose wave turns this often within the original length."""
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(parameters.get("beta_fast") or 32)
    high = dimension_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / parameters["factor"] * ramp + plain * (1 - ramp)


def _yarn_scaling(parameters: Mapping[str, Any]) -> float:
    """The attention factor: given, or from ``mscale`` and ``mscale_all_dim``, or from ``factor`` alone."""
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(scale: float) -> float:
        factor = parameters["factor"]
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return magnitude(mscale) / magnitude(mscale_all) if mscale and mscale_all else magnitude(1.0)
