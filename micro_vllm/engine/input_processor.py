"""From what a caller passes to a checked request. Thread-safe: changes nothing, so any caller's thread may run it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from micro_vllm.core.request import StopRules
from micro_vllm.engine.served_model import ServedModel
from micro_vllm.errors import CapacityError, InvalidRequestError
from micro_vllm.sampling.params import SamplingParams, SamplingSpec

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""


_TOP_K_OFF = 2**31
"""No vocabulary is so large: from here on top_k keeps every token, which is what 0 says."""


@dataclass(frozen=True)
class CheckedRequest:
    """A prompt and its parameters, valid for this engine; only an id and a place in the queue are missing."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stop: StopRules
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    priority: int = 0
    cache_salt: str | None = None
    shared_prefix_len: int = 0

    def sampling_spec(self, seed: int, eos_token_ids: frozenset[int]) -> SamplingSpec:
        """The part the runner needs. ``seed`` is the engine's choice where the caller made none."""
        p = self.params
        # min_tokens masks every EOS even under ignore_eos (vLLM: all stop ids), since a masked id cannot stop anything.
        masked = eos_token_ids | self.stop.stop_token_ids if p.min_tokens else frozenset()
        return SamplingSpec(
            seed=seed if p.seed is None else p.seed,
            temperature=p.temperature,
            top_p=p.top_p,
            top_k=p.top_k if p.top_k < _TOP_K_OFF else 0,
            min_p=p.min_p,
            repetition_penalty=p.repetition_penalty,
            presence_penalty=p.presence_penalty,
            frequency_penalty=p.frequency_penalty,
            logit_bias=p.logit_bias,
            allowed_token_ids=tuple(p.allowed_token_ids) if p.allowed_token_ids is not None else None,
            bad_words_token_ids=self.bad_words_token_ids,
            min_tokens=p.min_tokens,
            min_tokens_masked_ids=tuple(sorted(masked)),
            num_logprobs=p.logprobs,
        )


class InputProcessor:
    """Checks prompts and parameters against one engine's model, context length and pool."""

    def __init__(self, model: ServedModel, max_model_len: int, pool_tokens: int, pool_text: str) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self.pool_tokens = pool_tokens
        """Longest request the whole KV pool can hold."""
        self._pool_text = pool_text

    def check(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_len: int = 0,
    ) -> CheckedRequest:
        """Raises InvalidRequestError or CapacityError with the value, the limit and what to do."""
        params = params or SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling parameters are a {type(params).__name__}; pass SamplingParams(...)."
            )
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequestError(f"priority={priority!r} is not a whole number; lower runs earlier.")
        _check_prefix_settings(cache_salt, shared_prefix_len)
        text, token_ids = self._tokenize(prompt)
        self._check_ids("the prompt", token_ids)
        self._check_params(params)
        max_tokens = self._check_length(len(token_ids), params)
        return CheckedRequest(
            prompt=text,
            prompt_token_ids=token_ids,
            params=params,
            stop=StopRules(
                max_tokens=max_tokens,
                min_tokens=params.min_tokens,
                eos_token_ids=frozenset() if params.ignore_eos else self.model.eos_token_ids,
                stop_token_ids=frozenset(params.stop_token_ids or ()),
            ),
            bad_words_token_ids=self._bad_words(params),
            priority=priority,
            cache_salt=cache_salt,
            shared_prefix_len=min(shared_prefix_len, len(token_ids)),  # an answer is never shared
        )

    # ------------------------------------------------------------ prompt

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...]]:
        text: str | None = None
        if isinstance(prompt, Mapping):
            prompt, text = self._unwrap(prompt)
        if isinstance(prompt, str):
            if self.model.tokenizer is None:
                raise InvalidRequestError(
                    "this engine has no tokenizer (skip_tokenizer_init=True); pass token ids instead of text."
                )
            text = prompt
            token_ids = tuple(self.model.tokenizer.encode(prompt))
        elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray | memoryview):
            token_ids = tuple(prompt)  # type: ignore[arg-type]  # not text: that was the branch above
        else:
            raise InvalidRequestError(
                f"a prompt is text, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids'; "
                f"got {type(prompt).__name__}."
            )
        if not token_ids:
            if self.model.bos_token_id is None:
                raise InvalidRequestError(
                    "the prompt is empty and this model has no BOS token to begin with; give at least one token."
                )
            token_ids = (self.model.bos_token_id,)
        return text, token_ids

    def _unwrap(self, prompt: Mapping[str, Any]) -> tuple[str | Sequence[int], str | None]:
        """What to compute, and the text to show for it. Ids win over a text, which then only goes with them."""
        given = {name: value for name, value in prompt.items() if value is not None}
        text, ids = given.get("prompt"), given.get("prompt_token_ids")
        if (text is None and ids is None) or not given.keys() <= {"prompt", "prompt_token_ids"}:
            raise InvalidRequestError(
                "a prompt dict needs 'prompt' or 'prompt_token_ids' and takes nothing else; this one has "
                f"{', '.join(map(repr, given)) or 'nothing'}."
            )
        if ids is None:
            if not isinstance(text, str):
                raise InvalidRequestError(
                    f"'prompt' is a {type(text).__name__}; pass text, or use 'prompt_token_ids'."
                )
            return text, None
        if isinstance(ids, str):
            raise InvalidRequestError("'prompt_token_ids' is text; pass token ids, or use 'prompt'.")
        return ids, text if isinstance(text, str) else None

    def _check_ids(self, where: str, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise InvalidRequestError(
                    f"{where} holds {token_id!r}, which is not a token id (a whole number)."
                )
            if not 0 <= token_id < self.model.vocab_size:
                raise InvalidRequestError(
                    f"{where} holds token id {token_id}; {self.model.name} has ids 0 to "
                    f"{self.model.vocab_size - 1}."
                )

    # ------------------------------------------------------------ parameters

    def _check_params(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_ids(name, tuple(getattr(params, name) or ()))
        if self.model.tokenizer is None:
            for name in ("stop", "bad_words"):
                if getattr(params, name):
                    raise InvalidRequestError(
                        f"{name} needs a tokenizer, and this engine has none (skip_tokenizer_init=True)."
                    )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if not params.bad_words or self.model.tokenizer is None:
            return ()
        return self.model.tokenizer.encode_bad_words(tuple(params.bad_words))

    # ------------------------------------------------------------ length

    def _check_length(self, num_prompt: int, params: SamplingParams) -> int:
        """Refuse what can never fit; return the most output tokens after all caps.

        The last token of an answer needs no slot, so a prompt that fills the pool exactly still gets one token.
        """
        if num_prompt >= self.max_model_len:
            raise CapacityError(
                f"the prompt has {num_prompt:,} tokens; max_model_len={self.max_model_len:,} covers prompt and answer, "
                f"so at most {self.max_model_len - 1:,} can be prompt. Shorten it or raise max_model_len."
            )
        if num_prompt > self.pool_tokens:
            raise CapacityError(
                f"the prompt has {num_prompt:,} tokens; the whole KV cache ({self._pool_text}) holds one request of at "
                f"most {self.pool_tokens:,}. Shorten it or give the engine more blocks."
            )
        room = min(self.max_model_len - num_prompt, self.pool_tokens + 1 - num_prompt)
        return room if params.max_tokens is None else min(room, params.max_tokens)


def check_request_id(request_id: str | None) -> None:
    """Raises InvalidRequestError unless it is a string or, to let the engine choose, None."""
    if request_id is not None and not (isinstance(request_id, str) and request_id and _is_utf8(request_id)):
        raise InvalidRequestError(
            f"request_id={request_id!r} is not a non-empty string of characters; pass one, or None to have one made."
        )


def _check_prefix_settings(cache_salt: str | None, shared_prefix_len: int) -> None:
    # Hashed while a step is planned, where an error would hit everybody: nothing odd may get that far.
    if cache_salt is not None and (
        not isinstance(cache_salt, str) or not cache_salt or not _is_utf8(cache_salt)
    ):
        raise InvalidRequestError(
            f"cache_salt={cache_salt!r}: pass a non-empty string without lone surrogates, or None to share."
        )
    if isinstance(shared_prefix_len, bool) or not isinstance(shared_prefix_len, int) or shared_prefix_len < 0:
        raise InvalidRequestError(
            f"shared_prefix_len={shared_prefix_len!r} is out of range; allowed: a whole number of tokens, 0 or more."
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def draw_seed(engine_seed: int, arrival: int) -> int:
    """A request's seed where its caller gave none: reproducible for one engine seed and order of arrival."""
    digest = hashlib.sha256(f"{engine_seed}:{arrival}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
