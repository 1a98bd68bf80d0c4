"""Write plans by hand, as a scheduler would: who computes how many tokens in which step.

Each request owns blocks of a plain free list; there is no prefix cache and no policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from micro_vllm.config import CacheGroup, EngineConfig, form_cache_groups
from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest, StepResult
from micro_vllm.executor.single_process import SingleProcessExecutor
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.sampling.params import SamplingSpec


@dataclass
class _Request:
    spec: SamplingSpec
    prompt: list[int]
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    is_known: bool = False
    was_preempted: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output


class PlanWriter:
    """Drives an executor step by step.

    The block freed last is handed out first, so that stale contents are met at once.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        block_size: int = 4,
        num_blocks: int = 64,
        attention: str = "auto",
        max_model_len: int = 64,
        max_num_seqs: int = 8,
    ) -> None:
        config = EngineConfig(
            attention=attention, block_size=block_size, max_num_seqs=max_num_seqs, max_num_batched_tokens=256
        )
        self.groups: tuple[CacheGroup, ...] = form_cache_groups(loaded.config.layer_windows)
        self.block_size = block_size
        self.executor = SingleProcessExecutor(loaded, config, max_model_len)
        self.executor.initialize_cache(self.groups, block_size, num_blocks)
        self.free = list(range(1, num_blocks + 1))
        self.requests: dict[str, _Request] = {}
        self.results: list[StepResult] = []
        self._preempted: list[str] = []
        self._finished: list[str] = []

    def add(self, request_id: str, prompt: Sequence[int], **sampling) -> None:
        self.requests[request_id] = _Request(SamplingSpec(**{"seed": 0, **sampling}), list(prompt))

    def finish(self, request_id: str) -> None:
        self._give_back(self.requests[request_id])
        self._finished.append(request_id)

    def preempt(self, request_id: str) -> None:
        request = self.requests[request_id]
        self._give_back(request)
        request.num_computed, request.is_known, request.was_preempted = 0, False, True
        self._preempted.append(request_id)

    def step(self, counts: Mapping[str, int | None]) -> StepResult:
        """Compute some tokens of each request; None is all that are missing."""
        plan = self.plan(counts)
        result = self.executor.execute(plan)
        for scheduled in plan.scheduled:
            request = self.requests[scheduled.request_id]
            request.num_computed += scheduled.count
            if scheduled.samples and scheduled.request_id in result.token_ids:
                request.output.append(result.token_ids[scheduled.request_id])
        self.results.append(result)
        return result

    def plan(self, counts: Mapping[str, int | None]) -> ExecutionPlan:
        scheduled, new = [], []
        for request_id, count in counts.items():
            request = self.requests[request_id]
            if not request.is_known:
                new.append(
                    NewRequest(
                        request_id=request_id,
                        sampling=request.spec,
                        token_ids=tuple(request.tokens),
                        num_prompt_tokens=len(request.prompt),
                        block_ids=tuple(() for _ in self.groups),
                        is_resumed=request.was_preempted,
                    )
                )
                request.is_known = True
                request.blocks = [[] for _ in self.groups]
            start = request.num_computed
            end = len(request.tokens) if count is None else start + count
            scheduled.append(
                ScheduledRequest(
                    request_id=request_id,
                    new_token_ids=tuple(request.tokens[start:end]),
                    start=start,
                    new_block_ids=tuple(self._grow(table, end) for table in request.blocks),
                    samples=end == len(request.tokens),
                    output_index=len(request.output),
                )
            )
        plan = ExecutionPlan(
            step=len(self.results) + 1,
            scheduled=tuple(scheduled),
            new=tuple(new),
            preempted_ids=tuple(self._preempted),
            finished_ids=tuple(self._finished),
        )
        self._preempted, self._finished = [], []
        return plan

    def run(self, request_id: str, num_outputs: int) -> list[int]:
        """Bring one request alone to ``num_outputs`` outputs."""
        while len(self.requests[request_id].output) < num_outputs:
            self.step({request_id: None})
        return self.requests[request_id].output

    def _grow(self, table: list[int], num_tokens: int) -> tuple[int, ...]:
        missing = -(-num_tokens // self.block_size) - len(table)
        fresh = [self.free.pop() for _ in range(missing)]  # the one freed last comes first
        table += fresh
        return tuple(fresh)

    def _give_back(self, request: _Request) -> None:
        for table in request.blocks:
            self.free += table
        request.blocks = []
