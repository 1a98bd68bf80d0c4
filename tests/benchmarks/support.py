"""A model that every system of the benchmarks can run, small enough for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.engine.support.models import save_tiny_model


def save_small_model(parent: Path, **config: Any) -> Path:
    """Its folder, in ``parent``. ``config``: more of it, or other values."""
    shape = {
        "vocab_size": 320,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    return save_tiny_model(parent / "tiny", dtype=torch.bfloat16, tokenizer=True, **{**shape, **config})
