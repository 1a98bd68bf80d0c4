"""A conversation as token ids, with the ids of the model's own answers kept.

Decoding an answer and encoding it again often gives other ids. A chat that keeps the ids of its answers and
puts them back into the rendered template begins each turn with exactly the ids the turn before ended with,
so that every full KV block of it is found in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from micro_vllm.errors import InvalidRequestError

Render = Callable[[list[dict[str, Any]]], str]
Message = Mapping[str, Any]
"""``role``, ``content``, and for an assistant's turn optionally ``token_ids``: what it was generated as."""

_NO_ID = 2**31
"""Beyond every vocabulary, and still a number that a tokenizer can look up."""

MAX_CUT = 16
"""Trailing ids to leave out when the text was cut before a stop string."""


class Codec(Protocol):
    """What this module needs of a tokenizer."""

    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def encode_continuation(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as the template sees them: text content, and no ids. Refuses what is malformed."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequestError(
            f"messages={messages!r} is not a conversation; pass a list of {{'role': ..., 'content': ...}}."
        )
    plain = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequestError(f"message {index} is {message!r}; it needs a 'role' and a 'content'.")
        rest = {key: value for key, value in message.items() if key != "token_ids"}
        plain.append({**rest, "content": _text_content(index, message.get("content"))})
    return plain


def _text_content(index: int, content: Any) -> str:
    """The text of a message; a list of text parts, as OpenAI's API has them, is joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content
    ):
        return "\n".join(part["text"] for part in content)
    raise InvalidRequestError(f"message {index}: content={content!r} is not text; only text is supported.")


def chat_with_kept_ids(
    tokenizer: Codec, messages: Sequence[Message], render: Render, render_prompt: Render
) -> list[int]:
    """Prompt ids of a conversation; the ids kept in ``token_ids`` stand for the text of their answers.

    An answer's ids are used only where the text between the template's pieces really is that answer:
    not if its content was edited, nor if the template rewrites it (Qwen3 drops earlier reasoning).
    An EOS at the end of kept ids gives way to the template's own end of turn, usually the same id.

    Args:
        render: the template, as this turn wants it.
        render_prompt: the template as the answers were asked for, with a generation prompt.
    """
    plain = plain_messages(messages)
    text = render(plain)
    kept = {
        index: ids
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and (ids := kept_ids(tokenizer, message, plain[index]["content"]))
    }
    pieces = _pieces_around(plain, list(kept), text, render)
    if pieces is None:  # the template rewrites at least one of them: find out which
        kept = {i: ids for i, ids in kept.items() if _pieces_around(plain, [i], text, render) is not None}
        pieces = _pieces_around(plain, list(kept), text, render)
    if pieces is None or not kept:
        return tokenizer.encode(text, add_special_tokens=False)
    first = next(iter(kept))
    blank = _blank_before_answer(pieces[0], render_prompt(plain[:first])) if first else ""
    pieces[:-1] = [piece.removesuffix(blank) for piece in pieces[:-1]]
    ids = tokenizer.encode(pieces[0], add_special_tokens=False)
    for answer, piece in zip(kept.values(), pieces[1:], strict=True):
        ids += answer
        ids += tokenizer.encode_continuation(piece)
    return ids


def _blank_before_answer(before: str, prompt: str) -> str:
    """The blank that a template writes before an answer but not at the end of a generation prompt: Mistral's
    ``[/INST] answer``. The model generated it itself, as a part of the answer's first token."""
    rest = before.removeprefix(prompt)
    return rest if before.startswith(prompt) and rest.isspace() else ""


def kept_ids(tokenizer: Codec, message: Message, content: str) -> list[int] | None:
    """The message's ids without EOS, cut to what ``content`` shows; None if they are not its text.

    Raises InvalidRequestError where they are no ids at all.
    """
    given = message.get("token_ids")
    if given is not None and not _are_ids(given):
        raise InvalidRequestError(
            f"token_ids={given!r} of an assistant's message is not a list of token ids; pass the ids of its "
            "answer, or none."
        )
    ids = list(given or ())
    if ids and ids[-1] in tokenizer.eos_token_ids:
        ids.pop()
    for length in range(len(ids), max(0, len(ids) - MAX_CUT - 1), -1):
        part = ids[:length]
        for skip in (True, False):
            # Blanks at the ends say nothing about an edit: pages and templates trim them.
            if tokenizer.decode(part, skip_special_tokens=skip).strip() == content.strip():
                return part
    return None


def _are_ids(given: Any) -> bool:
    return (
        isinstance(given, Sequence)
        and not isinstance(given, str | bytes)
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < _NO_ID for i in given)
    )


def _pieces_around(
    plain: list[dict[str, Any]],
    indices: list[int],
    text: str,
    render: Render,
) -> list[str] | None:
    """``text`` cut at the contents of the messages ``indices``, one piece more than there are contents.

    Found by rendering once more with a marker in each content's place. None if the pieces and contents do
    not add up to ``text``: the template did something else with them than to copy them, trimmed or not.
    """
    marker = "KEPTANSWER"
    while marker in text:
        marker += "X"
    marked = [dict(message) for message in plain]
    for index in indices:
        marked[index]["content"] = f"{marker}{index}Z"
    rest, pieces = render(marked), []
    for index in indices:
        before, found, rest = rest.partition(f"{marker}{index}Z")
        if not found:
            return None
        pieces.append(before)
    pieces.append(rest)
    if any(marker in piece for piece in pieces):
        return None
    at = len(pieces[0])
    if not text.startswith(pieces[0]):
        return None
    for index, piece in zip(indices, pieces[1:], strict=True):
        content = plain[index]["content"]
        variants = (content, content.strip(), content.rstrip(), content.lstrip())
        shown = next((shown for shown in variants if text.startswith(shown + piece, at)), None)
        if shown is None:
            return None
        at += len(shown) + len(piece)
    return pieces if at == len(text) else None
