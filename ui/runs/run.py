"""One run: several requests of one visitor, from the queue here through the engine to their cards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from micro_vllm.errors import EngineClosedError, MicroVLLMError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import (
    RequestAdmitted,
    RequestPreempted,
    RequestQueued,
    StepPlanned,
)
from ui.admission import Admission, BusyError
from ui.host.engine_host import ServingEngine
from ui.render import answer_html
from ui.runs.card import Card
from ui.runs.pair import Pair
from ui.runs.summary import Rate, totals
from ui.tokens.store import TokenStore
from ui.visitors import Visitor

if TYPE_CHECKING:
    from micro_vllm.engine.handle import RequestHandle

Room = Literal["workload", "compare"]


@dataclass(frozen=True, slots=True)
class RunItem:
    """One request to send."""

    label: str
    prompt: str
    """What the card shows."""
    token_ids: tuple[int, ...]
    """The whole prompt after the chat template."""
    params: SamplingParams
    shared_prefix_len: int = 0
    """Tokens at the front that are text of ours: a shared server may share their blocks between visitors."""
    after_tokens: int = 0
    """Sent once the first card has written so many tokens, or has ended."""
    refusal: str = ""
    """Why it cannot be sent; its card says so, and the others go on."""


class Run:
    """``advance`` belongs to one thread, the follower of ``Runs``; everything else may be called from any."""

    def __init__(
        self,
        run_id: str,
        room: Room,
        visitor: Visitor,
        engine: ServingEngine,
        items: Sequence[RunItem],
        admission: Admission,
        tokens: TokenStore,
        note: str = "",
    ) -> None:
        self.run_id = run_id
        self.room = room
        self.visitor = visitor
        self.note = note
        self.is_over = False
        self._engine = engine
        self._items = items
        self._admission = admission
        self._tokens = tokens
        self._lock = threading.Lock()
        # Below: guarded by the lock.
        self._version = 1
        self._cards = [
            Card(item.label, item.prompt, len(item.token_ids), version=self._version) for item in items
        ]
        self._handles: dict[int, RequestHandle] = {}
        """Card -> its request, until it has ended."""
        self._by_request: dict[str, Card] = {}
        self._rate = Rate()
        self._pair = Pair() if room == "compare" else None
        # The follower's own.
        self._next = 0
        """The first card that has not been sent."""
        self._seen: dict[int, Any] = {}
        self._seq = engine.log.last_seq
        self._stop_reason = ""
        self._is_broken = False
        """The engine is gone, and nobody asked for that."""

    # ------------------------------------------------------------ from any thread

    def stop(self, reason: str = "you pressed Stop") -> None:
        """End all of it; what is written stays on the cards."""
        self._stop_reason = self._stop_reason or reason
        with self._lock:
            handles = list(self._handles.values())
        for handle in handles:
            _abort(handle)

    def answer(self, run_id: str, version: int, *, render: bool = False) -> dict[str, Any] | None:
        """What a tab that holds ``version`` of run ``run_id`` has to change; None for nothing.

        ``render``: answers as HTML, whole, instead of what is new of their plain text.
        """
        with self._lock:
            if run_id != self.run_id:
                version = 0
            if version >= self._version:
                return None
            cards = []
            for index, card in enumerate(self._cards):
                if card.version > version:
                    change = card.state() if version else card.whole()
                    text = _rendered(card) if render else card.text_since(version)
                    cards.append({"i": index, **change, **text})
            return {
                "run": self.run_id,
                "room": self.room,
                "version": self._version,
                "live": not self.is_over,
                "note": self.note,
                "size": len(self._cards),
                "cards": cards,
                "sum": {
                    **totals(self._cards),
                    **self._rate.to_json(),
                    "unsent": len(self._items) - self._next,
                    "paused": self._engine.loop.is_paused,
                },
                **({"pair": self._pair.to_json([c.request_id for c in self._cards])} if self._pair else {}),
            }

    # ------------------------------------------------------------ the follower

    def advance(self) -> None:
        """Send what may be sent, and bring the cards up to date."""
        if self.is_over:
            return
        if self._admission.has_left(self.visitor):
            self.stop("its page was closed")
        if self._stop_reason:
            self.stop()  # also what was sent while Stop was pressed
        elif self._next < len(self._items):
            self._send()
        with self._lock:
            version = self._version + 1
            self._read_events(version)
            self._read_outputs(version)
            if self._stop_reason:
                self._drop_unsent(version)
            if all(card.has_ended for card in self._cards):
                self.is_over = True
                self._rate.end()
                self._seen.clear()
            if self.is_over or any(card.version == version for card in self._cards):
                self._version = version

    def fail(self, reason: str) -> None:
        """The follower met what it does not know: nothing is left in the engine, and the cards say why."""
        with self._lock:
            self._version += 1
            for index, card in enumerate(self._cards):
                handle = self._handles.pop(index, None)
                if handle is not None:
                    self._admission.end(self.visitor, handle)
                if not card.has_ended:
                    card.status, card.reason, card.version = "failed", reason, self._version
            self.is_over = True
            self._rate.end()

    # ------------------------------------------------------------ sending

    def _send(self) -> None:
        """In order, as many as the visitor may have at once.

        The first ones are queued between two steps of the engine, so that one and the same step plans them all.
        """
        try:
            if self._next == 0:
                self._engine.loop.call(lambda _: self._submit_all(), timeout=None)
            else:
                self._submit_all()
        except EngineClosedError as error:
            self._is_broken, self._stop_reason = True, self._stop_reason or str(error)

    def _submit_all(self) -> None:
        while self._next < len(self._items) and not self._stop_reason:
            index, item = self._next, self._items[self._next]
            card = self._cards[index]
            first = self._cards[0]
            if not first.has_ended and first.num_output_tokens < item.after_tokens:
                return
            refusal, handle = item.refusal, None
            if not refusal:
                try:
                    handle = self._admission.submit(
                        self._engine,
                        self.visitor,
                        item.token_ids,
                        item.params,
                        shared_prefix_len=item.shared_prefix_len,
                    )
                except BusyError:
                    return  # as soon as one of theirs has ended
                except EngineClosedError:
                    raise
                except MicroVLLMError as error:
                    refusal = str(error)
            with self._lock:
                self._next += 1
                if handle is None:
                    card.status, card.reason = "refused", refusal
                else:
                    self._handles[index] = handle
                    self._by_request[handle.request_id] = card
                    card.request_id, card.reason = handle.request_id, ""
                card.version = self._version + 1

    def _drop_unsent(self, version: int) -> None:
        for card in self._cards[self._next :]:
            if not card.has_ended:
                card.status = "failed" if self._is_broken else "stopped"
                card.reason, card.version = self._stop_reason, version

    # ------------------------------------------------------------ reading

    def _read_events(self, version: int) -> None:
        """Who waits, who was admitted, who was pushed out: what outputs do not tell before the first token."""
        events = self._engine.log.since(self._seq)
        for event in events:
            if isinstance(event, StepPlanned):
                if self._pair:
                    self._pair.take_step(event, self._by_request)
                continue
            if not isinstance(event, RequestQueued | RequestAdmitted | RequestPreempted):
                continue
            card = self._by_request.get(event.request_id)
            if card is None or card.has_ended:
                continue
            card.version = version
            if isinstance(event, RequestQueued):
                card.arrival = event.arrival
            elif isinstance(event, RequestPreempted):
                card.status, card.num_preemptions = "preempted", event.num_preemptions
            else:
                card.status = "writing" if card.num_output_tokens else "reading"
                if not event.is_resumed:
                    card.num_cached_tokens, card.is_admitted = event.num_computed_tokens, True
        if events:
            self._seq = events[-1].seq

    def _read_outputs(self, version: int) -> None:
        for index, handle in list(self._handles.items()):
            finished = handle.finished  # before the output is read: what is read then is the last one
            output = handle.latest
            card = self._cards[index]
            if output is not None and output is not self._seen.get(index):
                self._seen[index] = output
                self._take(card, output, version)
                if (
                    self._items[index].params.logprobs is not None
                ):  # or else the token strip has nothing to tell
                    self._tokens.update(self.visitor, self._engine, output)
            if finished:
                self._end(index, card, handle, version)
        if self._pair:
            self._pair.find_part([self._seen.get(i) for i in range(len(self._cards))], self._engine.loaded)
        self._rate.take(sum(card.num_output_tokens for card in self._cards))

    def _take(self, card: Card, output: Any, version: int) -> None:
        answer, metrics = output.outputs[0], output.metrics
        card.version = version
        card.grow(answer.text, version)
        card.num_output_tokens = len(answer.token_ids)
        card.num_preemptions = max(card.num_preemptions, metrics.num_preemptions)
        card.ttft, card.tpot = metrics.ttft, metrics.tpot
        if card.num_output_tokens:
            card.num_cached_tokens, card.is_admitted = output.num_cached_tokens, True
            if card.status in ("queued", "reading"):
                card.status = "writing"

    def _end(self, index: int, card: Card, handle: RequestHandle, version: int) -> None:
        del self._handles[index]
        self._admission.end(self.visitor, handle)
        card.version = version
        try:
            output = handle.result(0)
        except Exception as error:  # the engine was closed, or could not add the request
            wanted = self._stop_reason and not self._is_broken
            card.status, card.reason = ("stopped" if wanted else "failed"), str(error)
            return
        answer = output.outputs[0]
        card.finish_reason = answer.finish_reason or ""
        if answer.finish_reason == "abort":
            # Stop in another room ends all requests of a visitor: the rest of the run is not wanted either.
            self._stop_reason = self._stop_reason or "stopped from elsewhere"
            card.status, card.reason = "stopped", self._stop_reason
        elif answer.finish_reason == "error":
            card.status, card.reason = "failed", answer.error or "the engine failed"
        else:
            card.status, card.reason = "done", ""


def _rendered(card: Card) -> dict[str, str]:
    return {"html": answer_html(card.text, is_open=not card.has_ended)}


def _abort(handle: RequestHandle) -> None:
    with contextlib.suppress(EngineClosedError):  # closed, and the request with it
        handle.abort()
