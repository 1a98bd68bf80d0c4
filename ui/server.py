"""The web application: /health and the page's own files beside Gradio, on one port."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import gradio as gr
import plotly
from fastapi import FastAPI, Request, Response

from ui.engine_host import EngineHost
from ui.look import make_theme, palette_css
from ui.page import build_page

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "assets"
SAMPLE_TRACE = ASSETS / "sample_trace.jsonl"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def build_app(host: EngineHost) -> FastAPI:
    """Everything the browser asks for comes from here; no other host is ever named."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return host.health()

    plotly_url = _serve(app, PLOTLY_JS)
    live_url = _serve(app, ASSETS / "live.js")
    head = (
        f'<script src="{live_url}"></script>\n<script src="{plotly_url}" async></script>\n'
        '<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 viewBox=%220 0 16 16%22%3E'
        "%3Crect x=%221%22 y=%228%22 width=%226%22 height=%227%22 fill=%22%230b7a6b%22/%3E"
        '%3Crect x=%229%22 y=%221%22 width=%226%22 height=%2214%22 fill=%22%23E69F00%22/%3E%3C/svg%3E">'
    )
    page = build_page(host)
    page.queue(default_concurrency_limit=None, max_size=None, api_open=False)
    css = palette_css() + (ASSETS / "page.css").read_text(encoding="utf-8")
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        ssr_mode=False,
        run_history=False,
        theme=make_theme(),
        css=css,
        head=head,
        footer_links=[],
        show_error=True,
    )


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
            return Response(packed, media_type="text/javascript", headers={**kept, "Content-Encoding": "gzip"})
        return Response(content, media_type="text/javascript", headers=kept)

    return url.lstrip("/")


def serve(host: EngineHost) -> None:
    """Run until interrupted; the model is loaded behind the page."""
    import uvicorn

    settings = host.settings
    app = build_app(host)
    host.load(settings.model)
    print(f"micro-vLLM playground: http://{settings.host}:{settings.port}", flush=True)
    try:
        uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning")
    finally:
        host.close()
