"""A fold: a button, and below it what the button shows and hides.

Not gr.Accordion, which puts its children on the page only once it was opened: here every control exists from the
start, for scripts, tooltips and tests. The style sheet hides what follows a button without ``aria-expanded="true"``,
so that sight and what a screen reader says cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr


@contextmanager
def fold(label: str, elem_id: str) -> Iterator[gr.Button]:
    """``with fold("More", "more-panel") as toggle:`` the components of the panel. The label is the button's value."""
    toggle = gr.Button(label, size="sm", elem_id=f"{elem_id}-toggle", elem_classes="mv-fold")
    with gr.Column(elem_id=elem_id, elem_classes="mv-folded"):
        gr.HTML(
            html_template="",
            js_on_load=f"window.microVLLM.fold({toggle.elem_id!r}, {elem_id!r})",
            apply_default_css=False,
            elem_classes="mv-hidden",
        )
        yield toggle
