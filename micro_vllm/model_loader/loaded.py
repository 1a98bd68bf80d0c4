"""A loaded model, apart from any engine: weights, config and tokenizer. Two engines may share one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from micro_vllm.models.config import ModelConfig

if TYPE_CHECKING:
    from micro_vllm.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """What an engine needs of a model. ``model`` is in inference mode and its weights are never written again."""

    name: str
    path: Path
    config: ModelConfig
    model: nn.Module
    tokenizer: Tokenizer | None
    dtype: torch.dtype
    badge: str
    """Where the weights came from, for the page."""


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    skip_tokenizer_init: bool = False,
    progress: Callable[..., Any] | None = None,
) -> LoadedModel:
    raise NotImplementedError
