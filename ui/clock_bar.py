"""The clock: one step cursor for all charts, the trace as a file, and the card of the request that is followed."""

from __future__ import annotations

import gradio as gr

from ui.context import PageContext
from ui.view import JumpKind

SPEEDS = (1, 2, 5, 10, 30)
"""Steps a second."""
JUMPS: tuple[tuple[JumpKind, str], ...] = (
    ("preempted", "preemption"),
    ("hit", "prefix hit"),
    ("evicted", "eviction"),
    ("failed", "failed step"),
)
_ICONS = {
    "back": "M11 3 5 8l6 5zM3 3h2v10H3z",
    "pause": "M4 3h3v10H4zM9 3h3v10H9z",
    "forward": "m5 3 6 5-6 5zM11 3h2v10h-2z",
    "play": "m5 3 8 5-8 5z",
    "left": "M10 3 5 8l5 5",
    "right": "m6 3 5 5-5 5",
}

FOCUS_CARD = """
<section id="focus-card" aria-label="the request that is followed" hidden>
  <div class="head"></div>
  <button id="focus-close" type="button" title="stop following (Escape)" aria-label="stop following">✕</button>
  <div class="body"></div>
</section>
"""
NOTES = """
<div id="trace-error" role="alert" hidden><span class="words"></span>
  <button type="button" aria-label="close this message">✕</button></div>
<div id="clock-note" hidden><span class="words num"></span>
  <button id="back-to-live" type="button">back to live</button>
  <button id="close-trace" type="button">close</button></div>
"""
BAR = """
<section id="clock" class="mv-clock" aria-label="step cursor for all charts">
  <div class="buttons">
    $back$pause$forward$play
    <select id="play-speed" title="steps a second" aria-label="play speed, steps a second">$speeds</select>
    <button id="live" type="button"><i class="dot"></i><span class="word">live</span></button>
  </div>
  <div class="track">
    <div class="ticks" aria-hidden="true"></div>
    <input id="step-cursor" type="range" min="0" max="1" value="1" step="1" aria-label="engine step">
  </div>
  <output class="readout num" title="engine step, of all; seconds since the first one" for="step-cursor">
    <span><b class="at">0</b><span class="of"> / 0</span></span><span class="seconds">0.00 s</span>
  </output>
  <div class="jumps">
    $jump_back<select id="jump-kind" aria-label="what to jump to">$kinds</select>$jump_forward
  </div>
  <details id="trace-menu">
    <summary title="save or open a trace">Trace</summary>
    <div class="menu">
      <button id="save-trace" type="button">Save as JSON lines<small>opens here again</small></button>
      <button id="save-perfetto" type="button">Save for Perfetto<small>ui.perfetto.dev, chrome://tracing</small></button>
      <label for="open-trace">Open a saved trace<small>or drop the file on the charts</small></label>
      <input id="open-trace" type="file" accept=".jsonl,.json,.ndjson,.txt" aria-label="open a saved trace">
    </div>
  </details>
  <span id="clock-status" role="status"></span>
</section>
"""


def build_clock_bar(context: PageContext) -> None:
    """Called where the bar belongs on the page. The script does all of it: no event of Gradio's is needed."""
    gr.HTML(
        html_template=FOCUS_CARD + NOTES + _bar(),
        js_on_load="window.microVLLM.clock(element)",
        apply_default_css=False,
        elem_id="clock-bar",
    )


def _bar() -> str:
    html = BAR
    for name, made in {
        "$back": _button("step-back", "back", "one step back"),
        "$pause": _button("pause", "pause", "pause the view; the engine goes on"),
        "$forward": _button("step-forward", "forward", "one step forward"),
        "$play": _button("play", "play", "play from here to the end"),
        "$jump_back": _button("jump-back", "left", "jump to the one before"),
        "$jump_forward": _button("jump-forward", "right", "jump to the next one"),
        "$speeds": "".join(
            f'<option value="{n}"{" selected" if n == 5 else ""}>{n} ×</option>' for n in SPEEDS
        ),
        "$kinds": "".join(f'<option value="{kind}">{words}</option>' for kind, words in JUMPS),
    }.items():
        html = html.replace(name, made, 1)
    return html


def _button(elem_id: str, icon: str, words: str) -> str:
    style = "open" if icon in ("left", "right") else "solid"
    return (
        f'<button id="{elem_id}" type="button" title="{words}" aria-label="{words}">'
        f'<svg viewBox="0 0 16 16" aria-hidden="true" class="{style}"><path d="{_ICONS[icon]}"/></svg></button>'
    )
