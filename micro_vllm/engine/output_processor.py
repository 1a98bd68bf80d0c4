"""From token ids to text, and from text to the end of a request: detokenizing and stop strings."""

from __future__ import annotations

from micro_vllm.core.request import Request
from micro_vllm.core.scheduler_output import TokenLogprobs
from micro_vllm.engine.input_processor import CheckedRequest
from micro_vllm.engine.output import CompletionOutput, FinishReason, Logprob, RequestOutput
from micro_vllm.tokenizer import IncrementalDetokenizer, Tokenizer


class RequestStream:
    """One request's output so far."""

    def __init__(self, request: Request, checked: CheckedRequest, tokenizer: Tokenizer | None) -> None:
        params = checked.params
        self.request = request
        self._prompt = checked.prompt
        self._prompt_token_ids = list(request.prompt_token_ids)
        self._shows_stop = params.include_stop_str_in_output
        self._tokenizer = tokenizer
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = IncrementalDetokenizer(
                tokenizer,
                request.prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                stop=tuple(params.stop or ()),
                include_stop_str_in_output=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    def take(self, token_id: int, logprobs: TokenLogprobs | None, *, ends_request: bool) -> str | None:
        """The request's newest token. Returns the stop string it completed, if any.

        A token that ends the request (EOS, a stop token id) stays in ``token_ids`` and is left out of the text, unless
        include_stop_str_in_output asks for it.
        """
        if self._logprobs is not None and logprobs is not None:
            self._logprobs.append(self._entry(logprobs))
            self._cumulative_logprob += logprobs.logprobs[0]
        if self._detokenizer is None or (ends_request and not self._shows_stop):
            return None
        self._detokenizer.append(token_id)
        return self._detokenizer.stop_string

    def _entry(self, logprobs: TokenLogprobs) -> dict[int, Logprob]:
        rows = zip(logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True)
        decode = self._tokenizer.token_text if self._tokenizer else lambda _: None
        return {token_id: Logprob(value, rank, decode(token_id)) for token_id, value, rank in rows}

    def output(self, finish_reason: FinishReason | None = None, error: str | None = None) -> RequestOutput:
        """The cumulative output; with a reason the text is flushed and the output is the last."""
        request = self.request
        text = ""
        if self._detokenizer is not None:
            text = self._detokenizer.finish() if finish_reason else self._detokenizer.text
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=request.token_ids[request.num_prompt_tokens :],
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=None if self._logprobs is None else list(self._logprobs),
            finish_reason=finish_reason,
            stop_reason=request.stop_reason,
            error=error,
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion],
            finished=finish_reason is not None,
            num_cached_tokens=request.num_cached_tokens,
            metrics=request.metrics(request.last_token_time if finish_reason else None),
        )
