"""Keyboard shortcuts: the one table that the script obeys and the sheet shows."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Literal

import gradio as gr


@dataclass(frozen=True, slots=True)
class Shortcut:
    """One key. Plain keys are off while somebody types; ``key`` is that of ``KeyboardEvent.key``."""

    key: str
    words: str
    target: str
    """elem_id of what is clicked or gets the focus."""
    does: Literal["click", "focus"] = "click"
    label: str = ""
    """What is printed on the key, where that is not ``key``."""


GROUPS: tuple[tuple[str, tuple[Shortcut, ...]], ...] = (
    (
        "Chat",
        (
            Shortcut("/", "write a prompt", "prompt", "focus"),
            Shortcut("s", "stop the answer", "stop"),
            Shortcut("r", "answer the last prompt again", "retry"),
            Shortcut("c", "continue the last answer", "continue"),
            Shortcut("n", "new chat", "new-chat"),
        ),
    ),
    (
        "Engine, step by step",
        (
            Shortcut("p", "pause the view, or go on", "pause"),
            Shortcut("ArrowLeft", "one step back", "step-back", label="←"),
            Shortcut("ArrowRight", "one step forward", "step-forward", label="→"),
            Shortcut("[", "jump to the one before", "jump-back"),
            Shortcut("]", "jump to the next preemption, hit or eviction", "jump-forward"),
            Shortcut("l", "back to live", "live"),
        ),
    ),
    (
        "Page",
        (
            Shortcut("1", "chat", "room:chat"),
            Shortcut("2", "compare", "room:compare"),
            Shortcut("3", "workload", "room:workload"),
            Shortcut("4", "tokens", "room:tokens"),
            Shortcut("d", "light or dark", "theme-toggle"),
            Shortcut("?", "this sheet", "help-toggle"),
        ),
    ),
)
"""``room:NAME`` opens a room; the rest are elem_ids."""
_SHEET = """
<dialog class="mv-sheet" aria-labelledby="help-title">
  <form method="dialog"><button class="mv-icon" id="help-close" aria-label="close">✕</button></form>
  <h2 id="help-title">Keyboard shortcuts</h2>
  <div class="mv-keys">$groups</div>
  <p>In the prompt: <kbd>Enter</kbd> sends, <kbd>Shift</kbd> + <kbd>Enter</kbd> is a new line, <kbd>Esc</kbd> leaves it.
  On charts: click a request to follow its blocks, <kbd>Esc</kbd> lets it go.</p>
  <label><input type="checkbox" id="shortcuts-on" checked> single keys do something</label>
</dialog>
"""


def build_help_sheet() -> None:
    """On the page from the start, closed; ``help-toggle`` in the header opens it."""
    keys = {
        shortcut.key: {"target": shortcut.target, "does": shortcut.does}
        for _, shortcuts in GROUPS
        for shortcut in shortcuts
    }
    gr.HTML(
        html_template=_SHEET.replace("$groups", "".join(_group(*group) for group in GROUPS)),
        js_on_load=f"window.microVLLM.shortcuts(element, {json.dumps(keys)})",
        apply_default_css=False,
        elem_id="help-sheet",
    )


def _group(name: str, shortcuts: tuple[Shortcut, ...]) -> str:
    rows = "".join(
        f"<dt><kbd>{html.escape(s.label or s.key)}</kbd></dt><dd>{html.escape(s.words)}</dd>"
        for s in shortcuts
    )
    return f"<section><h3>{html.escape(name)}</h3><dl>{rows}</dl></section>"
