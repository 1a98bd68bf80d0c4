"""The fast path: int8 weights and compiled kernels, made ready beside an engine that answers already.

The engine starts in PyTorch, so the first tokens wait for nothing. Meanwhile, at low priority, the kernels are compiled
(once for a machine) and the weights quantised; then the engine changes over between two steps.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from micro_vllm.errors import EngineClosedError, MicroVLLMError
from ui.host.serving import ServingEngine

if TYPE_CHECKING:
    from micro_vllm.native.prepare import NativeParts

logger = logging.getLogger(__name__)

NATIVE = "int8 native"
NICENESS = 10


class FastPath:
    """One for the page. Keeps what it prepared for the newest model, for engines that are rebuilt over it."""

    def __init__(self, report: Callable[[ServingEngine, str], None]) -> None:
        """``report(engine, words)``: what that engine computes with now, or what is being done; on any thread."""
        self._report = report
        self._lock = threading.Lock()
        self._prepared: tuple[Any, NativeParts] | None = None
        """(loaded model, parts)"""

    def begin(self, engine: ServingEngine) -> None:
        """Return at once; ``engine`` changes over when everything is there, or stays as it is and says why."""
        if engine.options.execution == "eager" or engine.options.attention != "auto":
            self._report(engine, "")
            return
        threading.Thread(target=self._run, args=(engine,), name="fast-path", daemon=True).start()

    def _run(self, engine: ServingEngine) -> None:
        try:
            with self._lock:  # one at a time: two rebuilds in a row need the same parts
                parts = self._parts_for(engine)
            engine.loop.call(lambda e: e.use_native(parts))
        except EngineClosedError:
            return
        except MicroVLLMError as error:
            logger.info("%s stays in PyTorch: %s", engine.loaded.name, error)
            self._report(engine, "")
        except Exception:
            logger.exception("the fast path could not be made ready; PyTorch goes on")
            self._report(engine, "")
        else:
            self._report(engine, NATIVE)

    def _parts_for(self, engine: ServingEngine) -> NativeParts:
        from micro_vllm.native.prepare import prepare_native  # torch comes with it

        if self._prepared is not None and self._prepared[0] is engine.loaded:
            return self._prepared[1]
        self._prepared = None  # the weights of another model
        _be_nice()
        parts = prepare_native(engine.loaded, lambda words: self._report(engine, words))
        self._prepared = (engine.loaded, parts)
        return parts


def _be_nice() -> None:
    """This thread, and what it starts, leave the cores to the chat. Linux counts niceness by thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except (AttributeError, OSError):
        logger.debug("this system does not let a thread step back")
