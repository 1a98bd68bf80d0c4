"""LLM: the public door. A script written for vLLM's offline LLM runs here by changing the import.

Source of names and meaning: https://docs.vllm.ai/en/latest/api/vllm/entrypoints/llm.html
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from micro_vllm.config import EngineConfig
from micro_vllm.engine.engine import Engine
from micro_vllm.engine.input_processor import CheckedRequest, Prompt
from micro_vllm.engine.output import EngineStats, RequestOutput
from micro_vllm.errors import ConfigError, InvalidRequestError, RequestFailedError
from micro_vllm.sampling.params import SamplingParams

if TYPE_CHECKING:
    from micro_vllm.model_loader import LoadedModel
    from micro_vllm.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}``; an assistant message may carry the ``token_ids`` it was generated with."""


class LLM:
    """Synchronous: the caller's thread steps the engine. Threads may share it and take turns step by step; where none
    of them may starve, use EngineLoop.

    Args:
        model: a catalogue name, a Hub id, a local folder, or a LoadedModel that another engine uses too.
        skip_tokenizer_init: ids in, ids out, for a folder without a tokenizer.
        settings: fields of :class:`EngineConfig` (``max_model_len=2048, block_size=16, ...``).

    Raises:
        ConfigError: a setting is unknown or out of range.
        ModelLoadError: the model is broken, unsupported or not to be found.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel = EngineConfig.model,
        *,
        skip_tokenizer_init: bool = False,
        **settings: Any,
    ) -> None:
        name = str(model) if isinstance(model, str | Path) else getattr(model, "name", None)
        if not isinstance(name, str):
            raise ConfigError(
                f"model={model!r} is a {type(model).__name__}; pass a catalogue name, a Hub id, a folder, "
                "or a LoadedModel."
            )
        config = EngineConfig(model=name, **settings)  # before the weights: a typo must not cost a download
        if isinstance(model, str | Path):
            from micro_vllm.model_loader import load_model

            model = load_model(
                name,
                dtype=config.dtype,
                device=config.device,
                skip_tokenizer_init=skip_tokenizer_init,
                prepack=config.prepack_weights,
            )
        self.loaded = model
        self.engine = Engine(config, model)
        self._outputs: dict[str, RequestOutput] = {}
        """Newest output of every request some caller still waits for; whoever steps fills it for all."""
        self._open: set[str] = set()
        self._lock = threading.Lock()
        """Held while the engine is touched."""
        self._left: deque[str] = deque()
        """Requests nobody waits for any more, still to be aborted. The collector may close a forgotten stream on any
        thread and in the middle of a step, so leaving never waits for the lock: who holds it does the rest."""

    # ------------------------------------------------------------ generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts, all in one batch.

        Raises:
            InvalidRequestError: a prompt or its parameters are wrong; nothing of this call was started.
            RequestFailedError: the engine failed for some; ``.outputs`` has all of them.
        """
        many = _as_prompts(prompts)
        params = _one_each("sampling_params", sampling_params, len(many))
        priorities = _one_each("priority", priority, len(many))
        ids = self._add(self._check(many, params, [p or 0 for p in priorities]))
        try:
            with _Progress(len(ids), use_tqdm) as progress:
                for request_id in ids:  # the order is no matter: every step brings the others on as well
                    while not self._is_done(request_id):
                        self._step(request_id)
                        if progress.is_due():
                            progress.show(sum(map(self._is_done, ids)), self._generated(ids))
                progress.show(len(ids), self._generated(ids))
            outputs = [self._outputs[request_id] for request_id in ids]
        finally:
            self._leave(ids)
        failed = [output for output in outputs if output.outputs[0].finish_reason == "error"]
        if failed:
            raise RequestFailedError(
                f"{len(failed)} of {len(outputs)} requests failed: {failed[0].outputs[0].error}", outputs
            )
        return outputs

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """One conversation or several. The model's chat template is applied once; there is one BOS at most."""
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError(
                f"messages are a {type(messages).__name__}; pass a list of {{'role': ..., 'content': ...}}, "
                "or a list of such lists."
            )
        if not messages:
            raise InvalidRequestError("the conversation is empty; give at least one message.")
        several = not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        tokenizer = self.get_tokenizer()
        prompts = [
            {
                "prompt_token_ids": tokenizer.render_chat_with_ids(
                    list(conversation),
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                )
            }
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Cumulative outputs of one request as they grow. Closing the iterator aborts it.

        The request is checked at once and queued when the first output is asked for.
        """
        return self._stream(self._check([prompt], [sampling_params], [0]))

    def _stream(self, checked: list[CheckedRequest]) -> Iterator[RequestOutput]:
        (request_id,) = self._add(checked)
        seen = None
        try:
            while True:
                output = self._outputs.get(request_id)
                if output is not None and output is not seen:
                    seen = output
                    if output.outputs[0].finish_reason == "error":
                        raise RequestFailedError(output.outputs[0].error or "", [output])
                    yield output
                    if output.finished:
                        return
                else:
                    self._step(request_id)
        finally:
            self._leave([request_id])

    # ------------------------------------------------------------ shared by all callers

    def _check(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | None],
        priorities: Sequence[int],
    ) -> list[CheckedRequest]:
        """All or none: a wrong prompt is told by its index before any is queued."""
        checked = []
        for index, (prompt, one, priority) in enumerate(zip(prompts, params, priorities, strict=True)):
            try:
                checked.append(self.engine.input_processor.check(prompt, one, priority=priority))
            except InvalidRequestError as error:
                if len(prompts) == 1:
                    raise
                raise type(error)(f"prompt {index} of {len(prompts)}: {error}") from error
        return checked

    def _add(self, checked: Sequence[CheckedRequest]) -> list[str]:
        """Queue all or none."""
        ids: list[str] = []
        try:
            with self._lock:
                for request in checked:
                    ids.append(self.engine.add_checked(request))
                    self._open.add(ids[-1])
        except BaseException:
            self._leave(ids)
            raise
        self._abort_left()
        return ids

    def _step(self, awaited: str) -> None:
        """One step, for the sake of a request that is not done.

        Raises:
            RequestFailedError: it is gone, and its last output went to somebody else.
        """
        with self._lock:
            if self._is_done(awaited):
                return  # another thread's step brought it while this one waited its turn
            for output in self.engine.step():
                if output.request_id in self._open:
                    self._outputs[output.request_id] = output
            if not self._is_done(awaited) and awaited not in self.engine.scheduler.requests:
                last = self._outputs.get(awaited)
                raise RequestFailedError(
                    f"{awaited} was ended from outside: aborted on the engine, stepped by somebody else, or caught in "
                    "an interrupted step. Send it again.",
                    [] if last is None else [last],
                )
        self._abort_left()

    def _is_done(self, request_id: str) -> bool:
        output = self._outputs.get(request_id)
        return output is not None and output.finished

    def _generated(self, ids: Sequence[str]) -> int:
        return sum(len(self._outputs[i].outputs[0].token_ids) for i in ids if i in self._outputs)

    def _leave(self, ids: Sequence[str]) -> None:
        """Nobody waits for these any more: what is unfinished is aborted, now or right after the step in progress."""
        self._left.extend(ids)
        self._abort_left()

    def _abort_left(self) -> None:
        # Whoever finds the lock taken leaves its ids to the holder, who looks here once more after letting go.
        while self._left and self._lock.acquire(blocking=False):
            try:
                ids = [self._left.popleft() for _ in range(len(self._left))]
                self.engine.abort(ids)
                self._open.difference_update(ids)
                for request_id in ids:
                    self._outputs.pop(request_id, None)
            finally:
                self._lock.release()

    # ------------------------------------------------------------ looking in

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises InvalidRequestError if it was skipped."""
        if self.loaded.tokenizer is None:
            raise InvalidRequestError(
                "this LLM has no tokenizer (skip_tokenizer_init=True); use generate with token ids."
            )
        return self.loaded.tokenizer

    def stats(self) -> EngineStats:
        """Counts as of now."""
        return self.engine.stats()

    def check_integrity(self) -> None:
        """Raises IntegrityError if pool, tables, hashes and queues do not add up."""
        with self._lock:
            self.engine.check_integrity()

    def close(self) -> None:
        """Release the KV cache; the weights go when nobody holds the LoadedModel."""
        with self._lock:
            self.engine.close()


class _Progress:
    """tqdm where it is wanted; nothing otherwise. Counting costs O(prompts of the call), so not in every step."""

    SECONDS = 0.1

    def __init__(self, total: int, wanted: bool) -> None:
        self._bar = None
        if wanted:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)
        self._next = 0.0

    def is_due(self) -> bool:
        return self._bar is not None and time.monotonic() >= self._next

    def show(self, done: int, tokens: int) -> None:
        if self._bar is not None and (done != self._bar.n or tokens):
            self._next = time.monotonic() + self.SECONDS
            self._bar.n = done
            self._bar.set_postfix_str(f"{tokens} tokens", refresh=False)
            self._bar.update(0)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _as_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them. A list of ints is one prompt of token ids."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray | memoryview):
        raise InvalidRequestError(
            f"prompts are a {type(prompts).__name__}; pass text, token ids, a prompt dict, or a list of these."
        )
    if not prompts:
        return []
    if all(isinstance(item, int) for item in prompts):
        return [list(prompts)]
    return list(prompts)


def _one_each(name: str, values: Any, count: int) -> list[Any]:
    """One value for all, or a list as long as the prompts."""
    if not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise InvalidRequestError(
            f"{len(values)} {name} for {count} prompts; pass one for all or one for each."
        )
    return list(values)
