"""The line under an answer, as HTML: how it is going, or how it went."""

from __future__ import annotations

import html

from ui.charts.palette import color_slot
from ui.chat.conversation import Answer, AnswerFacts
from ui.view import request_label


def meta_line(answer: Answer, *, is_known: bool = True) -> str:
    """What is known of an answer. ``is_known``: its request has a letter in the charts of this engine."""
    facts = answer.facts
    parts: list[str] = []
    if facts is not None:
        if facts.arrival is not None and is_known:
            parts.append(_chip(facts.arrival, answer.request_id))
        parts += _fact_parts(facts, is_more=answer.num_kept > 0)
    if answer.note:
        parts.append(f"broke off: {html.escape(answer.note)}")
    if answer.is_edited:
        parts.append(_term("its text was changed by hand: its tokens are not known any more", "edited"))
    return " · ".join(parts)


def waiting_line(words: str) -> str:
    """Before there is anything to tell."""
    return html.escape(words)


def _fact_parts(facts: AnswerFacts, is_more: bool) -> list[str]:
    if facts.num_output_tokens == 0 and facts.finish_reason is None:
        return [f"reading {_count(facts.num_prompt_tokens, 'prompt token')} …"]
    parts = []
    if facts.ttft is not None:
        parts.append(_term("time to first token", f"TTFT {_seconds(facts.ttft)}"))
    if facts.tpot:
        parts.append(_term("tokens a second after the first", f"<b>{1 / facts.tpot:.0f}</b> tok/s"))
    parts.append(_count(facts.num_output_tokens, "more token" if is_more else "token"))
    parts.append(
        _term(
            "prompt tokens that came from the prefix cache and were not computed again",
            f"<b>{facts.num_cached_tokens:,}</b> of {facts.num_prompt_tokens:,} prompt tokens cached",
        )
    )
    if facts.num_preemptions:
        parts.append(
            _term(
                "how often its KV blocks were given to others and its tokens computed again",
                f"preempted <b>{facts.num_preemptions}</b> ×",
            )
        )
    if facts.finish_reason is not None:
        parts.append(_ending(facts))
    return parts


def _ending(facts: AnswerFacts) -> str:
    words = {
        "stop": "finished" if facts.stop_reason is None else "ended at a stop string",
        "length": "cut at its length limit",
        "abort": "stopped",
        "error": f"failed: {html.escape(facts.error)}",
    }
    reason = facts.finish_reason or ""
    return _term(f"finish reason: {reason}", words.get(reason, html.escape(reason)))


def _chip(arrival: int, request_id: str) -> str:
    label = request_label(arrival)
    return (
        f'<button type="button" class="chip req-{color_slot(arrival)}" data-request="{html.escape(request_id)}" '
        f'title="show request {label} in the charts" aria-label="show request {label} in the charts">{label}</button>'
    )


def _term(title: str, value: str) -> str:
    return f'<span title="{html.escape(title)}">{value}</span>'


def _count(number: int, noun: str) -> str:
    return f"<b>{number:,}</b> {noun}{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"<b>{seconds * 1000:.0f}</b> ms" if seconds < 1 else f"<b>{seconds:.1f}</b> s"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ... 11th, 12th, 13th, ... 21st."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number:,}{last}"
