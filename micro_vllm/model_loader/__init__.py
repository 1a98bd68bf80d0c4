"""From a name or a folder to a model in memory. Loaded on first use: the catalogue needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micro_vllm.model_loader.loaded import LoadedModel, load_model

_HOME = {
    "LoadedModel": "micro_vllm.model_loader.loaded",
    "load_model": "micro_vllm.model_loader.loaded",
}

__all__ = ["LoadedModel", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'micro_vllm.model_loader' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
