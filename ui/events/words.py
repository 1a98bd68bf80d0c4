"""What happened, in one plain sentence an event. ASCII apart from names, so that every spreadsheet reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from micro_vllm.trace import (
    BlockCached,
    BlockEvicted,
    BlocksAllocated,
    BlocksFreed,
    BlocksNulled,
    BlocksReferenced,
    EngineInfo,
    EngineStarted,
    PrefixLookup,
    RequestAborted,
    RequestAdmitted,
    RequestFinished,
    RequestMetrics,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    StepExecuted,
    StepFailed,
    StepPlanned,
    TokensSampled,
    TraceEvent,
)
from ui.charts.step_runs import STOP_WORDS
from ui.charts.wording import counted, duration

_IDS_SHOWN = 12
_TOKENS_SHOWN = 8
_ERROR_CHARS = 160
_ENDINGS = {
    "stop": "its end or a stop string came",
    "length": "its length limit was reached",
    "error": "it failed",
}


class Teller:
    """Tells the events of one engine to one viewer.

    Args:
        label_of: a request's letter.
        viewer_requests: requests whose token ids and error messages the viewer may read.
    """

    def __init__(
        self, info: EngineInfo, label_of: Callable[[str], str], viewer_requests: Collection[str] = ()
    ) -> None:
        self._info = info
        self._label_of = label_of
        self._mine = viewer_requests

    def tell(self, event: TraceEvent) -> str:
        match event:
            case RequestQueued():
                priority = f", priority {event.priority}" if event.priority else ""
                prompt = counted(event.num_prompt_tokens, "prompt token")
                return f"arrived with {prompt}, may write {event.max_tokens:,}{priority}"
            case RequestAdmitted():
                joins = "joins the batch again after a preemption" if event.is_resumed else "joins the batch"
                known = f"{event.num_computed_tokens:,} of {counted(event.num_tokens, 'token')}"
                return f"{joins}: {known} need not be computed"
            case RequestPreempted():
                lost = counted(event.num_computed_tokens, "token")
                other = self._label_of(event.beneficiary)
                return f"preempted, request {other} needs blocks: {lost} will be computed again"
            case RequestFinished():
                return self._finished(event)
            case RequestAborted():
                return f"stopped by its caller after {counted(event.num_output_tokens, 'token')}"
            case PrefixLookup():
                groups = ", ".join(map(str, event.group_hits))
                each = f" (by group: {groups})" if len(event.group_hits) > 1 else ""
                return f"prefix lookup: {event.num_hit_tokens:,} of {counted(event.num_tokens, 'token')} found{each}"
            case StepPlanned() | StepExecuted() | StepFailed() | TokensSampled():
                return self._step(event)
            case EngineStarted():
                return f"engine started: {self._engine(event.info)}"
            case Snapshot():
                state = event.state
                return (
                    f"whole state noted: {len(state.running)} running, {len(state.waiting)} waiting, "
                    f"{len(state.free):,} of {counted(event.info.num_blocks, 'block')} not in use"
                )
        return self._blocks(event)

    # ------------------------------------------------------------ requests

    def _finished(self, event: RequestFinished) -> str:
        reason = _ENDINGS.get(event.reason, event.reason)
        words = f"finished after {counted(event.num_output_tokens, 'token')}: {reason}"
        if event.detail and event.request_id in self._mine:
            words += f" ({event.detail[:_ERROR_CHARS]})"
        return words + _metrics(event.metrics)

    # ------------------------------------------------------------ steps

    def _step(self, event: StepPlanned | StepExecuted | StepFailed | TokensSampled) -> str:
        match event:
            case StepPlanned():
                prefills = sum(row.phase == "prefill" for row in event.rows)
                return (
                    f"planned {event.num_tokens:,} of {counted(event.token_budget, 'token')} for "
                    f"{event.num_seats} of {counted(event.max_num_seqs, 'seat')}: {counted(prefills, 'prefill')}, "
                    f"{counted(len(event.rows) - prefills, 'decode')}; {event.num_waiting:,} waiting; "
                    f"planning stopped: {STOP_WORDS.get(event.stopped_by, event.stopped_by)}"
                )
            case StepExecuted():
                parts = (
                    ("schedule", event.schedule_seconds),
                    ("build", event.build_seconds),
                    ("forward", event.forward_seconds),
                    ("sample", event.sample_seconds),
                )
                total = duration(sum(seconds for _, seconds in parts))
                each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts)
                operator = f"; attention {event.operator}" if event.operator else ""
                return f"computed {counted(event.num_tokens, 'token')} in {total}: {each}{operator}"
            case StepFailed():
                ended = counted(len(event.request_ids), "request")
                is_mine = any(request_id in self._mine for request_id in event.request_ids)
                why = f": {event.error[:_ERROR_CHARS]}" if is_mine else ""
                return f"the step failed, {ended} ended with an error{why}"
        count = counted(len(event.tokens), "request")
        words = f"a new token for {count}"
        mine = [token for token in event.tokens if token.request_id in self._mine]
        if mine:
            shown = ", ".join(f"{self._label_of(t.request_id)} {t.token_id}" for t in mine[:_TOKENS_SHOWN])
            words += f"; yours: {shown}{', ...' if len(mine) > _TOKENS_SHOWN else ''}"
        return words

    # ------------------------------------------------------------ blocks

    def _blocks(self, event: TraceEvent) -> str:
        match event:
            case BlocksAllocated():
                return f"took {_ids(event.block_ids)} from the free list{self._group(event.group)}"
            case BlocksReferenced():
                first, last = event.logical_start, event.logical_start + len(event.block_ids) - 1
                its = f"its block {first}" if first == last else f"its blocks {first} to {last}"
                return f"shares cached {_ids(event.block_ids)} as {its}{self._group(event.group)}"
            case BlocksNulled():
                window = (
                    self._info.groups[event.group].window if event.group < len(self._info.groups) else None
                )
                of = f" of {window:,} tokens" if window else ""
                return f"{_ids(event.block_ids)} fell out of the window{of}{self._group(event.group)}"
            case BlocksFreed():
                return f"gave back {_ids(event.block_ids)}{self._group(event.group)}"
            case BlockCached():
                start = event.logical_index * self._info.block_size
                tokens = f"tokens {start:,} to {start + self._info.block_size - 1:,}"
                return f"block {event.block_id} is full, kept as {event.hash[:8]}: {tokens}{self._group(event.group)}"
            case BlockEvicted():
                return (
                    f"block {event.block_id} is needed: what it kept as {event.hash[:8]} "
                    f"can no longer be found{self._group(event.group)}"
                )
        return ""

    def _group(self, group: int) -> str:
        return f" (group {group})" if len(self._info.groups) > 1 else ""

    def _engine(self, info: EngineInfo) -> str:
        groups = f", {len(info.groups)} groups of layers" if len(info.groups) > 1 else ""
        return (
            f"{info.model}, {counted(info.num_blocks, 'block')} of {info.block_size} slots{groups}, "
            f"{counted(info.max_num_seqs, 'seat')}, {info.max_num_batched_tokens:,} tokens a step"
        )


def _metrics(metrics: RequestMetrics) -> str:
    words = []
    if metrics.ttft is not None:
        words.append(f"first token after {duration(metrics.ttft)}")
    if metrics.tpot is not None:
        words.append(f"{duration(metrics.tpot)} a later token")
    if metrics.num_preemptions:
        words.append(f"preempted {counted(metrics.num_preemptions, 'time')}")
    return f"; {', '.join(words)}" if words else ""


def _ids(block_ids: Sequence[int]) -> str:
    """block 17; blocks 17, 18; blocks 1, 2, ..., 12, ... (40 in all)."""
    shown = ", ".join(map(str, block_ids[:_IDS_SHOWN]))
    more = f", ... ({len(block_ids)} in all)" if len(block_ids) > _IDS_SHOWN else ""
    return f"{'block' if len(block_ids) == 1 else 'blocks'} {shown}{more}"
