"""A chat as the page keeps it: turns with the token ids of their answers, and how they are shown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ui.charts.palette import color_slot
from ui.markdown import answer_markdown, as_typed
from ui.view import request_label

_META_START = '<div class="meta">'
"""Outside of code no answer holds this: ``answer_markdown`` escapes every ``<``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. Gradio keeps them in per-session state; nothing in it points to the engine."""

    role: Literal["user", "assistant"]
    text: str
    token_ids: tuple[int, ...] = ()
    """The ids that the engine generated: encoded again from text they could come out as others."""
    model_key: str = ""
    """The model whose ids they are; another model gets the text."""
    meta: str = ""
    """The line under an answer, as HTML."""


def to_messages(turns: Sequence[Turn], system_prompt: str, model_key: str) -> list[dict[str, Any]]:
    """For ``Tokenizer.render_chat_with_ids``."""
    messages: list[dict[str, Any]] = []
    if system_prompt.strip():
        messages.append({"role": "system", "content": system_prompt})
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.token_ids and turn.model_key == model_key:
            message["token_ids"] = list(turn.token_ids)
        messages.append(message)
    return messages


def to_chatbot(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """For gr.Chatbot: prompts as they were typed, answers as Markdown with their line below."""
    shown = []
    for turn in turns:
        if turn.role == "user":
            shown.append({"role": "user", "content": as_typed(turn.text)})
        else:
            body = answer_markdown(turn.text).rstrip()
            shown.append({"role": "assistant", "content": f"{body}\n\n{turn.meta}" if turn.meta else body})
    return shown


def from_chatbot(shown: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
    """The turns that a page still shows when its session is gone: the server was started anew, say.

    Texts come back as they were; token ids and what they saved do not.
    """
    turns = []
    for message in shown:
        content = message.get("content")
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
        content = "\n".join(parts)
        body, found, meta = content.rpartition(_META_START)
        text = html.unescape(body if found else content).replace("\xa0", " ").strip("\n")
        if message.get("role") == "user":
            # as_typed keeps an empty line by a blank.
            turns.append(Turn("user", "\n".join("" if line == " " else line for line in text.split("\n"))))
        elif message.get("role") == "assistant":
            turns.append(Turn("assistant", text, meta=found + meta if found else ""))
    return tuple(turns)


# ---------------------------------------------------------------- the line under an answer


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What is known of an answer so far."""

    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    ttft: float | None = None
    """Seconds to the first token."""
    tpot: float | None = None
    """Seconds per token after it."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str = ""
    arrival: int | None = None
    """For the letter and colour that the charts give this request."""
    num_preemptions: int = 0


def meta_line(facts: AnswerFacts) -> str:
    """One line of HTML, there from the first moment so that nothing jumps."""
    parts = [_chip(facts.arrival)] if facts.arrival is not None else []
    if facts.num_output_tokens == 0 and facts.finish_reason is None:
        parts.append(f"reading {_count(facts.num_prompt_tokens, 'prompt token')} …")
        return _line(parts)
    if facts.ttft is not None:
        parts.append(_term("TTFT", "time to first token", _seconds(facts.ttft)))
    if facts.tpot:
        parts.append(_term("", "tokens a second after the first", f"<b>{1 / facts.tpot:.0f}</b> tok/s"))
    parts.append(_count(facts.num_output_tokens, "token"))
    parts.append(
        _term(
            "",
            "prompt tokens that came from the prefix cache and were not computed again",
            f"<b>{facts.num_cached_tokens:,}</b> of {facts.num_prompt_tokens:,} prompt tokens cached",
        )
    )
    if facts.num_preemptions:
        parts.append(f"preempted {facts.num_preemptions} ×")
    if facts.finish_reason is not None:
        parts.append(_ending(facts))
    return _line(parts)


def _ending(facts: AnswerFacts) -> str:
    words = {
        "stop": "finished" if facts.stop_reason is None else "ended at a stop string",
        "length": "cut at its length limit",
        "abort": "stopped",
        "error": f"failed: {html.escape(facts.error)}",
    }
    reason = facts.finish_reason or ""
    return _term("", f"finish reason: {reason}", words.get(reason, html.escape(reason)))


def waiting_line(words: str) -> str:
    """Before there is a request: the model is still being loaded, say."""
    return _line([html.escape(words)])


def failed_line(reason: str) -> str:
    """When the engine was closed in the middle of an answer, say."""
    return _line([f"broke off: {html.escape(reason)}"])


def _line(parts: Sequence[str]) -> str:
    return f"{_META_START}{' · '.join(parts)}</div>"


def _chip(arrival: int) -> str:
    return f'<span class="chip req-{color_slot(arrival)}">{request_label(arrival)}</span>'


def _term(name: str, title: str, value: str) -> str:
    return (
        f'<span title="{html.escape(title)}">{name} {value}</span>'
        if name
        else f'<span title="{html.escape(title)}">{value}</span>'
    )


def _count(number: int, noun: str) -> str:
    return f"<b>{number:,}</b> {noun}{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"<b>{seconds * 1000:.0f}</b> ms" if seconds < 1 else f"<b>{seconds:.1f}</b> s"
