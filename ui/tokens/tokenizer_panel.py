"""The tokens room: how a text is cut into tokens, and what the model really reads of a chat. Nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.tokenizer import Tokenizer
from ui.chat.conversation import Chat, Turn
from ui.chat.document import from_document
from ui.chat.prompting import PromptBuilder
from ui.context import PageContext
from ui.host.engine_host import ServingEngine
from ui.panels.sampling import Controls

MAX_CHARACTERS = 20_000
"""Of a text that is cut into tokens."""
MAX_PREVIEW = 200_000
"""Characters of a chat whose prompt is shown."""
MAX_SHOWN = 2_000
"""Tokens that are shown; the rest is counted."""
ROOM = """
<section class="pieces-part">
  <div class="line">
    <label title="what the tokenizer puts around a plain prompt, the sign for its beginning for example"><input
      type="checkbox" id="tokenizer-special"> with special tokens</label>
    <span class="counts" role="status"></span>
  </div>
  <p class="note" hidden></p>
  <div id="tokenizer-pieces" class="pieces" tabindex="0" role="group" aria-label="tokens of the text"></div>
</section>
<section id="template-preview" aria-labelledby="template-preview-title">
  <div class="line">
    <h2 id="template-preview-title">What the model reads</h2>
    <button type="button" id="template-refresh" title="read the chat again">Refresh</button>
  </div>
  <p class="about">Your chat, with the system prompt and what stands in the prompt box, after the
    <abbr title="the text that a model was trained to see around each message">chat template</abbr>; one row is one
    <abbr title="the unit in which the KV cache is handed out, shared and found again">KV block</abbr>.
    <span class="counts" role="status"></span></p>
  <p class="note" hidden></p>
  <div class="blocks" tabindex="0" role="group" aria-label="prompt, one row for each KV block"></div>
</section>
"""


@dataclass(frozen=True, slots=True)
class TokenizerRoom:
    """Its components. Its script asks by itself: for a text while it is typed, for the prompt when the room opens."""

    text: gr.Textbox

    def connect(self, controls: Controls) -> None:
        """Sampling has no say in what a model reads."""


def build_tokenizer_room(context: PageContext) -> TokenizerRoom:
    """Called where the room belongs on the page."""
    text = gr.Textbox(
        label="Text",
        placeholder="Write or paste a text to see how the model cuts it into tokens.",
        lines=3,
        max_lines=8,
        max_length=MAX_CHARACTERS,
        elem_id="tokenizer-input",
    )

    def tokenize(ask: Any) -> dict[str, Any]:
        return tokenized(context, ask)

    def preview(ask: Any) -> dict[str, Any]:
        return previewed(context, ask)

    gr.HTML(
        html_template=ROOM,
        js_on_load="window.microVLLM.tokenizerRoom(element, server)",
        server_functions=[tokenize, preview],
        apply_default_css=False,
        elem_id="tokenizer-view",
    )
    return TokenizerRoom(text)


# ---------------------------------------------------------------- what the script asks; any client may


def tokenized(context: PageContext, ask: Any) -> dict[str, Any]:
    """For ``{"text", "special"}``: ``{"tokens", "count", "characters"}``, or ``{"error"}`` in words."""
    try:
        text = ask.get("text") if isinstance(ask, dict) else None
        if not isinstance(text, str):
            raise InvalidRequestError("there is no text to cut into tokens.")
        if len(text) > MAX_CHARACTERS:
            raise InvalidRequestError(
                f"this text is {len(text):,} characters long; at most {MAX_CHARACTERS:,} are cut into tokens here. "
                "Shorten it."
            )
        tokenizer = _tokenizer(context.admission.engine())
        ids = tokenizer.encode(text, add_special_tokens=ask.get("special") is True)
        return {"tokens": _shown(tokenizer, ids), "count": len(ids), "characters": len(text)}
    except MicroVLLMError as error:
        return {"error": str(error)}


def previewed(context: PageContext, ask: Any) -> dict[str, Any]:
    """For ``{"document", "prompt", "system"}``: the prompt as tokens with ``block_size``, or ``{"error"}`` in words.

    The chat is the one that the tab holds; ``prompt`` is what is being typed, the next message.
    """
    try:
        if not isinstance(ask, dict):
            raise InvalidRequestError("there is no chat to show.")
        prompt, system = (ask.get(name) or "" for name in ("prompt", "system"))
        if not isinstance(prompt, str) or not isinstance(system, str):
            raise InvalidRequestError("prompt and system prompt are texts.")
        chat = from_document(ask.get("document") or {"turns": []})
        size = len(prompt) + len(system) + sum(len(turn.content) for turn in chat.turns)
        if size > MAX_PREVIEW:
            raise InvalidRequestError(
                f"this chat is {size:,} characters long; at most {MAX_PREVIEW:,} are shown here."
            )
        engine = context.admission.engine()
        ids = _prompt_ids(engine, chat, prompt, system)
        return {
            "tokens": _shown(_tokenizer(engine), ids),
            "count": len(ids),
            "block_size": engine.loop.engine.info.block_size,
        }
    except MicroVLLMError as error:
        return {"error": str(error)}


def _prompt_ids(engine: ServingEngine, chat: Chat, prompt: str, system: str) -> Sequence[int]:
    """What the engine would get if it were sent now; after an answer, what it holds of the chat."""
    builder = PromptBuilder(engine, system)
    if prompt.strip():
        chat = Chat((*chat.turns, Turn("user", prompt)), chat.mode)
    if not chat.turns:
        raise InvalidRequestError("The chat is empty: write a prompt, and see here what the model will read.")
    is_answered = chat.turns[-1].role == "assistant"
    return (builder.going_on(chat) if is_answered else builder.new_answer(chat)).prompt_ids


def _tokenizer(engine: ServingEngine) -> Tokenizer:
    tokenizer = engine.loaded.tokenizer
    if tokenizer is None:
        raise InvalidRequestError(f"{engine.loaded.name} has no tokenizer; load a model that has one.")
    return tokenizer


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> list[list[Any]]:
    """[id, piece, word, special] of the first tokens; ``word`` says what a part of a character is."""
    special = tokenizer.special_ids
    first = list(ids[:MAX_SHOWN])
    pieces = tokenizer.pieces(first)
    return [
        [token_id, piece, "" if piece else tokenizer.token_text(token_id), int(token_id in special)]
        for token_id, piece in zip(first, pieces, strict=True)
    ]
