"""The tokens of one answer, kept small: numbers in arrays, words only when somebody looks."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from ui.host.engine_host import ServingEngine

ALTERNATIVES = 5
"""So many of the likeliest tokens are kept for every token; requests of the page ask for them (``logprobs``)."""
_UNKNOWN = float("nan")


class AnswerTokens:
    """What an answer consists of, as far as it has come.

    Invariant: the pieces of all tokens, joined, are the text of the answer, its stop string included. Special tokens
    that the text leaves out have an empty piece, and so has a token that ends in the middle of a character: the one
    that completes it shows it.
    """

    def __init__(self, engine: ServingEngine, output: Any, kept: int) -> None:
        prompt = output.prompt_token_ids
        self.tokenizer = engine.loaded.tokenizer
        self.story = weakref.ref(engine.replay)
        """Whose block tables are this answer's."""
        self.start = len(prompt) - kept
        """Index of the answer's first token, from the start of the prompt."""
        self.num_kept = kept
        self.ids = array("i")
        self.pieces: list[str] = []
        self._logprobs = array("f")
        self._ranks = array("i")
        self._best_ids = array("i")
        self._best_logprobs = array("f")
        self.num_text_tokens: int | None = None
        """Tokens of the finished text; what follows belongs to a stop string."""
        self.is_finished = False
        self._stream = self.tokenizer.text_stream(prompt[: self.start]) if self.tokenizer else None
        for token_id in prompt[self.start :]:
            self._append(token_id, {})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_alternatives(self) -> int:
        return len(self._best_ids)

    def update(self, output: Any) -> None:
        """Take what is new in a cumulative output: O(new tokens). An older output changes nothing."""
        answer = output.outputs[0]
        logprobs: Sequence[Mapping[int, Any]] = answer.logprobs or ()
        for index in range(len(self.ids) - self.num_kept, len(answer.token_ids)):
            self._append(answer.token_ids[index], logprobs[index] if index < len(logprobs) else {})
        if output.finished and not self.is_finished:
            self.is_finished = True
            self._finish(answer)

    def _append(self, token_id: int, candidates: Mapping[int, Any]) -> None:
        mine = candidates.get(token_id)
        self.ids.append(token_id)
        self.pieces.append(self._stream.push(token_id) if self._stream is not None else "")
        self._logprobs.append(mine.logprob if mine is not None else _UNKNOWN)
        self._ranks.append(mine.rank if mine is not None else 0)
        best = sorted(
            (found.rank, found.logprob, other)
            for other, found in candidates.items()
            if found.rank <= ALTERNATIVES
        )[:ALTERNATIVES]
        best += [(0, _UNKNOWN, -1)] * (ALTERNATIVES - len(best))
        for _, logprob, other in best:
            self._best_ids.append(other)
            self._best_logprobs.append(logprob)

    def _finish(self, answer: Any) -> None:
        if self._stream is None:
            return
        rest = self._stream.flush()
        if rest and self.pieces:
            self.pieces[-2 if len(self.ids) > 1 and self.is_special(self.ids[-1]) else -1] += rest
        length = 0
        own = self.pieces[self.num_kept :]
        for index, piece in enumerate(own):
            if length >= len(answer.text) and any(own[index:]):
                self.num_text_tokens = self.num_kept + index
                return
            length += len(piece)

    # ------------------------------------------------------------ reading

    def logprob(self, index: int) -> float | None:
        """Natural logarithm, of the model's own distribution; None where it is not known."""
        value = self._logprobs[index]
        return None if value != value else value

    def rank(self, index: int) -> int | None:
        """1 for the likeliest token."""
        return self._ranks[index] or None

    def alternatives(self, index: int) -> list[tuple[int, float]]:
        """(id, logprob) of the likeliest tokens, the best first."""
        at = index * ALTERNATIVES
        return [
            (self._best_ids[i], self._best_logprobs[i])
            for i in range(at, at + ALTERNATIVES)
            if self._best_ids[i] >= 0
        ]

    def is_special(self, token_id: int) -> bool:
        """Whether it is a sign to the model rather than text: the end of an answer, say."""
        tokenizer = self.tokenizer
        return tokenizer is not None and (
            token_id in tokenizer.special_ids or token_id in tokenizer.eos_token_ids
        )

    def word(self, token_id: int) -> str:
        """One token for display, also where it is only a part of a character."""
        return (self.tokenizer.token_text(token_id) if self.tokenizer is not None else "") or f"#{token_id}"
