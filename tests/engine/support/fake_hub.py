"""A small server that answers as the Hugging Face Hub does, for the calls that a download makes."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "c0ffee" * 6 + "beef"


class FakeHub(ThreadingHTTPServer):
    """Serves ``files`` as repository ``org/tiny``. Weights are large files (LFS), as on the Hub."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], *, status: int = 200, delay: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.status, self.delay = status, delay
        self.wrong_digests: set[str] = set()
        self.fetched: list[str] = []
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def digest(self, name: str) -> str:
        return "0" * 64 if name in self.wrong_digests else hashlib.sha256(self.files[name]).hexdigest()

    def info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            sibling: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
            if name.endswith(".safetensors"):
                sibling["lfs"] = {"sha256": self.digest(name), "size": len(data), "pointerSize": 130}
            siblings.append(sibling)
        return {"_id": "1", "id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.server, unquote(urlparse(self.path).path)
        hub.asked.append(path)
        if hub.status != 200:
            self._send(hub.status, b"{}", body, {})
        elif path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "oid": "0" * 40, "size": len(data), "path": name}
                for name, data in hub.files.items()
            ]
            self._send(200, json.dumps(tree).encode(), body, {"Content-Type": "application/json"})
        elif path.startswith("/api/models/org/tiny"):
            self._send(200, json.dumps(hub.info()).encode(), body, {"Content-Type": "application/json"})
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            self._file(path.removeprefix(f"/org/tiny/resolve/{COMMIT}/"), body)
        else:
            self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str, body: bool) -> None:
        data = self.server.files[name]
        tag = self.server.digest(name) if name.endswith(".safetensors") else hashlib.sha1(data).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(data))}
        if body:
            self.server.fetched.append(name)
        self._send(200, data, body, headers)

    def _send(self, status: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        for start in range(0, len(data), 16384):
            if self.server.delay:
                time.sleep(self.server.delay)
            try:
                self.wfile.write(data[start : start + 16384])
            except OSError:  # the reader was killed
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fake_hub(files: dict[str, bytes], *, status: int = 200, delay: float = 0.0) -> Iterator[FakeHub]:
    hub = FakeHub(files, status=status, delay=delay)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
