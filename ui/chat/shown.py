"""How a chat looks: safe HTML of its texts and the line under each answer. HTML from a client is never used."""

from __future__ import annotations

from typing import Any

from micro_vllm.errors import InvalidRequestError
from ui.chat.conversation import Answer, Chat, Mode
from ui.chat.document import from_document, to_document
from ui.chat.meta import meta_line
from ui.host.engine_host import ServingEngine
from ui.render import answer_html, prompt_html


def body_html(text: str, mode: Mode, *, is_open: bool = False) -> str:
    """Of an answer. In a completion it is a part of one text, and shown as it is."""
    return prompt_html(text) if mode == "completion" else answer_html(text, is_open=is_open)


def shown(chat: Chat, engine: ServingEngine | None) -> list[dict[str, Any]]:
    """One entry a turn, beside those of ``to_document``: the HTML of each text and line."""
    return [
        {"html": prompt_html(turn.text)}
        if turn.role == "user"
        else {
            "versions": [
                {"html": body_html(a.text, chat.mode), "meta": meta_line(a, is_known=_is_known(a, engine))}
                for a in turn.versions
            ]
        }
        for turn in chat.turns
    ]


def render(document: Any, engine: ServingEngine | None) -> dict[str, Any]:
    """For a page that was loaded again, whose chat was edited, or that opens one from a file.

    ``{"document", "shown"}``: the chat as the page may keep it, and how it looks; or ``{"error"}`` in words.
    """
    try:
        chat = from_document(document)
    except InvalidRequestError as error:
        return {"error": str(error)}
    return {"document": to_document(chat), "shown": shown(chat, engine)}


def _is_known(answer: Answer, engine: ServingEngine | None) -> bool:
    """Letters start anew with every engine: one of an earlier engine would name somebody else's request."""
    arrival = answer.facts.arrival if answer.facts else None
    return (
        engine is not None and arrival is not None and engine.replay.arrival_of(answer.request_id) == arrival
    )
