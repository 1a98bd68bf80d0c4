"""What drawing tokens needs of whole rows of logits, natively."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from micro_vllm.native import kernels
from micro_vllm.native.kernels import address
from micro_vllm.native.maxima import RowMaxima
from micro_vllm.sampling.logprobs import RowLogprobs, list_logprobs
from micro_vllm.sampling.settings import Asking, Race


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """Where log-probabilities of n rows go."""

    listing: kernels.Listing
    ids: np.ndarray  # (n, most) int64
    values: np.ndarray  # (n, most) float32
    of_sampled: np.ndarray  # (n,) float32
    ranks: np.ndarray  # (n,) int64
    addresses: tuple[int, int, int, int]  # of these four


class NativeSampling:
    """The ``SamplingKernels`` of a sampler: for float32 on the CPU, each row whole in memory.

    Structures and results of the last step are used again for one like it: making them costs more than some kernels.
    """

    def __init__(self, library: ctypes.CDLL, maxima: RowMaxima | None = None) -> None:
        """``maxima``: where the decoder leaves those of its logits."""
        self._library = library
        self._maxima = maxima or RowMaxima()
        self._draws: dict[bool, tuple[Race, kernels.Draws]] = {}
        """The last race without filters, and the last with."""
        self._listed: tuple[Asking, int, _Listed] | None = None

    def maxima(self, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(N,) of each row of (N, V), NaN where there is one; and (N,) int64, the first id that has it.

        Both are valid until the next call.
        """
        _check(logits)
        if not self._maxima.take(logits):
            self._maxima.fill(self._library, logits, torch.get_num_threads())
        return self._maxima.arrays

    def draw(self, logits: torch.Tensor, tokens: np.ndarray, race: Race, output_index: Sequence[int]) -> None:
        """Overwrite ``tokens`` in the rows of the race: what PyTorch's draws would be, but without the noise of tokens
        that cannot win.

        Args:
            logits: (N, V), neither shifted nor scaled; finite maxima.
            tokens: (N,) int64, what ``maxima`` said of them.
            output_index: (N) of the tokens among the outputs of their requests.
        """
        assert tokens is self._maxima.arrays[1]
        _check(logits)
        is_filtered = race.filters is not None
        known = self._draws.get(is_filtered)
        if known is None or known[0] is not race:
            known = self._draws[is_filtered] = (race, _draws_of(race))
        draws = known[1]
        draws.logits, draws.stride, draws.vocabulary = logits.data_ptr(), logits.stride(0), logits.shape[1]
        index = array("q", output_index)
        draws.output_index, draws.tokens = index.buffer_info()[0], self._maxima.addresses[1]
        kernel = self._library.mv_draw_filtered if is_filtered else self._library.mv_draw
        kernel(draws, torch.get_num_threads())

    def logprobs(
        self, logits: torch.Tensor, tokens: np.ndarray, asking: Asking, num_valid_ids: int
    ) -> list[RowLogprobs]:
        """What ``gather_logprobs`` says of the rows of (N, V) that ask.

        tokens: (N,) int64, what ``maxima`` and ``draw`` made of them.
        """
        assert tokens is self._maxima.arrays[1]
        _check(logits)
        if self._listed is None or self._listed[0] is not asking or self._listed[1] != num_valid_ids:
            self._listed = (asking, num_valid_ids, _listed_of(asking, num_valid_ids))
        listed = self._listed[2]
        listing = listed.listing
        listing.logits, listing.stride, listing.vocabulary = (
            logits.data_ptr(),
            logits.stride(0),
            logits.shape[1],
        )
        listing.valid, listing.sampled = min(num_valid_ids, logits.shape[1]), self._maxima.addresses[1]
        self._library.mv_logprobs(listing, *listed.addresses, torch.get_num_threads())
        return list_logprobs(
            asking.num_logprobs,
            tokens if asking.is_all else tokens[asking.rows.numpy()],
            listed.of_sampled,
            listed.ranks,
            listed.ids,
            listed.values,
        )


def _draws_of(race: Race) -> kernels.Draws:
    filters = race.filters
    assert race.temperature.dtype == torch.float32
    draws = kernels.Draws(
        rows=address(race.rows),
        temperature=address(race.temperature),
        seeds=address(race.seeds),
        count=race.rows.numel(),
    )
    if filters is not None:
        assert filters.top_p.dtype == filters.min_p.dtype == torch.float64
        draws.top_k, draws.top_p, draws.min_p = map(address, (filters.top_k, filters.top_p, filters.min_p))
    return draws


def _listed_of(asking: Asking, num_valid_ids: int) -> _Listed:
    count, most = asking.rows.numel(), min(max(asking.num_logprobs), num_valid_ids)
    ids, values = np.empty((count, most), np.int64), np.empty((count, most), np.float32)
    of_sampled, ranks = np.empty(count, np.float32), np.empty(count, np.int64)
    addresses = (ids.ctypes.data, values.ctypes.data, of_sampled.ctypes.data, ranks.ctypes.data)
    listing = kernels.Listing(rows=address(asking.rows), count=count, most=most)
    return _Listed(listing, ids, values, of_sampled, ranks, addresses)


def _check(logits: torch.Tensor) -> None:
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
