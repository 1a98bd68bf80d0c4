"""EngineLoop: one thread steps the engine, any number of callers use it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from micro_vllm.engine.engine import Engine
from micro_vllm.engine.handle import RequestHandle
from micro_vllm.engine.input_processor import CheckedRequest, Prompt, check_request_id
from micro_vllm.engine.output import EngineStats, RequestOutput
from micro_vllm.errors import EngineClosedError, InvalidRequestError
from micro_vllm.sampling.params import SamplingParams

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EngineLoop:
    """Owns the thread on which everything about its engine happens.

    ``submit``, ``abort`` and the controls may be called from any thread and return at once; prompts are tokenized and
    checked on the caller's thread. For teachers: ``pause``, ``resume``, ``step_once`` and ``pace``.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._condition = threading.Condition()
        # Below: guarded by the condition's lock.
        self._commands: deque[Callable[[], None]] = deque()
        self._handles: dict[str, RequestHandle] = {}
        self._paused = False
        self._single_steps = 0
        self._pace = 0.0
        self._closing = False
        self._close_reason = ""
        self._stats = engine.stats()
        self._thread = threading.Thread(target=self._run, name=f"{engine.engine_id}-loop", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ requests

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_len: int = 0,
    ) -> RequestHandle:
        """Queue a request. Iterate the handle, sync or async, for its cumulative outputs.

        Raises:
            InvalidRequestError, CapacityError: at once, for this request only.
            EngineClosedError: the loop was closed.
        """
        checked = self.engine.input_processor.check(
            prompt, params, priority=priority, cache_salt=cache_salt, shared_prefix_len=shared_prefix_len
        )
        check_request_id(request_id)
        request_id = request_id if request_id is not None else f"request-{uuid.uuid4().hex[:12]}"
        handle = RequestHandle(request_id, self.abort)
        with self._condition:
            self._check_open()
            if request_id in self._handles:
                raise InvalidRequestError(
                    f"request id {request_id!r} is in use by an unfinished request; choose another, or abort that one."
                )
            self._handles[request_id] = handle
            self._commands.append(lambda: self._add(checked, handle))
            self._condition.notify_all()
        return handle

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks; its handle gets a last output with finish_reason ``abort``.

        An unknown or finished id is passed over.
        """
        if not isinstance(request_id, str):  # told here: on the loop's thread it would end the loop
            raise InvalidRequestError(
                f"request id {request_id!r} is not a string; pass the id of one request."
            )
        self._post(lambda: self._publish(self.engine.abort(request_id)))

    # ------------------------------------------------------------ controls

    def pause(self) -> None:
        """Stop stepping after the step in progress; requests may still be added and aborted."""
        self._control(paused=True)

    def resume(self) -> None:
        """Step again while there is work."""
        self._control(paused=False)

    def step_once(self) -> None:
        """While paused and there is work, make one step. Calls add up; without work there is nothing to step."""
        with self._condition:
            # Handles, since a request may be on its way from the commands to the engine just now.
            if self._paused and (self._commands or self._handles or self.engine.has_unfinished_requests()):
                self._single_steps += 1
            self._condition.notify_all()

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def pace(self) -> float:
        """Least seconds from the start of one step to the start of the next; 0 is as fast as it goes."""
        return self._pace

    @pace.setter
    def pace(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 60:
            raise InvalidRequestError(f"pace={seconds!r} is out of range; allowed: 0 to 60 seconds a step.")
        with self._condition:
            self._pace = seconds
            self._condition.notify_all()

    def _control(self, *, paused: bool) -> None:
        with self._condition:
            self._paused = paused
            self._single_steps = 0
            self._condition.notify_all()

    def stats(self) -> EngineStats:
        """As published after the last step or change; never waits for a step."""
        return self._stats

    def call(self, function: Callable[[Engine], T], timeout: float | None = 60.0) -> T:
        """Run ``function(engine)`` on the loop's thread, between two steps, and return what it returns."""
        if threading.current_thread() is self._thread:
            return function(self.engine)
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self.engine))
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future.result(timeout)

    def check_integrity(self) -> None:
        """Raises IntegrityError; runs between two steps."""
        self.call(Engine.check_integrity)

    def close(self, timeout: float = 30.0, *, reason: str = "") -> None:
        """Abort everything, stop the thread after the step in progress, and close the engine.

        With a ``reason``, who waits for an output gets it as an EngineClosedError: nobody asked for that end.
        """
        with self._condition:
            if not self._closing:
                self._close_reason = reason
            self._closing = True
            self._condition.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def __enter__(self) -> EngineLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the thread

    def _check_open(self) -> None:
        if self._closing:
            raise EngineClosedError(self._close_reason or "the engine loop is closed; start a new one.")

    def _post(self, command: Callable[[], None]) -> None:
        with self._condition:
            self._check_open()
            self._commands.append(command)
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            self._serve()
        finally:  # also after what no Exception is, SystemExit in an executor say: nobody may wait for ever
            with self._condition:
                self._closing = True
            self._shut_down()

    def _serve(self) -> None:
        next_start = 0.0
        while True:
            commands, may_step = self._wait(next_start)
            if commands is None:
                break
            for command in commands:
                command()
            if may_step and self.engine.has_unfinished_requests():
                next_start = time.monotonic()
                self._step()
            self._stats = self.engine.stats()

    def _wait(self, last_start: float) -> tuple[list[Callable[[], None]] | None, bool]:
        """Block until there is something to do. Returns the commands (None: close) and whether to step."""
        with self._condition:
            while not self._closing:
                wants_step = self.engine.has_unfinished_requests() and (
                    not self._paused or self._single_steps > 0
                )
                delay = last_start + self._pace - time.monotonic() if self._pace and wants_step else 0.0
                if not self._commands and not self.engine.has_unfinished_requests():
                    self._single_steps = 0  # asked for while there was work; there is none left to step
                if self._commands or (wants_step and delay <= 0):
                    commands = list(self._commands)
                    self._commands.clear()
                    # Commands first: whether to step is asked again once they have run.
                    may_step = wants_step and delay <= 0 and not commands
                    if may_step and self._paused:
                        self._single_steps -= 1
                    return commands, may_step
                self._condition.wait(delay if wants_step else None)
            return None, False

    def _step(self) -> None:
        try:
            self._publish(self.engine.step())
        except Exception:
            # The engine turns an executor's failure into failed requests; what gets here is a bug in the engine.
            logger.exception("the engine failed outside the executor; aborting all requests")
            self._publish(self.engine.abort(list(self.engine.scheduler.requests)))

    def _add(self, checked: CheckedRequest, handle: RequestHandle) -> None:
        try:
            self.engine.add_checked(checked, handle.request_id)
        except Exception as error:
            self._forget(handle.request_id)
            handle.fail(error)

    def _publish(self, outputs: list[RequestOutput]) -> None:
        self._stats = (
            self.engine.stats()
        )  # before the outputs: who holds the last one must not read older counts
        for output in outputs:
            handle = self._handles.get(output.request_id)
            if output.finished:
                self._forget(output.request_id)
            if handle is not None:
                handle.put(output)

    def _forget(self, request_id: str) -> None:
        with self._condition:
            self._handles.pop(request_id, None)

    def _shut_down(self) -> None:
        """Nobody waits for ever: requests get their last output, queued commands run, handles left over fail."""
        with self._condition:
            commands = list(self._commands)
            self._commands.clear()
        try:
            for command in commands:
                command()
            outputs = self.engine.abort(list(self.engine.scheduler.requests))
            if self._close_reason:
                for output in outputs:
                    if handle := self._handles.pop(output.request_id, None):
                        handle.fail(EngineClosedError(self._close_reason), output)
            else:
                self._publish(outputs)
            self.engine.close()
            self._stats = self.engine.stats()
        finally:
            reason = self._close_reason or "the engine loop was closed while this request waited."
            for handle in list(self._handles.values()):
                handle.fail(EngineClosedError(reason))
