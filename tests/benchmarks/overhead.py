"""What a step costs beside its forward pass: planning, building the batch, drawing, text, trace, a long queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from micro_vllm import LLM
from micro_vllm.config import CacheGroup, EngineConfig
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult, StepTimings
from micro_vllm.engine.engine import Engine
from micro_vllm.engine.served_model import ServedModel
from micro_vllm.model_loader import LoadedModel
from micro_vllm.trace import TraceLog
from tests.benchmarks.micro_vllm_system import MAX_MODEL_LEN, exactly
from tests.benchmarks.workloads import Shape, Workload, token_requests

if TYPE_CHECKING:
    from micro_vllm.native.prepare import NativeParts

TARGET_SHARE = 0.05
TARGET_WAITING = 1.5
"""Times as long as without a queue: a step is O(running)."""
TEMPERATURES = (0.0, 0.6)
RUNNING = (1, 32)
SHAPE = Shape(64, 64)
ALONE_ROUNDS = 8
"""Times as many rounds where nobody else runs: their steps are short, and one hiccup of the machine is worth many."""
PARTS = ("schedule", "build", "sample", "take in", "text", "trace")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Decode steps in which exactly ``num_running`` requests decode."""

    execution: str
    num_running: int
    temperature: float
    num_steps: int
    step: float
    """Seconds, the mean."""
    forward: float
    """Seconds of it in the model, logits included; the mean."""
    median_share: float
    """Of the median step: without what rarely happens, and without the machine's hiccups."""
    parts: dict[str, float]
    """Mean seconds of everything else, in other steps than the above: to watch the parts takes time, too, so that they
    add up to a little more. ``trace`` is a part of the others and not to be added."""

    @property
    def share(self) -> float:
        """Of a step that is not the forward pass."""
        return 1 - self.forward / self.step


@dataclass(frozen=True, slots=True)
class WaitingCost:
    """Seconds of a step without its forward pass; medians."""

    num_running: int
    num_waiting: int
    none_waiting: float
    many_waiting: float
    schedule_none: float
    schedule_many: float

    @property
    def ratio(self) -> float:
        return self.many_waiting / self.none_waiting


class Stopwatch:
    """Stands in for a function, calls it and adds up the time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._seconds = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        try:
            return self._function(*args, **kwargs)
        finally:
            self._seconds += perf_counter() - began

    def take(self) -> float:
        """Seconds since the last call of this."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _TimingExecutor:
    """Hands everything on and keeps the runner's own timings of the last step."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.timings = StepTimings()

    def execute(self, plan: ExecutionPlan) -> StepResult:
        result: StepResult = self._executor.execute(plan)
        self.timings = result.timings
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def measure_overhead(
    loaded: LoadedModel, parts: NativeParts | None, rounds: int, shape: Shape = SHAPE, **settings: Any
) -> list[Overhead]:
    """Alone and at 32, greedy and drawn; natively with ``parts``."""
    return [
        _measure(loaded, parts, rounds, shape, num_running, temperature, settings)
        for num_running in RUNNING
        for temperature in TEMPERATURES
    ]


def _measure(
    loaded: LoadedModel,
    parts: NativeParts | None,
    rounds: int,
    shape: Shape,
    num_running: int,
    temperature: float,
    settings: dict[str, Any],
) -> Overhead:
    longest = min(MAX_MODEL_LEN, loaded.config.max_model_len)
    llm = LLM(loaded, **{"max_model_len": longest, "trace": TraceLog(), **settings})
    engine = llm.engine
    if parts is not None:
        engine.use_native(parts)
    executor = _TimingExecutor(engine.executor)
    engine.executor = executor
    workload = Workload("overhead", "", ((shape,) * num_running,), (), (), temperature)
    rows: list[dict[str, float]] = []
    watched_rows: list[dict[str, float]] = []
    rounds *= ALONE_ROUNDS if num_running == 1 else 1
    for number in range(-1, 2 * rounds):  # the first one only warms up
        (requests,) = token_requests(workload, number, engine.model.vocab_size)
        ids = [_add(engine, request.prompt_token_ids, shape.num_output, temperature) for request in requests]
        is_watched = number % 2 == 1
        watches = _watch(engine, ids) if is_watched else {}
        num_outputs: dict[str, int] = {}
        while engine.has_unfinished_requests():
            began = perf_counter()
            outputs = engine.step()
            step = perf_counter() - began
            timings = executor.timings
            row = {"step": step, "forward": timings.forward}
            if is_watched:
                row |= {"build": timings.build, "sample": timings.sample}
                row |= {name: sum(watch.take() for watch in some) for name, some in watches.items()}
            decoding = [output for output in outputs if num_outputs.get(output.request_id, 0) > 0]
            whole = len(decoding) == len(outputs) == num_running
            if whole and number >= 0 and not any(output.finished for output in outputs):
                (watched_rows if is_watched else rows).append(row)
            num_outputs |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        _unwatch(engine)
    llm.close()
    return Overhead(
        execution="eager" if parts is None else "native",
        num_running=num_running,
        temperature=temperature,
        num_steps=len(rows),
        step=mean(row["step"] for row in rows),
        forward=mean(row["forward"] for row in rows),
        median_share=median(1 - row["forward"] / row["step"] for row in rows),
        parts=_parts(watched_rows),
    )


def _parts(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    means = {name: mean(row[name] for row in rows) for name in rows[0]}
    step, forward = means.pop("step"), means.pop("forward")
    known = sum(seconds for name, seconds in means.items() if name != "trace")
    return {**{name: means[name] for name in PARTS}, "rest": step - forward - known}


def _watch(engine: Any, request_ids: Sequence[str]) -> dict[str, list[Stopwatch]]:
    """By part, what is timed from now on until ``_unwatch``."""
    scheduler, tracer = engine.scheduler, engine.tracer
    scheduler.schedule = Stopwatch(scheduler.schedule)
    scheduler.update = Stopwatch(scheduler.update)
    tracer.emit = Stopwatch(tracer.emit)
    streams = [engine._streams[request_id] for request_id in request_ids]
    for stream in streams:
        stream.take = Stopwatch(stream.take)
    return {
        "schedule": [scheduler.schedule],
        "take in": [scheduler.update],
        "trace": [tracer.emit],
        "text": [stream.take for stream in streams],
    }


def _unwatch(engine: Any) -> None:
    """The streams have ended with their requests."""
    for watched, name in (
        (engine.scheduler, "schedule"),
        (engine.scheduler, "update"),
        (engine.tracer, "emit"),
    ):
        vars(watched).pop(name, None)


def _add(engine: Engine, prompt: Sequence[int], num_output: int, temperature: float) -> str:
    """Queue a request; text is made of it."""
    params = exactly(num_output, temperature, detokenize=engine.model.tokenizer is not None)
    return engine.add_request({"prompt_token_ids": list(prompt)}, params)


# ---------------------------------------------------------------- a long queue


class _InstantExecutor:
    """No model: every request that draws gets the same token at once."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        return block_size

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        return memory_bytes // block_size

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        """There is none."""

    def execute(self, plan: ExecutionPlan) -> StepResult:
        began = perf_counter()
        result = StepResult({row.request_id: 7 for row in plan.scheduled if row.samples})
        self._seconds += perf_counter() - began
        return result

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """Nothing is held."""


def measure_waiting(num_waiting: int = 10_000, num_running: int = 32, num_steps: int = 300) -> WaitingCost:
    """Two engines take turns step by step: one has a queue behind its running requests."""
    engines = [_queueing(num_running, count, num_steps) for count in (0, num_waiting)]
    seconds: list[list[tuple[float, float]]] = [[], []]  # of each engine: (step, schedule)
    for _ in range(num_steps):
        for index, engine in enumerate(engines):
            executor: Any = engine.executor
            schedule: Any = engine.scheduler.schedule
            began = perf_counter()
            engine.step()
            step = perf_counter() - began - executor.take()
            seconds[index].append((step, schedule.take()))
    none, many = ([median(column) for column in zip(*rows, strict=True)] for rows in seconds)
    for engine, count in zip(engines, (0, num_waiting), strict=True):
        stats = engine.stats()
        if (stats.num_running, stats.num_waiting) != (num_running, count):
            raise RuntimeError(f"{stats} instead of {num_running} running and {count} waiting.")
        engine.close()
    return WaitingCost(num_running, num_waiting, none[0], many[0], none[1], many[1])


def _queueing(num_running: int, num_waiting: int, num_steps: int) -> Engine:
    length = 32 + num_steps
    config = EngineConfig(
        model="instant",
        max_num_seqs=num_running,
        max_model_len=length,
        num_gpu_blocks_override=num_running * (length // 16 + 2),
        trace=TraceLog(),
    )
    model = ServedModel("instant", (None,) * 4, vocab_size=1000, max_position_embeddings=length)
    engine = Engine(config, executor=_InstantExecutor(), model=model)
    scheduler: Any = engine.scheduler
    scheduler.schedule = Stopwatch(scheduler.schedule)
    for index in range(num_running + num_waiting):
        engine.add_request([300 + index % 500] * 8, exactly(num_steps + 8))
    return engine
