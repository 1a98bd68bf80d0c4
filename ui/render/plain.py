"""Error messages as HTML, which is how Gradio shows them."""

from __future__ import annotations

import html


def plain(text: str) -> str:
    """Every character as it is, line breaks kept."""
    return html.escape(text).replace("\n", "<br>")
