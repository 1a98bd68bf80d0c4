"""A chat as JSON: what the page keeps, sends with every event, exports and imports.

It comes from a browser, and any client can send anything: what arrives is checked and bounded. What makes no sense as
a chat is refused in words; token ids that make no sense are left out, since the text says the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Any, get_args

from micro_vllm.errors import InvalidRequestError
from ui.chat.conversation import Answer, AnswerFacts, Chat, Mode, Turn

FORMAT = "micro-vllm-chat"
VERSION = 1
MAX_CHARACTERS = 1_000_000
"""Of all texts of a chat together."""
MAX_TURNS = 1_000
MAX_VERSIONS = 32
MAX_TOKEN_IDS = 131_072
"""Of one answer."""
_MAX_TOKEN_ID = 2**31
_MAX_WORDS = 2_000
_MAX_NAME = 128
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MODES = get_args(Mode)


def to_document(chat: Chat) -> dict[str, Any]:
    """JSON values; ``from_document`` gives the chat back."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "mode": chat.mode,
        "turns": [
            {"role": "user", "text": turn.text}
            if turn.role == "user"
            else {
                "role": "assistant",
                "shown": turn.shown,
                "versions": [answer_to_json(answer) for answer in turn.versions],
            }
            for turn in chat.turns
        ],
    }


def answer_to_json(answer: Answer) -> dict[str, Any]:
    return {**asdict(answer), "token_ids": list(answer.token_ids)}


def from_document(data: Any) -> Chat:
    """The chat that a client sent.

    Raises:
        InvalidRequestError: it is none, or larger than a chat may be. Wrong details are left out.
    """
    if not isinstance(data, dict) or data.get("format", FORMAT) != FORMAT:
        raise InvalidRequestError(f"this is not a chat: it does not say format “{FORMAT}”.")
    version = data.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise InvalidRequestError(
            f"this chat has version {_shorten(version)} of its format; this page reads version {VERSION}."
        )
    mode = data.get("mode", "chat")
    if not isinstance(mode, str) or mode not in _MODES:
        raise InvalidRequestError(f"mode {_shorten(mode)} is unknown; a chat is one of {', '.join(_MODES)}.")
    given = data.get("turns")
    if not isinstance(given, list):
        raise InvalidRequestError("this is not a chat: it has no list of turns.")
    if len(given) > MAX_TURNS:
        raise InvalidRequestError(f"this chat has {len(given):,} turns; at most {MAX_TURNS:,} are allowed.")
    turns = tuple(_turn(number, turn) for number, turn in enumerate(given, 1))
    size = sum(len(t.text) + sum(len(answer.text) for answer in t.versions) for t in turns)
    if size > MAX_CHARACTERS:
        raise InvalidRequestError(
            f"this chat is {size:,} characters long; at most {MAX_CHARACTERS:,} are allowed. "
            "Shorten the message, or press New chat."
        )
    return Chat(turns, mode)  # type: ignore[arg-type]  # one of _MODES


def _turn(number: int, turn: Any) -> Turn:
    role = turn.get("role") if isinstance(turn, dict) else None
    if role == "user":
        return Turn("user", _text(f"turn {number}", turn.get("text")))
    if role != "assistant":
        raise InvalidRequestError(f"turn {number} of this chat is neither of a user nor of an assistant.")
    versions = turn.get("versions")
    if not isinstance(versions, list) or not 0 < len(versions) <= MAX_VERSIONS:
        raise InvalidRequestError(f"turn {number} of this chat needs 1 to {MAX_VERSIONS} versions.")
    answers = tuple(_answer(number, version) for version in versions)
    shown = _whole(turn.get("shown"), len(answers) - 1)
    return Turn("assistant", versions=answers, shown=len(answers) - 1 if shown is None else shown)


def _answer(number: int, data: Any) -> Answer:
    if not isinstance(data, dict):
        raise InvalidRequestError(f"turn {number} of this chat holds an answer without a text.")
    is_edited = data.get("is_edited") is True
    token_ids = () if is_edited else _token_ids(data.get("token_ids"))
    return Answer(
        text=_text(f"turn {number}", data.get("text")),
        token_ids=token_ids,
        num_kept=_whole(data.get("num_kept"), len(token_ids)) or 0,
        model_key=_words(data.get("model_key"), _MAX_NAME),
        request_id=_words(data.get("request_id"), _MAX_NAME),
        facts=_facts(data.get("facts")),
        is_edited=is_edited,
        note=_words(data.get("note"), _MAX_WORDS),
    )


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} of this chat has no text.")
    # Half of a character pair is no text: neither JSON nor a tokenizer takes it.
    return _LONE_SURROGATE.sub("\ufffd", value)


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_TOKEN_IDS:
        return ()
    return tuple(value) if all(_whole(i, _MAX_TOKEN_ID - 1) is not None for i in value) else ()


def _facts(value: Any) -> AnswerFacts | None:
    """None if anything is missing or odd: a line with half its numbers helps nobody."""
    if not isinstance(value, dict):
        return None
    prompt, output, cached, preempted = (
        _whole(value.get(name, 0), 10**9)
        for name in ("num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions")
    )
    reason, stop = value.get("finish_reason"), value.get("stop_reason")
    if prompt is None or output is None or cached is None or preempted is None:
        return None
    if not (reason is None or isinstance(reason, str)):
        return None
    return AnswerFacts(
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        num_cached_tokens=cached,
        ttft=_positive(value.get("ttft")),
        tpot=_positive(value.get("tpot")),
        finish_reason=_words(reason, 16) or None,
        stop_reason=_words(stop, _MAX_WORDS) if isinstance(stop, str) else _whole(stop, _MAX_TOKEN_ID),
        error=_words(value.get("error"), _MAX_WORDS),
        arrival=_whole(value.get("arrival"), 10**9),
        num_preemptions=preempted,
    )


def _whole(value: Any, most: int) -> int | None:
    """A whole number from 0 to ``most``; None for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= most else None


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 and math.isfinite(value) else None


def _words(value: Any, most: int) -> str:
    return _LONE_SURROGATE.sub("\ufffd", value[:most]) if isinstance(value, str) else ""


def _shorten(value: Any) -> str:
    words = str(value)
    return f"“{words[:40]}…”" if len(words) > 40 else f"“{words}”"
