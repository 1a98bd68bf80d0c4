"""Mistral: Llama with one sliding window for all layers, or none.

Source: https://huggingface.co/docs/transformers/model_doc/mistral
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from micro_vllm.errors import UnsupportedModelError
from micro_vllm.models.config import CONFIG_FILE, Family, window_value, windows_by_layer_type
from micro_vllm.models.decoder import DecoderForCausalLM


def _layer_windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """``sliding_window`` in every layer; ``null`` is full attention (v0.2 and later)."""
    windows = (window_value(hf),) * num_layers
    if hf.get("layer_types") is not None and windows_by_layer_type(hf, num_layers, windows[0]) != windows:
        raise UnsupportedModelError(
            f"{CONFIG_FILE}: layer_types mixes full and sliding layers, which MistralForCausalLM "
            "does not know; such a folder should name another architecture."
        )
    return windows


class MistralForCausalLM(DecoderForCausalLM):
    """Mistral 7B and others of the same shape."""

    family = Family(
        defaults={
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        layer_windows=_layer_windows,
    )
