"""Our engine under test, with its settings as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from micro_vllm import LLM, SamplingParams
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.model_loader import LoadedModel
from tests.benchmarks.systems import OURS, Clock, WaveResult
from tests.benchmarks.workloads import TokenRequest, Workload

MAX_MODEL_LEN = 2048


class CountingExecutor:
    """Hands everything on and counts the plans that compute something."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.num_forwards = 0

    def execute(self, plan: ExecutionPlan) -> StepResult:
        self.num_forwards += bool(plan.scheduled)
        return self._executor.execute(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class MicroVllm:
    """Through ``LLM.generate``, as a caller would."""

    name = OURS

    def __init__(self, loaded: LoadedModel, **settings: Any) -> None:
        self._loaded = loaded
        self._settings = {"max_model_len": MAX_MODEL_LEN, **settings}
        self._llm: LLM | None = None
        self._executor: CountingExecutor | None = None

    def prepare(self, workload: Workload) -> None:
        self.close()
        self._llm = LLM(self._loaded, **self._settings)
        self._executor = self._llm.engine.executor = CountingExecutor(self._llm.engine.executor)

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        assert self._llm is not None, "prepare() comes first"
        assert self._executor is not None
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        params = [greedy(request.num_output) for request in requests]
        forwards_before = self._executor.num_forwards
        clock = Clock()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return clock.result(
            tuple(tuple(output.outputs[0].token_ids) for output in outputs),
            self._executor.num_forwards - forwards_before,
        )

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()
        self._llm = self._executor = None


def greedy(num_output: int) -> SamplingParams:
    """Exactly ``num_output`` greedy tokens, and no text made of them."""
    return SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True, detokenize=False)
