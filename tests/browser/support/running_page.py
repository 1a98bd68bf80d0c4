"""The real page on a free port: in this process, so that a test can look at the engine, or as ``python app.py``."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ui.feed.live import Live
from ui.host.engine_host import EngineHost
from ui.server import SAMPLE_TRACE, PageServer, build_app
from ui.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


class RunningPage:
    """A page with its host; ``url`` ends with a slash."""

    def __init__(self, host: EngineHost, url: str, live: Live) -> None:
        self.host = host
        self.url = url
        self.live = live

    def health(self) -> dict[str, Any]:
        return get_health(self.url)

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """The first health that satisfies ``condition``; AssertionError with the last one after ``seconds``."""
        return wait_for_health(self.url, condition, seconds)

    @property
    def loop(self) -> Any:
        assert self.host.engine is not None
        return self.host.engine.loop

    @property
    def log(self) -> Any:
        assert self.host.engine is not None
        return self.host.engine.log


@contextlib.contextmanager
def page_in_process(
    model: str, *, load: Any = None, pace: float = 0.0, **settings: Any
) -> Iterator[RunningPage]:
    """Serve the page from a thread. ``pace`` is the least seconds of an engine step, for tests that interrupt."""
    port = settings.pop("port", None) or steady_port()
    host = EngineHost(Settings(model=model, port=port, **settings), load=load, sample_path=SAMPLE_TRACE)
    app = build_app(host)
    server = PageServer(app, host, "127.0.0.1", port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    page = RunningPage(host, f"http://127.0.0.1:{port}/", app.state.page.live)
    try:
        wait_for_health(page.url, lambda health: True, 30)
        host.load(model)
        if load is None:
            page.wait_for(lambda health: health["status"] == "ok", 60)
            page.loop.pace = pace
        yield page
    finally:
        server.should_exit = True
        thread.join(10)
        host.close()


@contextlib.contextmanager
def page_as_program(
    *arguments: str, output: IO[str] | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen, str]]:
    """``python app.py`` in a process of its own, killed at the end. ``output``: where its words go."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), *arguments],
        cwd=ROOT,
        env={**os.environ, "GRADIO_SERVER_PORT": str(port), **environment},
        stdout=output,
        stderr=output,
    )
    try:
        yield process, f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def steady_port() -> int:
    """A free port, the same again once it is free again: what a browser keeps for an address stays of use."""
    # Below those that systems hand out, and other runs of the tests have others.
    first = 10_000 + os.getpid() % 20_000
    for port in range(first, first + 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As servers do: connections of the last one may linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {first} to {first + 99} is free")


def get_health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + "health", timeout=5) as answer:
        return json.load(answer)


def wait_for_health(url: str, condition: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    health: dict[str, Any] | None = None
    while True:
        with contextlib.suppress(OSError):
            health = get_health(url)
            if condition(health):
                return health
        assert time.monotonic() < deadline, f"after {seconds} s health is still {health}"
        time.sleep(0.05)


def wait_until_ok(url: str, seconds: float = 120) -> dict[str, Any]:
    """The health once a model serves. Fails at once, with the reason, when it cannot be loaded."""
    health = wait_for_health(url, lambda health: health["status"] != "loading", seconds)
    assert health["status"] == "ok", health
    return health
