"""Turn a GGUF file of a Llama model into an ordinary Hugging Face folder, so that one loader suffices.

Written: config.json, generation_config.json, tokenizer.json, tokenizer_config.json and a bfloat16
model.safetensors with Hugging Face's tensor names. Only what is understood is converted; anything else in
the file is refused by name instead of being dropped.

Sources: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (keys and layout),
https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (the inverse of what happens here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from micro_vllm.errors import ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
    from gguf import GGUFReader

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""``tokenizer.ggml.token_type``: plain vocabulary, special token, token matched before the BPE runs."""

LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert_gguf(
    gguf_path: Path, folder: Path, *, on_bytes: Callable[[int, int], None] | None = None
) -> None:
    """Write the model in ``gguf_path`` as a Hugging Face folder.

    Args:
        gguf_path: a GGUF file with architecture ``llama`` and a byte-level BPE vocabulary, any quantisation
            that the ``gguf`` package can read.
        folder: an existing, empty folder.
        on_bytes: called after each tensor with (bytes written so far, bytes in all); may raise to cancel.

    Raises:
        UnsupportedModelError: another architecture, an unknown tensor or tokenizer, scaled rope.
        ModelLoadError: the file is cut off or lacks a key.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelLoadError(
            "reading a GGUF file needs the package 'gguf'; install it with: pip install gguf"
        ) from error
    try:
        reader = GGUFReader(gguf_path)
    except (ValueError, OSError, IndexError) as error:
        raise ModelLoadError(f"{gguf_path} is not a readable GGUF file: {error}") from error
    metadata = _Metadata(reader, gguf_path)
    config = llama_config(metadata, tied=all(t.name != "output.weight" for t in reader.tensors))
    _write_json(folder / "config.json", config)
    special: dict[str, Any] = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config
    }
    _write_json(folder / "generation_config.json", special)
    write_tokenizer(metadata, config, folder)
    _write_tensors(reader, config, folder / "model.safetensors", on_bytes or (lambda done, total: None))


class _Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader, path: Path) -> None:
        self._fields = reader.fields
        self._path = path

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelLoadError(f"{self._path} lacks the key {key!r}; it was written by an unknown tool.")
        return self.get(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)


# ---------------------------------------------------------------- config


def llama_config(metadata: _Metadata, *, tied: bool) -> dict[str, Any]:
    """config.json from the ``llama.*`` keys. ``tied``: the file has no head of its own."""
    architecture = metadata.need("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(
            f"the GGUF file holds architecture {architecture!r}; only 'llama' can be converted. "
            "Give a Hugging Face folder with safetensors instead."
        )
    scaled = [key for key in metadata if key.startswith("llama.rope.scaling")]
    if scaled and metadata.get("llama.rope.scaling.type") != "none":
        raise UnsupportedModelError(
            f"the GGUF file scales its rope ({', '.join(scaled)}); that is not converted."
        )
    heads = metadata.need("llama.attention.head_count")
    hidden = metadata.need("llama.embedding_length")
    rope_dim = metadata.get("llama.rope.dimension_count", hidden // heads)
    head_dim = metadata.get("llama.attention.key_length", hidden // heads)
    if rope_dim != head_dim:
        raise UnsupportedModelError(f"rope over {rope_dim} of {head_dim} head dimensions is not converted.")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata.get("llama.vocab_size", len(metadata.need("tokenizer.ggml.tokens"))),
        "hidden_size": hidden,
        "intermediate_size": metadata.need("llama.feed_forward_length"),
        "num_hidden_layers": metadata.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.need("llama.context_length"),
        "rms_norm_eps": _shortest(metadata.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token_id"] = token_id
    return config


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 is meant as 1e-05."""
    return float(str(np.float32(value)))


# ---------------------------------------------------------------- tokenizer


def write_tokenizer(metadata: _Metadata, config: dict[str, Any], folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE (GGUF calls it ``gpt2``)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = metadata.need("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in ("smollm", "gpt-2"):
        raise UnsupportedModelError(
            f"the GGUF file's tokenizer is {kind!r} with splitting {pre!r}; only byte-level BPE ('gpt2') "
            "with 'smollm' or 'gpt-2' splitting can be converted. Give a Hugging Face folder instead."
        )
    tokens: list[str] = metadata.need("tokenizer.ggml.tokens")
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    # Byte-level alphabets write a blank as Ġ, so the one blank in a merge always separates its two halves.
    pairs = [tuple(merge.split(" ", 1)) for merge in metadata.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_kind in zip(tokens, kinds, strict=True):
        if token_kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))

    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            settings[f"{name}_token"] = tokens[token_id]
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        settings["chat_template"] = template
    _write_json(folder / "tokenizer_config.json", settings)


# ---------------------------------------------------------------- tensors


def _write_tensors(
    reader: GGUFReader, config: dict[str, Any], path: Path, on_bytes: Callable[[int, int], None]
) -> None:
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    total = sum(2 * int(tensor.n_elements) for tensor in reader.tensors)  # bfloat16
    done = 0
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name, heads = _hugging_face_name(tensor.name, config)
        weight = dequantize(tensor.data, tensor.tensor_type)
        if heads:
            weight = unpermute_rope(weight, heads)
        # A float32 tensor comes as a read-only view of the mapped file; torch wants memory of its own.
        tensors[name] = torch.from_numpy(np.array(weight, dtype=np.float32)).to(torch.bfloat16)
        done += 2 * int(tensor.n_elements)
        on_bytes(done, total)
    missing = _expected_names(config) - tensors.keys()
    if missing:
        raise ModelLoadError(f"the GGUF file lacks {len(missing)} tensors, first {min(missing)!r}.")
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # save_file makes it readable by its owner only; caches are often shared


def unpermute_rope(weight: np.ndarray, heads: int) -> np.ndarray:
    """Bring rows of a query or key projection back into Hugging Face's rope order.

    ``weight`` (heads * D, hidden). llama.cpp rotates neighbours (2i, 2i + 1), Hugging Face rotates halves
    (i, i + D/2); the converter to GGUF interleaved each head's rows, here that is undone.
    """
    rows, hidden = weight.shape
    by_pair = weight.reshape(heads, rows // heads // 2, 2, hidden)  # (heads, D/2, 2, hidden)
    return by_pair.swapaxes(1, 2).reshape(rows, hidden)  # (heads * D, hidden)


def _hugging_face_name(name: str, config: dict[str, Any]) -> tuple[str, int]:
    """(Hugging Face's tensor name, heads whose rows to reorder or 0)."""
    if name in OUTER_TENSORS:
        return OUTER_TENSORS[name], 0
    prefix, layer, rest = (*name.split(".", 2), "", "")[:3]
    if prefix != "blk" or rest not in LAYER_TENSORS:
        raise UnsupportedModelError(
            f"the GGUF file holds tensor {name!r}, which a plain Llama does not have."
        )
    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }.get(rest, 0)
    return f"model.layers.{layer}.{LAYER_TENSORS[rest]}", heads


def _expected_names(config: dict[str, Any]) -> set[str]:
    layers = range(config["num_hidden_layers"])
    names = {f"model.layers.{layer}.{rest}" for layer in layers for rest in LAYER_TENSORS.values()}
    names |= {"model.embed_tokens.weight", "model.norm.weight"}
    return names if config["tie_word_embeddings"] else names | {"lm_head.weight"}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
