"""The page: what stands where, and which event calls what."""

from __future__ import annotations

import html
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import gradio as gr

from ui.chat import Chat
from ui.controls import build_sampling_panel
from ui.engine_host import EngineHost, HostState
from ui.fold import fold
from ui.live import Live
from ui.model_panel import ModelPanel, build_model_panel
from ui.visitors import Visitors

TITLE = "micro-vLLM playground"
WELCOME = """
### Ask a small model. Watch the engine that serves it.
Every answer fills KV blocks in the charts. Ask a second question: its history comes from the **prefix cache**.
Open this page in another tab: both share **one batch**.
"""
EXAMPLES = (
    "What is the capital of France?",
    "Write a haiku about a block of memory.",
    "Explain in three short steps how bread is made.",
    "List ten animals, one a line.",
)
CHART_CARDS = (
    (
        "kv-block-map",
        "KV block map",
        "One cell is one block of token slots, filled from below. "
        '<abbr title="kept for reuse: free, but a later prompt with the same beginning takes it over; '
        'the longest unused is evicted first">#</abbr> kept for reuse · '
        '<abbr title="several requests read the same block, because their prompts begin alike">split</abbr> shared · '
        "outlined just written.",
    ),
    (
        "scheduler-timeline",
        "Scheduler timeline",
        "One row a request, one column an engine step. "
        '<abbr title="prefill: the prompt is read, many tokens in one step">Tall</abbr> prefill · '
        '<abbr title="decode: one new token a step">low</abbr> decode · thin waiting · '
        '<abbr title="tokens found in the prefix cache need not be computed">◆</abbr> prefix hit · '
        '<abbr title="no block was free: its blocks went to another request, it is computed again later">✕</abbr> '
        "preempted.",
    ),
    (
        "kv-usage",
        "KV use",
        "Blocks after each step; the bar is the whole pool. Above: share of looked-up prompt tokens that the "
        '<abbr title="blocks of earlier prompts and answers that can be used again">prefix cache</abbr> had.',
    ),
)
HEADER = """
<header class="mv-header">
  <h1>micro-vLLM <span>playground</span></h1>
  <div class="mv-pills">
    <span class="pill" data-pill="model" title="the model that answers">
      <i class="dot"></i><b data-head="model">…</b><span data-head="badge"></span>
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
  <button class="mv-theme" type="button" data-theme-toggle title="light or dark" aria-label="light or dark">◐</button>
</header>
"""
SAMPLE_NOTE = """
<div class="mv-sample" hidden><b>Sample.</b> A trace recorded from this engine with eight requests.
Send a prompt to see yours, live.</div>
<nav class="mv-tabs" aria-label="charts"></nav>
"""


def build_page(host: EngineHost) -> gr.Blocks:
    """The whole page over one host. Nothing here is global: two pages may live in one process."""
    visitors = Visitors()
    chat = Chat(host, visitors)
    live = Live(host, visitors)

    def poll(ask: Any) -> str:
        return live.poll(ask)

    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as page:
        header = gr.HTML(
            html_template=HEADER,
            js_on_load="window.microVLLM.header(element, server, trigger)",
            server_functions=[poll],
            apply_default_css=False,
            elem_id="header",
        )
        viewer = gr.HTML("", visible="hidden", elem_id="viewer")
        history = gr.State(())
        with gr.Row(elem_id="main", equal_height=False):
            with gr.Column(scale=2, min_width=320, elem_id="left"):
                chatbot = gr.Chatbot(
                    label="chat",
                    show_label=False,
                    container=False,
                    elem_id="chat",
                    height="100%",
                    layout="bubble",
                    buttons=[],
                    feedback_options=None,
                    latex_delimiters=[],
                    allow_tags=False,
                    autoscroll=False,  # assets/page.js follows the answer
                    placeholder=WELCOME,
                    examples=[{"text": text} for text in EXAMPLES],
                    group_consecutive_messages=False,
                )
                with gr.Column(elem_id="composer"):
                    prompt = gr.Textbox(
                        label="prompt",
                        placeholder=prompt_placeholder(host.state),
                        show_label=False,
                        container=False,
                        lines=1,
                        max_lines=8,
                        elem_id="prompt",
                    )
                    with gr.Row(elem_id="buttons"):
                        new_chat = gr.Button("New chat", size="sm", elem_id="new-chat")
                        retry = gr.Button("Retry", size="sm", interactive=False, elem_id="retry")
                        stop = gr.Button("Stop", size="sm", interactive=False, elem_id="stop")
                        send = gr.Button("Send", size="sm", variant="primary", elem_id="send")
                with gr.Column(elem_id="panels"):
                    controls = build_sampling_panel(host.settings.limits.words())
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
            with gr.Column(scale=3, min_width=320, elem_id="right"):
                gr.HTML(
                    html_template=SAMPLE_NOTE,
                    js_on_load="window.microVLLM.notes(element)",
                    apply_default_css=False,
                    elem_id="notes",
                )
                for elem_id, title, caption in CHART_CARDS:
                    _chart_card(elem_id, title, caption)

        _connect_chat(page, chat, visitors, viewer, history, chatbot, prompt, send, stop, retry, new_chat, [
            prompt, chatbot, history, system_prompt, *controls.inputs
        ])  # fmt: skip
        system_prompt.change(
            _system_label,
            system_prompt,
            system_toggle,
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
        )
        _connect_model_state(page, header, prompt, models, host)
    return page


def _chart_card(elem_id: str, title: str, caption: str) -> None:
    gr.HTML(
        html_template=(
            f'<section class="mv-card"><h2>{html.escape(title)}</h2><p>{caption}</p>'
            f'<div class="mv-plot" role="img" aria-label="{html.escape(title)}"></div></section>'
        ),
        js_on_load=f"window.microVLLM.chart(element, {elem_id!r}, {title!r})",
        apply_default_css=False,
        elem_id=elem_id,
        elem_classes="mv-chart",
    )


def _connect_chat(
    page: gr.Blocks,
    chat: Chat,
    visitors: Visitors,
    viewer: gr.HTML,
    history: gr.State,
    chatbot: gr.Chatbot,
    prompt: gr.Textbox,
    send: gr.Button,
    stop: gr.Button,
    retry: gr.Button,
    new_chat: gr.Button,
    inputs: list[Any],
) -> None:
    outputs = [chatbot, history, prompt, send, stop, retry]
    stream: dict[str, Any] = {
        "concurrency_limit": None,
        "show_progress": "hidden",
        "api_visibility": "private",
    }

    # Gradio finds gr.Request by the annotation of a named parameter: it cannot sit behind *values.
    async def on_send(request: gr.Request, *values: Any) -> Any:
        async with aclosing(chat.send(*values, request)) as stream_:
            async for outputs_ in stream_:
                yield outputs_

    async def on_retry(request: gr.Request, *values: Any) -> Any:
        async with aclosing(chat.retry(*values, request)) as stream_:
            async for outputs_ in stream_:
                yield outputs_

    async def on_example(event: gr.SelectData, request: gr.Request, *values: Any) -> Any:
        async with aclosing(chat.send(str(event.value["text"]), *values[1:], request)) as stream_:
            async for outputs_ in stream_:
                yield outputs_

    gr.on([send.click, prompt.submit], on_send, inputs, outputs, **stream)
    retry.click(on_retry, inputs, outputs, **stream)
    chatbot.example_select(on_example, inputs, outputs, **stream)
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    stop.click(chat.stop, None, None, **quick)
    new_chat.click(chat.new_chat, None, outputs, **quick)

    def arrive(request: gr.Request) -> str:
        return visitors.of_session(request.session_hash or "").token

    page.load(arrive, None, viewer, **quick)
    page.unload(chat.leave)


def _connect_model_state(
    page: gr.Blocks, header: gr.HTML, prompt: gr.Textbox, models: ModelPanel, host: EngineHost
) -> None:
    """The script of the page sees that the state has changed and asks for the components that show it."""

    def refresh() -> list[Any]:
        state = host.state
        return [gr.update(placeholder=prompt_placeholder(state)), *models.updates(state)]

    listen: list[Callable[..., Any]] = [header.apply, page.load]
    gr.on(
        listen,
        refresh,
        None,
        [prompt, *models.outputs],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )


def prompt_placeholder(state: HostState) -> str:
    if state.serving:
        return "Ask something …"
    if state.status == "error":
        return "No model is loaded: choose one under “Model” below"
    share = f" · {state.progress:.0%}" if state.progress is not None else ""
    return f"{state.message or 'Loading the model'}{share} — you can already write"


def _system_label(text: str | None) -> str:
    words = " ".join((text or "").split())
    return f"System prompt · {words[:60]}{'…' if len(words) > 60 else ''}" if words else "System prompt"
