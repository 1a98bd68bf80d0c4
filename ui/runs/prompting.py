"""From a room of the page to requests: the engine that serves, and its way of encoding a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from ui.context import PageContext
from ui.host.engine_host import ServingEngine
from ui.render import plain
from ui.visitors import Visitor


def ready_engine(context: PageContext) -> ServingEngine:
    """Raises InvalidRequestError where no model serves, with how far it is."""
    state = context.host.state
    if context.host.engine is None and state.status in ("empty", "loading"):
        share = f" {state.progress:.0%}" if state.progress is not None else ""
        raise InvalidRequestError(
            f"The model is still being loaded ({state.message or 'just begun'}{share}). Press the button again when "
            "the page says that it is ready."
        )
    return context.admission.engine()


def encoder(engine: ServingEngine) -> Callable[[str, str], Sequence[int]]:
    """``encode(system prompt or "", prompt)`` -> token ids after the chat template; a model without one completes the
    prompt as it stands."""
    tokenizer = engine.loaded.tokenizer
    if tokenizer is None:
        raise InvalidRequestError(f"{engine.loaded.name} has no tokenizer; load a model that has one.")

    def encode(system: str, prompt: str) -> Sequence[int]:
        if not tokenizer.has_chat_template:
            return tokenizer.encode(f"{system}\n\n{prompt}" if system else prompt)
        messages = [{"role": "system", "content": system}] if system else []
        return tokenizer.encode_chat([*messages, {"role": "user", "content": prompt}])

    return encode


def visitor_of(context: PageContext, request: gr.Request) -> Visitor:
    return context.visitors.of_session(request.session_hash or "")


def refusal(error: MicroVLLMError, title: str = "Not started") -> gr.Error:
    """What the page shows; nothing is wrong with the server."""
    return gr.Error(plain(str(error)), title=title, duration=20, print_exception=False)
