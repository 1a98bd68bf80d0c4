"""The executor protocol: all the engine knows of devices.

A scripted executor without weights can stand in for the real one; core and engine cannot tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from micro_vllm.config import CacheGroup
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult


class Executor(Protocol):
    """Runs plans. One caller at a time; ``execute`` may raise, and the engine then fails that plan's requests."""

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        """Bytes of one KV block (keys and values, one group's layers)."""
        ...

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        """Usable blocks (null block not counted) that ``memory_bytes`` hold."""
        ...

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        """Allocate the physical cache: ``num_blocks`` usable blocks and the null block."""
        ...

    def execute(self, plan: ExecutionPlan) -> StepResult:
        """Compute one step. On an exception rows of the plan may be half updated: the engine finishes them."""
        ...

    def close(self) -> None:
        """Release the cache. The weights belong to the LoadedModel and stay."""
        ...
