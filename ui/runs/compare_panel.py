"""The compare room: two answers side by side to one prompt."""

from __future__ import annotations

import gradio as gr

from ui.context import PageContext
from ui.panels.sampling import Controls


class CompareRoom:
    """Its components; ``connect`` joins them to the sampling panel, which stands further down on the page."""

    def connect(self, controls: Controls) -> None: ...


def build_compare_room(context: PageContext) -> CompareRoom:
    """Called where the room belongs on the page."""
    gr.HTML("<p class='note'>soon</p>")
    return CompareRoom()
