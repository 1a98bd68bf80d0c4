"""A model folder in Hugging Face layout: checked from its headers, then read as a stream of tensors.

Knows no architecture. Checks cost kilobytes: a safetensors file starts with a JSON header that gives every
tensor's dtype, shape and place, so a broken folder is refused before memory is spent.
Source: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from micro_vllm.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from micro_vllm.models.config import CONFIG_FILE, GENERATION_CONFIG_FILE

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its file's header describes it."""

    file: str
    """Name of the safetensors file inside the folder."""
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelFolder:
    """A folder that passed :func:`check_model_folder`."""

    path: Path
    config: dict[str, Any]
    """Parsed ``config.json``."""
    generation_config: dict[str, Any] | None
    """Parsed ``generation_config.json``, where there is one."""
    tensors: dict[str, TensorInfo]
    """Every tensor of the weight files that count (E27: the index decides, where there is one)."""


def check_model_folder(path: str | Path) -> ModelFolder:
    """Read all that can be known of a folder without reading weights.

    Raises:
        ModelNotFoundError: there is no such folder.
        UnsupportedModelError: the weights are pickles, or quantised.
        ModelLoadError: a file is missing, truncated or no JSON; the message names it, with sizes.
    """
    path = Path(path)
    if not path.is_dir():
        raise ModelNotFoundError(f"{path} is not a folder; give a model folder with a {CONFIG_FILE} in it.")
    config = _read_json(path / CONFIG_FILE)
    generation = path / GENERATION_CONFIG_FILE
    return ModelFolder(
        path=path,
        config=config,
        generation_config=_read_json(generation) if generation.is_file() else None,
        tensors=_read_headers(path),
    )


def tensor_shapes(path: str | Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> (shape, dtype) of every tensor of a folder, from headers only.

    Raises:
        ModelLoadError: as :func:`check_model_folder`.
    """
    return {name: (info.shape, info.dtype) for name, info in _read_headers(Path(path)).items()}


def iter_weights(path: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a folder, one at a time and memory-mapped: copy what you keep.

    Raises:
        ModelLoadError: as :func:`check_model_folder`.
    """
    path = Path(path)
    names_by_file: dict[str, list[str]] = {}
    for name, info in _read_headers(path).items():
        names_by_file.setdefault(info.file, []).append(name)
    for file, names in names_by_file.items():
        with safe_open(path / file, framework="pt") as reader:
            for name in names:
                yield name, reader.get_tensor(name)


def _read_headers(path: Path) -> dict[str, TensorInfo]:
    """Headers of the files that count: those of the index, or the single file."""
    index_file = path / INDEX_FILE
    if not index_file.is_file():
        if not (path / SINGLE_FILE).is_file():
            raise _no_weights(path)
        return _read_header(path / SINGLE_FILE)
    weight_map = _read_json(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index_file} has no 'weight_map' of tensor name -> file; fetch it again.")
    shards: dict[str, dict[str, TensorInfo]] = {}
    for file in sorted(set(map(str, weight_map.values()))):
        if Path(file).name != file:
            raise ModelLoadError(f"{index_file} points outside its folder: {file!r}.")
        if not (path / file).is_file():
            raise ModelLoadError(f"{path / file} is missing, but {INDEX_FILE} lists it; fetch it again.")
        shards[file] = _read_header(path / file)
    tensors: dict[str, TensorInfo] = {}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise ModelLoadError(f"{path / file} lacks tensor {name!r}, but {INDEX_FILE} places it there.")
        tensors[name] = shards[file][name]
    return tensors


def _read_header(file: Path) -> dict[str, TensorInfo]:
    """The header of one safetensors file, checked against the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ModelLoadError(
                f"{file} is no whole safetensors file: {size} bytes, its header would take {length}; "
                "fetch it again."
            )
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise ModelLoadError(f"{file}: the safetensors header is no JSON; fetch it again.") from error
    header.pop("__metadata__", None)
    tensors: dict[str, TensorInfo] = {}
    end = 0
    for name, entry in header.items():
        try:
            dtype, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
            end = max(end, int(entry["data_offsets"][1]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelLoadError(f"{file}: the header of tensor {name!r} makes no sense.") from error
        if dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{file}: tensor {name!r} is {dtype}; only floats are implemented: {', '.join(_DTYPES)}."
            )
        tensors[name] = TensorInfo(file.name, _DTYPES[dtype], shape)
    if size != 8 + length + end:
        raise ModelLoadError(
            f"{file} is truncated or damaged: {size} bytes, its header asks for {8 + length + end}; "
            "fetch it again."
        )
    return tensors


def _no_weights(path: Path) -> ModelLoadError:
    names = sorted(file.name for file in path.iterdir())
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        return UnsupportedModelError(
            f"{path} has its weights as pickles ({', '.join(pickles[:3])}), which can run code when opened "
            "and are never read. Convert them: load the folder with transformers and save_pretrained(folder)."
        )
    others = [name for name in names if name.endswith(".safetensors")]
    hint = f" It has {', '.join(others[:3])} without {INDEX_FILE}." if others else ""
    return ModelLoadError(f"{path} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}.{hint}")


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing; the folder is no model folder or is incomplete.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{file} is no JSON ({error}); fetch it again.") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{file} must hold a JSON object, not {type(values).__name__}.")
    return values
