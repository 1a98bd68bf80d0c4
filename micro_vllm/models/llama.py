"""Llama: the plain decoder. Full attention in every layer, optional biases.

Source: https://huggingface.co/docs/transformers/model_doc/llama
"""

from __future__ import annotations

from micro_vllm.models.config import Family
from micro_vllm.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """Llama 1 to 3.x, SmolLM2, TinyLlama and others of the same shape."""

    family = Family(
        defaults={
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        has_attention_bias=True,
        has_mlp_bias=True,
    )
