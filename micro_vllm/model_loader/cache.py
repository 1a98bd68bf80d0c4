"""The folder of fetched models: atomic, locked, and checked against a manifest.

Layout below the root::

    models/<cache key>/             a whole Hugging Face folder; it appears by one rename or not at all
    models/<cache key>/manifest     written last: source, and size and sha256 of every file
    staging/<cache key>.<random>/   work in progress; whoever holds the key's lock removes old ones
    locks/<cache key>.lock
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from micro_vllm.errors import ModelLoadError
from micro_vllm.model_loader.fetch import FetchMonitor, sha256_of

MANIFEST = "micro-vllm-manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class ManifestFile:
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a cached folder holds and where it came from."""

    source: str
    origin: str
    """The Hub id and commit, or the wheel's name, version and digest, in words."""
    files: dict[str, ManifestFile]


def default_cache_root() -> Path:
    """``MICRO_VLLM_CACHE``, else ``micro-vllm`` below the platform's cache folder."""
    chosen = os.environ.get("MICRO_VLLM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "micro-vllm"


class ModelCache:
    """Cached models below one root folder. Safe for several processes and threads at once."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root).expanduser() if root is not None else default_cache_root()

    def folder(self, key: str) -> Path:
        return self.root / "models" / safe_key(key)

    def is_whole(self, key: str) -> bool:
        """Whether the folder has a manifest and every file of it with its size. Reads no weights."""
        folder = self.folder(key)
        manifest = read_manifest(folder)
        return manifest is not None and all(
            _size(folder / name) == file.size for name, file in manifest.files.items()
        )

    def verify(self, key: str) -> list[str]:
        """Names of files whose sha256 is not the manifest's; reads everything."""
        folder = self.folder(key)
        manifest = read_manifest(folder)
        if manifest is None:
            return [MANIFEST]
        return [
            name
            for name, file in manifest.files.items()
            if _size(folder / name) != file.size or sha256_of(folder / name) != file.sha256
        ]

    def fetch_once(
        self, key: str, build: Callable[[Path, Path], Manifest], monitor: FetchMonitor
    ) -> tuple[Path, bool]:
        """The folder of ``key``, built by ``build`` unless it is whole already.

        ``build(model, work)`` fills the empty folder ``model`` and may leave anything in ``work``; it
        returns the manifest without digests of its own (see :func:`describe_files`). Only when it has
        returned does the folder appear in the cache, by one rename; if it raises, nothing is kept.
        Returns (folder, whether it was built now).
        """
        try:
            with self._locked(key, monitor):
                if self.is_whole(key):
                    return self.folder(key), False
                return self._build(key, build, monitor), True
        except OSError as error:
            raise ModelLoadError(
                f"cannot write the model cache at {self.root}: {error}. Free some space, or point the "
                "environment variable MICRO_VLLM_CACHE at a writable folder."
            ) from error

    def _build(self, key: str, build: Callable[[Path, Path], Manifest], monitor: FetchMonitor) -> Path:
        staging_root = self.root / "staging"
        staging_root.mkdir(parents=True, exist_ok=True)
        # The lock is ours, so whatever lies here for this key was left by a process that died.
        for stale in staging_root.glob(f"{safe_key(key)}.*"):
            shutil.rmtree(stale, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{safe_key(key)}.", dir=staging_root))
        try:
            model, work = staging / "model", staging / "work"
            model.mkdir()
            work.mkdir()
            manifest = build(model, work)
            write_manifest(model, manifest)
            monitor.check_cancelled()
            target = self.folder(key)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # not whole, or we would not be here; a rename cannot replace a full folder
                os.replace(target, staging / "broken")
            os.replace(model, target)
            return target
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str, monitor: FetchMonitor) -> Iterator[None]:
        path = self.root / "locks" / f"{safe_key(key)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        while True:
            try:
                lock.acquire(timeout=0.2)
                break
            except Timeout:
                monitor.report("Waiting for another process that is fetching the same model")
        try:
            yield
        finally:
            lock.release()


def safe_key(name: str) -> str:
    """A folder name from a model name: ``org/name`` becomes ``org--name``; nothing can leave the cache."""
    key = re.sub(r"[^A-Za-z0-9._-]", "-", name.replace("/", "--")).lstrip(".")
    if not key:
        raise ModelLoadError(f"{name!r} cannot name a cached model; use letters, digits, '.', '_' and '-'.")
    return key


def describe_files(folder: Path, monitor: FetchMonitor) -> dict[str, ManifestFile]:
    """Size and sha256 of every file in ``folder``, for a manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in paths)
    files: dict[str, ManifestFile] = {}
    before = 0
    for path in paths:
        start = before
        digest = sha256_of(path, lambda done, start=start: monitor.report("Checking", start + done, total))  # type: ignore[misc]
        size = path.stat().st_size
        files[path.relative_to(folder).as_posix()] = ManifestFile(size, digest)
        before += size
    return files


def write_manifest(folder: Path, manifest: Manifest) -> None:
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none, or none that this version understands."""
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if raw["format"] != FORMAT:
            return None
        files = {name: ManifestFile(**file) for name, file in raw["files"].items()}
        return Manifest(raw["source"], raw["origin"], files)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
