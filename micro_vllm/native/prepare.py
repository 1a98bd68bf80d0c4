"""What the native decoder needs of a loaded model: kernels built for this machine, and weights in int8.

Both take seconds and can be made beside a running engine, which then takes them over between two steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

from micro_vllm.model_loader.cache import default_cache_root
from micro_vllm.model_loader.default import iter_weights
from micro_vllm.model_loader.loaded import LoadedModel
from micro_vllm.native.compile import NativeUnavailableError, check_available, load_kernels
from micro_vllm.native.kernels import declare
from micro_vllm.native.weights import NativeWeights, check_model, quantize_model

KERNEL_FOLDER = "kernels"
"""Below the cache of models."""


@dataclass(frozen=True, slots=True)
class NativeParts:
    """Shared by all engines over one model."""

    library: ctypes.CDLL
    weights: NativeWeights


def check_native(loaded: LoadedModel) -> None:
    """Whether the native decoder can run this model on this machine; quick.

    Raises:
        NativeUnavailableError: it cannot; the message says why and what to do.
    """
    if loaded.dtype != torch.bfloat16:
        raise NativeUnavailableError(
            f"the native decoder keeps its KV cache in bfloat16, but the model was loaded as {loaded.dtype}; "
            "load it with dtype='bfloat16', or use execution='eager'."
        )
    check_available()
    check_model(loaded.model)


def prepare_native(loaded: LoadedModel, report: Callable[[str], None] | None = None) -> NativeParts:
    """Build the kernels, unless a former run left them, and quantise the weights.

    The weights are read from the model's folder once more, since those of ``loaded`` may be packed already.
    ``report`` hears what is being done, in this thread.

    Raises:
        NativeUnavailableError: see :func:`check_native`; or the compiler failed.
    """
    check_native(loaded)
    tell = report or (lambda words: None)
    tell("bfloat16, compiling int8 kernels …")
    library = declare(load_kernels(default_cache_root() / KERNEL_FOLDER))
    tell("bfloat16, quantising the weights …")
    with torch.inference_mode():
        plain = type(loaded.model)(loaded.config, loaded.dtype, "cpu")
        plain.load_weights(iter_weights(loaded.path))
        return NativeParts(library, quantize_model(plain))
