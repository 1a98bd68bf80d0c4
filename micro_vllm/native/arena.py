"""One piece of memory for all that a step reads, on huge pages where the system has them.

A step goes through all weights once. In pages of 4 KB every one of them is looked up on the way, which in a virtual
machine costs two walks through page tables; in pages of 2 MB that is next to nothing.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

ALIGNMENT = 64
"""Bytes: what the kernels load at once."""


def padded_bytes(tensor: torch.Tensor) -> int:
    """What a tensor takes in an arena."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


class Arena:
    """Tensors are copied in one after the other, and stay for as long as any of them is in use."""

    def __init__(self, num_bytes: int) -> None:
        memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):  # Linux only, and only a wish
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._at = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of it, behind those that are there."""
        size = tensor.numel() * tensor.element_size()
        assert self._at + size <= len(self._bytes), "the arena was made too small"
        placed = self._bytes[self._at : self._at + size].view(tensor.dtype).view(tensor.shape)
        self._at += padded_bytes(tensor)
        return placed.copy_(tensor)
