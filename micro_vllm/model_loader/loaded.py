"""A loaded model, apart from any engine: weights, config and tokenizer. Two engines may share one."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from micro_vllm.config import DTYPES
from micro_vllm.errors import ConfigError
from micro_vllm.model_loader.default import ModelFolder, check_model_folder, iter_weights
from micro_vllm.model_loader.fetch import FetchMonitor, ProgressCallback
from micro_vllm.models.config import CONFIG_FILE, ModelConfig
from micro_vllm.models.decoder import DecoderForCausalLM
from micro_vllm.models.registry import get_model_class
from micro_vllm.models.weights import check_tensors

if TYPE_CHECKING:
    from micro_vllm.tokenizer import Tokenizer

LOCAL_BADGE = "local folder"


@dataclass(frozen=True)
class LoadedModel:
    """What an engine needs of a model. The weights of ``model`` are never written again."""

    name: str
    path: Path
    config: ModelConfig
    model: DecoderForCausalLM
    tokenizer: Tokenizer | None
    dtype: torch.dtype
    badge: str
    """Where the weights came from, for the page."""

    @property
    def num_parameters(self) -> int:
        """Weights, a tied head counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    skip_tokenizer_init: bool = False,
    prepack: bool = True,
    progress: ProgressCallback | None = None,
    cancel: threading.Event | None = None,
) -> LoadedModel:
    """Load a local folder, a catalogue name or a Hub id.

    ``dtype="auto"`` takes what config.json names, or else the dtype of the weights; float16 becomes
    float32 on CPU, where float16 arithmetic is slow. ``prepack=False`` leaves bfloat16 weights as the
    file has them, instead of in the layout of the CPU's kernels. ``progress`` hears of every stage, in this thread:
    the catalogue may fetch, and weights take a while to be read. ``cancel`` may be set from another thread.

    Raises:
        ModelNotFoundError: no source has the model.
        UnsupportedModelError: the folder is sound but asks for something not implemented.
        ModelLoadError: the folder is broken; the message names file and tensor. All of this is
            found before memory for weights is spent.
        ConfigError: ``dtype`` is unknown.
        FetchCancelledError: cancelled; nothing is left behind.
    """
    name, path, badge = _resolve(name_or_path, progress, cancel)
    folder = check_model_folder(path)
    config = ModelConfig.from_hf(
        folder.config, folder.generation_config, source=str(folder.path / CONFIG_FILE)
    )
    model_class = get_model_class(config.architecture)
    _check_weights(model_class, config, folder)
    chosen = choose_dtype(dtype, config, folder, device)
    tokenizer = None
    if not skip_tokenizer_init:
        from micro_vllm.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder(folder.path)
    model = model_class(config, chosen, device)
    monitor = FetchMonitor(name, progress, cancel)
    model.load_weights(_watched(folder, monitor))
    monitor.check_cancelled()
    if prepack:
        model.prepack()
    return LoadedModel(
        name=name,
        path=folder.path,
        config=config,
        model=model,
        tokenizer=tokenizer,
        dtype=chosen,
        badge=badge,
    )


def choose_dtype(
    asked: str, config: ModelConfig, folder: ModelFolder, device: torch.device | str
) -> torch.dtype:
    """The dtype weights and cache get.

    Raises:
        ConfigError: ``asked`` is none of ``micro_vllm.config.DTYPES``.
    """
    if asked not in DTYPES:
        raise ConfigError(f"dtype={asked!r} is unknown; allowed: {', '.join(DTYPES)}.")
    if asked != "auto":
        return getattr(torch, asked)
    stored = next(iter(folder.tensors.values())).dtype
    named = stored if config.dtype is None else getattr(torch, config.dtype)
    on_cpu = torch.device(device).type == "cpu"
    if named == torch.float64 or (named == torch.float16 and on_cpu):
        return torch.float32
    return named


def _check_weights(model_class: type[DecoderForCausalLM], config: ModelConfig, folder: ModelFolder) -> None:
    """Compare the headers with what the model needs, on a copy of the model that holds no memory."""
    expected = model_class(config, device="meta").expected_tensors()
    check_tensors(
        expected,
        {name: info.shape for name, info in folder.tensors.items()},
        config.tie_word_embeddings,
        source=str(folder.path),
        files={name: info.file for name, info in folder.tensors.items()},
    )


def _watched(folder: ModelFolder, monitor: FetchMonitor) -> Iterator[tuple[str, torch.Tensor]]:
    """The folder's tensors; the monitor hears how many bytes of them were passed on, and may stop it."""
    total = sum(math.prod(info.shape) * info.dtype.itemsize for info in folder.tensors.values())
    done = 0
    for name, tensor in iter_weights(folder.path):
        monitor.report("Reading weights", done, total)
        yield name, tensor
        done += tensor.nbytes


def _resolve(
    name_or_path: str | Path, progress: ProgressCallback | None, cancel: threading.Event | None
) -> tuple[str, Path, str]:  # name, folder, badge
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.is_dir():
        return path.name or str(path.resolve().name), path, LOCAL_BADGE
    from micro_vllm.model_loader.catalogue import resolve_model

    resolved = resolve_model(name_or_path, progress=progress, cancel=cancel)
    return resolved.name, Path(resolved.path), resolved.badge
