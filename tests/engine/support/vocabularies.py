"""Tiny tokenizers of the kinds that exist in the field, written as model folders."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris, they say.",
    "hello world, hello there; the other one went home and the rest of them stayed here",
    "Grüße aus Köln, señor! naïve café — déjà vu… 100 % of 12,345 items",
    "你好，世界。今天天气很好。東京は晴れです。 안녕하세요 세계",
    "😀😃😄 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ 😀 😀",
    "def main():\n    return [x for x in range(10)]\n\n\tif x:\n\t\tpass\n",
] * 4

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING_CHATML = CHATML.replace("m['content']", "m['content'] | trim")
# Like Qwen3's: earlier answers lose what they thought.
FORGETFUL_CHATML = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)


def _write(tokenizer: Tokenizer, folder: Path, template: str | None, **special: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_level_folder(folder: Path, template: str | None = CHATML) -> Path:
    """GPT-2's kind: every byte has a token, merges cut characters anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])  # an added token with a blank inside
    return _write(tokenizer, folder, template, eos_token="<|im_end|>", bos_token="<|im_start|>")


def metaspace_folder(folder: Path, template: str | None = INST) -> Path:
    """Llama 2's and Mistral's kind: a blank is ▁, one is put before every text, unknown characters are
    runs of byte tokens, BOS is added by the tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = [AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")]
    single_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=440, special_tokens=special, show_progress=False)
    ascii_only = ["".join(char for char in line if char.isascii()) for line in CORPUS]
    split = Tokenizer(models.BPE())
    split.normalizer = tokenizer.normalizer
    split.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+"), "isolated")
    split.train_from_iterator(ascii_only, trainer)
    model = json.loads(split.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *single_bytes]
    names += [token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in names]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer.model = models.BPE(
        vocab={token: i for i, token in enumerate(names)},
        merges=merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer.add_special_tokens(special)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", names.index("<s>"))]
    )
    return _write(
        tokenizer, folder, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True
    )


def word_piece_folder(folder: Path) -> Path:
    """BERT's kind: blanks are put between words when decoding."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _write(tokenizer, folder, None, unk_token="[UNK]")
