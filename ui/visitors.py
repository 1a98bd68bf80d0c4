"""Who is on the page: one visitor a browser tab, with the requests that are theirs."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from micro_vllm.engine.handle import RequestHandle
    from ui.traces.opened import OpenedTrace

REQUESTS_REMEMBERED = 256
"""Own requests that stay marked as "yours" in the charts."""
MAX_VISITORS = 4096
"""Sessions are named by whoever calls, and not every caller says goodbye: beyond this the longest unseen go."""


@dataclass
class Visitor:
    """One tab. ``token`` is unguessable: it marks what is theirs, and salts the prefix cache of a shared server."""

    token: str
    handles: dict[str, RequestHandle] = field(default_factory=dict)
    """Of what is still being answered, by request id. Some may have finished while nobody has read their end yet."""
    mine: deque[str] = field(default_factory=lambda: deque(maxlen=REQUESTS_REMEMBERED))
    """All of them, the newest last."""
    opened: OpenedTrace | None = None
    """The trace file they walk through; it goes with them."""


class Visitors:
    """All tabs, by Gradio's session hash and by token. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_session: OrderedDict[str, Visitor] = OrderedDict()
        self._by_token: dict[str, Visitor] = {}

    def of_session(self, session_hash: str) -> Visitor:
        """The visitor of a tab; a new one if it is not known (yet, or after a restart)."""
        with self._lock:
            visitor = self._by_session.get(session_hash)
            if visitor is None:
                visitor = Visitor(secrets.token_urlsafe(24))
                self._by_session[session_hash] = visitor
                self._by_token[visitor.token] = visitor
                self._drop_unseen()
            self._by_session.move_to_end(session_hash)
            return visitor

    def _drop_unseen(self) -> None:
        for session_hash, visitor in list(self._by_session.items())[: len(self._by_session) - MAX_VISITORS]:
            if not visitor.handles:
                del self._by_session[session_hash]
                del self._by_token[visitor.token]

    def of_token(self, token: str) -> Visitor | None:
        """Whoever holds this token; None for an unknown one."""
        with self._lock:
            return self._by_token.get(token)

    def all(self) -> tuple[Visitor, ...]:
        with self._lock:
            return tuple(self._by_session.values())

    def mine(self, token: str) -> frozenset[str]:
        """The requests of whoever holds this token; nothing for an unknown one."""
        with self._lock:
            visitor = self._by_token.get(token)
            return frozenset(visitor.mine) if visitor else frozenset()

    def begin(self, visitor: Visitor, handle: RequestHandle) -> None:
        with self._lock:
            visitor.handles[handle.request_id] = handle
            visitor.mine.append(handle.request_id)

    def end(self, visitor: Visitor, request_id: str) -> None:
        with self._lock:
            visitor.handles.pop(request_id, None)

    def live(self, visitor: Visitor) -> tuple[str, ...]:
        """Their requests that the engine has not finished."""
        with self._lock:
            return _unfinished(visitor)

    def num_live(self) -> int:
        """Unfinished requests of everybody."""
        with self._lock:
            return sum(len(_unfinished(visitor)) for visitor in self._by_session.values())

    def forget(self, session_hash: str) -> tuple[str, ...]:
        """The tab is closed. Returns the requests it leaves behind, for the caller to abort."""
        with self._lock:
            visitor = self._by_session.pop(session_hash, None)
            if visitor is None:
                return ()
            self._by_token.pop(visitor.token, None)
            return _unfinished(visitor)


def _unfinished(visitor: Visitor) -> tuple[str, ...]:
    return tuple(name for name, handle in visitor.handles.items() if not handle.finished)
