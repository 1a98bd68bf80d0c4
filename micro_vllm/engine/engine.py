"""The engine: add requests, step, abort. Synchronous and single-threaded; EngineLoop shares it between threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from micro_vllm.config import (
    CacheConfig,
    EngineConfig,
    SchedulerConfig,
    describe_config,
    form_cache_groups,
)
from micro_vllm.core.request import Request
from micro_vllm.core.scheduler import Scheduler
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.engine.input_processor import (
    CheckedRequest,
    InputProcessor,
    Prompt,
    check_request_id,
    draw_seed,
)
from micro_vllm.engine.output import EngineStats, FinishReason, RequestOutput
from micro_vllm.engine.output_processor import RequestStream
from micro_vllm.engine.served_model import DEFAULT_MAX_MODEL_LEN, ServedModel
from micro_vllm.engine.state import engine_state
from micro_vllm.errors import ConfigError, EngineClosedError, InvalidRequestError
from micro_vllm.executor.base import Executor
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace.events import (
    TRACE_FORMAT,
    EngineInfo,
    EngineStarted,
    EngineState,
    GroupInfo,
    Snapshot,
    StepExecuted,
    StepFailed,
)
from micro_vllm.trace.sinks import Tracer

if TYPE_CHECKING:
    from micro_vllm.model_loader import LoadedModel
    from micro_vllm.native.prepare import NativeParts

_engine_numbers = itertools.count()


class Engine:
    """One scheduler, one KV pool, one executor. Several engines may share one LoadedModel.

    Args:
        config: the settings; ``config.trace`` receives the events.
        loaded: weights and tokenizer, from ``load_model``. The engine borrows them.
        executor: for an engine without weights (a scripted executor), together with ``model``.
        model: what is known of the model; taken from ``loaded`` if not given.

    Raises:
        ConfigError: a setting does not fit the model or the memory.
    """

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel | None = None,
        *,
        executor: Executor | None = None,
        model: ServedModel | None = None,
    ) -> None:
        if loaded is None and (executor is None or model is None):
            raise ConfigError("an engine needs a loaded model, or an executor and a ServedModel.")
        self.config = config
        self._loaded = loaded
        self.engine_id = f"engine-{next(_engine_numbers)}"
        self.model = model or ServedModel.of(loaded)  # type: ignore[arg-type]  # checked above
        self.max_model_len = _max_model_len(config, self.model)
        groups = form_cache_groups(self.model.layer_windows)
        if executor is None:
            from micro_vllm.executor.single_process import SingleProcessExecutor

            executor = SingleProcessExecutor(loaded, config, self.max_model_len)  # type: ignore[arg-type]
        self.executor = executor
        num_blocks = config.num_gpu_blocks_override or executor.num_blocks_that_fit(
            groups, config.block_size, config.kv_cache_memory_bytes
        )
        block_bytes = executor.block_bytes(groups, config.block_size)
        if num_blocks < 1:
            raise ConfigError(
                f"kv_cache_memory_bytes={config.kv_cache_memory_bytes:,} holds no block; one block of "
                f"{config.block_size} tokens takes {block_bytes:,} bytes. Give more memory or smaller blocks."
            )
        executor.initialize_cache(groups, config.block_size, num_blocks)
        if config.execution == "native":
            self.use_native()

        self.tracer = Tracer(config.trace, self.engine_id) if config.trace is not None else None
        cache_config = CacheConfig(config.block_size, num_blocks, groups, config.enable_prefix_caching)
        scheduler_config = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            policy=config.scheduling_policy,
            enable_chunked_prefill=config.enable_chunked_prefill,
        )
        self.scheduler = Scheduler(scheduler_config, cache_config, self.tracer)
        self.input_processor = InputProcessor(
            self.model,
            self.max_model_len,
            self.scheduler.max_request_tokens,
            f"{num_blocks} blocks of {config.block_size} tokens",
        )
        self.info = EngineInfo(
            model=self.model.name,
            config=dict(describe_config(config)),
            groups=tuple(
                GroupInfo(window=g.window, num_layers=sum(layer >= 0 for layer in g.layer_ids))
                for g in groups
            ),
            num_blocks=num_blocks,
            block_size=config.block_size,
            bytes_per_block=block_bytes,
            max_model_len=self.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            policy=config.scheduling_policy,
        )
        self._streams: dict[str, RequestStream] = {}
        self._arrivals = itertools.count()
        self._num_steps = 0
        self._closed = False
        if self.tracer:
            self.tracer.emit(EngineStarted, format=TRACE_FORMAT, wall_time=time.time(), info=self.info)
            self.tracer.step = 1

    # ------------------------------------------------------------ requests

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_len: int = 0,
    ) -> str:
        """Queue one request and return its id. Raises InvalidRequestError / CapacityError for this one only."""
        checked = self.input_processor.check(
            prompt, params, priority=priority, cache_salt=cache_salt, shared_prefix_len=shared_prefix_len
        )
        return self.add_checked(checked, request_id)

    def add_checked(self, checked: CheckedRequest, request_id: str | None = None) -> str:
        """Queue a request that ``input_processor.check`` has passed."""
        if self._closed:
            raise EngineClosedError("the engine is closed; start a new one.")
        check_request_id(request_id)
        if request_id in self.scheduler.requests:
            raise InvalidRequestError(
                f"request id {request_id!r} is in use by an unfinished request; choose another, or abort that one."
            )
        arrival = next(self._arrivals)
        if request_id is None:
            request_id = f"request-{arrival}"
            while request_id in self.scheduler.requests:  # a caller has chosen just this name
                request_id += "-"
        request = Request(
            request_id,
            checked.prompt_token_ids,
            checked.sampling_spec(draw_seed(self.config.seed, arrival), self.model.eos_token_ids),
            checked.stop,
            arrival=arrival,
            priority=checked.priority,
            cache_salt=checked.cache_salt,
            shared_prefix_len=checked.shared_prefix_len,
        )
        stream = RequestStream(request, checked, self.model.tokenizer)
        self.scheduler.add(request)
        self._streams[request_id] = stream
        return request_id

    def abort(self, request_ids: str | Iterable[str]) -> list[RequestOutput]:
        """End requests now and free their blocks; unknown or finished ids are passed over. Their last outputs.

        Raises InvalidRequestError for what can be no id.
        """
        ids = (
            [request_ids]
            if isinstance(request_ids, str) or not isinstance(request_ids, Iterable)
            else [*request_ids]
        )
        for request_id in ids:
            if not isinstance(request_id, str):
                raise InvalidRequestError(
                    f"request id {request_id!r} is not a string; pass one id or a list of ids."
                )
        requests = (self.scheduler.requests.get(request_id) for request_id in ids)
        return [self._finish(request, "abort") for request in requests if request is not None]

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished()

    # ------------------------------------------------------------ a step

    def use_native(self, parts: NativeParts | None = None) -> None:
        """Compute natively from the next step on. ``parts``: what another engine over this model prepared already.

        Raises:
            NativeUnavailableError: this machine or this model cannot; everything stays as it was.
            ConfigError: the executor has no kernels.
        """
        use = getattr(self.executor, "use_native", None)
        if use is None or (parts is None and self._loaded is None):
            raise ConfigError(
                f"{type(self.executor).__name__} cannot compute natively; use execution='eager'."
            )
        if parts is None:
            from micro_vllm.native.prepare import prepare_native

            parts = prepare_native(self._loaded)  # type: ignore[arg-type]  # checked above
        use(parts)

    def step(self) -> list[RequestOutput]:
        """Plan, compute, and take in one step. Returns the outputs that grew or ended.

        An exception in the executor fails the requests of that step only: they end with reason ``error``.
        """
        if self._closed:
            raise EngineClosedError("the engine is closed; start a new one.")
        if not self.scheduler.has_unfinished():
            return []
        self._num_steps += 1
        begin = time.perf_counter()
        plan = self.scheduler.schedule(self._num_steps)
        schedule_seconds = time.perf_counter() - begin
        try:
            result = self.executor.execute(plan)
        except Exception as error:
            outputs = self._fail(plan, error)
        except BaseException as error:  # Ctrl-C in the middle of a step: leave everything whole, then go
            self._fail(plan, error)
            raise
        else:
            outputs = self._take_in(plan, result, schedule_seconds)
        if self.tracer:
            if self._num_steps % self.config.snapshot_interval == 0:
                self.tracer.emit(Snapshot, wall_time=time.time(), info=self.info, state=self.state())
            self.tracer.step = self._num_steps + 1
        return outputs

    def _take_in(
        self, plan: ExecutionPlan, result: StepResult, schedule_seconds: float
    ) -> list[RequestOutput]:
        if self.tracer:
            self.tracer.emit(
                StepExecuted,
                schedule_seconds=schedule_seconds,
                build_seconds=result.timings.build,
                forward_seconds=result.timings.forward,
                sample_seconds=result.timings.sample,
                num_requests=len(plan.scheduled),
                num_tokens=plan.num_tokens,
                num_decodes=sum([not row.is_prefill for row in plan.scheduled]),
                operator=result.operator,
            )
        outputs = []
        for request in self.scheduler.update(plan, result):
            ends = request.check_stop()
            stream = self._streams[request.request_id]
            stop_string = stream.take(
                request.token_ids[-1],
                result.logprobs.get(request.request_id),
                ends_request=request.finish_reason == "stop",
            )
            if stop_string is not None:
                request.finish_reason, request.stop_reason = "stop", stop_string
            if ends or stop_string is not None:
                outputs.append(self._finish(request, request.finish_reason))  # type: ignore[arg-type]
            else:
                outputs.append(stream.output())
        for request_id, reason in result.failed.items():
            outputs.append(self._finish(self.scheduler.requests[request_id], "error", reason))
        return outputs

    def _fail(self, plan: ExecutionPlan, error: BaseException) -> list[RequestOutput]:
        """The executor raised: whatever this plan touched may be half written, so its requests end here."""
        reason = f"{type(error).__name__}: {error}"
        self.scheduler.plan_failed(plan)
        ids = [row.request_id for row in plan.scheduled]
        if self.tracer:
            self.tracer.emit(StepFailed, error=reason, request_ids=tuple(ids))
        detail = f"the engine failed while it computed this request ({reason}); send it again."
        return [self._finish(self.scheduler.requests[request_id], "error", detail) for request_id in ids]

    def _finish(self, request: Request, reason: FinishReason, error: str | None = None) -> RequestOutput:
        self.scheduler.finish(request, reason, detail=error or "", now=time.monotonic())
        return self._streams.pop(request.request_id).output(reason, error)

    # ------------------------------------------------------------ looking in

    def stats(self) -> EngineStats:
        """Counts as of now."""
        kv = self.scheduler.kv
        num_blocks, num_free = kv.config.num_blocks, kv.pool.num_free
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_blocks=num_blocks,
            num_free_blocks=num_free,
            kv_cache_usage=(num_blocks - num_free) / num_blocks,
            prefix_cache_queries=kv.num_queried_tokens,
            prefix_cache_hits=kv.num_hit_tokens,
        )

    def state(self) -> EngineState:
        """The whole logical state, as a fold of the trace must give it."""
        return engine_state(self.scheduler, self._num_steps)

    def check_integrity(self) -> None:
        """Raises IntegrityError if pool, tables, hashes and queues do not add up."""
        self.scheduler.check_integrity()

    def close(self) -> None:
        """Abort what is left and release the KV cache. The LoadedModel stays usable."""
        if not self._closed:
            self.abort(list(self.scheduler.requests))
            self.executor.close()
            self._closed = True


def _max_model_len(config: EngineConfig, model: ServedModel) -> int:
    limit = model.max_position_embeddings
    length = min(limit, DEFAULT_MAX_MODEL_LEN) if config.max_model_len is None else config.max_model_len
    if length > limit:
        raise ConfigError(
            f"max_model_len={length:,} is longer than {model.name} was made for ({limit:,} positions); lower it."
        )
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < length:
        raise ConfigError(
            f"without chunked prefill a whole prompt must fit in one step, but max_num_batched_tokens="
            f"{config.max_num_batched_tokens:,} is less than max_model_len={length:,}. Raise it, lower max_model_len, "
            "or set enable_chunked_prefill=True."
        )
    return length
