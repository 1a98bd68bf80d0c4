"""What every source of models shares: progress, cancelling, and a child process that can be killed.

Downloads run in a child process, so that cancelling works at any moment, even while a name is being looked
up or a server does not answer. Progress is the size of the files that grow.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from micro_vllm.errors import FetchCancelledError

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class FetchProgress:
    """One report while a model is fetched. ``bytes_total`` is None where nobody knows it."""

    stage: str
    bytes_done: int = 0
    bytes_total: int | None = None

    @property
    def fraction(self) -> float | None:
        """Done, 0 to 1; None where the total is unknown."""
        return min(1.0, self.bytes_done / self.bytes_total) if self.bytes_total else None


ProgressCallback = Callable[[FetchProgress], None]


class FetchMonitor:
    """Passes progress on to the caller and asks whether the caller has cancelled."""

    def __init__(
        self, name: str, progress: ProgressCallback | None = None, cancel: threading.Event | None = None
    ) -> None:
        self.name = name
        self._progress = progress
        self._cancel = cancel

    def report(self, stage: str, bytes_done: int = 0, bytes_total: int | None = None) -> None:
        """Tell the caller; raises :class:`FetchCancelledError` if the caller has cancelled."""
        self.check_cancelled()
        if self._progress is not None:
            self._progress(FetchProgress(stage, bytes_done, bytes_total))

    def check_cancelled(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise FetchCancelledError(f"fetching {self.name!r} was cancelled; nothing was kept.")


@dataclass(frozen=True)
class ChildResult:
    """How a child process ended. ``returncode`` is None if it was stopped for taking too long."""

    returncode: int | None
    output: str


def run_child(
    command: Sequence[str],
    *,
    output: Path,
    monitor: FetchMonitor,
    on_poll: Callable[[], None],
    extra_env: dict[str, str] | None = None,
    deadline: Callable[[float], bool] | None = None,
) -> ChildResult:
    """Run ``command`` until it ends; kill it if the caller cancels or anything here raises.

    Args:
        output: file that takes the child's stdout and stderr.
        on_poll: called about ten times a second; reports progress.
        deadline: given the seconds since the start, says whether the child has taken too long.
    """
    with open(output, "wb") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(extra_env or {})},
            start_new_session=os.name == "posix",  # so that its own children die with it
        )
    started = time.monotonic()
    try:
        while True:
            try:
                returncode: int | None = process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                monitor.check_cancelled()
                on_poll()
                if deadline is not None and deadline(time.monotonic() - started):
                    returncode = None
                    break
    finally:
        _kill(process)
    return ChildResult(returncode, output.read_text(encoding="utf-8", errors="replace"))


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    process.wait()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def sha256_of(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hex digest of a file, read in pieces; ``on_bytes`` hears how far it is and may raise."""
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        while piece := file.read(4 << 20):
            digest.update(piece)
            done += len(piece)
            if on_bytes is not None:
                on_bytes(done)
    return digest.hexdigest()
