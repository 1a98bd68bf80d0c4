"""The chat: what Send, Stop, Retry and New chat do. Engine calls in, values for the components out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from ui.chat.conversation import (
    Turn,
    failed_line,
    from_chatbot,
    to_chatbot,
    to_messages,
    waiting_line,
)
from ui.chat.stream import HEARTBEAT_SECONDS, follow
from ui.engine_host import EngineHost, ServingEngine
from ui.markdown import plain
from ui.panels.sampling import to_params
from ui.visitors import Visitor, Visitors

logger = logging.getLogger(__name__)


NEW_CHAT_SECONDS = 3.0
"""New chat waits so long for an answer to notice it, which takes a few YIELD_SECONDS."""

History = tuple[Turn, ...]
Outputs = list[Any]
"""Values for [chatbot, history, prompt, send, stop, retry]."""


class Chat:
    """The handlers of one page; all that is per visitor comes in as arguments."""

    def __init__(self, host: EngineHost, visitors: Visitors) -> None:
        self._host = host
        self._visitors = visitors
        self._limits = host.settings.limits

    # ------------------------------------------------------------ handlers

    async def send(
        self,
        text: str | None,
        shown: list[dict[str, Any]] | None,
        history: History,
        system_prompt: str | None,
        *rest: Any,
    ) -> AsyncGenerator[Outputs]:
        """``shown``: what the chatbot shows, for a session that was lost; ``rest``: the values of the sampling panel,
        then the gr.Request."""
        *values, request = rest
        if not text or not text.strip():
            yield [gr.skip()] * 6
            return
        history = history or from_chatbot(shown or [])
        turns = (*history, Turn("user", text))
        async with aclosing(
            self._answer(turns, history, text, system_prompt or "", values, request)
        ) as answered:
            async for outputs in answered:
                yield outputs

    async def retry(
        self,
        text: str | None,
        shown: list[dict[str, Any]] | None,
        history: History,
        system_prompt: str | None,
        *rest: Any,
    ) -> AsyncGenerator[Outputs]:
        """Answer the last prompt again; what is being typed stays."""
        *values, request = rest
        turns = history = history or from_chatbot(shown or [])
        while turns and turns[-1].role == "assistant":
            turns = turns[:-1]
        if not turns:
            raise _refusal("There is no prompt to answer again yet; write one first.")
        async with aclosing(
            self._answer(turns, history, None, system_prompt or "", values, request)
        ) as answered:
            async for outputs in answered:
                yield outputs

    def stop(self, request: gr.Request) -> None:
        """End this visitor's answers. Their generators see the last output and keep the partial text."""
        visitor = self._visitors.of_session(_session(request))
        visitor.num_stops += 1
        self._abort(self._visitors.live(visitor))

    async def new_chat(self, request: gr.Request) -> Outputs:
        """Empty the chat. An answer that is being written ends with an empty chat too: whatever order the browser
        gets the two in, nothing comes back. (Gradio's ``cancels`` lets messages through that are on their way.)"""
        visitor = self._visitors.of_session(_session(request))
        visitor.num_chats += 1
        self.stop(request)
        deadline = time.monotonic() + NEW_CHAT_SECONDS
        while visitor.num_answering and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return _emptied()

    def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        self._abort(self._visitors.forget(_session(request)))

    def _abort(self, request_ids: Sequence[str]) -> None:
        engine = self._host.engine
        for request_id in request_ids if engine else ():
            try:
                engine.loop.abort(request_id)  # type: ignore[union-attr]
            except MicroVLLMError:
                return  # the loop is closed, and with it every request

    # ------------------------------------------------------------ one answer

    async def _answer(
        self,
        turns: History,
        before: History,
        typed: str | None,
        system_prompt: str,
        values: Sequence[Any],
        request: gr.Request,
    ) -> AsyncGenerator[Outputs]:
        """``before`` and ``typed`` are put back if the prompt is refused."""
        try:
            params = to_params(values, self._limits.max_answer_tokens)
        except InvalidRequestError as error:
            raise _refusal(str(error)) from error

        visitor = self._visitors.of_session(_session(request))
        num_chats = visitor.num_chats
        visitor.num_answering += 1
        try:
            async with aclosing(self._write(visitor, turns, before, typed, system_prompt, params)) as written:
                async for outputs in written:
                    if visitor.num_chats != num_chats:
                        break
                    yield outputs
            if visitor.num_chats != num_chats:
                yield _emptied()
        finally:
            visitor.num_answering -= 1

    async def _write(
        self,
        visitor: Visitor,
        turns: History,
        before: History,
        typed: str | None,
        system_prompt: str,
        params: SamplingParams,
    ) -> AsyncGenerator[Outputs]:
        num_stops = visitor.num_stops
        can_retry = any(turn.role == "assistant" for turn in before)
        answer = Turn("assistant", "", meta=waiting_line("…"))
        cleared: Any = gr.skip() if typed is None else ""
        yield [to_chatbot((*turns, answer)), gr.skip(), cleared, *_buttons(busy=True, can_retry=False)]
        try:
            async for words in self._until_ready():
                answer = replace(answer, meta=waiting_line(words))
                yield [to_chatbot((*turns, answer)), *[gr.skip()] * 5]
                if visitor.num_stops != num_stops:
                    raise InvalidRequestError("Stopped before the model was ready.")
            engine = self._ready_engine()
            handle = self._submit(engine, visitor, turns, system_prompt, params)
        except Exception as error:
            if not isinstance(error, MicroVLLMError):
                logger.exception("a prompt could not be sent")
            kept: Any = gr.skip() if typed is None else typed
            yield [to_chatbot(before), before, kept, *_buttons(busy=False, can_retry=can_retry)]
            raise _refusal(_reason(error)) from error

        try:
            async with aclosing(follow(engine, handle)) as answers:
                async for answer in answers:
                    yield [to_chatbot((*turns, answer)), *[gr.skip()] * 5]
        except Exception as error:
            # What came so far stays; the line below it says why there is no more.
            if not isinstance(error, MicroVLLMError):
                logger.exception("an answer broke off")
            answer = replace(answer, meta=failed_line(_reason(error)))
        finally:
            # Also when Gradio closes this generator because the tab is gone.
            self._visitors.end(visitor, handle.request_id)
            if not handle.finished:
                self._abort([handle.request_id])
        turns = (*turns, answer)
        yield [to_chatbot(turns), turns, gr.skip(), *_buttons(busy=False, can_retry=True)]

    async def _until_ready(self) -> AsyncGenerator[str]:
        """What the visitor is waiting for, as long as a model is being loaded and none serves."""
        while self._host.engine is None:
            state = await self._host.wait_until_settled(HEARTBEAT_SECONDS / 2)
            if state.status not in ("empty", "loading"):
                return
            share = f" {state.progress:.0%}" if state.progress is not None else ""
            yield f"waiting for the model · {state.message}{share}"

    def _ready_engine(self) -> ServingEngine:
        engine = self._host.engine
        if engine is None:
            raise InvalidRequestError(
                f"no model is loaded: {self._host.state.message} Choose another model under “Model” and press Load."
            )
        return engine

    def _submit(
        self,
        engine: ServingEngine,
        visitor: Visitor,
        turns: History,
        system_prompt: str,
        params: SamplingParams,
    ) -> Any:
        """Queue the chat. Raises InvalidRequestError with the numbers and what to do."""
        limits = self._limits
        if limits.max_requests_per_visitor is not None:
            live = len(self._visitors.live(visitor))
            if live >= limits.max_requests_per_visitor:
                raise InvalidRequestError(
                    f"{live} of your answers are still being written; this shared server allows "
                    f"{limits.max_requests_per_visitor} at a time. Wait for one or press Stop."
                )
            if limits.max_waiting is not None and self._num_waiting(engine) >= limits.max_waiting:
                raise InvalidRequestError(
                    f"{limits.max_waiting} requests are waiting already, as many as this shared server queues. "
                    "Try again in a moment."
                )
        messages = to_messages(turns, system_prompt, engine.model_key)
        tokenizer = engine.loaded.tokenizer
        if tokenizer is None:
            raise InvalidRequestError(f"{engine.loaded.name} has no tokenizer; load a model that has one.")
        token_ids = tokenizer.render_chat_with_ids(messages)
        _check_length(len(token_ids), engine, limits.max_prompt_tokens)
        salt = visitor.token if self._host.settings.is_hosted else None
        handle = engine.loop.submit({"prompt_token_ids": list(token_ids)}, params, cache_salt=salt)
        self._visitors.begin(visitor, handle.request_id)
        return handle

    def _num_waiting(self, engine: ServingEngine) -> int:
        """The engine's own count is as old as its last step; in a burst, all that is live beyond its seats counts."""
        beyond_seats = self._visitors.num_live() - engine.loop.engine.config.max_num_seqs
        return max(engine.loop.stats().num_waiting, beyond_seats)


def _check_length(num_tokens: int, engine: ServingEngine, limit: int | None) -> None:
    """In the words of a chat, before the engine says it in those of an engine."""
    info = engine.loop.engine.info
    pool = info.num_blocks * info.block_size
    longest = min(info.max_model_len - 1, pool, limit if limit is not None else pool)
    if num_tokens > longest:
        why = {
            info.max_model_len - 1: "the model's context",
            pool: f"the KV cache of {info.num_blocks:,} blocks",
        }.get(longest, "the limit of this shared server")
        raise InvalidRequestError(
            f"With your message this chat is {num_tokens:,} tokens long; at most {longest:,} are allowed ({why}). "
            "Shorten the message, or press New chat to start without the earlier turns."
        )


def _emptied() -> Outputs:
    return [[], (), gr.skip(), *_buttons(busy=False, can_retry=False)]


def _buttons(*, busy: bool, can_retry: bool) -> list[Any]:
    """Updates for send, stop and retry."""
    return [
        gr.update(interactive=not busy),
        gr.update(interactive=busy),
        gr.update(interactive=can_retry and not busy),
    ]


def _refusal(words: str) -> gr.Error:
    """What the page shows; no traceback for the log, since nothing is wrong with the server."""
    return gr.Error(plain(words), title="Not sent", duration=20, print_exception=False)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MicroVLLMError) else f"{type(error).__name__}: {error}"


def _session(request: gr.Request) -> str:
    return request.session_hash or ""
