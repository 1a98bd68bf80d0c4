"""What is compared: every system answers the same requests from the same weights, without stopping early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal, Protocol

from tests.benchmarks.workloads import TokenRequest, Workload


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """What a report must know of a system."""

    name: str
    weight_bytes: int
    """Read once in every forward pass: all products, the head included (a tied head and embedding count once)."""
    arithmetic: Literal["bf16", "int8"]
    """Of its large products: which measured rate they are compared with."""
    formats_of: str = ""
    """Peer of which this is one weight format among several."""


@dataclass(frozen=True, slots=True)
class WaveResult:
    """One timed wave."""

    seconds: float
    """From handing the requests over to the last token."""
    outputs: tuple[tuple[int, ...], ...]
    """Per request the new token ids, in the order of the requests."""
    first_token_seconds: float | None = None
    """Until the first token of the first request; None where the system does not tell."""
    cpu_seconds: float = 0.0
    """Of all threads of this process. Grows little when other programs take the cores, unlike the wall clock."""
    num_forwards: int | None = None
    """Forward passes of the model; None where the system does not tell."""


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = perf_counter(), process_time()

    def seconds(self) -> float:
        return perf_counter() - self._wall

    def result(
        self,
        outputs: tuple[tuple[int, ...], ...],
        num_forwards: int | None = None,
        first_token_seconds: float | None = None,
    ) -> WaveResult:
        """The wave ends now."""
        seconds, cpu = self.seconds(), process_time() - self._cpu
        return WaveResult(seconds, outputs, first_token_seconds, cpu, num_forwards)


class System(Protocol):
    """One engine under test."""

    info: SystemInfo

    def prepare(self, workload: Workload) -> None:
        """Make room for a workload: caches and contexts are allocated here, outside the timed part."""
        ...

    def run(self, requests: Sequence[TokenRequest]) -> WaveResult:
        """Answer all of them and time it."""
        ...

    def close(self) -> None:
        """Give the memory back. ``prepare`` may follow."""
        ...


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Of the model in bfloat16, as the systems that compute in it read them."""

    layer_parameters: int
    head_parameters: int

    @property
    def bf16_bytes(self) -> int:
        return 2 * (self.layer_parameters + self.head_parameters)


@dataclass(frozen=True, slots=True)
class Peer:
    """A name for ``--peers`` and the systems behind it."""

    name: str
    package: str
    """Import name; the peer is left out with a hint if it is missing."""
    install: str
    module: str
    """Has ``build_systems(folder, sizes) -> list[System]``."""

    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def build_systems(self, folder: Path, sizes: WeightSizes) -> list[System]:
        build: Callable[[Path, WeightSizes], list[System]] = import_module(self.module).build_systems
        return build(folder, sizes)


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
