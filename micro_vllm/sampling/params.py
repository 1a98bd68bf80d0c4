"""Sampling parameters: vLLM's names, vLLM's meaning. A leaf: imports nothing but errors.

Source: https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from micro_vllm.errors import InvalidRequestError, unknown_name

MAX_LOGPROBS = 20
GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy (vLLM's ``_SAMPLING_EPS``)."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it stops.

    Frozen; use :meth:`clone` to vary it. Wrong values raise :class:`InvalidRequestError` with the value,
    the allowed range and what to do. ``temperature=0`` is greedy and makes top_k, top_p and min_p neutral.
    ``top_k`` 0 or -1 means off. ``max_tokens=None`` means as many as fit. Logprobs are those of the raw
    model, before any temperature or penalty.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        # Before dataclass's own __init__ turns a typo into a bare TypeError.
        if args:
            raise InvalidRequestError(
                f"{len(args)} sampling parameters have no name; name each, as in SamplingParams(temperature=0.5)."
            )
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                raise InvalidRequestError(unknown_name("sampling parameter", name, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        self._check_lists()
        if self.n > 1:
            raise InvalidRequestError(
                f"n={self.n} is not supported yet; send the request {self.n} times with different seeds."
            )
        if self.prompt_logprobs is not None:
            raise InvalidRequestError(
                f"prompt_logprobs={self.prompt_logprobs} is not supported yet; leave it at None."
            )

    def _normalise(self) -> None:
        """Bring lists to tuples and -1 to 0, so that two equal requests compare equal."""
        set_ = object.__setattr__
        if self.top_k == -1:
            set_(self, "top_k", 0)
        if isinstance(self.stop, str):
            set_(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "allowed_token_ids", "bad_words"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset):
                raise InvalidRequestError(f"{name}={value!r} is not a list; pass a list.")
            set_(self, name, tuple(value))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise InvalidRequestError(f"logit_bias={self.logit_bias!r} is not a dict of id -> bias.")
            try:
                pairs = {_token_id_key(key): float(bias) for key, bias in self.logit_bias.items()}
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidRequestError(
                    f"logit_bias={self.logit_bias!r}: keys must be token ids and values numbers."
                ) from error
            set_(self, "logit_bias", pairs)

    def _check_numbers(self) -> None:
        _integer("n", self.n, 1, None)
        _number("temperature", self.temperature, 0.0, math.inf, "0 is greedy, 1 the model's own distribution")
        _number("top_p", self.top_p, 0.0, 1.0, "1 is off", open_low=True)
        _integer("top_k", self.top_k, 0, None, "0 or -1 is off")
        _number("min_p", self.min_p, 0.0, 1.0, "0 is off")
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, "1 is off", open_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0, "0 is off")
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "0 is off")
        _integer("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None, "None means as many as fit")
            if self.min_tokens > self.max_tokens:
                raise InvalidRequestError(
                    f"min_tokens={self.min_tokens} is greater than max_tokens={self.max_tokens}; "
                    "lower min_tokens or raise max_tokens."
                )
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**63 - 1, "None picks one")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS, "None is off")
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"{name}={getattr(self, name)!r} is neither True nor False.")

    def _check_lists(self) -> None:
        for name in ("stop", "bad_words"):
            for text in getattr(self, name) or ():
                if not isinstance(text, str) or not text:
                    raise InvalidRequestError(
                        f"{name} holds {text!r}; every entry must be a non-empty string."
                    )
        if self.stop and not self.detokenize:
            raise InvalidRequestError(
                "stop strings need detokenize=True; use stop_token_ids or turn detokenize on."
            )
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            for token_id in getattr(self, name) or ():
                _integer(f"a token id in {name}", token_id, 0, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequestError(
                "allowed_token_ids is empty: nothing could be sampled; use None for all."
            )
        for token_id, bias in (self.logit_bias or {}).items():
            _number(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked again."""
        unknown = changes.keys() - {f.name for f in fields(self)}
        if unknown:
            return SamplingParams(**changes)  # raises with the list of known names
        return replace(self, **changes)


@dataclass(frozen=True)
class SamplingSpec:
    """What the model runner needs to draw one request's tokens: params with every text turned into ids.

    Built once when a request is added; ``seed`` is always set (the engine picks one where the user did not),
    so that the noise of a draw depends only on (seed, output index).
    """

    seed: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    min_tokens_masked_ids: tuple[int, ...] = ()
    """Ids that must not be drawn before ``min_tokens`` outputs: every EOS and every stop token id."""
    num_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _number(
    name: str, value: Any, low: float, high: float, note: str = "", *, open_low: bool = False
) -> None:
    span = f"more than {low:g}" if open_low else f"{low:g}"
    if math.isfinite(high):
        span += f" to {high:g}"
    elif not open_low:
        span += " or more"
    span += f" ({note})" if note else ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise InvalidRequestError(f"{name}={value!r} is not a number; allowed: {span}.")
    if not (low < value if open_low else low <= value) or value > high:
        raise InvalidRequestError(f"{name}={value:g} is out of range; allowed: {span}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _token_id_key(key: Any) -> int:
    """A token id, or its digits as JSON has them. Never the whole part of some other number."""
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise TypeError
    return int(key)


def _integer(name: str, value: Any, low: int, high: int | None, note: str = "") -> None:
    span = (f"{low} or more" if high is None else f"{low} to {high}") + (f" ({note})" if note else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name}={value!r} is not a whole number; allowed: {span}.")
    if value < low or (high is not None and value > high):
        raise InvalidRequestError(f"{name}={value} is out of range; allowed: {span}.")
