"""Where a visitor's requests enter the engine: ready or not, how long, how many, and under which salt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from ui.charts.wording import counted
from ui.host.engine_host import EngineHost, ServingEngine
from ui.visitors import Visitor, Visitors

UNREAD = 4
"""Times as many answers as a visitor may have at once may be finished while nobody has read their ends yet: no more, or
somebody who never reads would fill the server."""


class BusyError(InvalidRequestError):
    """Nothing is wrong with the request, but too much is going on: it may be sent as soon as something has ended."""


class Admission:
    """One for the page. Every room that sends requests does it here, so that the limits hold for all of them."""

    def __init__(self, host: EngineHost, visitors: Visitors) -> None:
        self._host = host
        self._visitors = visitors
        self._limits = host.settings.limits

    @property
    def max_answer_tokens(self) -> int | None:
        return self._limits.max_answer_tokens

    def engine(self) -> ServingEngine:
        """The engine that serves. Raises InvalidRequestError when there is none."""
        engine = self._host.engine
        if engine is None:
            raise InvalidRequestError(
                f"no model is loaded: {self._host.state.message} Choose another model under “Model” and press Load."
            )
        return engine

    def submit(
        self,
        engine: ServingEngine,
        visitor: Visitor,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        shared_prefix_len: int = 0,
        priority: int = 0,
    ) -> Any:
        """Queue one request; its RequestHandle. Call ``end`` when it is over.

        ``shared_prefix_len``: so many tokens at the front are nobody's secret (a system prompt of ours) and may be
        shared between visitors of a shared server.

        Raises:
            InvalidRequestError: with the number, the limit and what to do; nothing was queued.
            BusyError: the same, where waiting is enough.
        """
        limits = self._limits
        if (most := limits.max_requests_per_visitor) is not None:
            live, unread = len(self._visitors.live(visitor)), len(visitor.handles)
            if live >= most or unread >= UNREAD * most:
                raise BusyError(
                    f"{live if live >= most else unread} of your answers are still being written; this shared server "
                    f"allows {most} at a time. Wait for one or press Stop."
                )
        if limits.max_waiting is not None and self._num_waiting(engine) >= limits.max_waiting:
            raise BusyError(
                f"{limits.max_waiting} requests are waiting already, as many as this shared server queues. "
                "Try again in a moment."
            )
        check_length(len(token_ids), engine, limits.max_prompt_tokens)
        salt = visitor.token if self._host.settings.is_hosted else None
        handle = engine.loop.submit(
            {"prompt_token_ids": list(token_ids)},
            params,
            cache_salt=salt,
            shared_prefix_len=shared_prefix_len if salt is not None else 0,
            priority=priority,
        )
        self._visitors.begin(visitor, handle)
        return handle

    def end(self, visitor: Visitor, handle: Any) -> None:
        """The answer is over, or nobody waits for it any more: then it is aborted."""
        self._visitors.end(visitor, handle.request_id)
        if not handle.finished:
            self.abort([handle.request_id])

    def has_left(self, visitor: Visitor) -> bool:
        """The tab is closed: nothing more is to be done for it."""
        return self._visitors.of_token(visitor.token) is not visitor

    def abort(self, request_ids: Sequence[str]) -> None:
        engine = self._host.engine
        for request_id in request_ids if engine else ():
            try:
                engine.loop.abort(request_id)  # type: ignore[union-attr]
            except MicroVLLMError:
                return  # the loop is closed, and with it every request

    def _num_waiting(self, engine: ServingEngine) -> int:
        """The engine's own count is as old as its last step; in a burst, all that is live beyond its seats counts."""
        beyond_seats = self._visitors.num_live() - engine.loop.engine.config.max_num_seqs
        return max(engine.loop.stats().num_waiting, beyond_seats)


def check_length(num_tokens: int, engine: ServingEngine, limit: int | None) -> None:
    """In the words of a chat, before the engine says it in those of an engine."""
    info = engine.loop.engine.info
    pool = info.num_blocks * info.block_size
    longest = min(info.max_model_len - 1, pool, limit if limit is not None else pool)
    if num_tokens > longest:
        why = {
            info.max_model_len - 1: "the model's context",
            pool: f"the KV cache of {counted(info.num_blocks, 'block')}",
        }.get(longest, "the limit of this shared server")
        raise InvalidRequestError(
            f"With your message this chat is {num_tokens:,} tokens long; at most {longest:,} are allowed ({why}). "
            "Shorten the message, or press New chat to start without the earlier turns."
        )
