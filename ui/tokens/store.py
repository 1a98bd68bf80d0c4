"""The tokens of recent answers, each readable by the visitor whose answer it is."""

from __future__ import annotations

from typing import Any

from ui.engine_host import ServingEngine
from ui.replay import Replay
from ui.view import EngineView
from ui.visitors import Visitor


class TokenStore:
    """Fed by the rooms that follow answers; read by the pane of the token strip."""

    def update(self, visitor: Visitor, engine: ServingEngine, output: Any) -> None:
        """``output``: the newest RequestOutput of one of the visitor's requests."""

    def answer(
        self, ask: Any, visitor: Visitor | None, view: EngineView | None, replay: Replay | None
    ) -> Any:
        return None
