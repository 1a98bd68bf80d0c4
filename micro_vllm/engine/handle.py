"""A caller's end of a request: iterate it, sync or async. Latest wins, so a slow reader delays nobody."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from micro_vllm.engine.output import RequestOutput
from micro_vllm.errors import EngineClosedError


class RequestHandle:
    """Holds the newest output only. Each iteration yields the newest one not seen yet, and ends with the finished one.

    Leaving an iteration before the end (break, a closed generator, a cancelled task) aborts the request: nobody
    waits for it any more.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._condition = threading.Condition()
        self._latest: RequestOutput | None = None
        self._version = 0
        self._error: BaseException | None = None
        self._wakers: dict[int, Callable[[], object]] = {}

    # ------------------------------------------------------------ the engine's side

    def put(self, output: RequestOutput) -> None:
        with self._condition:
            self._latest = output
            self._changed()

    def fail(self, error: BaseException, output: RequestOutput | None = None) -> None:
        """Readers get ``error``; ``output`` is all that came before it, for who asks for ``latest``."""
        with self._condition:
            self._error = error
            if output is not None:
                self._latest = output
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._condition.notify_all()
        for wake in self._wakers.values():
            with contextlib.suppress(
                RuntimeError
            ):  # that reader's event loop is closed: nobody is left to wake
                wake()

    # ------------------------------------------------------------ the caller's side

    @property
    def latest(self) -> RequestOutput | None:
        """The newest output, without waiting."""
        return self._latest

    @property
    def finished(self) -> bool:
        return self._error is not None or (self._latest is not None and self._latest.finished)

    def abort(self) -> None:
        """Give the request up. After its end this does nothing, since another may have its id by then."""
        if not self.finished:
            self._abort(self.request_id)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end. Raises TimeoutError; the request goes on then."""
        with self._condition:
            if not self._condition.wait_for(lambda: self.finished, timeout):
                raise TimeoutError(f"{self.request_id} is not finished after {timeout} s.")
            return self._read()

    def _read(self) -> RequestOutput:
        if self._error is not None:
            raise self._error
        assert self._latest is not None
        return self._latest

    def __iter__(self) -> Iterator[RequestOutput]:
        seen = 0
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._version > seen)  # noqa: B023  # called at once
                    seen, output = self._version, self._read()
                yield output
                if output.finished:
                    return
        finally:
            self._give_up()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        key, seen = id(changed), 0
        with self._condition:
            self._wakers[key] = lambda: loop.call_soon_threadsafe(changed.set)
        try:
            while True:
                with self._condition:
                    output = self._read() if self._version > seen else None
                    seen = self._version
                    changed.clear()
                if output is None:
                    await changed.wait()
                    continue
                yield output
                if output.finished:
                    return
        finally:
            with self._condition:
                self._wakers.pop(key, None)
            self._give_up()

    def _give_up(self) -> None:
        if not self.finished:
            with contextlib.suppress(EngineClosedError):  # the loop is closed, and the request with it
                self._abort(self.request_id)
