"""micro-vLLM: a readable PyTorch inference engine in the manner of vLLM V1.

Names are loaded on first use, so that ``import micro_vllm.core`` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micro_vllm.config import EngineConfig
    from micro_vllm.engine.engine import Engine
    from micro_vllm.engine.loop import EngineLoop
    from micro_vllm.engine.output import CompletionOutput, RequestOutput
    from micro_vllm.llm import LLM
    from micro_vllm.model_loader import LoadedModel, load_model
    from micro_vllm.sampling.params import SamplingParams

_HOME = {
    "LLM": "micro_vllm.llm",
    "SamplingParams": "micro_vllm.sampling.params",
    "EngineConfig": "micro_vllm.config",
    "Engine": "micro_vllm.engine.engine",
    "EngineLoop": "micro_vllm.engine.loop",
    "RequestOutput": "micro_vllm.engine.output",
    "CompletionOutput": "micro_vllm.engine.output",
    "LoadedModel": "micro_vllm.model_loader",
    "load_model": "micro_vllm.model_loader",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "Engine",
    "EngineConfig",
    "EngineLoop",
    "LoadedModel",
    "RequestOutput",
    "SamplingParams",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'micro_vllm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
