"""llama.cpp under test: decodes and prompt chunks in one batch, as its server does it, over the low-level bindings.

Source: https://github.com/ggml-org/llama.cpp/blob/master/examples/batched/batched.cpp
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from tests.benchmarks.gguf_weights import write_bf16_gguf
from tests.benchmarks.systems import Clock, System, WaveResult
from tests.benchmarks.workloads import TokenRequest, Workload

MAX_SEQS = 32
BATCH_TOKENS = 512


@dataclass(slots=True)
class _Sequence:
    index: int
    """Place of the request in the wave."""
    seq_id: int
    request: TokenRequest
    num_decoded: int
    """Tokens in the KV cache."""
    output: list[int] = field(default_factory=list)


class LlamaCpp:
    """One model; a context sized for each workload. bfloat16 weights, llama.cpp's defaults for the rest."""

    name = "llama.cpp"

    def __init__(self, model: Any, num_threads: int, files: tempfile.TemporaryDirectory) -> None:
        self._model = model
        self._num_threads = num_threads
        self._files = files
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._context: Any = None
        self._kept: tuple[int, ...] = ()
        """Prompt that is still in the cache as sequence 0, for the next wave to share; as the server's slots do."""

    def prepare(self, workload: Workload) -> None:
        self._drop_context()
        seats = min(MAX_SEQS, max(len(wave) for wave in workload.waves))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = seats * (-(-workload.max_request_tokens // 256) * 256)
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = seats
        params.n_threads = params.n_threads_batch = self._num_threads
        params.no_perf = True
        self._seats = seats
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {params.n_ctx} tokens.")

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        clock = Clock()
        waiting = deque(enumerate(requests))
        free_ids = list(range(self._seats))[::-1]  # sequence 0 is handed out first
        running: list[_Sequence] = []
        outputs: list[tuple[int, ...]] = [()] * len(requests)
        num_forwards = 0
        while waiting or running:
            while waiting and free_ids:
                index, request = waiting.popleft()
                seq_id = free_ids.pop()
                running.append(_Sequence(index, seq_id, request, self._make_room(seq_id, request)))
            drawing = self._fill_batch(running)
            status = llama_cpp.llama_decode(self._context, self._batch)
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}.")
            num_forwards += 1
            for sequence, token_id in zip(drawing, self._greedy(len(drawing)), strict=True):
                sequence.output.append(token_id)
                if len(sequence.output) == sequence.request.num_output:
                    outputs[sequence.index] = tuple(sequence.output)
                    running.remove(sequence)
                    free_ids.append(sequence.seq_id)
                    if sequence.seq_id == 0:
                        self._kept = sequence.request.prompt_token_ids
        return clock.result(tuple(outputs), num_forwards)

    def _make_room(self, seq_id: int, request: TokenRequest) -> int:
        """Empty the sequence, except for the prompt prefix it shares with the request. Returns its length."""
        shared = 0
        if seq_id == 0:
            for ours, theirs in zip(request.prompt_token_ids[:-1], self._kept, strict=False):
                if ours != theirs:
                    break
                shared += 1
            self._kept = ()
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, seq_id, shared, -1)
        return shared

    def _fill_batch(self, running: Sequence[_Sequence]) -> list[_Sequence]:
        """Decodes first, then prompt chunks while there is room. Returns who gets a token, in order of the logits."""
        self._batch.n_tokens = 0
        drawing = []
        for sequence in sorted(running, key=lambda one: not one.output):  # stable: decodes first
            prompt = sequence.request.prompt_token_ids
            room = BATCH_TOKENS - self._batch.n_tokens
            ids = sequence.output[-1:] or prompt[sequence.num_decoded : sequence.num_decoded + room]
            if not ids or not room:
                continue
            for offset, token_id in enumerate(ids):
                self._append(token_id, sequence.num_decoded + offset, sequence.seq_id)
            sequence.num_decoded += len(ids)
            if sequence.num_decoded >= len(prompt):
                self._batch.logits[self._batch.n_tokens - 1] = 1
                drawing.append(sequence)
        return drawing

    def _append(self, token_id: int, position: int, seq_id: int) -> None:
        batch, place = self._batch, self._batch.n_tokens
        batch.token[place] = token_id
        batch.pos[place] = position
        batch.n_seq_id[place] = 1
        batch.seq_id[place][0] = seq_id
        batch.logits[place] = 0
        batch.n_tokens = place + 1

    def _greedy(self, count: int) -> list[int]:
        if not count:
            return []
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, shape=(count, self._vocab_size))  # (count, V)
        return torch.from_numpy(logits).argmax(-1).tolist()

    def close(self) -> None:
        self._drop_context()
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_model_free(self._model)
        self._files.cleanup()

    def _drop_context(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        self._context, self._kept = None, ()


@llama_cpp.llama_log_callback
def _only_errors(level: int, text: bytes, _user_data: Any) -> None:
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        os.write(2, text)


def build_systems(folder: Path, dtype: str) -> list[System]:
    """Writes the weights as a GGUF into a temporary folder, about as large as the model."""
    if dtype != "bfloat16":
        raise ValueError(f"dtype={dtype!r}: llama.cpp is compared in bfloat16 only.")
    llama_cpp.llama_log_set(_only_errors, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    files = tempfile.TemporaryDirectory(prefix="micro-vllm-bench-")
    path = Path(files.name) / "model-bf16.gguf"
    write_bf16_gguf(folder, path)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        files.cleanup()
        raise RuntimeError(f"llama.cpp could not load {path}.")
    return [LlamaCpp(model, torch.get_num_threads(), files)]
