"""Folders: sound ones in all layouts, and broken ones, which are refused before memory is spent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from micro_vllm.errors import ConfigError, ModelLoadError, ModelNotFoundError, UnsupportedModelError
from micro_vllm.model_loader.default import check_model_folder, iter_weights, tensor_shapes
from micro_vllm.model_loader.loaded import load_model
from micro_vllm.models.decoder import DecoderForCausalLM
from tests.engine.support.models import edit_json, load_transformers, save_tiny_model, transformers_logits
from tests.engine.support.paged import PagedDriver

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "tiny")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = save_tiny_model(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


def load(folder: Path, **options: Any):
    return load_model(folder, skip_tokenizer_init=True, **options)


def change_weights(folder: Path, **changes: Any) -> None:
    """Replace, add, or (None) remove tensors of an unsharded folder; ``__`` stands for a dot."""
    tensors = load_file(folder / WEIGHTS)
    for key, tensor in changes.items():
        name = key.replace("__", ".")
        if tensor is None:
            tensors.pop(name)
        else:
            tensors[name] = tensor
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def logits_of(loaded: Any, prompt: list[int]) -> torch.Tensor:
    driver = PagedDriver(loaded.model)
    return driver.step([(driver.add(prompt), len(prompt))])


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that builds a model outside the meta device."""
    init = DecoderForCausalLM.__init__

    def guarded(self: Any, config: Any, dtype: Any = torch.float32, device: Any = "cpu") -> None:
        assert str(device) == "meta", "memory was spent before the folder was checked"
        init(self, config, dtype, device)

    monkeypatch.setattr(DecoderForCausalLM, "__init__", guarded)


# ---------------------------------------------------------------- sound


def test_a_sharded_folder_gives_the_same_logits_as_transformers(sharded: Path) -> None:
    prompt = [5, 9, 11, 30, 2, 17]
    expected = transformers_logits(load_transformers(sharded), prompt)
    torch.testing.assert_close(logits_of(load(sharded), prompt), expected, atol=1e-4, rtol=0)


def test_the_index_decides_over_a_consolidated_file_beside_it(sharded: Path) -> None:
    """E27, vllm #40765. The consolidated file holds other numbers; none of them may be read."""
    tensors = {name: torch.full_like(tensor, 7.0) for name, tensor in iter_weights(sharded)}
    save_file(tensors, sharded / WEIGHTS)
    save_file(tensors, sharded / "consolidated.safetensors")
    seen = dict(iter_weights(sharded))
    assert seen.keys() == tensors.keys()
    assert not any((tensor == 7.0).all() for tensor in seen.values())
    assert {info.file for info in check_model_folder(sharded).tensors.values()} == {
        file.name for file in sharded.glob("model-*.safetensors")
    }


def test_shapes_come_from_headers_and_agree_with_the_tensors(folder: Path) -> None:
    shapes = tensor_shapes(folder)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == ((16, 48), torch.float32)
    assert shapes == {name: (tuple(t.shape), t.dtype) for name, t in iter_weights(folder)}


def test_a_tied_model_needs_no_head_and_ignores_an_extra_one(tmp_path: Path) -> None:
    """E26, vllm #53019, #6758: the extra head holds other numbers, and the logits do not change."""
    folder = save_tiny_model(tmp_path / "tied", tie_word_embeddings=True)
    assert "lm_head.weight" not in tensor_shapes(folder)
    before = load(folder)
    change_weights(folder, lm_head__weight=torch.full((199, 48), 9.0))
    after = load(folder)
    assert after.model.lm_head is None
    assert torch.equal(logits_of(before, [4, 5, 6]), logits_of(after, [4, 5, 6]))
    # A tied folder may even hold a head of another size: it is ignored by rule, not compared.
    change_weights(folder, lm_head__weight=torch.zeros(3, 3))
    load(folder)


def test_an_untied_model_without_its_head_is_refused(folder: Path, no_allocation: None) -> None:
    change_weights(folder, lm_head__weight=None)
    with pytest.raises(ModelLoadError, match=r"lacks tensor 'lm_head.weight'"):
        load(folder)


def test_rotary_buffers_of_old_llama_checkpoints_are_ignored(folder: Path) -> None:
    change_weights(folder, **{"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(4)})
    load(folder)


@pytest.mark.parametrize(
    ("asked", "named", "stored", "expected"),
    [
        ("auto", "bfloat16", torch.bfloat16, torch.bfloat16),
        ("auto", "float32", torch.float32, torch.float32),
        ("auto", "float16", torch.float16, torch.float32),  # slow on CPU
        ("auto", None, torch.bfloat16, torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16, torch.float32),
        ("bfloat16", "float32", torch.float32, torch.bfloat16),
        ("float16", "float32", torch.float32, torch.float16),
    ],
)
def test_dtype_auto_follows_the_folder_and_an_explicit_one_wins(
    tmp_path: Path, asked: str, named: str | None, stored: torch.dtype, expected: torch.dtype
) -> None:
    folder = save_tiny_model(tmp_path / "m", dtype=stored)
    edit_json(folder / "config.json", dtype=named, torch_dtype=None)
    loaded = load(folder, dtype=asked)
    assert loaded.dtype == expected
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {expected}


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="dtype='int3' is unknown; allowed: auto, float32"):
        load(folder, dtype="int3")


def test_a_loaded_model_says_what_it_is(folder: Path) -> None:
    loaded = load(folder)
    assert (loaded.name, loaded.path, loaded.tokenizer) == ("tiny", folder, None)
    assert loaded.badge
    assert loaded.num_parameters == sum(t.numel() for _, t in iter_weights(folder))
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert load(str(folder)).name == "tiny"


def test_the_tokenizer_comes_along_unless_skipped(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", tokenizer=True, vocab_size=260)
    assert load_model(folder).tokenizer is not None
    assert load(folder).tokenizer is None


# ---------------------------------------------------------------- broken


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a folder"):
        load(tmp_path / "nothing")


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config.json is missing"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_config_that_is_no_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config.json"):
        load(folder)


def test_a_truncated_file_is_named_with_both_sizes(folder: Path, no_allocation: None) -> None:
    file = folder / WEIGHTS
    whole = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(whole - 100)
    with pytest.raises(ModelLoadError, match=rf"{WEIGHTS} is truncated.*{whole - 100} bytes.*{whole}"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\x10\x00", b"\xff" * 40, b"\x04" + b"\x00" * 7 + b"nope"])
def test_a_file_that_is_no_safetensors_is_named(folder: Path, content: bytes) -> None:
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(ModelLoadError, match=WEIGHTS):
        load(folder)


def test_a_truncated_shard_is_named(sharded: Path, no_allocation: None) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    with shard.open("r+b") as stream:
        stream.truncate(shard.stat().st_size // 2)
    with pytest.raises(ModelLoadError, match=shard.name):
        load(sharded)


def test_a_missing_shard_is_named(sharded: Path, no_allocation: None) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=rf"{shard.name} is missing, but {INDEX} lists it"):
        load(sharded)


def test_an_index_that_points_at_the_wrong_shard_or_outside_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    name, file = next(iter(index["weight_map"].items()))
    index["weight_map"][name] = next(other for other in files if other != file)
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=f"lacks tensor '{name}'"):
        load(sharded)
    index["weight_map"][name] = "../secret.safetensors"
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="points outside its folder"):
        load(sharded)
    (sharded / INDEX).write_text("{}")
    with pytest.raises(ModelLoadError, match="no 'weight_map'"):
        load(sharded)


def test_a_pickle_checkpoint_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pickles \(pytorch_model.bin\).*save_pretrained"):
        load(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "consolidated.safetensors")
    with pytest.raises(ModelLoadError, match=r"has no weights.*consolidated.safetensors without"):
        load(folder)


def test_a_wrong_shape_names_file_and_tensor_before_memory_is_spent(
    folder: Path, no_allocation: None
) -> None:
    change_weights(folder, model__layers__1__self_attn__v_proj__weight=torch.zeros(16, 47))
    with pytest.raises(
        ModelLoadError, match=rf"{WEIGHTS}: tensor 'model.layers.1.self_attn.v_proj.weight' .*\[16, 47\]"
    ):
        load(folder)


def test_missing_and_unexpected_tensors_are_named(folder: Path, no_allocation: None) -> None:
    copy = shutil.copytree(folder, folder.parent / "copy")
    change_weights(copy, model__layers__2__mlp__up_proj__weight=None)
    with pytest.raises(ModelLoadError, match=r"copy lacks tensor 'model.layers.2.mlp.up_proj.weight'"):
        load(copy)
    change_weights(folder, model__layers__0__self_attn__q_proj__bias=torch.zeros(48))
    with pytest.raises(ModelLoadError, match=r"'model.layers.0.self_attn.q_proj.bias', which this arch"):
        load(folder)


def test_quantised_tensors_are_refused_by_their_dtype(folder: Path) -> None:
    change_weights(folder, model__norm__weight=torch.zeros(48, dtype=torch.int8))
    with pytest.raises(UnsupportedModelError, match=r"'model.norm.weight' is I8; only floats"):
        load(folder)


def test_an_unknown_architecture_or_rope_type_is_refused_with_the_file(
    folder: Path, no_allocation: None
) -> None:
    edit_json(folder / "config.json", rope_parameters={"rope_type": "spiral"})
    with pytest.raises(UnsupportedModelError, match=r"tiny/config.json: rope type 'spiral'"):
        load(folder)
    edit_json(folder / "config.json", architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModelError, match=r"tiny/config.json: architecture 'MambaForCausalLM'"):
        load(folder)


def test_a_stream_of_weights_is_checked_before_it_is_copied(folder: Path) -> None:
    """``load_weights`` stands on its own: it does not rely on the loader's look at the headers."""
    model = load(folder).model
    weights = dict(iter_weights(folder))
    name = "model.layers.0.mlp.gate_proj.weight"
    before = model.model.layers[0].mlp.gate_up_proj.weight.clone()
    with pytest.raises(ModelLoadError, match=f"tensor '{name}' has shape"):
        model.load_weights({**weights, name: torch.zeros(1, 48)}.items())
    assert torch.equal(model.model.layers[0].mlp.gate_up_proj.weight, before)
    with pytest.raises(ModelLoadError, match="no place for"):
        model.load_weights([("transformer.wte.weight", torch.zeros(1))])
    weights.pop(name)
    with pytest.raises(ModelLoadError, match=f"lacks tensor '{name}'"):
        model.load_weights(weights.items())
