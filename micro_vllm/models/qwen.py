"""Qwen3: a norm on each query and key head, an explicit head_dim, windows per layer.

Source: https://huggingface.co/docs/transformers/model_doc/qwen3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from micro_vllm.models.config import Family, window_value, windows_by_layer_type
from micro_vllm.models.decoder import DecoderForCausalLM


def _layer_windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """``layer_types`` decides; without it, layers from ``max_window_layers`` on are windowed.

    ``use_sliding_window: false`` switches every window off, whatever ``sliding_window`` says.
    """
    window = window_value(hf) if hf.get("use_sliding_window") else None
    if hf.get("layer_types") is not None:
        return windows_by_layer_type(hf, num_layers, window)
    first_windowed = hf["max_window_layers"]
    return tuple(window if layer >= first_windowed else None for layer in range(num_layers))


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Qwen3, dense."""

    family = Family(
        defaults={
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
        },
        qk_norm=True,
        has_attention_bias=True,
        layer_windows=_layer_windows,
    )
