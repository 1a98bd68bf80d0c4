"""The architectures by the name that ``config.json`` gives them, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from micro_vllm.errors import UnsupportedModelError

if TYPE_CHECKING:
    from micro_vllm.models.config import Family
    from micro_vllm.models.decoder import DecoderForCausalLM

_MODULES: dict[str, str] = {
    "LlamaForCausalLM": "micro_vllm.models.llama",
    "MistralForCausalLM": "micro_vllm.models.mistral",
    "Qwen3ForCausalLM": "micro_vllm.models.qwen",
}


def architectures_available() -> tuple[str, ...]:
    """``architectures[0]`` values that can be served."""
    return tuple(_MODULES)


def get_model_class(architecture: str) -> type[DecoderForCausalLM]:
    """The class of an architecture.

    Raises:
        UnsupportedModelError: not implemented; the message lists those that are.
    """
    if architecture not in _MODULES:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not implemented; known: {', '.join(_MODULES)}."
        )
    return getattr(import_module(_MODULES[architecture]), architecture)


def get_family(architecture: str) -> Family:
    """How an architecture reads its ``config.json``."""
    return get_model_class(architecture).family
