"""The web application: /health and the page's own files beside Gradio, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr
import orjson
import plotly
import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.feed.live import Live
from ui.host.engine_host import EngineHost
from ui.look import make_theme, palette_css
from ui.page import build_page
from ui.traces.files import add_trace_routes

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets"
SAMPLE_TRACE = ASSETS / "sample_trace.jsonl"
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect x="1" y="8" width="6" height="7" fill="#0b7a6b"/>'
    '<rect x="9" y="1" width="6" height="14" fill="#E69F00"/></svg>'
)
SCRIPTS = (
    "page.js",
    "shortcuts.js",
    "drafts.js",
    "chart_words.js",
    "chart_quiet.js",
    "plots.js",
    "live.js",
    "focus.js",
    "clock.js",
    "trace_files.js",
    "events.js",
    "chat_store.js",
    "chat_view.js",
    "chat_menus.js",
    "chat_runs.js",
    "chat.js",
    "token_tip.js",
    "tokens.js",
    "tokenizer.js",
    "cards.js",
)
"""In order: each may use what those before it put into ``window.microVLLM``."""
STYLES = (
    "page.css",
    "render.css",
    "panels.css",
    "chat.css",
    "tokens.css",
    "cards.css",
    "clock.css",
    "events.css",
)
MAX_QUESTION_BYTES = 1024 * 1024
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def build_app(host: EngineHost) -> FastAPI:
    """Everything the browser asks for comes from here; no other host is ever named."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return host.health()

    plotly_url = _serve(app, PLOTLY_JS)
    own = "\n".join(f'<script src="{_serve(app, ASSETS / name)}"></script>' for name in SCRIPTS)
    head = (
        f'{own}\n<script src="{plotly_url}" async></script>\n'
        f'<link rel="icon" href="data:image/svg+xml,{quote(ICON)}">'
    )
    page = build_page(host)
    app.state.page = page
    add_live_route(app, page.live)
    add_trace_routes(app, page.context, page.live, page.opened)
    page.blocks.queue(default_concurrency_limit=None, max_size=None, api_open=False)
    app.add_middleware(HeadFirst, head=head.encode())
    css = palette_css() + "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in STYLES)
    return gr.mount_gradio_app(
        app,
        page.blocks,
        path="/",
        ssr_mode=False,
        run_history=False,
        theme=make_theme(),
        css=css,
        footer_links=[],
        show_error=True,
    )


class HeadFirst:
    """Puts tags into the head of the page's own HTML. Gradio's ``head=`` adds them from its script, in no order and
    without waiting for them, and components then call what is not there yet."""

    def __init__(self, app: ASGIApp, head: bytes) -> None:
        self._app = app
        self._head = head

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        start: Message = {}
        body = bytearray()

        async def hold(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            html = bytes(body).replace(b"</head>", self._head + b"\n</head>", 1)
            kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            await send({**start, "headers": [*kept, (b"content-length", b"%d" % len(html))]})
            await send({"type": "http.response.body", "body": html})

        await self._app({**scope, "headers": plain}, receive, hold)


def add_live_route(app: FastAPI, live: Live) -> None:
    """``POST /live``: what every tab asks for several times a second. A route of its own, since a Gradio function costs
    more than the answer, and waits in Gradio's line."""

    @app.post("/live")
    async def ask_live(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_QUESTION_BYTES:
                return Response(status_code=413)
        try:
            question = orjson.loads(bytes(body))
        except orjson.JSONDecodeError:
            question = None
        await asyncio.sleep(live.seconds_to_hold(question))
        # Drawing takes milliseconds; others' answers flow through this event loop.
        answer = await run_in_threadpool(live.poll, question)
        return Response(answer, media_type="application/json", headers={"Cache-Control": "no-store"})


def _serve(app: FastAPI, path: Path) -> str:
    """Serve one file, compressed, under a name that changes with its content: browsers may keep it for ever."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:12]
    packed = gzip.compress(content, 6)
    url = f"/static/{digest}/{path.name}"
    kept = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}

    @app.get(url)
    def serve(request: Request) -> Response:
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                packed, media_type="text/javascript", headers={**kept, "Content-Encoding": "gzip"}
            )
        return Response(content, media_type="text/javascript", headers=kept)

    return url.lstrip("/")


class PageServer(uvicorn.Server):
    """Ends by itself what would stay open for ever, so that the end of the program is quick and quiet.

    Every tab holds a stream (Gradio's heartbeat), every answer another one. uvicorn waits for them, then cancels
    them, with a traceback for each. So before it waits: the engine ends the answers, and Gradio's stop event, which
    ``Blocks.close`` sets where Gradio runs the server itself, ends the heartbeats.
    """

    def __init__(self, app: FastAPI, host: EngineHost, address: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(app, host=address, port=port, log_level="warning", timeout_graceful_shutdown=5)
        )
        self._page_host = host
        self._gradio_apps = [
            route.app
            for route in app.routes
            if isinstance(route, Mount) and isinstance(route.app, gr.routes.App)
        ]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._page_host.close)
        for app in self._gradio_apps:
            app.stop_event.set()
        await super().shutdown(sockets)


def serve(host: EngineHost) -> None:
    """Run until interrupted; the model is loaded behind the page."""
    # Before torch is loaded with the first model. Its OpenMP threads wait for each other by spinning; beside a
    # browser, or any other program on the same cores, that made decoding several times slower than sleeping does.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings = host.settings
    server = PageServer(build_app(host), host, settings.host, settings.port)
    host.load(settings.model)
    print(f"micro-vLLM playground: http://{settings.host}:{settings.port}", flush=True)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    finally:
        host.close()
