"""The few exceptions a caller can act on.

Every message says what happened, the value, the allowed range, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class MicroVLLMError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(MicroVLLMError, ValueError):
    """An engine setting is unknown, out of range, or unsupported."""


class InvalidRequestError(MicroVLLMError, ValueError):
    """One request's prompt or sampling parameters are wrong. Other requests are not affected."""


class CapacityError(InvalidRequestError):
    """A request can never fit: longer than ``max_model_len`` or than the whole KV pool."""


class ModelLoadError(MicroVLLMError):
    """A model folder is broken; the message names the file and, where there is one, the tensor."""


class UnsupportedModelError(ModelLoadError):
    """The folder is sound, but it asks for an architecture or a feature that is not implemented."""


class ModelNotFoundError(ModelLoadError):
    """No source has the model: not the cache, not the Hub, not a wheel."""


class FetchCancelledError(MicroVLLMError):
    """The caller cancelled a download; nothing half-made is left behind."""


class RequestFailedError(MicroVLLMError):
    """The engine failed while it computed these requests; their blocks have been freed.

    ``outputs`` holds the outputs of all requests of the call, finished ones included.
    """

    def __init__(self, message: str, outputs: list | None = None) -> None:
        super().__init__(message)
        self.outputs = outputs or []


class EngineClosedError(MicroVLLMError):
    """The engine or its loop was closed; start a new one."""


class IntegrityError(MicroVLLMError):
    """Pool, block tables, hashes and queues do not add up: a bug in the engine."""


class TraceFileError(MicroVLLMError, ValueError):
    """A file is not a trace; the message names file and line."""


class TraceLawError(MicroVLLMError):
    """Events contradict each other or skip a number, so they cannot be folded."""


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """The message for a name that does not exist, with the one that was probably meant and all there are."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(known)}."
