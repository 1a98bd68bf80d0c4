"""Numbers of a step as a tensor, for little."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch


class Column:
    """A tensor of int64 made of a list of numbers, in the same memory as long as there are equally many.

    Steps are mostly as wide as the last one, and an ``array`` takes a list in a fraction of the time that numpy and
    torch together need for it when neither was called for a while.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = array("q")
        self._tensor = torch.empty(0, dtype=torch.int64)

    def fill(self, values: Sequence[int]) -> torch.Tensor:
        """``(len(values),)``, at least one; valid until the next call."""
        numbers = array("q", values)
        if len(numbers) == len(self._memory):
            self._memory[:] = numbers
        else:
            self._memory = numbers
            self._tensor = torch.frombuffer(numbers, dtype=torch.int64)
        return self._tensor if self._device.type == "cpu" else self._tensor.to(self._device)
