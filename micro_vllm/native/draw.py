"""Draws tokens natively: the race of ``sampling/noise.py``, without the noise of those who cannot win."""

from __future__ import annotations

import ctypes

import torch

from micro_vllm.native import kernels
from micro_vllm.native.kernels import address


class NativeDraw:
    """Does what ``draw_unfiltered`` does, from logits that are neither shifted nor scaled yet."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        likeliest: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        output_index: torch.Tensor,
    ) -> torch.Tensor:
        """(n,) int64 token ids.

        Args:
            logits: (N, V) float32 on the CPU, each row whole in memory; finite maxima.
            rows, likeliest: (n,) int64, which rows to draw from, and the ids of their maxima.
            temperature: (n,) float32.  seeds, output_index: (n,) int64.
        """
        assert logits.dtype == temperature.dtype == torch.float32
        assert logits.stride(1) == 1
        drawn = torch.empty_like(rows)
        draws = kernels.Draws(
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            address(rows),
            address(likeliest),
            address(temperature),
            address(seeds),
            address(output_index),
            len(rows),
        )
        self._library.mv_draw(draws, address(drawn), torch.get_num_threads())
        return drawn
