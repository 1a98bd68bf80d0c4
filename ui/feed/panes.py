"""What a tab asks for besides charts: each pane answers one part of the question of ``ui.feed.live``."""

from __future__ import annotations

from typing import Any, Protocol

from ui.replay import Replay
from ui.view import EngineView
from ui.visitors import Visitor


class Pane(Protocol):
    """Called on the server for every poll of every tab that shows the pane: be quick.

    The script of a pane registers ``microVLLM.pane(name, ask, show)``: what ``ask()`` returns arrives here, and what
    is answered (None: nothing new) is given to ``show``. ``ask`` comes from any client: check it.
    """

    def answer(
        self, ask: Any, visitor: Visitor | None, view: EngineView | None, replay: Replay | None
    ) -> Any:
        """JSON values for the viewer, from what they may see; ``visitor`` is None for an unknown token.

        ``view`` is the step at which this tab's cursor stands, ``replay`` the story it looks at: the engine's, the
        sample's, or that of a file it opened. Both are None when there is nothing to show yet.
        """
        ...
