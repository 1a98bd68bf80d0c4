"""Who is on the page: one visitor a browser tab, with the requests that are theirs."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import dataclass, field

REQUESTS_REMEMBERED = 256
"""Own requests that stay marked as "yours" in the charts."""


@dataclass
class Visitor:
    """One tab. ``token`` is unguessable: it marks what is theirs, and salts the prefix cache of a shared server."""

    token: str
    live: set[str] = field(default_factory=set)
    """Unfinished requests."""
    num_stops: int = 0
    """How often Stop was pressed: also what is not a request yet can be stopped."""
    mine: deque[str] = field(default_factory=lambda: deque(maxlen=REQUESTS_REMEMBERED))
    """All of them, the newest last."""


class Visitors:
    """All tabs, by Gradio's session hash and by token. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_session: dict[str, Visitor] = {}
        self._by_token: dict[str, Visitor] = {}

    def of_session(self, session_hash: str) -> Visitor:
        """The visitor of a tab; a new one if it is not known (yet, or after a restart)."""
        with self._lock:
            visitor = self._by_session.get(session_hash)
            if visitor is None:
                visitor = Visitor(secrets.token_urlsafe(24))
                self._by_session[session_hash] = visitor
                self._by_token[visitor.token] = visitor
            return visitor

    def mine(self, token: str) -> frozenset[str]:
        """The requests of whoever holds this token; nothing for an unknown one."""
        with self._lock:
            visitor = self._by_token.get(token)
            return frozenset(visitor.mine) if visitor else frozenset()

    def begin(self, visitor: Visitor, request_id: str) -> None:
        with self._lock:
            visitor.live.add(request_id)
            visitor.mine.append(request_id)

    def end(self, visitor: Visitor, request_id: str) -> None:
        with self._lock:
            visitor.live.discard(request_id)

    def live(self, visitor: Visitor) -> tuple[str, ...]:
        with self._lock:
            return tuple(visitor.live)

    def forget(self, session_hash: str) -> tuple[str, ...]:
        """The tab is closed. Returns the requests it leaves behind, for the caller to abort."""
        with self._lock:
            visitor = self._by_session.pop(session_hash, None)
            if visitor is None:
                return ()
            self._by_token.pop(visitor.token, None)
            return tuple(visitor.live)
