"""How many requests of which length overfill a KV pool, so that the scheduler must preempt, and everybody finishes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from micro_vllm.errors import InvalidRequestError
from micro_vllm.trace import EngineInfo

ADMITTED_SHARE = 0.7
"""Prompts may fill so much of the pool: the scheduler admits them all, and what overfills it are their answers."""
MOST_TOKENS = 24_000
"""Prompts and answers together: beyond it a run takes more than a minute on two cores."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """The first ``count`` prompts, each answered with ``num_output_tokens``."""

    count: int
    num_output_tokens: int
    blocks_wanted: int
    """Held at once if nobody were preempted; more than the pool has."""


def blocks_for(info: EngineInfo, num_tokens: int) -> int:
    """Most blocks that a request of so many tokens holds at once, over all groups."""
    size = info.block_size
    total = 0
    for group in info.groups:
        blocks = math.ceil(num_tokens / size)
        if group.window is not None:
            reach = math.ceil((group.window - 1 + info.max_num_batched_tokens) / size) + 1
            blocks = min(blocks, reach)
        total += blocks
    return total


def overfill(info: EngineInfo, prompts: Sequence[Sequence[int]], most_output_tokens: int) -> Pressure:
    """As many of ``prompts`` (token ids) as the pool admits at once, answered so long that it cannot hold them.

    ``most_output_tokens`` bounds an answer. Raises InvalidRequestError with the numbers where that cannot be done.
    """
    for count in range(len(prompts), 1, -1):
        found = _overfill(info, prompts[:count], most_output_tokens)
        if found is not None:
            return found
    raise InvalidRequestError(
        f"{len(prompts)} requests cannot overfill this pool of {info.num_blocks:,} blocks of {info.block_size} slots "
        f"in less than a minute: an answer may hold {most_output_tokens:,} tokens here, and prompts and answers "
        f"together {MOST_TOKENS:,}. Choose another workload, or, where you may, 64 to 512 blocks under “Engine”."
    )


def _overfill(info: EngineInfo, prompts: Sequence[Sequence[int]], most: int) -> Pressure | None:
    lengths = [len(prompt) for prompt in prompts]
    count = len(lengths)
    # Full blocks of a common beginning may be held once for all (when they were cached before), or by each.
    shared = (count - 1) * (common_prefix(prompts) // info.block_size) * len(info.groups)

    def wanted(num_output_tokens: int) -> int:
        return sum(blocks_for(info, length + num_output_tokens) for length in lengths) - shared

    held_at_first = sum(blocks_for(info, length) for length in lengths) + count * len(info.groups)
    if held_at_first > ADMITTED_SHARE * info.num_blocks:
        return None
    longest = min(most, info.max_model_len - max(lengths))
    if longest < 1 or wanted(longest) <= info.num_blocks:
        return None
    low, high = 0, longest
    while low < high:  # the shortest answers that overfill it
        middle = (low + high) // 2
        low, high = (low, middle) if wanted(middle) > info.num_blocks else (middle + 1, high)
    # The first prompts are read steps before the last ones, and must still be there when those have grown.
    stagger = math.ceil(sum(lengths) / max(1, info.max_num_batched_tokens - count))
    num_output_tokens = math.ceil(low * 1.15) + stagger + info.block_size
    if num_output_tokens > longest or sum(lengths) + count * num_output_tokens > MOST_TOKENS:
        return None
    if blocks_for(info, max(lengths) + num_output_tokens) > info.num_blocks:
        return None
    return Pressure(count, num_output_tokens, wanted(num_output_tokens))


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all of them begin."""
    first = prompts[0]
    length = min(len(prompt) for prompt in prompts)
    return next(
        (i for i in range(length) if any(prompt[i] != first[i] for prompt in prompts)),
        length,
    )
