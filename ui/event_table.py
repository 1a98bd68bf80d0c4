"""The event table: what the trace says, line by line."""

from __future__ import annotations

from ui.context import PageContext


def build_event_table(context: PageContext) -> None:
    """Called where the table belongs on the page."""
