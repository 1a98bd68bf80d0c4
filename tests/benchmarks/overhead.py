"""What scheduling and KV bookkeeping cost beside the model: their share of a decode step at 16 running requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from micro_vllm import LLM
from micro_vllm.model_loader import LoadedModel
from tests.benchmarks.micro_vllm_system import MAX_MODEL_LEN, greedy
from tests.benchmarks.workloads import Shape, Workload, token_requests

RUNNING = 16
TARGET_SHARE = 0.03
WORKLOAD = Workload(
    "overhead", f"{RUNNING} at once: 64 in, 64 out", ((Shape(64, 64),) * RUNNING,), "output tok/s"
)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds of one decode step, medians over all steps in which exactly 16 requests decode."""

    num_steps: int
    step: float
    schedule: float
    """Planning: budget, block allocation, building the plan."""
    update: float
    """Taking the tokens in: appending, hashing and registering full blocks."""
    share: float
    """(schedule + update) / step, over the sums of all these steps."""


class _Stopwatch:
    """Stands in for a bound method, calls it and adds up the time."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        began = perf_counter()
        try:
            return self._method(*args)
        finally:
            self.seconds += perf_counter() - began

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def measure_overhead(loaded: LoadedModel, repeats: int, max_model_len: int = MAX_MODEL_LEN) -> Overhead:
    """No trace is attached, as in any run that nobody watches."""
    llm = LLM(loaded, max_model_len=max_model_len)
    engine = llm.engine
    scheduler: Any = engine.scheduler
    scheduler.schedule, scheduler.update = _Stopwatch(scheduler.schedule), _Stopwatch(scheduler.update)
    rows: list[tuple[float, float, float]] = []  # (step, schedule, update)
    for repeat in range(repeats):
        (requests,) = token_requests(WORKLOAD, repeat, loaded.config.vocab_size)
        for request in requests:
            engine.add_request(
                {"prompt_token_ids": list(request.prompt_token_ids)}, greedy(request.num_output)
            )
        num_outputs: dict[str, int] = {}
        while engine.has_unfinished_requests():
            began = perf_counter()
            outputs = engine.step()
            row = (perf_counter() - began, scheduler.schedule.take(), scheduler.update.take())
            decoding = [output for output in outputs if num_outputs.get(output.request_id, 0) > 0]
            if len(decoding) == len(outputs) == RUNNING and not any(output.finished for output in outputs):
                rows.append(row)
            num_outputs |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
    llm.close()
    steps, schedules, updates = zip(*rows, strict=True)
    return Overhead(
        num_steps=len(rows),
        step=median(steps),
        schedule=median(schedules),
        update=median(updates),
        share=(sum(schedules) + sum(updates)) / sum(steps),
    )
