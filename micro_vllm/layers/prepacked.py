"""Matrix products with weights laid out once for the CPU's kernels.

oneDNN multiplies blocks of a weight in a layout of its own. Given a plain matrix it rearranges it, or runs a slower
kernel, at every call; given a packed one it starts at once. In bfloat16, one thread, AVX-512, SmolLM2's shapes on a
busy machine: 1.7 to 2.5 times faster up to 16 rows, where decoding is, 0.96 to 1.3 times from 32 rows on. The plain
product it must agree with is ``F.linear``.
Source: torch's own inductor uses these operators for frozen weights (torch/_inductor/fx_passes/mkldnn_fusion.py).
"""

from __future__ import annotations

import torch

ROWS_HINT = 32
"""Rows of input the layout is chosen for: a full batch of decodes."""


def can_prepack(weight: torch.Tensor) -> bool:
    """bfloat16 on a CPU whose oneDNN computes in it. float32 stays plain: there every bit is compared."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class PrepackedProduct:
    """``x @ weight.T + bias`` for one weight ``(out, in)``, of which it keeps a packed copy."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_HINT)

    def __call__(
        self, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:  # (T, in) -> (T, out)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
