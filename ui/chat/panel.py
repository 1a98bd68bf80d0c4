"""The chat room: what stands where, and which event calls what."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ui.chat.handlers import Chat
from ui.context import PageContext
from ui.engine_host import HostState
from ui.panels.sampling import Controls

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


@dataclass(frozen=True, slots=True)
class ChatRoom:
    chat: Chat
    history: gr.State
    chatbot: gr.Chatbot
    prompt: gr.Textbox
    send: gr.Button
    stop: gr.Button
    retry: gr.Button
    new_chat: gr.Button

    def connect(self, page: gr.Blocks, controls: Controls, system_prompt: gr.Textbox) -> None:
        """Join them to the panels, which stand further down on the page."""
        inputs = [self.prompt, self.chatbot, self.history, system_prompt, *controls.inputs]
        _connect_chat(self, page, inputs)


def build_chat_room(context: PageContext) -> ChatRoom:
    """Called where the room belongs on the page."""
    host = context.host
    history = gr.State(())
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
    return ChatRoom(Chat(host, context.visitors), history, chatbot, prompt, send, stop, retry, new_chat)


def _connect_chat(room: ChatRoom, page: gr.Blocks, inputs: list[Any]) -> None:
    chat = room.chat
    outputs = [room.chatbot, room.history, room.prompt, room.send, room.stop, room.retry]
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

    gr.on([room.send.click, room.prompt.submit], on_send, inputs, outputs, **stream)
    room.retry.click(on_retry, inputs, outputs, **stream)
    room.chatbot.example_select(on_example, inputs, outputs, **stream)
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    room.stop.click(chat.stop, None, None, **quick)
    room.new_chat.click(chat.new_chat, None, outputs, **quick)
    page.unload(chat.leave)


def prompt_placeholder(state: HostState) -> str:
    if state.serving:
        return "Ask something …"
    if state.status == "error":
        return "No model is loaded: choose one under “Model” below"
    share = f" · {state.progress:.0%}" if state.progress is not None else ""
    return f"{state.message or 'Loading the model'}{share} — you can already write"
