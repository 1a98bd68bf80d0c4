"""What the engine gets: from a chat to prompt ids, with the ids of earlier answers kept.

Kept ids make turn n + 1 begin with exactly the ids of turn n, so that every full KV block of it is found in the
prefix cache; encoding the text again gives other ids too often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from micro_vllm.errors import InvalidRequestError
from micro_vllm.tokenizer import Tokenizer
from ui.chat.conversation import Answer, Chat, Turn
from ui.host.engine_host import ServingEngine


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new answer begins: after a prompt, or in the middle of an answer that goes on."""

    prompt_ids: tuple[int, ...]
    kept_ids: tuple[int, ...] = ()
    """The part of the answer that is there already; the prompt ends with it."""
    kept_text: str = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """Another token in the place of token ``index`` of an answer. Both numbers come from a client."""

    index: int
    token_id: int


def model_key(engine: ServingEngine) -> str:
    """Token ids of one key mean the same text. A digest: chats are exported, and paths are nobody's business."""
    return hashlib.sha256(engine.model_key.encode()).hexdigest()[:16]


class PromptBuilder:
    """For one engine and one system prompt. Everything here raises InvalidRequestError in words for the visitor."""

    def __init__(self, engine: ServingEngine, system_prompt: str) -> None:
        if engine.loaded.tokenizer is None:
            raise InvalidRequestError(f"{engine.loaded.name} has no tokenizer; load a model that has one.")
        self._name = engine.loaded.name
        self._tokenizer: Tokenizer = engine.loaded.tokenizer
        self._vocab_size = min(self._tokenizer.vocab_size, engine.loaded.config.vocab_size)
        self._key = model_key(engine)
        self._system_prompt = system_prompt

    def new_answer(self, chat: Chat) -> Start:
        """After the last turn, which is a prompt."""
        if not chat.turns or chat.turns[-1].role != "user":
            raise InvalidRequestError("There is no prompt to answer; write one first.")
        return Start(tuple(self._ids(chat.turns, chat)))

    def going_on(self, chat: Chat, branch: Branch | None = None) -> Start:
        """In the last turn, which is an answer: after its end, or after another token in the place of one of its own.

        The prompt is what the answer was begun with, then the answer: the prefix cache has all of it. (A template
        that is told to leave its last message open may write that turn in another way.)
        """
        if not chat.turns or chat.turns[-1].role != "assistant":
            raise InvalidRequestError("There is no answer to go on with; send a prompt first.")
        answer = chat.turns[-1].answer
        before = self._ids(chat.turns[:-1], chat)
        if branch is None:
            kept = self._answer_ids(answer)
            return Start((*before, *kept), kept, answer.text.removesuffix(self._unfinished(kept)))
        kept = self._branch_ids(answer, branch)
        stream = self._tokenizer.text_stream(before)
        return Start((*before, *kept), kept, "".join(stream.push(token_id) for token_id in kept))

    # ------------------------------------------------------------ turns to ids

    def _ids(self, turns: Sequence[Turn], chat: Chat) -> list[int]:
        if chat.mode == "completion":
            return self._text_ids(turns)
        if not self._tokenizer.has_chat_template:
            raise InvalidRequestError(
                f"{self._name} has no chat template: it goes on with texts and answers nobody. "
                "Switch to Completion above the chat, or load a chat model."
            )
        return self._tokenizer.render_chat_with_ids(self.messages(turns))

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        """For ``Tokenizer.render_chat_with_ids``; ids go to the model that wrote them only."""
        messages: list[dict[str, Any]] = []
        if self._system_prompt.strip():
            messages.append({"role": "system", "content": self._system_prompt})
        for turn in turns:
            message: dict[str, Any] = {"role": turn.role, "content": turn.content}
            if turn.role == "assistant" and (ids := self._own_ids(turn.answer)):
                message["token_ids"] = list(ids)
            messages.append(message)
        return messages

    def _text_ids(self, turns: Sequence[Turn]) -> list[int]:
        """All turns as one text. Only its beginning gets what the tokenizer puts before a text."""
        ids: list[int] = []
        for number, turn in enumerate(turns):
            if turn.role == "assistant":
                ids += self._answer_ids(turn.answer)
            elif number == 0:
                ids += self._tokenizer.encode(turn.text)
            else:
                ids += self._tokenizer.encode_continuation(turn.text)
        return ids

    def _answer_ids(self, answer: Answer) -> tuple[int, ...]:
        return tuple(self._tokenizer.continuation_ids(self._own_ids(answer), answer.text))

    def _own_ids(self, answer: Answer) -> tuple[int, ...]:
        """The ids of an answer, if this model wrote them."""
        is_own = answer.model_key == self._key and all(i < self._vocab_size for i in answer.token_ids)
        return answer.token_ids if is_own else ()

    def _branch_ids(self, answer: Answer, branch: Branch) -> tuple[int, ...]:
        ids = self._own_ids(answer)
        if not ids:
            raise InvalidRequestError(
                "The tokens of this answer are not known: its text was edited, or another model wrote it. "
                "Press Retry for an answer whose tokens are known."
            )
        if not 0 <= branch.index < len(ids):
            raise InvalidRequestError(
                f"This answer has tokens 0 to {len(ids) - 1} and none with number {branch.index}; choose one of them."
            )
        return (*ids[: branch.index], branch.token_id)

    def _unfinished(self, ids: Sequence[int]) -> str:
        """What a text ends with whose last tokens are only a part of a character: what follows writes it whole."""
        stream = self._tokenizer.text_stream()
        for token_id in ids:
            stream.push(token_id)
        return stream.flush()
