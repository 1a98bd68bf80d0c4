"""The same weights for llama.cpp: a Hugging Face folder of a Llama model as a bfloat16 GGUF without tokenizer.

Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (layout of q and k, names of keys).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors import safe_open

from micro_vllm.model_loader.gguf_conversion import LAYER_TENSORS, OUTER_TENSORS

_GGUF_NAMES = {theirs: ours for ours, theirs in (LAYER_TENSORS | OUTER_TENSORS).items()}


def write_bf16_gguf(folder: Path, gguf_path: Path) -> None:
    """Token ids in, logits out: the vocabulary is declared by its size only.

    Raises:
        ValueError: the folder does not hold an unsharded Llama model with plain rope.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["architectures"] != ["LlamaForCausalLM"] or config.get("rope_scaling"):
        raise ValueError(f"{folder}: only Llama models with plain rope can be given to llama.cpp here.")
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads

    writer = GGUFWriter(gguf_path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118  # not a dict
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            tensor = weights.get_tensor(name)
            if "q_proj" in name or "k_proj" in name:
                tensor = interleave_rope_halves(tensor, num_heads if "q_proj" in name else num_kv_heads)
            _add(writer, gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    if name.startswith("model.layers."):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_GGUF_NAMES[rest]}"
    return _GGUF_NAMES[name]


def interleave_rope_halves(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rotate pairs of neighbours instead of pairs half a head apart. (H * D, hidden) -> the same shape."""
    rows, hidden = weight.shape
    halves = weight.view(num_heads, 2, rows // num_heads // 2, hidden)  # (H, half, D / 2, hidden)
    return halves.transpose(1, 2).reshape(rows, hidden)


def _add(writer: GGUFWriter, name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 1:  # llama.cpp wants norms in float32
        writer.add_tensor(name, tensor.float().numpy())
        return
    raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()  # (rows, 2 * columns)
    writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)
