"""What drawing tokens needs of whole rows of logits, natively."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from micro_vllm.native import kernels
from micro_vllm.native.kernels import address
from micro_vllm.sampling.logprobs import RowLogprobs, list_logprobs


class NativeSampling:
    """The ``SamplingKernels`` of a sampler: for float32 on the CPU, each row whole in memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def maxima(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) of each row of (N, V), NaN where there is one; and (N,) int64, the first id that has it."""
        _check(logits)
        maxima = torch.empty(len(logits))
        ids = torch.empty(len(logits), dtype=torch.int64)
        self._library.mv_maxima(
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            len(logits),
            address(maxima),
            address(ids),
            torch.get_num_threads(),
        )
        return maxima, ids

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        likeliest: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        output_index: torch.Tensor,
    ) -> torch.Tensor:
        """(n,) int64 token ids: ``draw_unfiltered``, but without the noise of those who cannot win.

        Args:
            logits: (N, V), neither shifted nor scaled; finite maxima.
            rows, likeliest: (n,) int64, which rows to draw from, and the ids of their maxima.
            temperature: (n,) float32.  seeds, output_index: (n,) int64.
        """
        columns = (rows, likeliest, temperature, None, None, None, seeds, output_index)
        return self._draw(self._library.mv_draw, logits, columns)

    def draw_filtered(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        likeliest: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        output_index: torch.Tensor,
    ) -> torch.Tensor:
        """(n,) int64 token ids: what the ``draw_filtered`` of PyTorch draws; arguments like those of ``draw``.

        top_k: (n,) int64.  top_p, min_p: (n,) float64.
        """
        columns = (rows, likeliest, temperature, top_k, top_p, min_p, seeds, output_index)
        return self._draw(self._library.mv_draw_filtered, logits, columns)

    def _draw(
        self, kernel: Any, logits: torch.Tensor, columns: tuple[torch.Tensor | None, ...]
    ) -> torch.Tensor:
        """``columns``: (n,) each, in the order of ``kernels.Draws``."""
        _check(logits)
        rows, _, temperature, _, top_p, min_p, *_ = columns
        assert rows is not None
        assert temperature is not None
        assert temperature.dtype == torch.float32
        assert all(column is None or column.dtype == torch.float64 for column in (top_p, min_p))
        drawn = torch.empty_like(rows)
        draws = kernels.Draws(
            logits.data_ptr(), logits.stride(0), logits.shape[1], *map(address, columns), len(rows)
        )
        kernel(draws, address(drawn), torch.get_num_threads())
        return drawn

    def logprobs(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        sampled: torch.Tensor,
        num_logprobs: Sequence[int],
        num_valid_ids: int,
    ) -> list[RowLogprobs]:
        """What ``gather_logprobs`` says of (n,) ``rows`` of (N, V), whose sampled ids are (n,)."""
        _check(logits)
        most = min(max(num_logprobs), num_valid_ids)
        ids = torch.empty(len(rows), most, dtype=torch.int64)
        values = torch.empty(len(rows), most)
        of_sampled = torch.empty(len(rows))
        ranks = torch.empty_like(rows)
        listing = kernels.Listing(
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
            min(num_valid_ids, logits.shape[1]),
            address(rows),
            address(sampled),
            len(rows),
            most,
        )
        self._library.mv_logprobs(
            listing,
            address(ids),
            address(values),
            address(of_sampled),
            address(ranks),
            torch.get_num_threads(),
        )
        return list_logprobs(num_logprobs, sampled, of_sampled, ranks, ids, values)


def _check(logits: torch.Tensor) -> None:
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
