"""The clock: one step cursor for all charts, and the trace as a file."""

from __future__ import annotations

from ui.context import PageContext


def build_clock_bar(context: PageContext) -> None:
    """Called where the bar belongs on the page."""
