"""One answer as it grows: from the outputs of the engine to what the chat shows, at a pace that a page can follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from ui.chat.conversation import AnswerFacts, Turn, meta_line, waiting_line
from ui.engine_host import ServingEngine

YIELD_SECONDS = 0.12
"""At most about eight updates a second, however fast the model is."""
HEARTBEAT_SECONDS = 1.0
"""While nothing comes, yield all the same: only then is a closed tab noticed."""


async def follow(engine: ServingEngine, handle: Any) -> AsyncGenerator[Turn]:
    """The answer as it grows: the newest output at most every YIELD_SECONDS, a heartbeat when nothing comes."""
    first_token_at: float | None = None
    begun = last_yield = time.monotonic()
    seen: Any = None
    arrival: int | None = None
    turn = Turn("assistant", "", model_key=engine.model_key, meta=waiting_line("waiting for its turn …"))
    while True:
        finished = handle.finished  # before the output is read: what is read then is the last one
        output = handle.result(0) if finished else handle.latest
        now = time.monotonic()
        if output is not None and output is not seen:
            seen = output
            if arrival is None:
                arrival = engine.replay.arrival_of(handle.request_id)
            answer = output.outputs[0]
            if answer.token_ids and first_token_at is None:
                first_token_at = now
            turn = replace(
                turn,
                text=answer.text,
                token_ids=tuple(answer.token_ids),
                meta=meta_line(_facts(output, arrival, begun, first_token_at, now)),
            )
            yield turn
            last_yield = now
        elif now - last_yield >= HEARTBEAT_SECONDS:
            yield turn
            last_yield = now
        if finished:
            return
        await asyncio.sleep(YIELD_SECONDS)


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
