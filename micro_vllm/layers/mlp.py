"""The gated feed-forward layer. Source: https://arxiv.org/abs/2002.05202 (SwiGLU)"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from micro_vllm.layers.linear import FusedLinear, Linear


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``, with gate and up as one product."""

    def __init__(
        self, hidden_size: int, inner_size: int, *, bias: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.gate_up_proj = FusedLinear(
            hidden_size,
            {"gate_proj": inner_size, "up_proj": inner_size},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.down_proj = Linear(inner_size, hidden_size, bias=bias, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (T, hidden) -> (T, hidden)
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # (T, inner) each
        return self.down_proj(F.silu(gate).mul_(up))
