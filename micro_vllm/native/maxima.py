"""The maximum of each row of logits and its first id: found while the head computes them, or afterwards."""

from __future__ import annotations

import ctypes

import numpy as np
import torch


class RowMaxima:
    """Memory that the kernels fill, and whose rows these are. One engine's decoder and its drawing share it.

    Invariant: between ``mark`` and ``take`` nobody changes the logits. The sampler's masks work on a copy, which has
    another address, and so its maxima are looked for.
    """

    def __init__(self, num_valid_ids: int | None = None) -> None:
        """``num_valid_ids``: ids from here on never count; None: all do."""
        self._num_valid_ids = num_valid_ids
        self._values, self._ids = np.empty(0, np.float32), np.empty(0, np.int64)
        self.addresses = (0, 0)
        """Of values and ids."""
        self._of: tuple[int, int, int] | None = None

    def num_valid(self, vocabulary: int) -> int:
        """How many of so many columns count."""
        return vocabulary if self._num_valid_ids is None else min(vocabulary, self._num_valid_ids)

    def make_room(self, count: int) -> tuple[int, int]:
        """For so many rows; what was there is gone. ``addresses``."""
        self._of = None
        if len(self._ids) != count:
            self._values, self._ids = np.empty(count, np.float32), np.empty(count, np.int64)
            self.addresses = (self._values.ctypes.data, self._ids.ctypes.data)
        return self.addresses

    def mark(self, logits: int, count: int, num_valid: int) -> None:
        """These are the maxima of (count, num_valid) logits at this address."""
        self._of = (logits, count, num_valid)

    def take(self, logits: torch.Tensor) -> bool:
        """Whether these are the maxima of ``logits`` (N, V); true only once, since drawing overwrites the ids."""
        known, self._of = self._of, None
        return known is not None and known == (logits.data_ptr(), *logits.shape)

    def fill(self, library: ctypes.CDLL, logits: torch.Tensor, threads: int) -> None:
        """Look for those of ``logits`` (N, V) float32."""
        count, vocabulary = logits.shape
        values, ids = self.make_room(count)
        library.mv_maxima(logits.data_ptr(), logits.stride(0), vocabulary, count, values, ids, threads)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) float32, NaN where the row holds one; (N,) int64."""
        return self._values, self._ids
