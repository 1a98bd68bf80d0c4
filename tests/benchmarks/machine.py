"""What the machine can do at best, and what else it was doing: measured the way an engine would use it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

READ_BYTES = 256 * 1024 * 1024
"""Far more than any cache holds."""
ROWS, INNER, COLUMNS = 512, 1536, 1536
"""A prompt chunk through a layer of a small model."""
TRIES = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the figures are from."""

    processor: str
    num_cores: int
    num_threads: int
    versions: dict[str, str]
    load_average: float
    """Of the minute before the run; above the usual the figures are those of a busy machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates that nothing on this machine can beat, with torch's threads."""

    read_gb_per_s: float
    bf16_gflop_per_s: float
    int8_gop_per_s: float

    def products(self, arithmetic: str) -> float:
        """Operations a second, in billions, of ``bf16`` or ``int8``."""
        return self.int8_gop_per_s if arithmetic == "int8" else self.bf16_gflop_per_s


class LimitProbe:
    """Measures the limits again and again, in the rounds: the neighbours of a virtual machine change from minute to
    minute. A sample takes a tenth of a second or so."""

    def __init__(self, read_bytes: int = READ_BYTES) -> None:
        self._floats = torch.ones(read_bytes // 4)
        self._longs = self._floats.view(torch.int64)
        self._x = torch.randn(ROWS, INNER).bfloat16()
        self._weight = torch.randn(COLUMNS, INNER).bfloat16()
        self._x8 = torch.randint(-127, 128, (ROWS, INNER), dtype=torch.int8)
        self._weight8 = torch.randint(-127, 128, (INNER, COLUMNS), dtype=torch.int8)
        self._packed = None
        if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS)

    @torch.inference_mode()
    def read(self) -> float:
        """GB/s, the best of a few tries."""
        seconds = min(_best(self._floats.sum), _best(self._longs.sum))
        return self._floats.numel() * 4 / seconds / 1e9

    @torch.inference_mode()
    def sample(self) -> Limits:
        """The best of a few tries of each."""
        bf16 = _best(lambda: torch.nn.functional.linear(self._x, self._weight))
        if self._packed is not None:
            packed = self._packed
            bf16 = min(
                bf16,
                _best(lambda: torch.ops.mkldnn._linear_pointwise(self._x, packed, None, "none", [], "")),
            )
        int8 = _best(lambda: torch._int_mm(self._x8, self._weight8))
        operations = 2 * ROWS * INNER * COLUMNS / 1e9
        return Limits(
            read_gb_per_s=self.read(),
            bf16_gflop_per_s=operations / bf16,
            int8_gop_per_s=operations / int8,
        )


def typical(samples: Sequence[Limits]) -> Limits:
    """Medians."""
    return Limits(
        median(one.read_gb_per_s for one in samples),
        median(one.bf16_gflop_per_s for one in samples),
        median(one.int8_gop_per_s for one in samples),
    )


class BusyClock:
    """How much of the cores other programs took, and the machine below a virtual one, since it was made."""

    def __init__(self) -> None:
        self._busy, self._own, self._wall = _busy_seconds(), process_time(), perf_counter()

    def others_share(self) -> float | None:
        """0 to 1, of all cores; None where the system does not tell."""
        now = _busy_seconds()
        if now is None or self._busy is None:
            return None
        others = now - self._busy - (process_time() - self._own)
        return min(1.0, max(0.0, others / ((perf_counter() - self._wall) * (os.cpu_count() or 1))))


def _busy_seconds() -> float | None:
    """CPU seconds of all programs since the start, idle and waiting for disks left out, stolen time counted."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            values = [int(value) for value in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = values
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def describe_machine() -> Machine:
    return Machine(
        processor=_processor(),
        num_cores=os.cpu_count() or 1,
        num_threads=torch.get_num_threads(),
        versions=_versions(),
        load_average=os.getloadavg()[0],
    )


def _best(work: Callable[[], object]) -> float:
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
