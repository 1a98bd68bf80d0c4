"""The tokens room: how a text is cut into tokens, and the prompt after the chat template."""

from __future__ import annotations

import gradio as gr

from ui.context import PageContext
from ui.panels.sampling import Controls


class TokenizerRoom:
    """Its components; ``connect`` joins them to the sampling panel, which stands further down on the page."""

    def connect(self, controls: Controls) -> None: ...


def build_tokenizer_room(context: PageContext) -> TokenizerRoom:
    """Called where the room belongs on the page."""
    gr.HTML("<p class='note'>soon</p>")
    return TokenizerRoom()
