"""The workload room: many requests at once on the live engine."""

from __future__ import annotations

import gradio as gr

from ui.context import PageContext
from ui.panels.sampling import Controls


class WorkloadRoom:
    """Its components; ``connect`` joins them to the sampling panel, which stands further down on the page."""

    def connect(self, controls: Controls) -> None: ...


def build_workload_room(context: PageContext) -> WorkloadRoom:
    """Called where the room belongs on the page."""
    gr.HTML("<p class='note'>soon</p>")
    return WorkloadRoom()
