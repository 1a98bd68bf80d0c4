"""The contract between scheduler and model runner: an immutable plan down, an immutable result up.

A plan carries what is *new*; the runner keeps one row per live request. So building a batch costs O(new),
the runner never touches a Request, and the scheduler never sees a tensor.

Structs, which are made several times faster than dataclasses: a step makes some for every request. None can be part of
a cycle, so the garbage collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from micro_vllm.sampling.params import SamplingSpec


class NewRequest(msgspec.Struct, frozen=True, gc=False):
    """A request the runner has no row for: seen for the first time, or resumed after preemption.

    ``token_ids`` are all its tokens so far, prompt first. ``block_ids[g]`` is the whole block table of group g
    at admission (prefix hits; null blocks where a window has passed); what this step allocates comes with
    the row's ``new_block_ids``.
    """

    request_id: str
    sampling: SamplingSpec
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    is_resumed: bool = False


class ScheduledRequest(msgspec.Struct, frozen=True, gc=False):
    """One request's share of this step: its tokens ``start .. start + count``."""

    request_id: str
    new_token_ids: tuple[int, ...]
    """The ids to compute, ``count`` of them."""
    start: int
    """Index of the first of them, which is the number of tokens already in the KV cache."""
    new_block_ids: tuple[tuple[int, ...], ...]
    """Per group, blocks to append to its table before this step."""
    samples: bool
    """Whether this step reaches the last known token, so that a next one is drawn."""
    output_index: int = 0
    """Index of the token to draw among the request's outputs; the noise depends on (seed, this)."""

    @property
    def count(self) -> int:
        return len(self.new_token_ids)

    @property
    def is_prefill(self) -> bool:
        """Not one token of which all before it are computed, after at least one output."""
        return not self.samples or self.output_index == 0 or len(self.new_token_ids) > 1


class ExecutionPlan(msgspec.Struct, frozen=True, gc=False):
    """All that one step computes."""

    step: int
    scheduled: tuple[ScheduledRequest, ...]
    new: tuple[NewRequest, ...] = ()
    preempted_ids: tuple[str, ...] = ()
    """Requests whose row the runner drops; they may come back in a later plan's ``new``."""
    finished_ids: tuple[str, ...] = ()
    """Requests that ended since the last plan (finished, aborted, failed); their rows are dropped."""

    @property
    def num_tokens(self) -> int:
        return sum([len(row.new_token_ids) for row in self.scheduled])


class TokenLogprobs(msgspec.Struct, frozen=True, gc=False):
    """Raw log-probabilities at one sampled position, before temperature and penalties.

    ``token_ids[0]`` is the sampled token, the rest are the most likely ones, best first; ``ranks`` are
    1-based ranks in the whole vocabulary.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]


class StepTimings(msgspec.Struct, frozen=True, gc=False):
    """Seconds spent by the runner."""

    build: float = 0.0
    forward: float = 0.0
    sample: float = 0.0


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """What came out of a plan. Every request of the plan that samples is in ``token_ids`` or in ``failed``."""

    token_ids: Mapping[str, int]
    logprobs: Mapping[str, TokenLogprobs] = {}
    failed: Mapping[str, str] = {}
    """Requests that could not be computed (NaN logits, say) -> the reason. Others are not affected."""
    timings: StepTimings = StepTimings()
    operator: str = ""
    """Name of the attention operator that ran."""
