"""Runs plans on one device: owns the physical KV cache and the rows of live requests.

A step is one flattened forward of prefill chunks and decodes together, logits only where a token is drawn,
and one vectorised draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, cast

import torch

from micro_vllm.attention.attention import AttentionContext, PagedKVCache
from micro_vllm.attention.operators.registry import get_operator
from micro_vllm.config import CacheGroup
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult, StepTimings, TokenLogprobs
from micro_vllm.errors import IntegrityError
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.sampling.sampler import Sampler
from micro_vllm.worker.input_batch import InputBatch

if TYPE_CHECKING:
    from micro_vllm.models.decoder import DecoderForCausalLM
    from micro_vllm.native.decoder import NativeDecoder
    from micro_vllm.native.prepare import NativeParts


class ModelRunner:
    """One model's runner. Never writes to the model, so several may share a LoadedModel."""

    def __init__(
        self,
        loaded: LoadedModel,
        attention_operator_name: str,
        *,
        groups: Sequence[CacheGroup],
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
    ) -> None:
        """Allocate the cache: ``num_blocks`` usable blocks and the null block.

        Raises:
            ConfigError: there is no attention operator of this name.
        """
        self.operator = get_operator(attention_operator_name)
        self._plain = cast("DecoderForCausalLM", loaded.model)
        self._model: DecoderForCausalLM | NativeDecoder = self._plain
        self._groups = tuple(groups)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._device = next(loaded.model.parameters()).device
        num_valid_ids = loaded.config.vocab_size
        if loaded.tokenizer is not None:
            num_valid_ids = min(num_valid_ids, loaded.tokenizer.vocab_size)
        self.cache = PagedKVCache(
            self._groups,
            block_size,
            num_blocks,
            loaded.config.num_kv_heads,
            loaded.config.head_dim,
            loaded.dtype,
            self._device,
        )
        self.batch = InputBatch(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            num_groups=len(self._groups),
            block_size=block_size,
            num_valid_ids=num_valid_ids,
            device=self._device,
        )
        self._sampler = Sampler(num_valid_ids)

    @property
    def operator_name(self) -> str:
        """What computes attention: an operator of the registry, or ``native``."""
        return "native" if self._is_native else self.operator.name

    @property
    def _is_native(self) -> bool:
        return self._model is not self._plain

    def use_native(self, parts: NativeParts) -> None:
        """From the next step on compute natively, over the same cache: requests go on where they are."""
        from micro_vllm.native.decoder import NativeDecoder
        from micro_vllm.native.maxima import RowMaxima
        from micro_vllm.native.sampling import NativeSampling

        maxima = RowMaxima(self._sampler.num_valid_ids)
        self._model = NativeDecoder(
            parts.library, self._plain, parts.weights, self.cache, self._groups, maxima
        )
        self._sampler = Sampler(self._sampler.num_valid_ids, NativeSampling(parts.library, maxima))

    def execute(self, plan: ExecutionPlan) -> StepResult:
        """Compute one step.

        A plan that schedules nothing only drops rows. When this raises, rows of the plan may be half updated;
        a later plan that lists them as finished, preempted or new puts that right.

        Raises:
            IntegrityError: the plan contradicts what earlier plans said, or is over the token budget.
        """
        if self._is_native:  # kernels record no gradients; PyTorch has to be told so, which takes a while
            return self._execute(plan)
        with torch.inference_mode():
            return self._execute(plan)

    def _execute(self, plan: ExecutionPlan) -> StepResult:
        began = perf_counter()
        self.batch.apply_plan(plan)
        if not plan.scheduled:
            return StepResult(
                token_ids={}, timings=StepTimings(build=perf_counter() - began), operator=self.operator_name
            )
        if plan.num_tokens > self._max_num_batched_tokens:
            raise IntegrityError(
                f"step {plan.step} schedules {plan.num_tokens} tokens, more than "
                f"max_num_batched_tokens={self._max_num_batched_tokens}."
            )
        if not self._is_native:  # native attention reads no slot that was not written
            self._zero_fresh_blocks(plan)
        inputs = self.batch.build(plan)
        built = perf_counter()

        context = AttentionContext(self.cache, self._groups, inputs.attention, self.operator)
        hidden = self._model(inputs.token_ids, inputs.attention.positions, context)  # (T, hidden)
        if not inputs.sampling_ids:  # chunks of prompts only
            timings = StepTimings(build=built - began, forward=perf_counter() - built)
            return StepResult(token_ids={}, timings=timings, operator=self.operator_name)
        if inputs.logits_indices is not None:
            hidden = hidden[inputs.logits_indices]  # (N, hidden)
        logits = self._model.compute_logits(hidden)  # (N, V)
        computed = perf_counter()

        output = self._sampler.sample(logits, inputs.sampling)
        ids = inputs.sampling_ids
        token_ids = dict(zip(ids, output.token_ids, strict=True))
        for row in output.failed:
            del token_ids[ids[row]]
        return StepResult(
            token_ids=token_ids,
            logprobs={ids[row]: TokenLogprobs(*found) for row, found in output.logprobs.items()},
            failed={ids[row]: reason for row, reason in output.failed.items()},
            timings=StepTimings(
                build=built - began, forward=computed - built, sample=perf_counter() - computed
            ),
            operator=self.operator_name,
        )

    def _zero_fresh_blocks(self, plan: ExecutionPlan) -> None:
        fresh = list(
            chain.from_iterable(ids for scheduled in plan.scheduled for ids in scheduled.new_block_ids)
        )
        if fresh:
            self.cache.zero_blocks(torch.tensor(fresh, dtype=torch.int64, device=self._device))
