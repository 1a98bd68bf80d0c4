"""GGUF to a Hugging Face folder: the same model, the same tokenizer, and nothing dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Quant
from transformers import AutoModelForCausalLM, AutoTokenizer

from micro_vllm.errors import FetchCancelledError, ModelLoadError, UnsupportedModelError
from micro_vllm.model_loader.gguf_conversion import convert_gguf, unpermute_rope
from tests.engine.support.gguf_wheel import HEAD_DIM, HEADS, HIDDEN, TEMPLATE, TOKENS, tiny_llama, write_gguf

IDS = torch.tensor([[1, 40, 77, 5, 200, 13, 99, 41, 7, 8, 150, 2]])


def converted(model, tmp_path: Path, quant: Quant = Quant.F32, **extra: str) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert_gguf(write_gguf(model, tmp_path / "model.gguf", quant, **extra), folder)
    return folder


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quant", [Quant.F32, Quant.Q8_0, Quant.Q4_1])
def test_converted_model_has_the_logits_of_the_original(tmp_path: Path, quant: Quant, tied: bool) -> None:
    original = tiny_llama(tied=tied)
    folder = converted(original, tmp_path, quant)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # What the folder should hold: the original, rounded as GGUF rounds it, then to bfloat16.
    expected = tiny_llama(tied=tied)
    with torch.no_grad():
        for name, weight in expected.named_parameters():
            if "norm" not in name and quant != Quant.F32:
                rounded = gguf.dequantize(gguf.quantize(weight.numpy(), quant), quant)
                weight.copy_(torch.from_numpy(rounded))
            weight.copy_(weight.to(torch.bfloat16).float())
        want, got, exact = expected(IDS).logits, loaded(IDS).logits, original(IDS).logits
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if quant != Quant.Q4_1:  # and near the model before any rounding
        assert torch.corrcoef(torch.stack([got.flatten(), exact.flatten()]))[0, 1] > 0.999
    assert loaded.config.tie_word_embeddings is tied


def test_query_rows_in_llama_cpp_order_come_back() -> None:
    weight = torch.arange(HEADS * HEAD_DIM * HIDDEN).reshape(HEADS * HEAD_DIM, HIDDEN).numpy()
    interleaved = weight.reshape(HEADS, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2).reshape(weight.shape)
    assert not (interleaved == weight).all()
    assert (unpermute_rope(interleaved, HEADS) == weight).all()


def test_config_and_tokenizer_say_what_the_file_said(tmp_path: Path) -> None:
    folder = converted(tiny_llama(), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["rms_norm_eps"], config["rope_theta"], config["head_dim"]) == (1e-5, 50000.0, HEAD_DIM)
    assert config["max_position_embeddings"] == 128
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    text = "hello world 2025 äöü 😀"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == TOKENS.index("hello")  # merges apply
    digits = [TOKENS.index(digit) for digit in "2025"]
    assert digits == [i for i in ids if i in digits]  # each digit alone
    assert tokenizer.encode("<|im_end|>") == [2]  # special tokens are not split


def test_progress_counts_every_byte_and_can_cancel(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf")
    seen: list[tuple[int, int]] = []
    (tmp_path / "whole").mkdir()
    convert_gguf(path, tmp_path / "whole", on_bytes=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == 2 * sum(p.numel() for p in tiny_llama().parameters())

    def refuse(done: int, total: int) -> None:
        raise FetchCancelledError("enough")

    (tmp_path / "half").mkdir()
    with pytest.raises(FetchCancelledError):
        convert_gguf(path, tmp_path / "half", on_bytes=refuse)
    assert not (tmp_path / "half" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"architecture": "qwen2"}, "qwen2"),
        ({"pre": "llama-bpe"}, "llama-bpe"),
        ({"rope_scaling": "yarn"}, "scal"),
        ({"extra_tensor": "rope_freqs.weight"}, "rope_freqs.weight"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, "blk.0.attn_q.bias"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, extra: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        converted(tiny_llama(), tmp_path, **extra)


def test_a_file_that_is_no_gguf_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model at all, not at all, not at all")
    with pytest.raises(ModelLoadError, match=r"model\.gguf"):
        convert_gguf(tmp_path / "model.gguf", tmp_path)
