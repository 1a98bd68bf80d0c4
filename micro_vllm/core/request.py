"""A request as the scheduler sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from micro_vllm.core.prefix_cache import ROOT_HASH, hash_block
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.trace.events import RequestMetrics


class RequestStatus(Enum):
    """Where a request is. FINISHED covers every end; ``Request.finish_reason`` says which."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a request ends by itself, in token ids. Stop *strings* are the output processor's."""

    max_tokens: int
    """Most output tokens; the caps of context and pool are already in it."""
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    """Empty under ignore_eos."""
    stop_token_ids: frozenset[int] = frozenset()


class Request:
    """One request's tokens and progress.

    ``num_computed_tokens`` chases ``num_tokens``: prefill, chunked prefill, decode and recompute after a
    preemption are all the same chase.
    """

    # After a forward pass nothing of a request is in the processor's caches: in one piece it is back sooner.
    __slots__ = (
        "arrival",
        "arrival_time",
        "block_hashes",
        "cache_salt",
        "finish_reason",
        "first_admitted_time",
        "first_token_time",
        "last_token_time",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "prompt_token_ids",
        "request_id",
        "sampling",
        "shared_prefix_len",
        "status",
        "stop",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        sampling: SamplingSpec,
        stop: StopRules,
        *,
        arrival: int = 0,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_len: int = 0,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.token_ids = list(prompt_token_ids)
        self.sampling = sampling
        self.stop = stop
        self.arrival = arrival
        """Number of the request in its engine: breaks ties, survives preemption."""
        self.priority = priority
        self.cache_salt = cache_salt
        self.shared_prefix_len = shared_prefix_len
        """Blocks wholly inside these first tokens are hashed without the salt, so that all may share them."""

        self.status = RequestStatus.WAITING
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        """The stop token id or stop string that ended it; None for EOS and length."""
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Prompt tokens that came from the prefix cache when it was first admitted."""
        self.num_preemptions = 0
        self.block_hashes: list[bytes] = []

        self.arrival_time = time.monotonic()
        self.first_admitted_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_missing_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def mark_admitted(self, num_cached_tokens: int) -> None:
        """It runs now, and its first ``num_cached_tokens`` tokens need no computing."""
        self.status = RequestStatus.RUNNING
        self.num_computed_tokens = num_cached_tokens
        if self.first_admitted_time is None:
            self.first_admitted_time = time.monotonic()
            self.num_cached_tokens = num_cached_tokens

    def append_output(self, token_id: int, now: float) -> None:
        """``now``: monotonic seconds."""
        self.token_ids.append(token_id)
        self.last_token_time = now
        if self.first_token_time is None:
            self.first_token_time = now

    def check_stop(self) -> bool:
        """Whether the last output ends the request; sets the reasons. Length caps win over min_tokens."""
        token_id, num_output_tokens, stop = self.token_ids[-1], self.num_output_tokens, self.stop
        if num_output_tokens >= stop.min_tokens:
            if token_id in stop.eos_token_ids:
                self.finish_reason = "stop"
            elif token_id in stop.stop_token_ids:
                self.finish_reason, self.stop_reason = "stop", token_id
        if self.finish_reason is None and num_output_tokens >= stop.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def extend_hashes(self, block_size: int) -> None:
        """Hash the blocks that became full since the last call: O(new tokens)."""
        for index in range(len(self.block_hashes), self.num_tokens // block_size):
            start = index * block_size
            # The salt enters one block only, the first that is not wholly shared; its hash is in all later ones.
            salted = start <= self.shared_prefix_len < start + block_size
            parent = self.block_hashes[-1] if self.block_hashes else ROOT_HASH
            tokens = self.token_ids[start : start + block_size]
            self.block_hashes.append(hash_block(parent, tokens, self.cache_salt if salted else None))

    def metrics(self, now: float | None = None) -> RequestMetrics:
        """Seconds since arrival; ``e2e`` only when ``now`` (its end) is given."""
        arrival, admitted = self.arrival_time, self.first_admitted_time
        first, last, num_gaps = self.first_token_time, self.last_token_time, self.num_output_tokens - 1
        tpot = None
        if first is not None and last is not None and num_gaps > 0:
            tpot = (last - first) / num_gaps
        return RequestMetrics(
            queue_time=None if admitted is None else admitted - arrival,
            ttft=None if first is None else first - arrival,
            tpot=tpot,
            e2e=None if now is None else now - arrival,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
        )
