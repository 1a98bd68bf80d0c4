"""int8 weights: 64 inputs of an output share one scale, laid out for the kernels of ``product.h``.

The reference is :func:`dequantize`: the kernel's product must agree with that of the weights it gives, but for the
rounding of the activations, which :func:`quantize_activations` repeats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 64
"""Inputs that share a scale."""
LANES = 16
COLUMNS = 32
"""Outputs come in multiples of this."""


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A weight (N, K) in int8. Layouts as in ``product.h``."""

    data: torch.Tensor  # (N / 16, K / 4, 16, 4) uint8: 128 more than what is meant
    scale: torch.Tensor  # (N / 16, K / 64, 16) float16
    bias: torch.Tensor | None  # (N,) float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0] * LANES, self.data.shape[1] * 4

    @property
    def num_bytes(self) -> int:
        tensors = [self.data, self.scale, *([] if self.bias is None else [self.bias])]
        return sum(t.numel() * t.element_size() for t in tensors)


def can_quantize(rows: int, columns: int) -> bool:
    """Whether a weight of this shape fits the layout."""
    return rows % COLUMNS == 0 and columns % GROUP == 0


def quantize(weight: torch.Tensor, bias: torch.Tensor | None = None) -> QuantizedMatrix:
    """``weight`` (N, K) of any float dtype. Symmetric, to nearest: the largest of a group becomes 127 or next to it.

    Weights of more than 8.3 million overflow the float16 scale: their group becomes NaN.
    """
    rows, columns = weight.shape
    groups = weight.detach().float().view(rows, columns // GROUP, GROUP)  # (N, K / 64, 64)
    scale = _no_less_in_half(groups.abs().amax(-1) / 127)  # (N, K / 64)
    whole = torch.round(groups / scale.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None])
    data = (whole.clamp_(-127, 127) + 128).to(torch.uint8)
    return QuantizedMatrix(
        data.view(rows // LANES, LANES, columns // 4, 4).transpose(1, 2).contiguous(),
        _by_lanes(scale),
        None if bias is None else bias.detach().float().contiguous(),
    )


def _no_less_in_half(x: torch.Tensor) -> torch.Tensor:
    """Positive numbers in float16, rounded up: with less of a scale the largest of its group would pass 127."""
    half = x.half()
    return (half.view(torch.int16) + (half.float() < x)).view(torch.float16)


def interleave(gate_up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up, one after the other, to 16 of each by turns: one tile then holds both factors."""
    gate, up = gate_up.chunk(2)  # (I, ...) each
    pairs = (gate.unflatten(0, (-1, LANES)), up.unflatten(0, (-1, LANES)))
    return torch.stack(pairs, dim=1).flatten(0, 2)


def dequantize(matrix: QuantizedMatrix) -> torch.Tensor:
    """(N, K) float32: the weight that the int8 values stand for."""
    rows, columns = matrix.shape
    whole = matrix.data.transpose(1, 2).reshape(rows, columns // GROUP, GROUP).float() - 128
    scale = matrix.scale.transpose(1, 2).reshape(rows, columns // GROUP).float()
    return (whole * scale[..., None]).view(rows, columns)


def quantize_activations(x: torch.Tensor) -> torch.Tensor:
    """(T, K) float32 as the kernels see it: rounded to 255 levels for each 64 inputs."""
    groups = x.view(x.shape[0], -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.round(groups / scale.clamp_min(torch.finfo(torch.float32).tiny)) * scale).view_as(x)


def _by_lanes(x: torch.Tensor) -> torch.Tensor:
    """(N, G) -> (N / 16, G, 16)."""
    return x.view(x.shape[0] // LANES, LANES, -1).transpose(1, 2).contiguous()
