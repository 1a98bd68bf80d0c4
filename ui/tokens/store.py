"""The tokens of recent answers, each readable by the visitor whose answer it is and by nobody else."""

from __future__ import annotations

import math
import threading
import weakref
import zlib
from collections import OrderedDict
from typing import Any

from ui.host.engine_host import ServingEngine
from ui.replay import Replay
from ui.tokens.record import ALTERNATIVES, AnswerTokens
from ui.view import EngineView
from ui.visitors import Visitor

__all__ = ["ALTERNATIVES", "TokenStore"]

ANSWERS_PER_VISITOR = 64
MAX_ANSWERS = 2_048
"""Of all visitors; beyond this, and beyond MAX_TOKENS, those that were fed longest ago go."""
MAX_TOKENS = 400_000
TOKENS_PER_REPLY = 400
"""What a tab gets at a time; it asks for the rest at once."""

Key = tuple[str, str]
"""Token of the visitor, request id: an id alone may come again with another engine."""


class TokenStore:
    """Fed by the rooms that follow answers; read by the pane of the token strip. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[Key, tuple[AnswerTokens, weakref.ref[Visitor]]] = OrderedDict()

    def update(self, visitor: Visitor, engine: ServingEngine, output: Any, *, kept: int = 0) -> None:
        """Take the newest output of one of the visitor's requests.

        Args:
            output: a RequestOutput, cumulative, with ``logprobs`` of at least ALTERNATIVES to be of use.
            kept: the last so many tokens of its prompt are the beginning of the answer, which goes on.
        """
        key = (visitor.token, output.request_id)
        with self._lock:
            known = self._answers.get(key)
            answer = known[0] if known is not None else None
            if answer is None or answer.story() is not engine.replay:
                answer = AnswerTokens(engine, output, min(max(kept, 0), len(output.prompt_token_ids)))
                self._answers[key] = (answer, weakref.ref(visitor))
                self._drop_old(visitor)
            self._answers.move_to_end(key)
            answer.update(output)

    def get(self, visitor: Visitor, request_id: str) -> AnswerTokens | None:
        with self._lock:
            known = self._answers.get((visitor.token, request_id))
            return known[0] if known is not None else None

    def _drop_old(self, visitor: Visitor) -> None:
        for key in [key for key, (_, owner) in self._answers.items() if owner() is None]:
            del self._answers[key]  # their tab is closed
        own = [key for key in self._answers if key[0] == visitor.token]
        for key in own[: max(0, len(own) - ANSWERS_PER_VISITOR)]:
            del self._answers[key]
        num_tokens = sum(len(answer) for answer, _ in self._answers.values())
        while len(self._answers) > MAX_ANSWERS or (num_tokens > MAX_TOKENS and len(self._answers) > 1):
            _, (answer, _) = self._answers.popitem(last=False)
            num_tokens -= len(answer)

    # ------------------------------------------------------------ the pane

    def answer(
        self, ask: Any, visitor: Visitor | None, view: EngineView | None, replay: Replay | None
    ) -> Any:
        """For ``{"request", "since", "finished", "table"}``: the tokens from ``since`` on, None if nothing is new.

        ``table`` names the block table that the tab holds; another one is sent whole. A request that is not kept, or
        not this visitor's, is ``{"request", "gone": true}``.
        """
        checked = _checked(ask)
        if checked is None:
            return None
        request_id, since, knows_end, table_version = checked
        tokens = self.get(visitor, request_id) if visitor is not None else None
        if visitor is None or tokens is None or request_id not in tuple(visitor.mine):
            is_waiting = visitor is not None and request_id in visitor.handles  # nothing has come yet
            return None if is_waiting else {"request": request_id, "gone": True}
        with self._lock:
            told = _tokens(tokens, since, knows_end)
        blocks = _blocks(tokens, request_id, view, replay)
        version = zlib.crc32(repr(blocks).encode()) if blocks else 0
        if version != table_version:
            told["table"] = {"version": version, **(blocks or {})}
        return {"request": request_id, **told} if told else None


def _tokens(tokens: AnswerTokens, since: int, knows_end: bool) -> dict[str, Any]:
    if since > len(tokens):
        since = 0  # the tab holds those of another answer: it begins anew
    if tokens.is_finished and not knows_end:
        since = max(
            0, min(since, len(tokens) - 2)
        )  # the end may have completed the last piece before an end token
    if since == len(tokens) and (knows_end or not tokens.is_finished):
        return {}
    stop = min(len(tokens), since + TOKENS_PER_REPLY)
    return {
        "from": since,
        "start": tokens.start,
        "kept": tokens.num_kept,
        "tokens": [_token(tokens, index) for index in range(since, stop)],
        "more": stop < len(tokens),
        "finished": tokens.is_finished and stop == len(tokens),
        "cut": tokens.num_text_tokens,
    }


def _token(tokens: AnswerTokens, index: int) -> list[Any]:
    """[id, piece, word, special, probability, rank, [[id, word, probability], ...]]; word: "" where it is the piece."""
    token_id, piece = tokens.ids[index], tokens.pieces[index]
    word = tokens.word(token_id)
    return [
        token_id,
        piece,
        "" if word == piece else word,
        int(tokens.is_special(token_id)),
        _probability(tokens.logprob(index)),
        tokens.rank(index),
        [[other, tokens.word(other), _probability(value)] for other, value in tokens.alternatives(index)],
    ]


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else float(f"{math.exp(logprob):.4g}")


def _blocks(
    tokens: AnswerTokens, request_id: str, view: EngineView | None, replay: Replay | None
) -> dict[str, Any] | None:
    """The block table at the step that the tab looks at, of the first group, which is that of full attention."""
    if view is None or replay is None or tokens.story() is not replay:
        return None
    track = view.request(request_id)
    if track is None or not track.tables:
        return None
    return {
        "size": view.info.block_size,
        "blocks": list(track.tables[0]),
        "computed": track.num_computed_tokens,
    }


def _checked(ask: Any) -> tuple[str, int, bool, int] | None:
    """(request, since, finished, table); None for what no tab of ours asks."""
    if not isinstance(ask, dict):
        return None
    request_id, since, table = ask.get("request"), ask.get("since", 0), ask.get("table", 0)
    if not isinstance(request_id, str) or not 0 < len(request_id) <= 128:
        return None
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**32 for n in (since, table)):
        return None
    return request_id, since, ask.get("finished") is True, table
