"""What is compared: every system answers the same requests from the same weights, greedily, without stopping early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Protocol

from tests.benchmarks.workloads import TokenRequest, Workload

OURS = "micro-vllm"


@dataclass(frozen=True, slots=True)
class WaveResult:
    """One timed wave."""

    seconds: float
    """From handing the requests over to the last token."""
    outputs: tuple[tuple[int, ...], ...]
    """Per request the new token ids, in the order of the requests."""
    cpu_seconds: float = 0.0
    """Of all threads of this process. Grows little when other programs take the cores, unlike the wall clock."""
    num_forwards: int | None = None
    """Forward passes of the model; None where the system does not tell."""


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = perf_counter(), process_time()

    def result(self, outputs: tuple[tuple[int, ...], ...], num_forwards: int | None = None) -> WaveResult:
        """The wave ends now."""
        wall, cpu = perf_counter(), process_time()
        return WaveResult(wall - self._wall, outputs, cpu - self._cpu, num_forwards)


class System(Protocol):
    """One engine under test."""

    name: str

    def prepare(self, workload: Workload) -> None:
        """Make room for a workload: caches and contexts are allocated here, outside the timed part."""
        ...

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        """Answer all of them and time it."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A name for ``--peers`` and the systems behind it."""

    name: str
    package: str
    """Import name; the peer is left out with a hint if it is missing."""
    install: str
    module: str
    """Has ``build_systems(folder, dtype) -> list[System]``."""

    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def build_systems(self, folder: Path, dtype: str) -> list[System]:
        build: Callable[[Path, str], list[System]] = import_module(self.module).build_systems
        return build(folder, dtype)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "transformers",
            "transformers",
            "python -m pip install -r requirements.txt",
            "tests.benchmarks.transformers_systems",
        ),
        Peer(
            "llama.cpp",
            "llama_cpp",
            "python -m pip install -r tests/benchmarks/requirements.txt",
            "tests.benchmarks.llama_cpp_system",
        ),
    )
}
