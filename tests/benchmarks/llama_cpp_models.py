"""The same weights in llama.cpp's formats: BF16 written by us, the others made of it by its own quantiser."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
from gguf import GGUFReader

from tests.benchmarks.gguf_weights import write_bf16_gguf

FORMATS = {
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "BF16": None,
    "Q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
}
"""Name -> what its quantiser is asked for, all else left to its defaults."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A loaded model; it lives until the process ends."""

    format_name: str
    handle: Any
    weight_bytes: int
    """What a forward pass reads: all tensors, but of the embedding only what also is the head."""


@llama_cpp.llama_log_callback
def _only_errors(level: int, text: bytes, _user_data: Any) -> None:
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        os.write(2, text)


def start_backend() -> None:
    """Once in a process, before anything else. Errors are printed, the rest of its log is not."""
    llama_cpp.llama_log_set(_only_errors, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


def write_formats(folder: Path, target: Path) -> dict[str, Path]:
    """One file a format, below ``target``. Seconds for a hundred million weights.

    Raises:
        RuntimeError: the quantiser refused; its words are on stderr.
    """
    bf16 = target / "model-BF16.gguf"
    write_bf16_gguf(folder, bf16)
    paths = {}
    for name, file_type in FORMATS.items():
        paths[name] = target / f"model-{name}.gguf"
        if file_type is not None:
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = file_type
            status = llama_cpp.llama_model_quantize(
                os.fsencode(bf16), os.fsencode(paths[name]), ctypes.byref(params)
            )
            if status != 0:
                raise RuntimeError(f"llama.cpp could not make {name} of the weights (status {status}).")
    return paths


def load(format_name: str, path: Path) -> GgufModel:
    """Raises RuntimeError if llama.cpp refuses the file."""
    handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
    if not handle:
        raise RuntimeError(f"llama.cpp could not load {path}.")
    return GgufModel(format_name, handle, _bytes_a_forward(path))


def _bytes_a_forward(path: Path) -> int:
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    return sum(sizes.values())
