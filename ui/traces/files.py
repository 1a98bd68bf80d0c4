"""Traces as files: save what is on show, open one that was saved, and the event table as CSV.

Routes of their own, beside Gradio: files are streamed, and nothing but JSON is ever read. Who asks is known by the
viewer token in ``X-Viewer``: what is saved holds everybody's events, and the tokens of the asker's own requests only.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import orjson
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from micro_vllm.errors import InvalidRequestError, TraceFileError
from micro_vllm.trace import TraceEvent, chrome_events, encode_event
from ui.context import PageContext
from ui.events.rows import csv_for
from ui.feed.live import Live
from ui.replay import Replay
from ui.traces.opened import MAX_FILE_BYTES, MAX_HOSTED_FILE_BYTES, MIB, OpenedTraces
from ui.traces.redact import without_tokens
from ui.visitors import Visitor

MAX_READERS = 2
"""Files that are received and read at the same time."""
RECEIVE_SECONDS = 120
"""Who sends slower than that would keep others from opening theirs."""
_CHUNK = 64 * 1024
Viewer = Annotated[str, Header(alias="X-Viewer")]


def add_trace_routes(app: FastAPI, context: PageContext, live: Live, opened: OpenedTraces) -> None:
    """``POST /trace/save``, ``/trace/open``, ``/trace/close`` and ``/events.csv``."""
    visitors = context.visitors
    max_bytes = MAX_HOSTED_FILE_BYTES if context.host.settings.is_hosted else MAX_FILE_BYTES
    readers = asyncio.Semaphore(MAX_READERS)

    def told(status: int, words: str) -> Response:
        return JSONResponse({"error": words}, status_code=status)

    def stranger() -> Response:
        return told(403, "The server does not know this tab; reload the page.")

    def on_show(asked: dict[str, Any], visitor: Visitor) -> tuple[Replay | None, frozenset[str]]:
        """The story that this tab looks at, and the requests of it that are theirs."""
        if asked.get("source") == "file":
            trace = opened.of(visitor)
            return (trace.replay if trace else None), frozenset()
        return context.host.replay(), visitors.mine(visitor.token)

    @app.post("/trace/save")
    async def save(request: Request, viewer: Viewer = "") -> Response:
        visitor = visitors.of_token(viewer)
        if visitor is None:
            return stranger()
        asked = await _question(request)
        kind = asked.get("format", "jsonl")
        if kind not in ("jsonl", "perfetto"):
            return told(400, f"format {kind!r} is unknown; known: jsonl, perfetto.")
        replay, mine = await run_in_threadpool(on_show, asked, visitor)
        if replay is None:
            return told(404, "There is no trace to save yet.")
        newest_first = await run_in_threadpool(replay.events, limit=sys.maxsize)
        kept = without_tokens(reversed(newest_first), mine)
        if kind == "perfetto":
            return _download(_perfetto(kept), "application/json", "trace.perfetto.json")
        return _download(
            _in_chunks(encode_event(e) + b"\n" for e in kept), "application/x-ndjson", "trace.jsonl"
        )

    @app.post("/trace/open")
    async def open_trace(
        request: Request,
        viewer: Viewer = "",
        file_name: Annotated[str, Header(alias="X-File-Name")] = "",
    ) -> Response:
        visitor = visitors.of_token(viewer)
        if visitor is None:
            return stranger()
        too_large = told(
            413,
            f"{safe_name(file_name)} is too large; this server opens traces of up to {max_bytes // MIB} MB.",
        )
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > max_bytes:
            return too_large
        if readers.locked():
            return told(503, "Other traces are being opened just now; try again in a moment.")
        async with readers:
            with tempfile.TemporaryDirectory(prefix="micro-vllm-trace-") as folder:
                path = Path(folder) / safe_name(file_name)
                try:
                    async with asyncio.timeout(RECEIVE_SECONDS):
                        if not await _received(request, path, max_bytes):
                            return too_large
                    trace = await run_in_threadpool(opened.open, visitor, path)
                except TimeoutError:
                    return told(408, f"The file did not arrive within {RECEIVE_SECONDS} seconds; try again.")
                except TraceFileError as error:
                    return told(400, str(error))
        return JSONResponse({"title": trace.title, "steps": trace.num_steps})

    @app.post("/trace/close")
    async def close_trace(viewer: Viewer = "") -> Response:
        visitor = visitors.of_token(viewer)
        if visitor is None:
            return stranger()
        opened.close(visitor)
        return JSONResponse({})

    @app.post("/events.csv")
    async def events_csv(request: Request, viewer: Viewer = "") -> Response:
        visitor = visitors.of_token(viewer)
        if visitor is None:
            return stranger()
        asked = await _question(request)
        replay, mine = await run_in_threadpool(on_show, asked, visitor)
        if replay is None:
            return told(404, "There are no events yet.")
        kinds, request_id, until = _filters(asked)
        try:
            table = await run_in_threadpool(csv_for, replay, mine, kinds, request_id, until)
        except InvalidRequestError as error:
            return told(400, str(error))
        return _download(table, "text/csv; charset=utf-8", "events.csv")


# ---------------------------------------------------------------- what goes out


def _download(content: Any, media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    if isinstance(content, str | bytes):
        return Response(content, media_type=media_type, headers=headers)
    return StreamingResponse(content, media_type=media_type, headers=headers)


def _perfetto(events: Iterable[TraceEvent]) -> Iterator[bytes]:
    """The document of ``micro_vllm.trace.write_chrome_trace``, as it is made."""

    def parts() -> Iterator[bytes]:
        yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
        for i, row in enumerate(chrome_events(events)):
            yield (b",\n" if i else b"") + orjson.dumps(row)
        yield b"\n]}\n"

    return _in_chunks(parts())


def _in_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Fewer, larger pieces: each is a turn of the event loop."""
    held = bytearray()
    for part in parts:
        held += part
        if len(held) >= _CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


# ---------------------------------------------------------------- what comes in


async def _received(request: Request, path: Path, max_bytes: int) -> bool:
    """Write the body to a file; False if it is longer than ``max_bytes``."""
    size = 0
    with path.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                return False
            file.write(chunk)
    return True


async def _question(request: Request) -> dict[str, Any]:
    """A small JSON object; {} for anything else."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _CHUNK:
            return {}
    try:
        asked = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _filters(asked: dict[str, Any]) -> tuple[tuple[str, ...] | None, str | None, int | None]:
    kinds, request_id, until = asked.get("kinds"), asked.get("request_id"), asked.get("until")
    return (
        tuple(kind for kind in kinds[:64] if isinstance(kind, str))
        if isinstance(kinds, list) and kinds
        else None,
        request_id if isinstance(request_id, str) and request_id else None,
        until if isinstance(until, int) and not isinstance(until, bool) and until >= 0 else None,
    )


def safe_name(header: str) -> str:
    """A file name to write to and to show, from what a client says it is."""
    name = re.sub(r"[^\w.\- ()]", "_", unquote(header)[-200:].replace("\\", "/").rsplit("/", 1)[-1]).strip(
        " ."
    )
    return name[-80:] or "trace.jsonl"
