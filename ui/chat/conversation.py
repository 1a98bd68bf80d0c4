"""A chat as data: turns, the versions of each answer, and what is known of how an answer came about.

The page of a visitor holds it and sends it with every event, as the JSON of ``ui.chat.document``: the server keeps
no chat, so neither a restart nor a lost session can lose one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["user", "assistant"]
Mode = Literal["chat", "completion"]
"""chat: turns go through the model's chat template. completion: the turns are one text, which the model continues."""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What is known of an answer so far; all of it is about the request that wrote its newest part."""

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


@dataclass(frozen=True, slots=True)
class Answer:
    """One version of an answer."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    """The ids that the engine generated: encoded again from text they could come out as others. Empty once the text
    was edited."""
    num_kept: int = 0
    """So many of them are older than the request: Continue and branches go on from what is there."""
    model_key: str = ""
    """The model whose ids they are; another model gets the text."""
    request_id: str = ""
    facts: AnswerFacts | None = None
    is_edited: bool = False
    note: str = ""
    """Why it broke off, if it did."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: a prompt with its text, or an answer with its versions, of which one is shown."""

    role: Role
    text: str = ""
    """Of a prompt."""
    versions: tuple[Answer, ...] = ()
    """Of an answer; at least one."""
    shown: int = 0

    @property
    def answer(self) -> Answer:
        """The version that is shown, and that the chat goes on from."""
        return self.versions[self.shown]

    @property
    def content(self) -> str:
        return self.text if self.role == "user" else self.answer.text


@dataclass(frozen=True, slots=True)
class Chat:
    turns: tuple[Turn, ...] = ()
    mode: Mode = "chat"
