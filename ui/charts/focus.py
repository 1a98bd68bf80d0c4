"""What a viewer looks at: their own requests are marked, one request or one token can be followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]
"""A Plotly figure as plain data, ``{"data": [...], "layout": {...}}``: what ``plotly.graph_objects.Figure`` takes and
checks (the tests do), without the milliseconds that checking costs at every step."""


@dataclass(frozen=True, slots=True)
class Focus:
    """Charts draw what matters to one viewer; the default is nobody's."""

    mine: frozenset[str] = frozenset()
    """Requests of the viewer."""
    request_id: str | None = None
    """The request whose block table is followed."""
    position: int | None = None
    """Index of one of its tokens, from the start of the prompt."""


NO_FOCUS = Focus()
