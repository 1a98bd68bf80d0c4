"""Owns the engine behind the page: loads models and rebuilds engines in the background, and knows at any moment
what to show.

One object, made by the start of the page and passed to whoever needs it. Its state is a frozen value that is
replaced, so that readers need no lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from micro_vllm.errors import ConfigError, FetchCancelledError, MicroVLLMError
from micro_vllm.memory import memory_limit
from micro_vllm.trace import read_trace
from ui.host.engine_options import EngineOptions, check_memory, check_pace
from ui.host.fast_path import FastPath
from ui.host.serving import LoadWatch, ServingEngine, load_weights, start_engine
from ui.host.state import REBUILT, REPLACED, SHUT_DOWN, HostState
from ui.replay import Replay
from ui.settings import Settings
from ui.view import EngineView

__all__ = ["SHUT_DOWN", "EngineHost", "HostState", "ServingEngine"]

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""A load that goes on gets so long to clean up behind itself when the page ends."""


Loader = Callable[..., Any]
"""``loader(name, progress=watch)`` -> LoadedModel; see LoadWatch."""


class EngineHost:
    """Empty -> loading -> ready or error. Another model, or other options, keep the old engine serving until the new
    one is up; then its requests end with the reason."""

    def __init__(
        self, settings: Settings, *, load: Loader | None = None, sample_path: Path | None = None
    ) -> None:
        self.settings = settings
        self._load_model = load or load_weights
        self._options = EngineOptions(num_blocks=settings.num_blocks, block_size=settings.block_size)
        self._lock = threading.Lock()
        self._state = HostState()
        self._engine: ServingEngine | None = None
        self._thread: threading.Thread | None = None
        self._watch: LoadWatch | None = None
        self._is_closed = False
        self._has_story = False
        self._sample = _read_sample(sample_path)
        self._fast_path = FastPath(self._note_kernels)

    # ------------------------------------------------------------ reading

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def engine(self) -> ServingEngine | None:
        return self._engine

    @property
    def options(self) -> EngineOptions:
        """Of the engine that serves, or of the first one to come."""
        engine = self._engine
        return engine.options if engine else self._options

    @property
    def default_options(self) -> EngineOptions:
        """What the page was started with."""
        return self._options

    @property
    def is_paused(self) -> bool:
        """Whether the engine itself is paused: then nobody's answer goes on, until Resume or Step."""
        engine = self._engine
        return engine is not None and engine.loop.is_paused

    def replay(self) -> Replay | None:
        """The story on show. The sample's, until an engine of this page has computed something or was rebuilt; from
        then on each engine shows its own, also while that is empty."""
        engine = self._engine
        if engine is not None:
            engine.replay.follow(engine.log)
            if self._has_story or engine.has_steps():
                self._has_story = True
                return engine.replay
        return self._sample

    def view(self) -> EngineView | None:
        """The newest step of what is on show."""
        replay = self.replay()
        return replay.view() if replay is not None else None

    def health(self) -> dict[str, Any]:
        """The answer of ``GET /health``."""
        engine, state = self._engine, self._state
        counts = engine.loop.stats() if engine else None
        status = "ok" if counts is not None else "error" if state.status == "error" else "loading"
        return {
            "status": status,
            "model": state.serving or state.model,
            "running": counts.num_running if counts else 0,
            "waiting": counts.num_waiting if counts else 0,
            "free_blocks": counts.num_free_blocks if counts else 0,
            "num_blocks": counts.num_blocks if counts else 0,
            **({"detail": state.message} if status == "error" else {}),
        }

    async def wait_until_settled(self, seconds: float) -> HostState:
        """The state, after at most ``seconds``, at once when nothing is being loaded."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._state.status in ("empty", "loading") and self._engine is None:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.05)
        return self._state

    # ------------------------------------------------------------ another model

    def load(self, name: str) -> bool:
        """Begin to load a model in the background. False if another load or a rebuild is still going on."""
        with self._lock:
            if self._is_closed or self._state.is_busy:
                return False
            self._set(status="loading", model=name, message=f"Loading {name}", progress=None)
            self._watch = LoadWatch(name, self._report)
            self._run(self._run_load, name, self._watch)
            return True

    def cancel_load(self) -> bool:
        """Give up the load that is going on; the old model, if any, goes on. False if there is none."""
        with self._lock:
            if self._state.status != "loading" or self._watch is None:
                return False
            self._watch.cancel.set()
            self._set(message="Cancelling", progress=None)
            return True

    def _run_load(self, name: str, watch: LoadWatch) -> None:
        try:
            loaded = self._load_model(name, progress=watch)
            watch.check_cancelled()
            options = self.options.for_model(loaded.config.max_model_len)
            engine = start_engine(loaded, options, self.settings.kv_cache_memory_bytes)
        except FetchCancelledError:
            words = f"Loading {name} was cancelled."
            with self._lock:
                if self._engine is not None:
                    self._set(status="ready", model=self._state.serving, message=words, progress=None)
                else:
                    self._set(status="error", message=words, progress=None)
            return
        except Exception as error:
            reason = _reason(error, f"loading {name}")
            with self._lock:
                self._set(status="error", message=reason, progress=None)
            return
        self._change_engine(
            engine,
            REPLACED,
            status="ready",
            model=loaded.name,
            serving=loaded.name,
            message="",
            progress=None,
        )

    def _report(self, stage: str, fraction: float | None) -> None:
        """Called on the loader's thread."""
        with self._lock:
            if self._state.message != stage or self._state.progress != fraction:
                self._set(message=stage, progress=fraction)

    # ------------------------------------------------------------ other options

    def check_options(self, options: EngineOptions) -> None:
        """Whether ``rebuild`` would take them. Raises ConfigError with the numbers and what to do."""
        engine = self._serving()
        options.check_model(engine.loaded.name, engine.longest_context)
        check_memory(options, engine.bytes_per_token, memory_limit())

    def rebuild(self, options: EngineOptions) -> None:
        """Begin to put a new engine over the same weights in place of this one, in the background.

        What was running then ends with the reason. If the engine cannot be built, the old one goes on, and
        ``state.engine_problem`` says why.

        Raises:
            ConfigError: at once, where the options cannot work; or there is no engine, or it is fixed.
        """
        if self.settings.is_hosted:
            raise ConfigError("The engine of this shared server is fixed.")
        self.check_options(options)
        with self._lock:
            if self._is_closed or self._state.is_busy:
                doing = "is being rebuilt" if self._state.is_rebuilding else f"waits for {self._state.model}"
                raise ConfigError(f"The engine {doing} just now; try again when that is done.")
            self._set(is_rebuilding=True, engine_problem="")
            self._run(self._run_rebuild, options)

    def _run_rebuild(self, options: EngineOptions) -> None:
        try:
            engine = start_engine(self._serving().loaded, options, self.settings.kv_cache_memory_bytes)
        except Exception as error:
            reason = _reason(error, "rebuilding the engine")
            with self._lock:
                self._set(is_rebuilding=False, engine_problem=reason)
            return
        self._has_story = True  # from here on an empty pool is what there is to see
        self._change_engine(engine, REBUILT, is_rebuilding=False, engine_problem="")

    def _change_engine(self, engine: ServingEngine, reason: str, **changes: Any) -> None:
        """Serve with ``engine`` from now on; end what the old one was doing, and free its pool."""
        with self._lock:
            unwanted: ServingEngine | None = engine
            if self._is_closed:
                reason = SHUT_DOWN
            else:
                unwanted, self._engine = self._engine, engine
                if unwanted is not None:
                    self._has_story = self._has_story or unwanted.has_steps()
                    engine.loop.pace = unwanted.loop.pace
                    if unwanted.loop.is_paused:
                        engine.loop.pause()
                self._set(**changes)
        if unwanted is not None:
            unwanted.loop.close(reason=reason)
        if unwanted is not engine:
            self._fast_path.begin(engine)

    def _note_kernels(self, engine: ServingEngine, words: str) -> None:
        with self._lock:
            if self._engine is engine:
                self._set(kernels=words)

    # ------------------------------------------------------------ the engine's own clock

    def pause(self) -> None:
        """Stop the engine after the step in progress, for everybody. Raises ConfigError where there is none."""
        self._serving().loop.pause()
        self._note_pause()

    def resume(self) -> None:
        self._serving().loop.resume()
        self._note_pause()

    def step_once(self) -> bool:
        """One step and no more: an engine that runs is paused first. False if there is nothing to compute."""
        loop = self._serving().loop
        if not loop.is_paused:
            self.pause()
        loop.step_once()
        stats = loop.stats()
        return stats.num_running + stats.num_waiting > 0

    def set_pace(self, seconds: Any) -> None:
        """Least seconds a step. Raises ConfigError with the range."""
        self._serving().loop.pace = check_pace(seconds)
        with self._lock:
            self._set()

    @property
    def pace(self) -> float:
        engine = self._engine
        return engine.loop.pace if engine else 0.0

    def _note_pause(self) -> None:
        with self._lock:
            self._set(is_paused=self.is_paused)

    # ------------------------------------------------------------ the end, and what all share

    def close(self) -> None:
        """End every answer, and those that wait for a model; a load that is going on comes to nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
            self._is_closed = True
            words = SHUT_DOWN[0].upper() + SHUT_DOWN[1:]
            self._state = replace(
                self._state,
                version=self._state.version + 1,
                status="error",
                message=words,
                serving="",
                progress=None,
            )
            thread = self._thread
            if self._watch is not None:
                self._watch.cancel.set()
        if engine is not None:
            engine.loop.close(reason=SHUT_DOWN)
        if thread is not None:
            thread.join(CLOSE_SECONDS)  # a download in a child process ends with it

    def _serving(self) -> ServingEngine:
        engine = self._engine
        if engine is None:
            raise ConfigError(
                "No model is loaded: there is no engine yet. Choose a model and press Load first."
            )
        return engine

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        self._thread = threading.Thread(
            target=target, args=args, name=target.__name__.strip("_"), daemon=True
        )
        self._thread.start()

    def _set(self, **changes: Any) -> None:
        """With the lock held. A closed host says nothing new."""
        if not self._is_closed:
            self._state = replace(self._state, version=self._state.version + 1, **changes)


def _reason(error: Exception, what: str) -> str:
    """In words for the page; the log hears of it too."""
    if isinstance(error, MicroVLLMError):
        logger.error("%s failed: %s", what, error)
        return str(error)
    logger.exception("%s failed", what)
    return f"{type(error).__name__}: {error}"


def _read_sample(path: Path | None) -> Replay | None:
    if path is None or not path.is_file():
        return None
    replay = Replay(is_sample=True)
    replay.apply(read_trace(path))
    return replay
