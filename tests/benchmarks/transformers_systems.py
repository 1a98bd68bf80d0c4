"""transformers under test: ``generate`` on padded batches, and its own continuous batching.

Source: https://huggingface.co/docs/transformers/main/en/continuous_batching
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from tests.benchmarks.systems import Clock, System, SystemInfo, WaveResult, WeightSizes
from tests.benchmarks.workloads import CONTINUOUS, GENERATE, TokenRequest, Workload

MAX_BATCH = 32
"""Requests in one padded batch: as many as our engine seats by default."""
MAX_BATCH_TOKENS = 512
"""Tokens a step of continuous batching: as many as our engine plans by default."""
PAGE_SIZE = 16
PAD = 0


class Generate:
    """Batches of up to 32 in the order of arrival, padded on the left, as long as their longest answer."""

    def __init__(self, model: Any, weight_bytes: int) -> None:
        self.info = SystemInfo(GENERATE, weight_bytes, "bf16")
        self._model = model

    def prepare(self, workload: Workload) -> None:
        """``generate`` allocates as it goes."""

    @torch.inference_mode()
    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        outputs: list[tuple[int, ...]] = []
        num_forwards = 0
        clock = Clock()
        for start in range(0, len(requests), MAX_BATCH):
            batch = requests[start : start + MAX_BATCH]
            longest = max(len(request.prompt_token_ids) for request in batch)
            num_output = max(request.num_output for request in batch)
            input_ids = torch.full((len(batch), longest), PAD)  # (B, longest)
            mask = torch.zeros_like(input_ids)  # (B, longest)
            for row, request in enumerate(batch):
                input_ids[row, longest - len(request.prompt_token_ids) :] = torch.tensor(
                    request.prompt_token_ids
                )
                mask[row, longest - len(request.prompt_token_ids) :] = 1
            generated = self._model.generate(
                input_ids, attention_mask=mask, generation_config=_config(batch)
            )[:, longest:]  # (B, num_output)
            num_forwards += num_output
            outputs += [
                tuple(row[: request.num_output])
                for row, request in zip(generated.tolist(), batch, strict=True)
            ]
        return clock.result(tuple(outputs), num_forwards)

    def close(self) -> None:
        """Nothing was kept."""


class ContinuousBatching:
    """One persistent manager a workload, so that allocating its cache is not timed."""

    def __init__(self, model: Any, weight_bytes: int) -> None:
        self.info = SystemInfo(CONTINUOUS, weight_bytes, "bf16")
        self._model = model
        self._config: ContinuousBatchingConfig | None = None

    def prepare(self, workload: Workload) -> None:
        self.close()
        tokens = max(workload.max_wave_tokens, workload.max_request_tokens)
        num_blocks = -(-tokens // PAGE_SIZE) + 2 * sum(len(wave) for wave in workload.waves)
        self._config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE, num_blocks=num_blocks, max_batch_tokens=MAX_BATCH_TOKENS
        )

    @torch.inference_mode()
    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        manager_context = self._model.continuous_batching_context_manager(
            generation_config=_config(requests),
            continuous_batching_config=self._config,
            persistent_manager=True,
        )
        outputs: dict[str, tuple[int, ...]] = {}
        with manager_context as manager:
            clock = Clock()
            ids = [
                manager.add_request(
                    list(request.prompt_token_ids), max_new_tokens=request.num_output, eos_token_id=-1
                )
                for request in requests
            ]
            while len(outputs) < len(ids):
                result = manager.get_result(timeout=1)
                if result is None:
                    if not manager.is_running():
                        raise RuntimeError(
                            "transformers' continuous batching stopped before it had answered."
                        )
                elif result.error:
                    raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
                elif result.is_finished():
                    outputs[result.request_id] = tuple(result.generated_tokens)
            return clock.result(tuple(outputs[request_id] for request_id in ids))

    def close(self) -> None:
        self._model.destroy_cached_continuous_batching_manager()


def _config(requests: Sequence[TokenRequest]) -> GenerationConfig:
    """Requests of a wave have one temperature."""
    (temperature,) = {request.temperature for request in requests}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        **(sampling if temperature > 0 else {"do_sample": False}),
        max_new_tokens=max(request.num_output for request in requests),
        min_new_tokens=None,
        eos_token_id=None,
        pad_token_id=PAD,
    )


def build_systems(folder: Path, sizes: WeightSizes, dtype: torch.dtype = torch.bfloat16) -> list[System]:
    """Both systems on one copy of the weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None  # generate() fills what its config leaves open from here
    return [Generate(model, sizes.bf16_bytes), ContinuousBatching(model, sizes.bf16_bytes)]
