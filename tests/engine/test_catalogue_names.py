"""From a name to a source: catalogue names, Hub ids, folders, and what is said about anything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from micro_vllm.errors import ConfigError, ModelLoadError, ModelNotFoundError
from micro_vllm.model_loader.cache import ModelCache, default_cache_root, safe_key
from micro_vllm.model_loader.catalogue import (
    HubSource,
    WheelSource,
    cache_key,
    catalogue,
    model_state,
    resolve_model,
)

DEFAULT = catalogue()[0]


def test_the_default_has_two_sources_with_keys_of_their_own() -> None:
    assert DEFAULT.name == "SmolLM2-135M-Instruct"
    hub, wheel = DEFAULT.sources
    assert isinstance(hub, HubSource)
    assert isinstance(wheel, WheelSource)
    assert cache_key(DEFAULT.name, hub) != cache_key(DEFAULT.name, wheel)
    assert wheel.badge == "4-bit origin"
    assert "4-bit" not in hub.badge


def test_every_entry_is_pinned_and_names_are_unique() -> None:
    names = [entry.name.lower() for entry in catalogue()]
    assert len(names) == len(set(names)) >= 3
    for entry in catalogue():
        assert entry.revision is not None
        assert len(entry.revision) == 40
        assert int(entry.revision, 16)
        assert entry.parameters > 0
        assert entry.size_bytes >= entry.parameters * 2
        assert entry.license
        only_hub = all(isinstance(source, HubSource) for source in entry.sources)
        assert ("Only on the Hub" in entry.note) is only_hub


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SmolLM2-135M", "Did you mean 'SmolLM2-135M-Instruct'"),
        ("qwen3", "Qwen3-0.6B"),
        ("nonsense", "SmolLM2-135M-Instruct, Qwen3-0.6B"),
        ("./nowhere/model", "path of a folder with config.json"),
        ("/nowhere/model", "path of a folder with config.json"),
        ("a/b/c", "path of a folder with config.json"),
        ("", "SmolLM2-135M-Instruct, Qwen3-0.6B"),
        ("../../nowhere", "path of a folder with config.json"),
    ],
)
def test_an_unknown_name_lists_the_catalogue_and_how_to_give_a_folder(
    tmp_path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="The catalogue has") as caught:
        resolve_model(name, cache_dir=tmp_path)
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_local_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve_model(folder)
    (folder / "config.json").write_text("{}")
    found = resolve_model(folder)
    assert (found.path, found.source, found.badge) == (folder, "folder", "local folder")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("my-model").cache_key == found.cache_key
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/my-model").path == folder


def test_two_folders_of_one_name_have_keys_of_their_own(tmp_path: Path) -> None:
    keys = set()
    for parent in ("a", "b"):
        folder = tmp_path / parent / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        keys.add(resolve_model(folder).cache_key)
    assert len(keys) == 2


def test_an_unknown_source_is_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'hub', 'wheel'"):
        resolve_model(DEFAULT.name, source="torrent", cache_dir=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError, match="no source 'wheel'"):
        resolve_model("Qwen3-0.6B", source="wheel", cache_dir=tmp_path)


def test_the_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MICRO_VLLM_CACHE", str(tmp_path / "mine"))
    assert default_cache_root() == tmp_path / "mine"
    assert ModelCache().root == tmp_path / "mine"
    monkeypatch.delenv("MICRO_VLLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_root() == tmp_path / "xdg" / "micro-vllm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_root() == tmp_path / ".cache" / "micro-vllm"


@pytest.mark.parametrize("name", ["../up", "a/../../b", "/etc/passwd", "a\\b", "a b\n"])
def test_no_name_leads_out_of_the_cache(tmp_path: Path, name: str) -> None:
    folder = ModelCache(tmp_path).folder(name)
    assert folder.resolve().parent == (tmp_path / "models").resolve()


def test_a_name_of_dots_names_nothing() -> None:
    with pytest.raises(ModelLoadError, match="cannot name"):
        safe_key("..")


def test_the_catalogue_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from micro_vllm.model_loader.catalogue import catalogue; catalogue();"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub', 'gguf') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.real_model
@pytest.mark.slow
def test_the_default_model_answers_paris(smollm2_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2_folder
    assert model_state(DEFAULT) == "here"
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (576, 30, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (9, 3, 49152)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (8192, 1e-5)
    assert config.rope_parameters["rope_theta"] == 100000
    assert config.tie_word_embeddings
    assert model.dtype == torch.bfloat16
    assert sum(weight.numel() for weight in model.parameters()) == DEFAULT.parameters
    assert (folder / "model.safetensors").stat().st_size == DEFAULT.size_bytes

    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    answer = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1] :]
    assert "Paris" in tokenizer.decode(answer, skip_special_tokens=True)
    assert answer[-1] == tokenizer.eos_token_id == 2
