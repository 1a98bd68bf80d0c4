"""A page whose model says what the test wants: scripted below the engine, so that all above it is real."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.browser.support.running_page import RunningPage

END = 299
"""The end token of the tiny model of the browser tests."""


class ScriptedAnswers:
    """The real executor, except that every request gets the same tokens."""

    def __init__(self, executor: Any, token_ids: list[int]) -> None:
        self.executor = executor
        self._script = token_ids
        self._given: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def execute(self, plan: Any) -> Any:
        result = self.executor.execute(plan)
        token_ids = {}
        for request_id in result.token_ids:
            at = self._given.get(request_id, 0)
            self._given[request_id] = at + 1
            token_ids[request_id] = self._script[min(at, len(self._script) - 1)]
        return msgspec.structs.replace(result, token_ids=token_ids)


def always_answer(page: RunningPage, text: str) -> None:
    """From now on every answer of this page is ``text``, then the end token."""
    assert page.host.engine is not None
    ids = [*page.host.engine.loaded.tokenizer.encode(text, add_special_tokens=False), END]

    def script(engine: Any) -> None:
        real = getattr(engine.executor, "executor", engine.executor)
        engine.executor = ScriptedAnswers(real, ids)

    page.loop.call(script)
