"""The engine's own account of its logical state, read from its data structures and not from the trace."""

from __future__ import annotations

from micro_vllm.core.prefix_cache import ROOT_HASH
from micro_vllm.core.request import RequestStatus
from micro_vllm.core.scheduler import Scheduler
from micro_vllm.trace.events import EngineState, RequestState


def engine_state(scheduler: Scheduler, step: int) -> EngineState:
    """A frozen copy: O(blocks + requests). For snapshots, checks and tests, not for every step."""
    kv = scheduler.kv
    empty: tuple[tuple[int, ...], ...] = ((),) * len(kv.groups)
    requests = {}
    for request_id, request in scheduler.requests.items():
        runs = request.status is RequestStatus.RUNNING
        requests[request_id] = RequestState(
            request_id=request_id,
            status="running" if runs else "waiting",
            priority=request.priority,
            arrival=request.arrival,
            num_prompt_tokens=request.num_prompt_tokens,
            num_tokens=request.num_tokens,
            num_computed_tokens=request.num_computed_tokens,
            tables=kv.tables(request_id) if runs else empty,
        )
    cache = kv.prefix_cache
    return EngineState(
        step=step,
        waiting=tuple(request.request_id for request in scheduler.waiting.values()),
        running=tuple(request.request_id for request in scheduler.running),
        requests=requests,
        ref_counts=tuple(block.ref_count for block in kv.pool.blocks),
        free=tuple(block.block_id for block in kv.pool.free_list),
        hash_table={str(key): tuple(ids) for key, ids in cache.table.items()},
        parents={
            str(key): "" if parent == ROOT_HASH else parent.hex() for key, parent in cache.parents.items()
        },
        prefix_queries=kv.num_queried_tokens,
        prefix_hits=kv.num_hit_tokens,
    )
