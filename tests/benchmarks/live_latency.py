"""How long it takes from an engine step to its picture in a real Chromium, beside an engine that never rests.

Measured twice. With the engine's forward pass on the same cores, where browser and engine take them from each other;
and with a wait of the same length in its place, as it is for a visitor, whose browser runs on another machine.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import EngineStarted, StepExecuted
from tests.browser.support.running_page import RunningPage

NUM_REQUESTS = 4
LISTEN = """() => {
    window.pictures = [];
    const painted = new MessageChannel(), waiting = [];
    const now = () => (performance.timeOrigin + performance.now()) / 1000;
    painted.port1.onmessage = () => window.pictures.push([waiting.shift(), now()]);
    const drawn = ({ detail }) => {
        if (!detail.charts) return;
        waiting.push(detail.step);
        requestAnimationFrame(() => painted.port2.postMessage(null));
    };
    window.removeEventListener('mv:drawn', window.drawn);  // of an earlier minute
    window.addEventListener('mv:drawn', window.drawn = drawn);
}"""
"""A picture is there when the frame after its drawing is: a message sent in a frame arrives once that was painted."""


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """From each step to the first picture that shows it or a later one; seconds."""

    num_steps: int
    num_pictures: int
    p50: float
    p95: float

    @staticmethod
    def of(latencies: Sequence[float], num_pictures: int) -> LatencyFigures:
        cuts = quantiles(latencies, n=100)
        return LatencyFigures(len(latencies), num_pictures, cuts[49], cuts[94])


def measure_latency(page: RunningPage, tab: Any, seconds: float) -> LatencyFigures:
    """``page`` is busy; ``tab``: a Playwright page that shows its charts."""
    tab.evaluate(LISTEN)
    first = last_step(page)
    tab.wait_for_timeout(1000 * seconds)
    pictures = tab.evaluate("window.pictures")
    return LatencyFigures.of(latencies_of(wall_times(page, first), pictures), len(pictures))


def latencies_of(steps: dict[int, float], pictures: Sequence[Sequence[float]]) -> list[float]:
    """Seconds from each step to the first picture that shows it or a later one; ``steps``: when each was computed."""
    found = []
    shown = iter(pictures)
    picture = next(shown, None)
    for step, moment in sorted(steps.items()):
        while picture is not None and picture[0] < step:
            picture = next(shown, None)
        if picture is None:
            break  # not drawn before the end
        found.append(picture[1] - moment)
    return found


def wall_times(page: RunningPage, since: int) -> dict[int, float]:
    """Unix time of each step's end."""
    events = page.log.since()
    start = next((e for e in events if isinstance(e, EngineStarted)), None) or events[0]
    offset = start.wall_time - start.time
    return {e.step: e.time + offset for e in executed(page, since)}


# ---------------------------------------------------------------- an engine that never rests


@contextlib.contextmanager
def busy_engine(page: RunningPage, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Iterator[None]:
    """So many requests at any time, with answers of different lengths."""
    rng = random.Random(seed)
    over = threading.Event()
    loop = page.loop
    longest = loop.engine.info.max_model_len // 2

    def submit() -> Any:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randint(16, min(160, longest)))]
        params = SamplingParams(
            max_tokens=rng.randint(40, min(200, longest)), ignore_eos=True, detokenize=False, temperature=0
        )
        return loop.submit({"prompt_token_ids": prompt}, params)

    def feed() -> None:
        live: list[Any] = []
        while not over.wait(0.02):
            live = [handle for handle in live if not handle.finished]
            live += [submit() for _ in range(num_requests - len(live))]
        for handle in live:
            loop.abort(handle.request_id)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        over.set()
        feeder.join(30)


def executed(page: RunningPage, since: int = 0) -> list[StepExecuted]:
    return [e for e in page.log.since() if isinstance(e, StepExecuted) and e.step > since]


def last_step(page: RunningPage) -> int:
    steps = executed(page)
    return steps[-1].step if steps else 0


@contextlib.contextmanager
def forward_elsewhere(page: RunningPage) -> Iterator[None]:
    """Instead of each forward pass the engine waits, as long as the last hundred passes took in the middle; all that
    is Python stays as it is, and tokens are drawn from logits that mean nothing."""
    runner = page.loop.engine.executor._worker._runner
    steps = executed(page)[-100:]
    model = runner._model
    runner._model = _WaitingModel(
        median(step.forward_seconds for step in steps), page.loop.engine.model.vocab_size
    )
    try:
        yield
    finally:
        runner._model = model


class _WaitingModel:
    """Stands in for a model: ``seconds`` long it does nothing, and lets others do what they like."""

    def __init__(self, seconds: float, vocab_size: int) -> None:
        self._seconds = seconds
        self._logits = torch.randn(NUM_REQUESTS, vocab_size)

    def __call__(self, token_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.zeros(len(token_ids), 1)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(hidden)]
