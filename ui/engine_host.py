"""Owns the engine behind the page: loads models in the background, and knows at any moment what to show.

One object, made by the start of the page and passed to whoever needs it. Its state is a frozen value that is
replaced, so that readers need no lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from micro_vllm.config import EngineConfig
from micro_vllm.errors import MicroVLLMError
from micro_vllm.trace import TraceLog, read_trace
from ui.replay import Replay
from ui.settings import Settings
from ui.view import EngineView

if TYPE_CHECKING:
    from micro_vllm.engine.loop import EngineLoop
    from micro_vllm.model_loader.loaded import LoadedModel

logger = logging.getLogger(__name__)

Status = Literal["empty", "loading", "ready", "error"]
MAX_BATCHED_TOKENS = 256
"""Smaller than the engine's own default: on two cores a step stays short enough for others' tokens to flow."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """A model, the engine that serves it, and the story it tells."""

    loaded: LoadedModel
    loop: EngineLoop
    log: TraceLog
    replay: Replay

    @property
    def model_key(self) -> str:
        """Token ids of one key mean the same text."""
        return f"{self.loaded.name}@{self.loaded.path}"


@dataclass(frozen=True, slots=True)
class HostState:
    """What the page says about the model. ``version`` grows with every change."""

    status: Status = "empty"
    model: str = ""
    """The model that is being loaded, or that serves."""
    message: str = ""
    progress: float | None = None
    serving: str = ""
    """The model that answers now; "" for none. After a failed change of model it is the old one."""
    version: int = 0


Loader = Callable[..., Any]


class EngineHost:
    """Empty -> loading -> ready or error; loading another model keeps the old one serving until the new one is up."""

    def __init__(
        self, settings: Settings, *, load: Loader | None = None, sample_path: Path | None = None
    ) -> None:
        self.settings = settings
        self._load_model = load or _load_model
        self._lock = threading.Lock()
        self._state = HostState()
        self._engine: ServingEngine | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._sample = _read_sample(sample_path)

    # ------------------------------------------------------------ reading

    @property
    def state(self) -> HostState:
        return self._state

    @property
    def engine(self) -> ServingEngine | None:
        return self._engine

    def view(self) -> EngineView | None:
        """What the engine does, or the sample trace as long as this engine has not computed anything."""
        engine = self._engine
        if engine is not None:
            view = engine.replay.follow(engine.log)
            if view is not None and engine.replay.has_steps:
                return view
        return self._sample

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

    # ------------------------------------------------------------ loading

    def load(self, name: str) -> bool:
        """Begin to load a model in the background. False if another load is still going on."""
        with self._lock:
            if self._is_closed or self._state.status == "loading":
                return False
            self._set(status="loading", model=name, message=f"Loading {name}", progress=None)
            self._thread = threading.Thread(
                target=self._run_load, args=(name,), name="load-model", daemon=True
            )
            self._thread.start()
            return True

    def close(self) -> None:
        """End every answer, and those that wait for a model; a load that is going on comes to nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
            self._is_closed = True
            self._set(status="error", message="The server is shutting down.", serving="", progress=None)
        if engine is not None:
            engine.loop.close()

    def _run_load(self, name: str) -> None:
        try:
            loaded = self._load_model(name, progress=self._report)
            engine = self._start_engine(loaded)
        except Exception as error:
            if isinstance(error, MicroVLLMError):
                logger.error("could not load %s: %s", name, error)
            else:
                logger.exception("loading %s failed", name)
            reason = str(error) if isinstance(error, MicroVLLMError) else f"{type(error).__name__}: {error}"
            with self._lock:
                if not self._is_closed:
                    self._set(status="error", message=reason, progress=None)
            return
        with self._lock:
            unwanted: ServingEngine | None = engine
            if not self._is_closed:
                unwanted, self._engine = self._engine, engine
                self._set(status="ready", model=loaded.name, serving=loaded.name, message="", progress=None)
        if unwanted is not None:
            unwanted.loop.close()

    def _start_engine(self, loaded: Any) -> ServingEngine:
        from micro_vllm.engine.engine import Engine
        from micro_vllm.engine.loop import EngineLoop

        log = TraceLog()
        config = EngineConfig(
            model=str(loaded.name),
            block_size=self.settings.block_size,
            num_gpu_blocks_override=self.settings.num_blocks,
            kv_cache_memory_bytes=self.settings.kv_cache_memory_bytes,
            max_num_batched_tokens=MAX_BATCHED_TOKENS,
            trace=log,
        )
        return ServingEngine(loaded, EngineLoop(Engine(config, loaded)), log, Replay())

    def _report(self, progress: Any) -> None:
        """Called by the loader on its thread, with a FetchProgress."""
        stage = str(getattr(progress, "stage", progress))
        fraction = getattr(progress, "fraction", None)
        with self._lock:
            if not self._is_closed and (self._state.message != stage or self._state.progress != fraction):
                self._set(message=stage, progress=fraction)

    def _set(self, **changes: Any) -> None:
        self._state = replace(self._state, version=self._state.version + 1, **changes)


def _load_model(name: str, progress: Callable[[Any], None]) -> Any:
    from micro_vllm.model_loader import load_model  # torch comes with it: not before the page is up

    return load_model(name, progress=progress)


def _read_sample(path: Path | None) -> EngineView | None:
    if path is None or not path.is_file():
        return None
    replay = Replay(is_sample=True)
    replay.apply(read_trace(path))
    return replay.view()
