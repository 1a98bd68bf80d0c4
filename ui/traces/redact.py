"""What a trace may tell others: the whole story, without anybody's words. Token ids are text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from micro_vllm.trace import RequestQueued, SampledToken, TokensSampled, TraceEvent

WITHHELD = -1
"""Stands where the id of a token was."""


def without_tokens(events: Iterable[TraceEvent], keep: Collection[str] = ()) -> Iterator[TraceEvent]:
    """The same events; token ids, probabilities and alternatives only of the requests in ``keep``.

    Folding them gives the same states: that a token was drawn stays, which one goes.
    """
    for event in events:
        if isinstance(event, RequestQueued) and event.request_id not in keep:
            event = msgspec.structs.replace(event, prompt_token_ids=())
        elif isinstance(event, TokensSampled):
            event = msgspec.structs.replace(
                event,
                tokens=tuple(
                    token if token.request_id in keep else _withheld(token.request_id)
                    for token in event.tokens
                ),
            )
        yield event


def _withheld(request_id: str) -> SampledToken:
    return SampledToken(request_id=request_id, token_id=WITHHELD)
