"""Builds the kernels with the C++ compiler of the machine, once for each source, compiler and CPU, and keeps them.

Nothing of torch is compiled in: the kernels speak C (ctypes), which makes the build seconds instead of minutes, and
they use the OpenMP threads that torch has started already.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from micro_vllm.errors import UnsupportedModelError

SOURCES = ("decoder.cpp", "sampler.cpp", "filtered.cpp")
HEADERS = ("simd.h", "team.h", "product.h", "attention.h", "maxima.h", "noise.h", "draws.h")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++20",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
"""Not -ffast-math: linked into a library it makes the whole process flush small numbers to zero."""
NEEDED_CPU_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
BUILD_SECONDS = 120
_HERE = Path(__file__).parent


class NativeUnavailableError(UnsupportedModelError):
    """The kernels cannot be built or run here; the message says why and what to do."""


def check_available() -> None:
    """Raises NativeUnavailableError, with the reason, where :func:`load_kernels` could not work."""
    if missing := [flag for flag in NEEDED_CPU_FLAGS if flag not in cpu_flags()]:
        raise NativeUnavailableError(
            f"the native decoder needs a CPU with {', '.join(NEEDED_CPU_FLAGS)}; this one lacks {', '.join(missing)}. "
            "Use execution='eager'."
        )
    find_compiler()


def cpu_flags() -> frozenset[str]:
    """What Linux says that the CPU can do; nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def find_compiler() -> str:
    """The C++ compiler: ``CXX``, else g++ or clang++ on the path."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise NativeUnavailableError(
        "the native decoder is compiled on first use, and no C++ compiler was found: install g++ "
        "(for example `apt install g++`), set CXX, or use execution='eager'."
    )


def load_kernels(cache: Path) -> ctypes.CDLL:
    """Build into ``cache`` unless that is done already, and load. Seconds the first time.

    Raises:
        NativeUnavailableError: wrong CPU, no compiler, or the compiler failed; with its words.
    """
    check_available()
    compiler = find_compiler()
    library = cache / f"{_key(compiler)}.so"
    if not library.is_file():
        _build(compiler, library)
    return ctypes.CDLL(str(library))


def _key(compiler: str) -> str:
    digest = hashlib.sha256()
    for name in (*HEADERS, *SOURCES):
        digest.update((_HERE / name).read_bytes())
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, check=False, timeout=BUILD_SECONDS
    ).stdout
    digest.update(" ".join((*FLAGS, platform.machine(), *sorted(cpu_flags()))).encode() + version)
    return digest.hexdigest()[:24]


def _build(compiler: str, library: Path) -> None:
    """Into a folder of its own, then moved: who looks at the same time finds the whole library or none."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [compiler, *FLAGS, *(str(_HERE / name) for name in SOURCES), "-o", str(built)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeUnavailableError(f"{compiler} did not build the native decoder: {error}") from error
        if done.returncode != 0:
            raise NativeUnavailableError(
                f"{compiler} could not build the native decoder:\n{done.stderr[-2000:]}\nUse execution='eager'."
            )
        built.replace(library)
