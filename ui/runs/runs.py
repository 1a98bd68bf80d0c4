"""Runs: several requests of one visitor at once, each on a card.

One thread follows all of them, so that the page's event loop never waits for an engine; it lives as long as anything
runs. Each visitor has one run a room: a new one takes the place of the old.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, get_args

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from ui.admission import Admission
from ui.host.engine_host import ServingEngine
from ui.replay import Replay
from ui.runs.run import Room, Run, RunItem
from ui.tokens.store import TokenStore
from ui.view import EngineView
from ui.visitors import Visitor

logger = logging.getLogger(__name__)

MAX_CARDS = 64
"""Requests of one run."""
MAX_KEPT = 256
"""Runs whose cards can still be read, of all visitors together."""
TICK_SECONDS = 0.1
ROOMS: tuple[Room, ...] = get_args(Room)


class Runs:
    """Starts runs, follows them, and answers the pane of the cards. Safe to use from any thread."""

    def __init__(self, admission: Admission, tokens: TokenStore) -> None:
        self._admission = admission
        self._tokens = tokens
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, Room], Run] = OrderedDict()
        """By visitor and room."""
        self._live: list[Run] = []
        self._follower: threading.Thread | None = None

    def start(
        self,
        visitor: Visitor,
        room: Room,
        engine: ServingEngine,
        items: Sequence[RunItem],
        note: str = "",
    ) -> str:
        """Begin; returns the id of the run at once. What ran in this room before ends.

        Raises:
            InvalidRequestError: nothing to send, too much, or too many visitors run something.
        """
        if not 1 <= len(items) <= MAX_CARDS:
            raise InvalidRequestError(f"{len(items)} requests cannot run at once; allowed: 1 to {MAX_CARDS}.")
        run = Run(
            secrets.token_hex(6), room, visitor, engine, items, self._admission, self._tokens, note=note
        )
        with self._lock:
            before = self._kept.pop((visitor.token, room), None)
            self._make_room()
            self._kept[(visitor.token, room)] = run
            self._live.append(run)
            if self._follower is None:
                self._follower = threading.Thread(target=self._follow, name="runs", daemon=True)
                self._follower.start()
        if before is not None:
            before.stop("a new run took its place")
        return run.run_id

    def stop(self, visitor: Visitor, room: Room) -> None:
        """End all that this visitor runs in this room."""
        with self._lock:
            run = self._kept.get((visitor.token, room))
        if run is not None:
            run.stop()

    def is_live(self, visitor: Visitor, room: Room) -> bool:
        """Whether a run of this visitor goes on."""
        with self._lock:
            run = self._kept.get((visitor.token, room))
        return run is not None and not run.is_over

    def answer(
        self,
        ask: Any,
        visitor: Visitor | None,
        view: EngineView | None = None,
        replay: Replay | None = None,
    ) -> Any:
        """``ask``: ``{"room", "run", "version"}``, the last two as told before. None: the tab is up to date.

        Cards follow the engine wherever the tab's cursor stands: they are answers, not history.
        """
        if not isinstance(ask, dict) or visitor is None or ask.get("room") not in ROOMS:
            return None
        run_id, version = ask.get("run"), ask.get("version")
        with self._lock:
            run = self._kept.get((visitor.token, ask["room"]))
        if run is None:
            return None
        return run.answer(
            run_id if isinstance(run_id, str) else "",
            version if isinstance(version, int) and not isinstance(version, bool) else 0,
            render=run.room == "compare",
        )

    def _make_room(self) -> None:
        """Under the lock: those who left are forgotten, then the oldest that are over."""
        for key, run in list(self._kept.items()):
            if self._admission.has_left(run.visitor):
                del self._kept[key]
        for key, run in list(self._kept.items()):
            if len(self._kept) < MAX_KEPT:
                return
            if run.is_over:
                del self._kept[key]
        if len(self._kept) >= MAX_KEPT:
            raise InvalidRequestError(
                f"{MAX_KEPT} runs of all visitors are going on, as many as this server follows. "
                "Try again in a moment."
            )

    # ------------------------------------------------------------ the follower

    def _follow(self) -> None:
        while True:
            with self._lock:
                self._live = [run for run in self._live if not run.is_over]
                live = list(self._live)
                if not live:
                    self._follower = None
                    return
            for run in live:
                try:
                    run.advance()
                except Exception as error:
                    logger.exception("a run broke off")
                    run.fail(
                        str(error)
                        if isinstance(error, MicroVLLMError)
                        else f"{type(error).__name__}: {error}"
                    )
            time.sleep(TICK_SECONDS)
