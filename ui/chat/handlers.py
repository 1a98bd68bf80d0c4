"""What the buttons of the chat do on the server: answers as streams of updates, Stop, and a tab that leaves.

The chat itself is in the page. An update says all there is to say about one run (one press of a button), so that the
page may miss any but the last: ``{"run", "state", "beat", "answer", "html", "meta"}``, ``state`` one of ``writing``,
``done`` and ``refused``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr

from micro_vllm.errors import InvalidRequestError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from ui.chat.conversation import Answer, Chat, Mode
from ui.chat.document import answer_to_json, from_document
from ui.chat.meta import meta_line, waiting_line
from ui.chat.prompting import Branch, PromptBuilder, Start
from ui.chat.shown import body_html, render
from ui.chat.stream import HEARTBEAT_SECONDS, Moment, follow
from ui.context import PageContext
from ui.host.engine_host import ServingEngine
from ui.panels.sampling import to_params
from ui.render import plain
from ui.tokens.store import ALTERNATIVES
from ui.visitors import Visitor

logger = logging.getLogger(__name__)

Update = dict[str, Any]
_MAX_NAME = 64


@dataclass(eq=False)
class Run:
    """One press of Send, Retry or Continue, from the first moment on: also what is no request yet can be stopped."""

    run_id: str
    is_stopped: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page asks for, checked."""

    run_id: str
    chat: Chat
    """Its last turn is the prompt to answer, or the answer to go on with."""
    goes_on: bool
    branch: Branch | None


@dataclass
class Chats:
    """The handlers of one page. All of a chat comes in as arguments; kept is only what is being written."""

    context: PageContext
    _runs: dict[str, list[Run]] = field(default_factory=dict)
    """By visitor. Touched on the event loop only."""

    # ------------------------------------------------------------ handlers

    async def answer(
        self, asked: Any, system_prompt: str | None, values: Sequence[Any], request: gr.Request
    ) -> AsyncGenerator[Update]:
        """``asked`` is what the page sent with the event, ``values`` are those of the sampling panel."""
        updates = Updates(_run_id(asked))
        run = Run(updates.run_id)
        visitor = self.context.visitors.of_session(_session(request))
        runs = self._runs.setdefault(visitor.token, [])
        runs.append(run)
        try:
            yield updates.waiting("…")
            async with aclosing(
                self._write(run, updates, visitor, asked, system_prompt or "", values)
            ) as written:
                async for update in written:
                    yield update
        except _Refused as refused:
            yield updates.refused()
            raise refusal(str(refused)) from refused
        finally:
            runs.remove(run)
            if not runs:
                self._runs.pop(visitor.token, None)

    async def stop(self, asked: Any, request: gr.Request) -> None:
        """End a run of this visitor, or all of them. Its stream sees the last output and keeps the partial text."""
        visitor = self.context.visitors.of_session(_session(request))
        run_id = _run_id(asked)
        for run in self._runs.get(visitor.token, ()):
            if run_id in ("", run.run_id):
                run.is_stopped = True
                if run.request_id:
                    self.context.admission.abort([run.request_id])

    def leave(self, request: gr.Request) -> None:
        """The tab was closed."""
        self.context.admission.abort(self.context.visitors.forget(_session(request)))

    def render(self, document: Any) -> dict[str, Any]:
        """How a chat looks that the page holds; see ``ui.chat.shown``."""
        return render(document, self.context.host.engine)

    # ------------------------------------------------------------ one answer

    async def _write(
        self,
        run: Run,
        updates: Updates,
        visitor: Visitor,
        asked: Any,
        system_prompt: str,
        values: Sequence[Any],
    ) -> AsyncGenerator[Update]:
        """Raises _Refused as long as nothing was sent to the engine; after that the update says what went wrong."""
        try:
            checked = _checked(asked)
            updates.mode = checked.chat.mode
            params = self._params(values, checked)
            async for words in self._until_ready(run):
                yield updates.waiting(words)
            engine = self.context.admission.engine()
            start = await asyncio.to_thread(_start, engine, system_prompt, checked)
            if run.is_stopped:
                raise InvalidRequestError("Stopped before it was sent.")
            handle = self.context.admission.submit(engine, visitor, start.prompt_ids, params)
        except MicroVLLMError as error:
            raise _Refused(str(error)) from error
        except Exception as error:
            logger.exception("a prompt could not be sent")
            raise _Refused(f"{type(error).__name__}: {error}") from error
        run.request_id = handle.request_id

        def told(output: Any) -> None:
            self.context.tokens.update(visitor, engine, output, kept=len(start.kept_ids))

        moment = Moment(Answer())
        try:
            async with aclosing(follow(engine, handle, start, told)) as moments:
                async for moment in moments:
                    yield await updates.writing(moment)
        except Exception as error:
            # What came so far stays; the line below it says why there is no more.
            if not isinstance(error, MicroVLLMError):
                logger.exception("an answer broke off")
            moment = Moment(replace(moment.answer, note=_reason(error)))
        finally:
            # Also when Gradio closes this generator because the tab is gone.
            self.context.admission.end(visitor, handle)
        yield await updates.done(moment.answer)

    def _params(self, values: Sequence[Any], asked: Asked) -> SamplingParams:
        params = to_params(values, self.context.admission.max_answer_tokens).clone(logprobs=ALTERNATIVES)
        # A model that has said all ends at once when it is asked to go on: the visitor wants at least a token.
        return params.clone(min_tokens=1) if asked.goes_on and asked.branch is None else params

    async def _until_ready(self, run: Run) -> AsyncGenerator[str]:
        """What the visitor is waiting for, as long as a model is being loaded and none serves."""
        host = self.context.host
        while host.engine is None:
            state = await host.wait_until_settled(HEARTBEAT_SECONDS / 2)
            if state.status not in ("empty", "loading"):
                return
            share = f" {state.progress:.0%}" if state.progress is not None else ""
            yield f"waiting for the model · {state.message}{share}"
            if run.is_stopped:
                raise InvalidRequestError("Stopped before the model was ready.")


class _Refused(Exception):
    """Nothing was sent; the message is for the visitor."""


@dataclass
class Updates:
    """Makes the updates of one run."""

    run_id: str
    mode: Mode = "chat"
    _beat: int = 0

    def waiting(self, words: str) -> Update:
        return self._update("writing", meta=waiting_line(words))

    async def writing(self, moment: Moment) -> Update:
        answer = moment.answer
        # In a thread: other streams must not wait for the HTML of a long answer.
        html = await asyncio.to_thread(body_html, answer.text, self.mode, is_open=True)
        meta = waiting_line(moment.waiting) if moment.waiting else meta_line(answer)
        return self._update("writing", answer=_packed(answer), html=html, meta=meta)

    async def done(self, answer: Answer) -> Update:
        html = await asyncio.to_thread(body_html, answer.text, self.mode)
        return self._update("done", answer=_packed(answer), html=html, meta=meta_line(answer))

    def refused(self) -> Update:
        return self._update("refused")

    def _update(self, state: str, **more: Any) -> Update:
        self._beat += 1  # the page sees that the server is there, also when nothing else has changed
        return {"run": self.run_id, "state": state, "beat": self._beat, **more}


def _packed(answer: Answer) -> dict[str, Any]:
    """Ids as one string: Gradio sends what was appended to a string, but compares lists item by item."""
    return {**answer_to_json(answer), "token_ids": " ".join(map(str, answer.token_ids))}


def _start(engine: ServingEngine, system_prompt: str, asked: Asked) -> Start:
    builder = PromptBuilder(engine, system_prompt)
    return builder.going_on(asked.chat, asked.branch) if asked.goes_on else builder.new_answer(asked.chat)


# ---------------------------------------------------------------- what a client may say


def _checked(asked: Any) -> Asked:
    if not isinstance(asked, dict):
        raise InvalidRequestError("nothing was asked.")
    what = asked.get("do")
    if what not in ("answer", "continue", "branch"):
        raise InvalidRequestError(
            f"{str(what)[:40]!r} is unknown; a page asks for answer, continue or branch."
        )
    branch = None
    if what == "branch":
        index, token_id = asked.get("index"), asked.get("token_id")
        if not _is_number(index) or not _is_number(token_id):
            raise InvalidRequestError("a branch needs the number of a token and the id that takes its place.")
        branch = Branch(index, token_id)  # type: ignore[arg-type]  # checked
    return Asked(_run_id(asked), from_document(asked.get("document")), what != "answer", branch)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _run_id(asked: Any) -> str:
    """The page's own name for a run; only ever compared."""
    run_id = asked.get("run") if isinstance(asked, dict) else None
    return run_id[:_MAX_NAME] if isinstance(run_id, str) else ""


def refusal(words: str) -> gr.Error:
    """What the page shows; no traceback for the log, since nothing is wrong with the server."""
    return gr.Error(plain(words), title="Not sent", duration=20, print_exception=False)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MicroVLLMError) else f"{type(error).__name__}: {error}"


def _session(request: gr.Request) -> str:
    return request.session_hash or ""
