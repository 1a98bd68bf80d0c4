"""Our engine under test, natively (int8) and in eager PyTorch (bfloat16), with its settings as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from micro_vllm import LLM, SamplingParams
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.model_loader import LoadedModel
from tests.benchmarks.systems import Clock, SystemInfo, WaveResult, WeightSizes
from tests.benchmarks.workloads import EAGER, NATIVE, TokenRequest, Workload

if TYPE_CHECKING:
    from micro_vllm.native.prepare import NativeParts

MAX_MODEL_LEN = 2048


class WatchingExecutor:
    """Hands everything on, counts the plans that compute something, and keeps who computed the last one."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.num_forwards = 0
        self.operator = ""

    def execute(self, plan: ExecutionPlan) -> StepResult:
        self.num_forwards += bool(plan.scheduled)
        result: StepResult = self._executor.execute(plan)
        self.operator = result.operator
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class MicroVllm:
    """Through ``LLM.generate``, as a caller would. ``parts``: compute natively with these."""

    def __init__(self, loaded: LoadedModel, parts: NativeParts | None = None, **settings: Any) -> None:
        sizes = weight_sizes(loaded)
        if parts is None:
            arithmetic = "bf16" if loaded.dtype == torch.bfloat16 else str(loaded.dtype)
            self.info = SystemInfo(EAGER, sizes.bf16_bytes, arithmetic)  # type: ignore[arg-type]
        else:
            self.info = SystemInfo(NATIVE, parts.weights.num_bytes, "int8")
        self._loaded = loaded
        self._parts = parts
        longest = min(MAX_MODEL_LEN, loaded.config.max_model_len)
        self._settings = {"max_model_len": longest, **settings}
        self._llm: LLM | None = None
        self._executor: WatchingExecutor | None = None

    def prepare(self, workload: Workload) -> None:
        self.close()
        self._llm = LLM(self._loaded, **self._settings)
        if self._parts is not None:
            self._llm.engine.use_native(self._parts)
        self._executor = self._llm.engine.executor = WatchingExecutor(self._llm.engine.executor)

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        assert self._llm is not None, "prepare() comes first"
        assert self._executor is not None
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        params = [exactly(request.num_output, request.temperature) for request in requests]
        forwards_before = self._executor.num_forwards
        clock = Clock()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        result = clock.result(
            tuple(tuple(output.outputs[0].token_ids) for output in outputs),
            self._executor.num_forwards - forwards_before,
            outputs[0].metrics.ttft,
        )
        if (self._executor.operator == "native") != (self._parts is not None):
            raise RuntimeError(f"{self.info.name} was computed by {self._executor.operator!r}.")
        return result

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()
        self._llm = self._executor = None


def exactly(num_output: int, temperature: float = 0.0, *, detokenize: bool = False) -> SamplingParams:
    """``num_output`` tokens, whatever they are; no text is made of them unless asked."""
    return SamplingParams(
        temperature=temperature, max_tokens=num_output, ignore_eos=True, detokenize=detokenize
    )


def weight_sizes(loaded: LoadedModel) -> WeightSizes:
    """Parameters of the layers and of the head. A tied head and embedding are one matrix."""
    head = loaded.config.vocab_size * loaded.config.hidden_size
    embeddings = head if loaded.config.tie_word_embeddings else 2 * head
    return WeightSizes(loaded.num_parameters - embeddings, head)
