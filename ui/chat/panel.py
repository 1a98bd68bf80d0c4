"""The chat room: what stands where, and which event calls what. assets/chat.js draws the chat and holds it."""

from __future__ import annotations

import html
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui.chat.handlers import Chats
from ui.context import PageContext
from ui.host.engine_host import HostState
from ui.panels.sampling import Controls

WELCOME = """
<h2>Ask a small model. Watch the engine that serves it.</h2>
<p>Every answer fills KV blocks in the charts. Ask a second question: its history comes from the
<b>prefix cache</b>. Open this page in another tab: both share <b>one batch</b>.</p>
"""
WELCOME_TEXT = """
<h2>Begin a text. The model goes on with it.</h2>
<p>No chat template is put around it: the model reads <b>exactly what you write</b>, and continues.
What it wrote is marked.</p>
"""
EXAMPLES = (
    "What is the capital of France?",
    "Write a haiku about a block of memory.",
    "Explain in three short steps how bread is made.",
    "List ten animals, one a line.",
)
BEGINNINGS = (
    "Once upon a time, in a library that nobody visited,",
    "The three most important inventions are",
    "def is_prime(n):\n",
    "Ingredients for an apple cake:\n-",
)
CHAT = """
<div class="bar">
  <div id="mode" class="mode" role="radiogroup" aria-label="mode">
    <label title="Your messages go through the model's chat template, and it answers."><input type="radio"
      name="chat-mode" value="chat" checked><span>Chat</span></label>
    <label title="No template: the model continues your text as it is."><input type="radio"
      name="chat-mode" value="completion"><span>Completion</span></label>
  </div>
  <div class="menu">
    <button type="button" id="earlier-chats" aria-expanded="false" aria-controls="earlier-chats-list"
      title="chats that this browser keeps">Earlier chats</button>
    <div id="earlier-chats-list" class="popup" hidden></div>
  </div>
  <div class="menu">
    <button type="button" id="chat-menu" aria-expanded="false" aria-controls="chat-menu-list"
      title="export and import" aria-label="export and import">⋯</button>
    <div id="chat-menu-list" class="popup" hidden>
      <button type="button" id="export-chat" title="a file that can be imported again">Export as JSON</button>
      <button type="button" id="export-markdown" title="a file to read">Export as Markdown</button>
      <button type="button" id="import-chat" title="a file that was exported as JSON">Import …</button>
      <input type="file" id="import-chat-file" accept=".json,application/json" aria-label="chat to import" hidden>
    </div>
  </div>
</div>
<div class="log" role="log" aria-label="chat" tabindex="0"></div>
<div class="notice" role="alert" hidden><span></span><button type="button" aria-label="close">×</button></div>
<template data-for="chat">$chat</template>
<template data-for="completion">$completion</template>
"""
BUTTONS = """
<button type="button" id="new-chat" title="begin anew; this chat is kept under Earlier chats">New chat</button>
<button type="button" id="retry" title="answer the last prompt again; the answer so far is kept beside it"
  disabled>Retry</button>
<button type="button" id="continue" title="let the model go on with its last answer" disabled>Continue</button>
<button type="button" id="undo" title="take the last prompt and its answer back" disabled>Undo</button>
<button type="button" id="stop" title="end the answer; what is there stays" disabled>Stop</button>
<button type="button" id="send" title="send (Enter; Shift+Enter is a new line)">Send</button>
"""


@dataclass(frozen=True, slots=True)
class ChatRoom:
    chats: Chats
    view: gr.HTML
    prompt: gr.Textbox

    def connect(self, page: gr.Blocks, controls: Controls, system_prompt: gr.Textbox) -> None:
        """Join it to the panels, which stand further down on the page."""
        _connect(self, page, [system_prompt, *controls.inputs])


def build_chat_room(context: PageContext) -> ChatRoom:
    """Called where the room belongs on the page."""
    chats = Chats(context)

    def render(document: Any) -> dict[str, Any]:
        return chats.render(document)

    view = gr.HTML(
        html_template=CHAT.replace("$chat", _welcome(WELCOME, EXAMPLES)).replace(
            "$completion", _welcome(WELCOME_TEXT, BEGINNINGS)
        ),
        # The names of events are read from here by Gradio: view.answer and view.halt.
        js_on_load='window.microVLLM.startChat({element, props, server, trigger, watch}, "answer", "halt")',
        server_functions=[render],
        apply_default_css=False,
        elem_id="chat",
    )
    with gr.Column(elem_id="composer"):
        prompt = gr.Textbox(
            label="prompt",
            placeholder=prompt_placeholder(context.host.state),
            show_label=False,
            container=False,
            lines=1,
            max_lines=8,
            interactive=True,
            elem_id="prompt",
        )
        gr.HTML(html_template=BUTTONS, js_on_load=None, apply_default_css=False, elem_id="buttons")
    return ChatRoom(chats, view, prompt)


def _welcome(words: str, examples: tuple[str, ...]) -> str:
    buttons = "".join(
        # A line break is written as an entity: Gradio's templates read backslashes, and attributes may not hold one.
        f'<button type="button" class="example" data-text="{html.escape(text).replace(chr(10), "&#10;")}">'
        f"{html.escape(text.strip())}</button>"
        for text in examples
    )
    return f'<div class="welcome">{words}<div class="examples">{buttons}</div></div>'


def _connect(room: ChatRoom, page: gr.Blocks, inputs: list[Any]) -> None:
    chats = room.chats

    # Gradio finds gr.EventData and gr.Request by the annotations of named parameters.
    async def on_answer(event: gr.EventData, request: gr.Request, *values: Any) -> Any:
        system_prompt, *sampling = values
        async with aclosing(chats.answer(event._data, system_prompt, sampling, request)) as updates:
            async for update in updates:
                yield update

    async def on_halt(event: gr.EventData, request: gr.Request) -> None:
        await chats.stop(event._data, request)

    room.view.answer(
        on_answer,
        inputs,
        room.view,
        concurrency_limit=None,
        trigger_mode="multiple",
        show_progress="hidden",
        api_visibility="private",
    )
    room.view.halt(
        on_halt,
        None,
        None,
        queue=False,
        trigger_mode="multiple",
        show_progress="hidden",
        api_visibility="private",
    )
    page.unload(chats.leave)


def prompt_placeholder(state: HostState) -> str:
    if state.serving:
        return "Ask something …"
    if state.status == "error":
        return "No model is loaded: choose one under “Model” below"
    share = f" · {state.progress:.0%}" if state.progress is not None else ""
    return f"{state.message or 'Loading the model'}{share} — you can already write"
