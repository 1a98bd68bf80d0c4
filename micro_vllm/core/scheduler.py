"""Decides who runs in a step, how many tokens each, and who is preempted.

One idea: every request's ``num_computed_tokens`` chases its ``num_tokens``. Prefill, chunked prefill, decode and
recompute are not told apart. Source: https://docs.vllm.ai/en/latest/design/arch_overview.html (V1 scheduler)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from sortedcontainers import SortedDict

from micro_vllm.config import CacheConfig, SchedulerConfig
from micro_vllm.core.kv_cache_manager import KVCacheManager, PrefixHit
from micro_vllm.core.request import Request, RequestStatus
from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest, StepResult
from micro_vllm.errors import IntegrityError
from micro_vllm.trace.events import (
    WAITING_SHOWN,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    SampledToken,
    ScheduledRow,
    StepPlanned,
    TokensSampled,
)
from micro_vllm.trace.sinks import Tracer

StoppedBy = Literal["nothing_waits", "budget", "seats", "blocks", "preemption"]


@dataclass(slots=True)
class _Row:
    """A request's share of the step being planned. Taken back if the request is preempted after all."""

    request: Request
    count: int
    new_block_ids: tuple[tuple[int, ...], ...]
    is_new: bool = False
    table_before: tuple[tuple[int, ...], ...] = ()


class Scheduler:
    """Queues, budgets and policy. Knows block ids through the KV cache manager, and no tensor."""

    def __init__(
        self, config: SchedulerConfig, cache_config: CacheConfig, tracer: Tracer | None = None
    ) -> None:
        self.config = config
        self.kv = KVCacheManager(cache_config, config.max_num_batched_tokens, tracer)
        self.max_request_tokens = self.kv.capacity_in_tokens(config.max_model_len)
        """Longest request the pool can hold when it is alone."""
        self.requests: dict[str, Request] = {}
        """Every request that is not finished."""
        self.waiting: SortedDict = SortedDict()
        """Queue key -> request. A preempted request keeps its key, so it comes back ahead of its equals."""
        self.running: list[Request] = []
        self._finished_ids: list[str] = []
        self._tracer = tracer

    # ------------------------------------------------------------ requests come and go

    def add(self, request: Request) -> None:
        """Queue a request. The caller has checked that it can ever fit."""
        self.requests[request.request_id] = request
        self.waiting[self._queue_key(request)] = request
        if self._tracer:
            self._tracer.emit(
                RequestQueued,
                request_id=request.request_id,
                priority=request.priority,
                arrival=request.arrival,
                num_prompt_tokens=request.num_prompt_tokens,
                max_tokens=request.stop.max_tokens,
                prompt_token_ids=request.prompt_token_ids,
            )

    def finish(self, request: Request, reason: str, *, detail: str = "", now: float | None = None) -> None:
        """End a request wherever it is and free its blocks. ``reason``: stop, length, abort or error."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv.free(request)
            self._finished_ids.append(request.request_id)
        else:
            del self.waiting[self._queue_key(request)]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        if self._tracer:
            what = {
                "request_id": request.request_id,
                "num_prompt_tokens": request.num_prompt_tokens,
                "num_output_tokens": request.num_output_tokens,
                "metrics": request.metrics(now),
            }
            if reason == "abort":
                self._tracer.emit(RequestAborted, **what)
            else:
                self._tracer.emit(RequestFinished, reason=reason, detail=detail, **what)

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def _queue_key(self, request: Request) -> tuple[int, int]:
        priority = request.priority if self.config.policy == "priority" else 0
        return (priority, request.arrival)

    # ------------------------------------------------------------ planning

    def schedule(self, step: int) -> ExecutionPlan:
        """Plan one step: running requests first, then waiting ones if nobody had to be preempted."""
        rows: dict[str, _Row] = {}
        preempted: list[str] = []
        budget = self._schedule_running(rows, preempted)
        stopped_by: StoppedBy = "preemption"
        if not preempted:
            budget, stopped_by = self._schedule_waiting(rows, budget)
        scheduled = tuple([_scheduled(row) for row in rows.values()])
        if self._tracer:
            self._trace_plan(scheduled, budget, stopped_by)
        finished, self._finished_ids = tuple(self._finished_ids), []
        return ExecutionPlan(
            step=step,
            scheduled=scheduled,
            new=tuple([self._new(row) for row in rows.values() if row.is_new]),
            preempted_ids=tuple(preempted),
            finished_ids=finished,
        )

    def _schedule_running(self, rows: dict[str, _Row], preempted: list[str]) -> int:
        """Every running request gets what it misses, as far as the budget goes. Returns the budget left."""
        budget = self.config.max_num_batched_tokens
        for request in tuple(self.running):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for one ahead of it
            count = min(request.num_missing_tokens, budget)
            if count == 0:
                break
            while (block_ids := self.kv.allocate(request, count)) is None:
                victim = max(self.running, key=self._queue_key)
                budget += self._preempt(victim, request, rows)
                preempted.append(victim.request_id)
                if victim is request:
                    break
            if block_ids is not None:
                rows[request.request_id] = _Row(request, count, block_ids)
                budget -= count
        return budget

    def _preempt(self, victim: Request, beneficiary: Request, rows: dict[str, _Row]) -> int:
        """Back to waiting, blocks freed, to be computed again. Returns budget given back if it was in this step."""
        self.running.remove(victim)
        self.kv.free(victim)
        lost = victim.num_computed_tokens
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.WAITING
        self.waiting[self._queue_key(victim)] = victim
        if self._tracer:
            self._tracer.emit(
                RequestPreempted,
                request_id=victim.request_id,
                num_tokens=victim.num_tokens,
                num_computed_tokens=lost,
                num_preemptions=victim.num_preemptions,
                beneficiary=beneficiary.request_id,
            )
        row = rows.pop(victim.request_id, None)
        return row.count if row else 0

    def _schedule_waiting(self, rows: dict[str, _Row], budget: int) -> tuple[int, StoppedBy]:
        """Admit from the head of the queue until something runs out. Strictly in order: none overtakes."""
        while self.waiting:
            if budget == 0:
                return budget, "budget"
            if len(self.running) == self.config.max_num_seqs:
                return budget, "seats"
            request: Request = self.waiting.peekitem(0)[1]
            hit = self.kv.lookup(request)  # first the hit, then the length
            missing = request.num_tokens - hit.num_tokens
            if missing > budget and not self.config.enable_chunked_prefill:
                return budget, "budget"
            if not self.kv.fits(request, hit, self.running):
                return budget, "blocks"
            self.waiting.popitem(0)
            count = min(missing, budget)
            rows[request.request_id] = self._admit(request, hit, count)
            budget -= count
        return budget, "nothing_waits"

    def _admit(self, request: Request, hit: PrefixHit, count: int) -> _Row:
        self.kv.admit(request, hit)
        is_resumed = request.num_preemptions > 0
        request.mark_admitted(hit.num_tokens)
        self.running.append(request)
        if self._tracer:
            self._tracer.emit(
                RequestAdmitted,
                request_id=request.request_id,
                num_tokens=request.num_tokens,
                num_computed_tokens=hit.num_tokens,
                is_resumed=is_resumed,
            )
        table = self.kv.tables(request.request_id)
        block_ids = self.kv.allocate(request, count)
        assert block_ids is not None, "fits() promised these blocks"
        return _Row(request, count, block_ids, is_new=True, table_before=table)

    # ------------------------------------------------------------ the frozen plan

    def _new(self, row: _Row) -> NewRequest:
        return NewRequest(
            request_id=row.request.request_id,
            sampling=row.request.sampling,
            token_ids=tuple(row.request.token_ids),
            num_prompt_tokens=row.request.num_prompt_tokens,
            block_ids=row.table_before,
            is_resumed=row.request.num_preemptions > 0,
        )

    def _trace_plan(
        self, scheduled: Sequence[ScheduledRequest], budget_left: int, stopped_by: StoppedBy
    ) -> None:
        assert self._tracer is not None
        self._tracer.emit(
            StepPlanned,
            rows=tuple(
                [
                    ScheduledRow(
                        request_id=row.request_id,
                        phase="prefill" if row.is_prefill else "decode",
                        start=row.start,
                        count=row.count,
                    )
                    for row in scheduled
                ]
            ),
            num_tokens=self.config.max_num_batched_tokens - budget_left,
            token_budget=self.config.max_num_batched_tokens,
            num_seats=len(self.running),
            max_num_seqs=self.config.max_num_seqs,
            waiting=tuple([r.request_id for r in islice(self.waiting.values(), WAITING_SHOWN)])
            if self.waiting
            else (),
            num_waiting=len(self.waiting),
            stopped_by=stopped_by,
        )

    # ------------------------------------------------------------ taking the result

    def update(self, plan: ExecutionPlan, result: StepResult) -> list[Request]:
        """Append the sampled tokens and make full blocks hittable. Returns the requests that got a token.

        Ending requests is left to the caller, who knows stop strings as well.
        """
        now = time.monotonic()
        computed: list[tuple[Request, int]] = []
        sampled: list[Request] = []
        for row in plan.scheduled:
            if row.request_id in result.failed:
                continue
            request = self.requests[row.request_id]
            count = len(row.new_token_ids)
            request.num_computed_tokens = row.start + count
            computed.append((request, count))
            if row.samples:
                request.append_output(result.token_ids[row.request_id], now)
                sampled.append(request)
        if self._tracer and sampled:
            tokens = [_sampled_token(request, result) for request in sampled]
            self._tracer.emit(TokensSampled, tokens=tuple(tokens))
        for request, count in computed:
            self.kv.register_full(request, count)
        return sampled

    def plan_failed(self, plan: ExecutionPlan) -> None:
        """The runner may not have got as far as dropping these rows: tell it again with the next plan."""
        self._finished_ids = [*plan.finished_ids, *plan.preempted_ids, *self._finished_ids]

    def check_integrity(self) -> None:
        """Pool, tables, hashes and queues add up, or IntegrityError."""
        self.kv.check_integrity(self.running)
        _check_queues(self.requests, self.waiting, self.running)


def _scheduled(row: _Row) -> ScheduledRequest:
    request, start = row.request, row.request.num_computed_tokens
    stop = start + row.count
    return ScheduledRequest(
        request_id=request.request_id,
        new_token_ids=tuple(request.token_ids[start:stop]),
        start=start,
        new_block_ids=row.new_block_ids,
        samples=stop == request.num_tokens,
        output_index=request.num_output_tokens,
    )


def _sampled_token(request: Request, result: StepResult) -> SampledToken:
    logprobs = result.logprobs.get(request.request_id) if result.logprobs else None
    if logprobs is None:
        return SampledToken(request_id=request.request_id, token_id=request.token_ids[-1])
    return SampledToken(
        request_id=request.request_id,
        token_id=request.token_ids[-1],
        logprob=logprobs.logprobs[0],
        alternatives=tuple(zip(logprobs.token_ids[1:], logprobs.logprobs[1:], strict=True)),
    )


def _check_queues(requests: dict[str, Request], waiting: SortedDict, running: Sequence[Request]) -> None:
    waits = {request.request_id for request in waiting.values()}
    runs = {request.request_id for request in running}
    if waits & runs or waits | runs != requests.keys() or len(runs) != len(running):
        raise IntegrityError(
            f"queues: waiting {sorted(waits)}, running {sorted(runs)}, all {sorted(requests)}"
        )
    for request in running:
        if request.status is not RequestStatus.RUNNING or request.num_missing_tokens < 1:
            raise IntegrityError(f"{request.request_id} runs with nothing to compute")
    for request in waiting.values():
        if request.status is not RequestStatus.WAITING or request.num_computed_tokens:
            raise IntegrityError(f"{request.request_id} waits with computed tokens")
