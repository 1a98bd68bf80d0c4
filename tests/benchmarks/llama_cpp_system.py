"""llama.cpp under test: decodes and prompt chunks in one batch, as its server does it, over the low-level bindings.

Source: https://github.com/ggml-org/llama.cpp/blob/master/examples/batched/batched.cpp
"""

from __future__ import annotations

import ctypes
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from tests.benchmarks.llama_cpp_models import GgufModel, load, start_backend, write_formats
from tests.benchmarks.systems import Clock, System, SystemInfo, WaveResult, WeightSizes
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
    """One model; a context sized for each workload, with llama.cpp's defaults for all that is not named here."""

    def __init__(self, model: GgufModel, num_threads: int, files: tempfile.TemporaryDirectory) -> None:
        self.info = SystemInfo(
            f"llama.cpp {model.format_name}",
            model.weight_bytes,
            "bf16" if model.format_name == "BF16" else "int8",
            formats_of="llama.cpp",
        )
        self._model = model.handle
        self._num_threads = num_threads
        self._files = files  # lives as long as the models, which are mapped from it
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model.handle))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._context: Any = None
        self._random = np.random.default_rng(0)
        self._kept: tuple[int, ...] = ()
        """Prompt that is still in the cache as sequence 0, for the next wave to share; as the server's slots do."""

    def prepare(self, workload: Workload) -> None:
        self.close()
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
        threads = torch.get_num_threads()
        torch.set_num_threads(
            1
        )  # what is drawn between two of its steps must not keep a thread spinning beside it
        try:
            return self._run(requests)
        finally:
            torch.set_num_threads(threads)

    def _run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        clock = Clock()
        waiting = deque(enumerate(requests))
        free_ids = list(range(self._seats))[::-1]  # sequence 0 is handed out first
        running: list[_Sequence] = []
        outputs: list[tuple[int, ...]] = [()] * len(requests)
        num_forwards = 0
        first_token_seconds = None
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
            for sequence, token_id in zip(drawing, self._draw(drawing), strict=True):
                sequence.output.append(token_id)
                if sequence.index == 0 and first_token_seconds is None:
                    first_token_seconds = clock.seconds()
                if len(sequence.output) == sequence.request.num_output:
                    outputs[sequence.index] = tuple(sequence.output)
                    running.remove(sequence)
                    free_ids.append(sequence.seq_id)
                    if sequence.seq_id == 0:
                        self._kept = sequence.request.prompt_token_ids
        return clock.result(tuple(outputs), num_forwards, first_token_seconds)

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

    def _draw(self, drawing: Sequence[_Sequence]) -> list[int]:
        """Whole rows at once, which is cheaper than its own chain of samplers."""
        if not drawing:
            return []
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, shape=(len(drawing), self._vocab_size))  # (N, V)
        temperature = drawing[0].request.temperature  # a wave has one
        return draw(torch.from_numpy(logits), temperature, self._random)

    def close(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        self._context, self._kept = None, ()


def draw(logits: torch.Tensor, temperature: float, random: np.random.Generator) -> list[int]:
    """One id a row of ``logits (N, V)``: the largest, or at a temperature by inverting the cumulated chances."""
    if temperature == 0:
        return logits.argmax(-1).tolist()
    sums = (logits / temperature).softmax(-1).cumsum(-1)  # (N, V)
    points = torch.from_numpy(random.random((len(logits), 1), dtype=np.float32)) * sums[:, -1:]  # (N, 1)
    return torch.searchsorted(sums, points, right=True)[:, 0].clamp(max=logits.shape[1] - 1).tolist()


def build_systems(folder: Path, sizes: WeightSizes) -> list[System]:
    """Writes the weights in every format into a temporary folder, twice as large as the model in all."""
    start_backend()
    files = tempfile.TemporaryDirectory(prefix="micro-vllm-bench-")
    paths = write_formats(folder, Path(files.name))
    return [LlamaCpp(load(name, path), torch.get_num_threads(), files) for name, path in paths.items()]
