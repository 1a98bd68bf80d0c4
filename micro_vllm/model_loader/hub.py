"""Models on the Hugging Face Hub: a pinned commit, safetensors and tokenizer files only."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from micro_vllm.errors import ModelLoadError
from micro_vllm.model_loader import hub_download
from micro_vllm.model_loader.cache import Manifest, describe_files
from micro_vllm.model_loader.fetch import FetchMonitor, folder_bytes, run_child

SECONDS_TO_LIST = 15.0
"""Longest wait for the list of files, Python's start included; then the Hub counts as away."""


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hub. ``revision`` is a commit; None follows the main branch."""

    hub_id: str
    revision: str | None
    download_size: int | None = None
    """Bytes of the files that are fetched; None where it was not looked up."""

    @property
    def badge(self) -> str:
        return f"Hub, commit {self.revision[:7]}" if self.revision else "Hub, revision not pinned"


class HubFetchError(ModelLoadError):
    """The Hub did not give the model: no answer, no such repository, or no permission."""


def hub_is_off() -> bool:
    """Whether the user asked for no network, the way Hugging Face's own libraries are asked."""
    return any(
        os.environ.get(name, "").lower() in ("1", "on", "yes", "true")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def snapshot_in_hub_cache(source: HubSource) -> Path | None:
    """The folder in Hugging Face's own cache, if another program fetched this very commit whole."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source.hub_id, revision=source.revision, local_files_only=True))
    except Exception:  # several kinds of "not there", depending on the version of huggingface_hub
        return None
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    """A snapshot may hold only what some program once asked for: look for config, all weights, tokenizer."""
    index = folder / "model.safetensors.index.json"
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        shards = {"model.safetensors"}
    except (OSError, ValueError, KeyError):
        return False
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json")
    return (
        all((folder / name).is_file() for name in ("config.json", *shards))
        and any((folder / name).is_file() for name in tokenizers)
    )  # fmt: skip


def fetch_hub(source: HubSource, monitor: FetchMonitor, model: Path, work: Path) -> Manifest:
    """Download the repository's files into ``model``.

    Raises:
        HubFetchError: the Hub does not answer within seconds, or says no.
        ModelLoadError: a file arrived damaged, or the repository has no safetensors.
        FetchCancelledError: the caller cancelled.
    """
    if hub_is_off():
        raise HubFetchError(f"the Hub was not asked for {source.hub_id}: HF_HUB_OFFLINE is set.")
    listing = _download(source, model, work, monitor)
    shutil.rmtree(model / ".cache", ignore_errors=True)  # huggingface_hub's notes on the download
    files: dict[str, dict[str, Any]] = listing["files"]
    if not any(name.endswith(".safetensors") for name in files):
        raise HubFetchError(f"{source.hub_id} has no .safetensors weights; other formats are not fetched.")
    found = describe_files(model, monitor)
    for name, expected in files.items():
        file = found.get(name)
        if file is None or (expected["size"] is not None and file.size != expected["size"]):
            size = "missing" if file is None else f"{file.size:,} bytes"
            raise ModelLoadError(
                f"{source.hub_id}: {name} is {size}, expected {expected['size']} bytes; try again."
            )
        if expected["sha256"] is not None and file.sha256 != expected["sha256"]:
            raise ModelLoadError(f"{source.hub_id}: {name} is damaged (its sha256 is wrong); try again.")
    return Manifest(source="hub", origin=f"{source.hub_id} at commit {listing['commit']}", files=found)


def _download(source: HubSource, model: Path, work: Path, monitor: FetchMonitor) -> dict[str, Any]:
    output = work / "hub.log"
    listing: dict[str, Any] = {}

    def report() -> None:
        if not listing:
            listing.update(_messages(output).get("files", {}))
        if not listing:
            monitor.report(f"Asking the Hub for {source.hub_id}")
            return
        total = sum(file["size"] or 0 for file in listing["files"].values())
        monitor.report(f"Downloading {source.hub_id}", min(folder_bytes(model), total), total)

    report()
    # -P: the folder of the script holds names such as wheel.py, which must not shadow packages.
    command = [sys.executable, "-P", hub_download.__file__, source.hub_id, source.revision or "", str(model)]
    result = run_child(
        command,
        output=output,
        monitor=monitor,
        on_poll=report,
        extra_env={"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        deadline=lambda seconds: not listing and seconds > SECONDS_TO_LIST,
    )
    messages = _messages(output)
    if "done" in messages:
        return messages["files"]
    said = messages.get("error")
    if said is None and result.returncode is None:
        said = {"error": "no answer", "message": f"nothing within {SECONDS_TO_LIST:.0f} seconds"}
    if said is None:
        tail = " ".join(result.output.split()[-40:])
        said = {"error": "no answer", "message": f"exit code {result.returncode}: {tail}"}
    if said["error"] == "gated":
        raise HubFetchError(
            f"the Hub asks for permission before it gives {source.hub_id} ({said['message']}). "
            "Accept its terms on the model's page and log in with: hf auth login"
        )
    if said["error"] == "not found":
        raise HubFetchError(f"the Hub has no {source.hub_id} at this revision ({said['message']}).")
    raise HubFetchError(f"the Hub does not answer ({said['message']}).")


def _messages(output: Path) -> dict[str, dict[str, Any]]:
    """The child's messages so far, by their key: ``files``, ``done``, ``error``."""
    found: dict[str, dict[str, Any]] = {}
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        if line.startswith(hub_download.MARK):
            try:
                message = json.loads(line.removeprefix(hub_download.MARK))
            except ValueError:  # still being written
                continue
            found.update({key: message for key in ("files", "done", "error") if key in message})
    return found
