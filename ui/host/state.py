"""What the page says about model and engine: one frozen value, replaced with every change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["empty", "loading", "ready", "error"]
REBUILT = "the engine was rebuilt with other settings; send it again."
REPLACED = "another model was loaded; send it again."
SHUT_DOWN = "the server is shutting down."
"""Why answers end that nobody stopped."""


@dataclass(frozen=True, slots=True)
class HostState:
    """``version`` grows with every change."""

    status: Status = "empty"
    model: str = ""
    """The model that is being loaded, or that serves."""
    message: str = ""
    progress: float | None = None
    serving: str = ""
    """The model that answers now; "" for none. After a failed change of model it is the old one."""
    version: int = 0
    is_rebuilding: bool = False
    engine_problem: str = ""
    """Why the last rebuild of the engine came to nothing; "" after one that did not."""
    kernels: str = ""
    """What computes, once it is more than PyTorch; or what is being made ready for that."""
    is_paused: bool = False
    """The engine itself, for everybody: no request gets on."""

    @property
    def is_busy(self) -> bool:
        """Neither a load nor a rebuild may begin."""
        return self.status == "loading" or self.is_rebuilding
