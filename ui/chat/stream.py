"""One answer as it grows: from the outputs of the engine to what the chat shows, at a pace that a page can follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Any

from ui.chat.conversation import Answer, AnswerFacts
from ui.chat.meta import ordinal
from ui.chat.prompting import Start, model_key
from ui.host.engine_host import ServingEngine

YIELD_SECONDS = 0.12
"""At most about eight updates a second, however fast the model is."""
MAX_SHARE = 0.2
"""Of the time, for showing a long answer: its HTML is made anew for every update."""
HEARTBEAT_SECONDS = 1.0
"""While nothing comes, yield all the same: only then is a closed tab noticed."""
LOOK_SECONDS = 0.5
"""So often a request that has no token yet is looked up: its place in the queue, how far its prompt is read."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An answer at one moment. ``waiting``: what it waits for, while it has no token."""

    answer: Answer
    waiting: str = ""


async def follow(
    engine: ServingEngine, handle: Any, start: Start, told: Callable[[Any], None]
) -> AsyncGenerator[Moment]:
    """The answer as it grows: the newest output at most every YIELD_SECONDS, a heartbeat when nothing comes.

    ``told`` gets every output that is shown. The caller may take its time with a moment: then there are fewer.
    """
    first_token_at: float | None = None
    begun = last_yield = last_look = time.monotonic()
    seen: Any = None
    arrival: int | None = None
    now_waiting = _waiting(engine, handle.request_id)
    answer = Answer(
        start.kept_text,
        start.kept_ids,
        num_kept=len(start.kept_ids),
        model_key=model_key(engine),
        request_id=handle.request_id,
    )
    yield Moment(answer, now_waiting)
    while True:
        finished = handle.finished  # before the output is read: what is read then is the last one
        output = handle.result(0) if finished else handle.latest
        now = time.monotonic()
        if output is not None and output is not seen:
            seen = output
            if arrival is None:
                arrival = engine.replay.arrival_of(handle.request_id)
            part = output.outputs[0]
            if part.token_ids and first_token_at is None:
                first_token_at = now
            told(output)
            answer = replace(
                answer,
                text=start.kept_text + part.text,
                token_ids=(*start.kept_ids, *part.token_ids),
                facts=_facts(output, arrival, begun, first_token_at, now),
            )
            last_yield = now
            yield Moment(answer)
        elif seen is None and now - last_look >= LOOK_SECONDS:
            last_look = now
            waiting = _waiting(engine, handle.request_id)
            if waiting != now_waiting or now - last_yield >= HEARTBEAT_SECONDS:
                now_waiting, last_yield = waiting, now
                yield Moment(answer, waiting)
        elif now - last_yield >= HEARTBEAT_SECONDS:
            last_yield = now
            yield Moment(answer, now_waiting if seen is None else "")
        if finished:
            return
        spent = time.monotonic() - now
        await asyncio.sleep(max(YIELD_SECONDS, spent * (1 / MAX_SHARE - 1)))


def _waiting(engine: ServingEngine, request_id: str) -> str:
    """In words; "" while the engine has not told of the request."""
    view = engine.replay.follow(engine.log)
    track = view.request(request_id) if view is not None else None
    if view is None or track is None:
        return "waiting for its turn …"
    if track.status == "waiting" and track.num_preemptions == 0:
        queue = sorted(
            (t for t in view.requests if t.status == "waiting"), key=lambda t: (t.priority, t.arrival)
        )
        place = 1 + [t.request_id for t in queue].index(request_id)
        return f"waiting for its turn, {ordinal(place)} in the queue …"
    return f"reading its prompt, {track.num_computed_tokens:,} of {track.num_prompt_tokens:,} tokens …"


def _facts(
    output: Any, arrival: int | None, begun: float, first_token_at: float | None, now: float
) -> AnswerFacts:
    answer, metrics = output.outputs[0], output.metrics
    num_tokens = len(answer.token_ids)
    tpot = metrics.tpot
    if tpot is None and first_token_at is not None and num_tokens > 1 and now > first_token_at:
        tpot = (now - first_token_at) / (num_tokens - 1)
    ttft = metrics.ttft
    if ttft is None and first_token_at is not None:
        ttft = first_token_at - begun
    return AnswerFacts(
        num_prompt_tokens=len(output.prompt_token_ids),
        num_output_tokens=num_tokens,
        num_cached_tokens=output.num_cached_tokens,
        ttft=ttft,
        tpot=tpot,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        error=answer.error or "",
        arrival=arrival,
        num_preemptions=metrics.num_preemptions,
    )
