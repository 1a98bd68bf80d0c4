"""Runs: several requests of one visitor at once, each on a card."""

from __future__ import annotations

from typing import Any

from ui.admission import Admission
from ui.replay import Replay
from ui.tokens.store import TokenStore
from ui.view import EngineView
from ui.visitors import Visitor


class Runs:
    """Starts runs and answers the cards' pane."""

    def __init__(self, admission: Admission, tokens: TokenStore) -> None:
        self._admission = admission
        self._tokens = tokens

    def answer(
        self, ask: Any, visitor: Visitor | None, view: EngineView | None, replay: Replay | None
    ) -> Any:
        return None
