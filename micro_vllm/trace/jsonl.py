"""A trace as JSON lines: one event a line, ``kind`` names it, the first is an EngineStarted with ``format: 1``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from micro_vllm.errors import TraceFileError
from micro_vllm.trace.events import TRACE_FORMAT, AnyEvent, EngineStarted, Snapshot, TraceEvent

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)
_KINDS = {cls.__name__ for cls in AnyEvent.__args__}


class _Kind(msgspec.Struct):
    kind: str


class _Stamp(msgspec.Struct):
    """What every event has, of whatever kind."""

    seq: int
    engine: str
    step: int
    time: float


_kind_decoder = msgspec.json.Decoder(_Kind)
_stamp_decoder = msgspec.json.Decoder(_Stamp)


def encode_event(event: TraceEvent) -> bytes:
    """One line without its newline."""
    return _encoder.encode(event)


def decode_event(line: bytes | str) -> AnyEvent | None:
    """The event of one line, or None for a kind that this version does not know."""
    if _kind_decoder.decode(line).kind not in _KINDS:
        return None
    return _decoder.decode(line)


class JsonlSink:
    """Writes every event to a file as it comes. Close it, or use it as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = self.path.open("wb")
        self._lock = threading.Lock()

    def emit(self, event: TraceEvent) -> None:
        line = encode_event(event) + b"\n"
        with self._lock:
            self._file.write(line)

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> JsonlSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_trace(events: Iterable[TraceEvent], path: str | Path) -> None:
    """Save a trace that is already in memory."""
    with JsonlSink(path) as sink:
        for event in events:
            sink.emit(event)


def read_trace(path: str | Path, *, keep_unknown: bool = False) -> Iterator[TraceEvent]:
    """The events of a saved trace, unknown kinds left out, or with ``keep_unknown`` as bare TraceEvents, so that
    whoever folds them does not take their numbers for missing ones.

    Raises TraceFileError with file and line where the text is not a trace. A last line cut short (the writer was
    killed) ends the trace quietly.
    """
    path = Path(path)
    with path.open("rb") as file:
        first = True
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                event: TraceEvent | None = decode_event(line)
                if event is None and keep_unknown:
                    event = _bare_event(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not line.endswith(b"\n") and not first:
                    return
                raise TraceFileError(f"{path.name}, line {number}: not a trace event ({error}).") from error
            if first:
                _check_first(event, path)
                first = False
            if event is not None:
                yield event
    if first:
        raise TraceFileError(f"{path.name} is empty; a trace begins with an EngineStarted event.")


def _bare_event(line: bytes) -> TraceEvent:
    stamp = _stamp_decoder.decode(line)
    return TraceEvent(seq=stamp.seq, engine=stamp.engine, step=stamp.step, time=stamp.time)


def _check_first(event: TraceEvent | None, path: Path) -> None:
    if isinstance(event, Snapshot):
        return  # a log cut at a Snapshot
    if not isinstance(event, EngineStarted):
        raise TraceFileError(f"{path.name}, line 1: a trace begins with an EngineStarted event.")
    if event.format != TRACE_FORMAT:
        raise TraceFileError(
            f"{path.name} has trace format {event.format}; this version reads format {TRACE_FORMAT}."
        )
