"""Linear layers: plain, and several of a checkpoint's fused into one matrix product."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from micro_vllm.layers.prepacked import PrepackedProduct, can_prepack


class Linear(nn.Module):
    """``x @ weight.T + bias``. Unlike ``nn.Linear`` it sets no initial values, which loading replaces.

    After :meth:`prepack` the values live in a packed copy only, and ``weight`` keeps no more than shape and dtype.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False)
            if bias
            else None
        )

        self._product: PrepackedProduct | None = None

    def prepack(self) -> None:
        """Lay the loaded weight out for the CPU's kernels, where they have a layout for it."""
        if self._product is None and can_prepack(self.weight):
            self._product = PrepackedProduct(self.weight)
            self.weight = nn.Parameter(torch.empty_like(self.weight, device="meta"), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (T, in) -> (T, out)
        if self._product is not None:
            return self._product(x, self.bias)
        return F.linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Linear layers with the same input as one product: their rows lie one after the other in ``weight``.

    ``parts`` maps the name that a checkpoint gives each of them to its number of rows, in order. The
    checkpoint holds them as siblings of this layer.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__(in_features, sum(parts.values()), bias=bias, dtype=dtype, device=device)
        self.parts = dict(parts)
