"""Tokenizer: text to ids and back, the chat template, and the doors to incremental detokenizing.

Loaded by transformers, so that ids are the same as there; every call after that goes to the Rust tokenizer
beneath and changes nothing in it, which makes one Tokenizer safe for any number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from micro_vllm.chat_prompt import Message, chat_with_kept_ids, kept_ids, plain_messages
from micro_vllm.detokenizer import (
    BYTE_TOKEN,
    ByteLevelStream,
    IncrementalDetokenizer,
    TextStream,
    WindowStream,
)
from micro_vllm.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError

__all__ = ["IncrementalDetokenizer", "Message", "Tokenizer"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """One model's vocabulary and chat template. Make it with :meth:`from_folder`."""

    def __init__(self, hf_tokenizer: Any, eos_token_ids: Iterable[int] = ()) -> None:
        """``hf_tokenizer`` is transformers' fast tokenizer; nobody else may use it any more."""
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(
                f"{type(hf_tokenizer).__name__} has no fast version; the folder needs a tokenizer.json."
            )
        # Once, here: both are state of the Rust object, and changing state while another thread encodes
        # fails with "Already borrowed".
        backend.no_truncation()
        backend.no_padding()
        self._hf = hf_tokenizer
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Ids that ``skip_special_tokens`` leaves out."""
        self.bos_token_id: int | None = hf_tokenizer.bos_token_id
        own_eos = () if hf_tokenizer.eos_token_id is None else (hf_tokenizer.eos_token_id,)
        self.eos_token_ids: tuple[int, ...] = tuple(sorted({*own_eos, *eos_token_ids}))
        """Every id that ends an answer: of the tokenizer, of config.json and generation_config.json."""
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        """Ids below this are valid; the model may have more rows, which are padding."""
        decoder = backend.decoder and json.loads(backend.decoder.__getstate__())
        kinds = _decoder_kinds(decoder)
        self._is_byte_level = kinds == ["ByteLevel"]
        self._has_byte_fallback = "ByteFallback" in kinds
        self._token_bytes: dict[int, bytes] = {}
        self._token_texts: dict[int, str] = {}

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a model folder. Runs no code from the folder and never asks the network.

        Raises:
            ModelLoadError: there is none, or it cannot be read.
        """
        folder = Path(path)
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise ModelLoadError(
                f"{folder} has no tokenizer (looked for {', '.join(TOKENIZER_FILES)}). Add one, or pass "
                "skip_tokenizer_init=True and work with token ids."
            )
        from transformers import AutoTokenizer

        try:
            hf_tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # transformers raises many kinds for a broken folder
            raise ModelLoadError(f"the tokenizer in {folder} cannot be read: {error}") from error
        return cls(hf_tokenizer, eos_token_ids=_configured_eos(folder))

    # ------------------------------------------------------------ text to ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``. A text that itself begins with BOS does not get a second one."""
        if not isinstance(text, str):
            raise InvalidRequestError(f"a prompt of type {type(text).__name__} cannot be encoded; pass text.")
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(
                f"the text holds something that is no character (a lone surrogate?): {error}."
            ) from error
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    @cached_property
    def _adds_bos(self) -> bool:
        with_bos = self._backend.encode("a", add_special_tokens=True).ids[:1]
        without = self._backend.encode("a", add_special_tokens=False).ids[:1]
        return with_bos == [self.bos_token_id] != without

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of ``text`` as it stands after other tokens: without the blank that some put before a text."""
        if not self._adds_blank:
            return self.encode(text, add_special_tokens=False)
        anchor = self.encode("\n", add_special_tokens=False)
        ids = self.encode("\n" + text, add_special_tokens=False)
        if ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
        return self.encode(text, add_special_tokens=False)

    @cached_property
    def _adds_blank(self) -> bool:
        ids = self.encode("a", add_special_tokens=False)
        return bool(ids) and (self._backend.id_to_token(ids[0]) or "").startswith("▁")

    def encode_bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Ids of each word at the start of a text, and after a blank where that gives other ids."""
        sequences: list[tuple[int, ...]] = []
        for word in words:
            bare = word.lstrip()
            if not bare:
                raise InvalidRequestError(
                    f"bad_words holds {word!r}; every entry must have a letter or sign."
                )
            for text in (bare, f" {bare}"):
                ids = tuple(self.encode(text, add_special_tokens=False))
                if ids and ids not in sequences:
                    sequences.append(ids)
        return tuple(sequences)

    # ------------------------------------------------------------ ids to text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; ids that no token has say nothing, unfinished bytes become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def text_stream(self, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> TextStream:
        """A decoder for ids that arrive one by one, as a continuation of ``prompt_ids``."""
        kind = ByteLevelStream if self._is_byte_level else WindowStream
        return kind(self, prompt_ids, skip_special_tokens)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text; joined, they are the text. A character that several ids share is
        shown by the one that completes it, the others show an empty piece."""
        stream = self.text_stream(skip_special_tokens=False)
        pieces = [stream.push(token_id) for token_id in ids]
        rest = stream.flush()
        if pieces and rest:
            pieces[-1] += rest
        return pieces

    def tokenize_with_pieces(self, text: str, add_special_tokens: bool = False) -> list[tuple[int, str]]:
        """(id, piece) of each token of ``text``; the pieces joined give ``text`` back where the vocabulary
        keeps it (it may normalise)."""
        ids = self.encode(text, add_special_tokens=add_special_tokens)
        return list(zip(ids, self.pieces(ids), strict=True))

    def token_text(self, token_id: int) -> str:
        """One token for display; bytes that are no whole character are written as ``\\xf0\\x9f``."""
        text = self._token_texts.get(token_id)
        if text is None:  # asked for several tokens of every request in every step: made once
            text = self._token_texts[token_id] = self._make_token_text(token_id)
        return text

    def _make_token_text(self, token_id: int) -> str:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return ""
        if self._is_byte_level:
            return self.token_bytes(token_id).decode("utf-8", errors="backslashreplace")
        if self.is_byte_token(token_id):
            byte = int(token[3:5], 16)
            return chr(byte) if byte < 0x80 else f"\\x{byte:02x}"
        return token.replace("▁", " ") if "▁" in token else self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token of a byte-level vocabulary; empty for an id without a token."""
        data = self._token_bytes.get(token_id)
        if data is None:
            token = self._backend.id_to_token(token_id) or ""
            try:
                data = bytes(BYTE_OF_CHAR[char] for char in token)
            except KeyError:  # an added token is written as plain text
                data = token.encode("utf-8")
            self._token_bytes[token_id] = data  # threads may both do this; they store the same value
        return data

    def is_byte_token(self, token_id: int) -> bool:
        """Whether the token is one byte such as ``<0xF0>``, of a vocabulary that falls back on bytes."""
        return self._has_byte_fallback and bool(
            BYTE_TOKEN.fullmatch(self._backend.id_to_token(token_id) or "")
        )

    # ------------------------------------------------------------ chat

    @property
    def has_chat_template(self) -> bool:
        return bool(self._hf.chat_template)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as one text. ``continue_final_message`` leaves the last turn open instead of
        starting a new one.

        Raises:
            InvalidRequestError: no template, malformed messages, or the template refuses them.
        """
        return self._render(plain_messages(messages), add_generation_prompt, continue_final_message)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Ids of the conversation's text. The template alone decides about BOS, so there is one at most."""
        text = self.apply_chat_template(messages, add_generation_prompt, continue_final_message)
        return self.encode(text, add_special_tokens=False)

    def render_chat_with_ids(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Like :meth:`encode_chat`, but an assistant's message may carry ``token_ids``, the ids it was
        generated as: they are put in the place of its text (see :mod:`micro_vllm.chat_prompt`)."""
        return chat_with_kept_ids(
            self,
            messages,
            lambda plain: self._render(plain, add_generation_prompt, continue_final_message),
            lambda plain: self._render(plain, True, False),
        )

    def continuation_ids(self, token_ids: Sequence[int], text: str) -> list[int]:
        """Ids for going on with an answer: ``token_ids`` without EOS, as far as ``text`` shows them; where they are
        not the ids of ``text`` (it was edited, say), those of ``text`` as it stands after other tokens."""
        kept = kept_ids(self, {"token_ids": token_ids}, text) if token_ids else None
        return self.encode_continuation(text) if kept is None else kept

    def _render(self, plain: list[dict[str, Any]], add_generation_prompt: bool, continue_final: bool) -> str:
        if not self.has_chat_template:
            raise InvalidRequestError(
                "this model has no chat template; use generate with a plain prompt, or load a chat model."
            )
        if add_generation_prompt and continue_final:
            raise InvalidRequestError(
                "add_generation_prompt=True and continue_final_message=True exclude each other: "
                "either a new turn begins or the last one goes on. Set one of them to False."
            )
        try:
            return self._hf.apply_chat_template(
                plain,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final,
            )
        except Exception as error:  # jinja's own kinds, and what a template raises about roles
            raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error


def _decoder_kinds(decoder: dict[str, Any] | None) -> list[str]:
    """Types of a tokenizer.json's decoder, the members of a sequence instead of the sequence."""
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [kind for member in decoder["decoders"] for kind in _decoder_kinds(member)]
    return [decoder["type"]]


def _configured_eos(folder: Path) -> list[int]:
    """EOS ids of config.json and generation_config.json; each may be one id or a list."""
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        try:
            eos = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue  # whoever loads the model reports a broken config
        found += [eos] if isinstance(eos, int) else list(eos or ())
    return found


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
