"""One piece of memory for all weights that a step reads, in the order in which it reads them."""

from __future__ import annotations

import torch

from micro_vllm.memory import on_huge_pages

ALIGNMENT = 64
"""Bytes: what the kernels load at once."""


def padded_bytes(tensor: torch.Tensor) -> int:
    """What a tensor takes in an arena."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


class Arena:
    """Tensors are copied in one after the other, and stay for as long as any of them is in use."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = torch.frombuffer(on_huge_pages(num_bytes), dtype=torch.uint8)
        self._at = 0

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of it, behind those that are there."""
        size = tensor.numel() * tensor.element_size()
        assert self._at + size <= len(self._bytes), "the arena was made too small"
        placed = self._bytes[self._at : self._at + size].view(tensor.dtype).view(tensor.shape)
        self._at += padded_bytes(tensor)
        return placed.copy_(tensor)
