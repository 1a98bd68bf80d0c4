"""Tiny random models in Hugging Face layout, written by transformers itself.

Their weights are large (``initializer_range`` 0.2 to 0.4), so that logits differ clearly between tokens and a
wrong mask or position changes which token is greedy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen3": Qwen3Config}

TINY: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
}


def save_tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: bool = False,
    max_shard_size: str = "1GB",
    **config: Any,
) -> Path:
    """Write a random model of ``family`` ("llama", "mistral", "qwen3") to ``folder`` and return it."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**{**TINY, **config}))
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name or parameter_name.endswith("bias"):
            # transformers starts norms at one and biases at zero, which would hide a lost or swapped one.
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer:
        save_tiny_tokenizer(folder, model.config.vocab_size)
    return folder


def save_tiny_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level tokenizer without merges: every byte is a token, and ids 0 to 3 are special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab_size - len(special)]
    vocab = {piece: index for index, piece in enumerate([*special, *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    fast.save_pretrained(folder)


def edit_json(file: Path, *, remove: tuple[str, ...] = (), **changes: Any) -> None:
    """Change keys of a JSON file in place."""
    values = json.loads(file.read_text())
    values.update(changes)
    for key in remove:
        values.pop(key, None)
    file.write_text(json.dumps(values))


def load_transformers(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The same folder as transformers runs it: the reference of all parity tests."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def transformers_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Logits of every position of one prompt, ``(T, vocab)``."""
    return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


@torch.inference_mode()
def transformers_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """``count`` greedy tokens, end tokens included.

    Computed anew from all tokens at every step: transformers' cache for sliding layers keeps the wrong
    number of tokens when the window is 1, and a reference should have no cache to be wrong about.
    """
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(transformers_logits(model, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
