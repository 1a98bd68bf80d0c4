"""The page: what stands where. Rooms on the left, the engine on the right, one clock below it."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui.admission import Admission
from ui.charts.registry import CHARTS, Chart
from ui.chat.panel import build_chat_room, prompt_placeholder
from ui.clock_bar import build_clock_bar
from ui.context import PageContext
from ui.events.table import EventTable, build_event_table
from ui.feed.live import Live
from ui.fold import fold
from ui.help_sheet import build_help_sheet
from ui.host.engine_host import EngineHost
from ui.panels.engine import EnginePanel, build_engine_panel, paused_placeholder
from ui.panels.model import ModelPanel, build_model_panel
from ui.panels.sampling import build_sampling_panel
from ui.runs.compare_panel import build_compare_room
from ui.runs.runs import Runs
from ui.runs.workload_panel import build_workload_room
from ui.tokens.store import TokenStore
from ui.tokens.tokenizer_panel import build_tokenizer_room
from ui.traces.opened import OpenedTraces
from ui.visitors import Visitors

TITLE = "micro-vLLM playground"
ROOMS = (
    ("chat", "Chat", "Talk to the model."),
    ("compare", "Compare", "One prompt, two answers side by side, in one batch."),
    ("workload", "Workload", "Many requests at once: watch them share the engine."),
    ("tokens", "Tokens", "How a text is cut into tokens, and what the model really reads."),
)
"""(id, name, tooltip) of what the left half can show; the first one is open at the start."""
HEADER = """
<header class="mv-header">
  <h1>micro-vLLM <span>playground</span></h1>
  <div class="mv-pills">
    <span class="pill" data-pill="model" title="the model that answers">
      <i class="dot"></i><b data-head="model">…</b><span data-head="badge"></span><em data-head="paused"></em>
    </span>
    <span class="pill" title="requests computed in every step, and requests that wait">
      running <b class="num" data-head="running">0</b> · waiting <b class="num" data-head="waiting">0</b>
    </span>
    <span class="pill" title="KV blocks that requests hold, of all in the pool">
      blocks <b class="num" data-head="used">0</b> <span class="num">/ <span data-head="total">0</span></span>
    </span>
    <span class="pill" title="share of looked-up prompt tokens that the prefix cache had">
      prefix hits <b class="num" data-head="hits">–</b>
    </span>
  </div>
  <nav class="mv-rooms" aria-label="rooms">$rooms</nav>
  <button class="mv-icon" type="button" id="help-toggle" title="keyboard shortcuts (?)"
    aria-label="keyboard shortcuts">?</button>
  <button class="mv-icon" type="button" id="theme-toggle" data-theme-toggle title="light or dark (d)"
    aria-label="light or dark">◐</button>
</header>
"""
SAMPLE_NOTE = """
<div class="mv-sample" hidden><b>Sample.</b> A trace recorded from this engine with eight requests.
Send a prompt to see yours, live.</div>
<nav class="mv-tabs" aria-label="charts"></nav>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """What the server needs: the page, and what its own routes answer from."""

    blocks: gr.Blocks
    context: PageContext
    live: Live
    opened: OpenedTraces


def build_page(host: EngineHost) -> Page:
    """The whole page over one host. Nothing here is global: two pages may live in one process."""
    visitors = Visitors()
    admission = Admission(host, visitors)
    tokens = TokenStore()
    context = PageContext(host, visitors, admission, tokens, Runs(admission, tokens))
    opened = OpenedTraces(visitors)
    live = Live(
        host,
        visitors,
        panes={"strip": tokens, "cards": context.runs, "events": EventTable(context)},
        opened=opened,
    )

    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as page:
        header = gr.HTML(
            html_template=HEADER.replace("$rooms", _room_buttons()),
            js_on_load="window.microVLLM.header(element, trigger)",
            apply_default_css=False,
            elem_id="header",
        )
        build_help_sheet()
        viewer = gr.HTML("", visible="hidden", elem_id="viewer")
        with gr.Row(elem_id="main", equal_height=False):
            with gr.Column(scale=2, min_width=320, elem_id="left"):
                with gr.Column(elem_id="room-chat", elem_classes="mv-room"):
                    chat = build_chat_room(context)
                with gr.Column(elem_id="room-compare", elem_classes="mv-room"):
                    compare = build_compare_room(context)
                with gr.Column(elem_id="room-workload", elem_classes="mv-room"):
                    workload = build_workload_room(context)
                with gr.Column(elem_id="room-tokens", elem_classes="mv-room"):
                    tokenizer = build_tokenizer_room(context)
                with gr.Column(elem_id="panels"):
                    controls = build_sampling_panel(host.settings.limits.words(), admission.max_answer_tokens)
                    with fold("System prompt", "system-panel") as system_toggle:
                        system_prompt = gr.Textbox(
                            label="system prompt",
                            show_label=False,
                            container=False,
                            placeholder="Empty: the model's own. For example: Answer in one sentence.",
                            lines=2,
                            max_lines=6,
                            elem_id="system-prompt",
                        )
                    models = build_model_panel(host)
                    engine = build_engine_panel(context)
            with gr.Column(scale=3, min_width=320, elem_id="right"):
                gr.HTML(
                    html_template=SAMPLE_NOTE,
                    js_on_load="window.microVLLM.notes(element)",
                    apply_default_css=False,
                    elem_id="notes",
                )
                with gr.Column(elem_id="charts"):
                    for chart in CHARTS:
                        _chart_card(chart)
                    build_event_table(context)
                build_clock_bar(context)

        chat.connect(page, controls, system_prompt)
        for room in (compare, workload, tokenizer):
            room.connect(controls)
        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        system_prompt.change(_system_label, system_prompt, system_toggle, trigger_mode="always_last", **quiet)

        def arrive(request: gr.Request) -> str:
            return visitors.of_session(request.session_hash or "").token

        gr.on([page.load, header.apply], arrive, None, viewer, **quiet)
        _connect_model_state(page, header, chat.prompt, models, engine, host)
    return Page(page, context, live, opened)


def _room_buttons() -> str:
    return "".join(
        f'<button type="button" data-room="{room}" title="{html.escape(help_)}" '
        f'aria-pressed="{"true" if room == ROOMS[0][0] else "false"}">{name}</button>'
        for room, name, help_ in ROOMS
    )


def _chart_card(chart: Chart) -> None:
    title = html.escape(chart.title)
    gr.HTML(
        html_template=(
            f'<section class="mv-card"><h2>{title}</h2><p>{chart.caption}</p>'
            f'<div class="mv-plot" role="group" aria-label="{title}"></div></section>'
        ),
        js_on_load=f"window.microVLLM.chart(element, {json.dumps(chart.elem_id)}, {json.dumps(chart.title)})",
        apply_default_css=False,
        elem_id=chart.elem_id,
        elem_classes="mv-chart",
    )


def _connect_model_state(
    page: gr.Blocks,
    header: gr.HTML,
    prompt: gr.Textbox,
    models: ModelPanel,
    engine: EnginePanel,
    host: EngineHost,
) -> None:
    """The script of the page sees that the state has changed and asks for the components that show it."""

    def refresh(seen: str | None) -> list[Any]:
        state = host.state
        placeholder = paused_placeholder(host) or prompt_placeholder(state)
        return [gr.update(placeholder=placeholder), *models.updates(state), *engine.updates(state, seen)]

    listen: list[Callable[..., Any]] = [header.apply, page.load]
    gr.on(
        listen,
        refresh,
        [engine.seen],
        [prompt, *models.outputs, *engine.outputs],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def _system_label(text: str | None) -> str:
    words = " ".join((text or "").split())
    return f"System prompt · {words[:60]}{'…' if len(words) > 60 else ''}" if words else "System prompt"
