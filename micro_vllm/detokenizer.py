"""Token ids to text while they arrive: only whole characters, and never a part of a stop string.

Two decoders do the same job. Byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) are a plain stream of
bytes and need no look back. All others are decoded in a short sliding window, because what a token says may
depend on its neighbour (a leading blank, a run of byte tokens).

Sources: https://github.com/vllm-project/vllm (v1/engine/detokenizer.py, for the meaning of stop and
min_tokens), https://github.com/huggingface/tokenizers (decoders).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
CONTEXT_TOKENS = 6
"""Prompt tokens that are enough context for the first token of the answer."""
MAX_CONTEXT = 16
MAX_PENDING = 16
"""A character has at most four bytes, so text that still ends in U+FFFD after so many tokens stays so."""


class Vocabulary(Protocol):
    """What this module needs of a tokenizer."""

    special_ids: frozenset[int]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_byte_token(self, token_id: int) -> bool: ...

    def text_stream(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> TextStream: ...


class TextStream(Protocol):
    """Turns ids into text piece by piece; the pieces joined are the text of all ids."""

    def push(self, token_id: int) -> str:
        """The text that has become final with this token; may be empty."""

    def flush(self) -> str:
        """The rest, whatever it is."""


class ByteLevelStream:
    """Every token is some bytes; UTF-8 decoding keeps the tail of an unfinished character."""

    __slots__ = ("_bytes_of", "_decoder", "_is_inside", "_skipped")

    def __init__(self, tokenizer: Vocabulary, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # A prompt may end inside a character; the answer then finishes it.
        for token_id in _last_visible(prompt_ids, self._skipped, 4):
            self._decoder.decode(self._bytes_of(token_id))
        self._is_inside = bool(self._decoder.getstate()[0])  # a character is begun

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        data = self._bytes_of(token_id)
        if not self._is_inside:
            try:
                return data.decode()  # whole characters, as nearly always
            except UnicodeDecodeError:
                self._is_inside = True
        text = self._decoder.decode(data)
        self._is_inside = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowStream:
    """Decodes ``context + pending`` and keeps what follows the text of ``context``.

    Both lists stay short, so a token costs the same however long the answer is. While a run of byte tokens is
    open nothing is final: one more byte can turn the whole run into U+FFFD.
    """

    def __init__(self, tokenizer: Vocabulary, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._decode = tokenizer.decode
        self._is_byte = tokenizer.is_byte_token
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._context = _last_visible(prompt_ids, self._skipped, CONTEXT_TOKENS, self._is_byte)
        self._context_text = self._text_of(self._context)
        self._pending: list[int] = []

    def _text_of(self, ids: list[int]) -> str:
        return self._decode(ids, skip_special_tokens=False) if ids else ""

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        if self._is_byte(token_id):
            return ""
        text = self._text_of(self._context + self._pending)
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING:
            return ""
        new = self._after_context(text)
        self._advance()
        return new

    def flush(self) -> str:
        new = self._after_context(self._text_of(self._context + self._pending)) if self._pending else ""
        self._pending = []
        return new

    def _after_context(self, text: str) -> str:
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # The prompt ended inside a run of bytes, which reads differently now that it goes on.
        same = 0
        for old, now in zip(self._context_text, text, strict=False):
            if old != now:
                break
            same += 1
        return text[same:]

    def _advance(self) -> None:
        text = self._text_of(self._pending)
        if text:
            self._context, self._context_text = self._pending, text
        else:  # says nothing alone (a blank that is stripped at the start): keep what was before it
            self._context = (self._context + self._pending)[-MAX_CONTEXT:]
            self._context_text = self._text_of(self._context)
        self._pending = []


def _last_visible(
    prompt_ids: Sequence[int],
    skipped: frozenset[int],
    count: int,
    is_byte: Callable[[int], bool] = lambda token_id: False,
) -> list[int]:
    """The last ``count`` prompt ids that have text; more while the first of them is one of a run of bytes."""
    found: list[int] = []
    for token_id in reversed(prompt_ids):
        if token_id in skipped:
            continue
        if len(found) >= count and not is_byte(found[-1]):
            break
        found.append(token_id)
    return found[::-1]


# ---------------------------------------------------------------- stop strings


class StopStrings:
    """Finds the stop string that is complete first, however the text was cut into tokens."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self._longest = max(map(len, stops), default=1)

    def find(self, text: str, checked: int) -> tuple[int, int, str] | None:
        """(start, end, stop) of the first stop that ends behind ``checked``; of two that end at one
        place the longer. ``text[:checked]`` was searched before."""
        best: tuple[int, int, str] | None = None
        for stop in self.stops:
            start = text.find(stop, max(0, checked - len(stop) + 1))
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end, stop)
        return best

    def first_held(self, text: str, shown: int) -> int:
        """Where the end of ``text`` begins that may turn out to begin a stop string; ``len(text)`` if nowhere.

        ``text[:shown]`` was ruled out before, and stays so: what is no beginning of a stop string does not become one
        by growing. So all calls together look at every character once, however long the stop strings are.
        """
        for start in range(max(shown, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.stops):
                return start
        return len(text)


class IncrementalDetokenizer:
    """The text of one answer as it grows.

    Invariant: ``text`` only grows, and without a stop string it ends as what ``tokenizer.decode`` adds when
    the output ids follow the prompt's. For a byte-level vocabulary that is ``decode(output ids)``; others
    keep the blank between prompt and answer, which decoding the answer alone would strip.

    Args:
        prompt_ids: what the answer continues; its end decides about a leading blank.
        skip_special_tokens: leave special tokens out of the text.
        stop: strings that end the answer; ``text`` is cut exactly before the one that is complete first.
        include_stop_str_in_output: cut behind it instead.
        min_tokens: stop strings that are complete within the first so many tokens do not count.
    """

    __slots__ = (
        "_checked",
        "_include_stop",
        "_min_tokens",
        "_num_tokens",
        "_stops",
        "_stream",
        "_text",
        "_visible",
        "stop_string",
    )

    def __init__(
        self,
        tokenizer: Vocabulary,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        stop: tuple[str, ...] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._stream = tokenizer.text_stream(prompt_ids, skip_special_tokens)
        self._stops = StopStrings(stop)
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._text = ""
        self._visible = 0
        self._checked = 0
        self.stop_string: str | None = None
        """The stop string that ended the text; None while there is none."""

    @property
    def text(self) -> str:
        """What may be shown now."""
        return self._text[: self._visible]  # itself if that is all

    def append(self, token_id: int) -> None:
        """Take the next token. After a stop string nothing changes any more."""
        if self.stop_string is not None:
            return
        self._num_tokens += 1
        self._add(self._stream.push(token_id))

    def finish(self) -> str:
        """No more tokens: the whole text, with what was held back. Unfinished bytes become U+FFFD."""
        if self.stop_string is None:
            self._add(self._stream.flush())
            if self.stop_string is None:
                self._visible = len(self._text)
        return self.text

    def _add(self, new: str) -> None:
        if not new:
            return
        self._text += new
        if not self._stops.stops:
            self._visible = len(self._text)
            return
        found = self._stops.find(self._text, self._checked) if self._num_tokens > self._min_tokens else None
        self._checked = len(self._text)
        if found is not None:
            start, end, self.stop_string = found
            self._text = self._text[: end if self._include_stop else start]
            self._visible = len(self._text)
            return
        # What may begin a stop string stays hidden; what was shown is never taken back.
        self._visible = (
            len(self._text) if self._include_stop else self._stops.first_held(self._text, self._visible)
        )
