"""One engine that serves the page: made from a loaded model and options, with the story it tells."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from micro_vllm.errors import FetchCancelledError
from micro_vllm.trace import StepExecuted, TraceLog
from ui.host.engine_options import EngineOptions
from ui.replay import Replay

if TYPE_CHECKING:
    from micro_vllm.engine.loop import EngineLoop
    from micro_vllm.model_loader.loaded import LoadedModel

YOUNG_VALUES = 10_000
"""After so many new ones the garbage collector looks through them."""


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """A model, the engine that serves it, and the story it tells."""

    loaded: LoadedModel
    loop: EngineLoop
    log: TraceLog
    replay: Replay
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def model_key(self) -> str:
        """Token ids of one key mean the same text."""
        return f"{self.loaded.name}@{self.loaded.path}"

    @property
    def bytes_per_token(self) -> int:
        """Of the KV cache: one slot's keys and values, in one group's layers."""
        info = self.loop.engine.info
        return info.bytes_per_block // info.block_size

    @property
    def longest_context(self) -> int:
        """Positions that the model was made for."""
        return self.loop.engine.model.max_position_embeddings

    def has_steps(self) -> bool:
        """Whether it has computed anything that its log still holds."""
        return any(isinstance(event, StepExecuted) for event in self.log.since())


def start_engine(loaded: Any, options: EngineOptions, memory_bytes: int) -> ServingEngine:
    """A new engine over weights that others may use too.

    Raises:
        ConfigError: the options do not fit the model or the memory; nothing was kept.
    """
    from micro_vllm.engine.engine import Engine  # torch comes with them: not before the page is up
    from micro_vllm.engine.loop import EngineLoop

    log = TraceLog()
    engine = Engine(options.to_config(str(loaded.name), memory_bytes, log), loaded)
    return ServingEngine(loaded, EngineLoop(engine), log, Replay(), options)


class LoadWatch:
    """What a loader is given as ``progress``: it is called with every FetchProgress, and raises once
    ``cancel`` is set."""

    def __init__(self, name: str, report: Callable[[str, float | None], None]) -> None:
        self.name = name
        self.cancel = threading.Event()
        self._report = report

    def __call__(self, progress: Any) -> None:
        self.check_cancelled()
        self._report(str(getattr(progress, "stage", progress)), getattr(progress, "fraction", None))

    def check_cancelled(self) -> None:
        if self.cancel.is_set():
            raise FetchCancelledError(f"Loading {self.name} was cancelled.")


def load_weights(name: str, progress: LoadWatch) -> Any:
    """The page's loader: a LoadedModel. Raises what ``load_model`` does."""
    from micro_vllm.model_loader import load_model  # torch comes with it: not before the page is up

    return load_model(name, progress=progress, cancel=progress.cancel)


def load_for_good(name: str, *, progress: LoadWatch) -> LoadedModel:
    """``load_weights`` in a process that is the page's alone."""
    loaded = load_weights(name, progress=progress)
    keep_for_good()
    return loaded


def keep_for_good() -> None:
    """What is there now (libraries, weights, page) stays, and the garbage collector is told so.

    Going through all of it took 0.3 s every now and then, and all answers stood still meanwhile. It also comes less
    often from now on: a step and a frame of charts make thousands of small values, almost all of which are gone before
    it could find them.
    """
    gc.unfreeze()  # the model before this one goes
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_VALUES)
