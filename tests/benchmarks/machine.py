"""What the machine can do at best: memory reads and bfloat16 products, measured the way the engine would use them."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import torch

READ_BYTES = 512 * 1024 * 1024
"""Far more than any cache holds."""
GEMM_SHAPE = (512, 1536, 1536)
"""Rows, inner, columns: a prompt chunk through a layer of a small model."""
TRIES = 7


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates are the best of a few tries, with torch's threads."""

    processor: str
    num_cores: int
    num_threads: int
    read_gb_per_s: float
    gemm_gflop_per_s: float
    versions: dict[str, str]
    load_average: float
    """Of the minute before the run; above the usual the figures are those of a busy machine."""


def measure_machine() -> Machine:
    return Machine(
        processor=_processor(),
        num_cores=os.cpu_count() or 1,
        num_threads=torch.get_num_threads(),
        read_gb_per_s=_read_rate() / 1e9,
        gemm_gflop_per_s=_gemm_rate() / 1e9,
        versions=_versions(),
        load_average=os.getloadavg()[0],
    )


def _read_rate() -> float:
    """Bytes a second of one pass over memory."""
    data = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    return READ_BYTES / _best(data.sum)


def _gemm_rate() -> float:
    """Floating-point operations a second of a bfloat16 linear layer."""
    rows, inner, columns = GEMM_SHAPE
    x = torch.randn(rows, inner, dtype=torch.bfloat16)
    weight = torch.randn(columns, inner, dtype=torch.bfloat16)
    return 2 * rows * inner * columns / _best(lambda: torch.nn.functional.linear(x, weight))


def _best(work) -> float:  # any callable
    seconds = []
    for _ in range(TRIES):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return min(seconds)


def _processor() -> str:
    """Model name and the vector extensions that matter here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = set(facts.get("flags", "").split())
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16") if flag in flags]
    return f"{facts.get('model name', platform.machine())} ({', '.join(known) or 'no AVX2'})"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "llama-cpp-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
