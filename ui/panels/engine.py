"""The engine panel: the pool, the budgets and the policies of the engine, and its own pace."""

from __future__ import annotations

from ui.context import PageContext


def build_engine_panel(context: PageContext) -> None:
    """Called where the panel belongs on the page."""
