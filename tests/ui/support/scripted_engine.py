"""The real engine with a scripted executor: real scheduler, real blocks, no weights. For charts and replays."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from micro_vllm.config import CacheGroup, EngineConfig
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.engine.engine import Engine
from micro_vllm.engine.served_model import ServedModel
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import TraceLog

VOCAB = 1000


class ScriptedExecutor:
    """Draws tokens from a seeded generator. ``fail_at`` steps raise."""

    def __init__(self, seed: int = 0, fail_at: Sequence[int] = ()) -> None:
        self._random = random.Random(seed)
        self._fail_at = set(fail_at)

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        return 1024 * block_size

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        return memory_bytes // self.block_bytes(groups, block_size)

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        pass

    def execute(self, plan: ExecutionPlan) -> StepResult:
        if plan.step in self._fail_at:
            raise RuntimeError("scripted failure")
        rows = [row for row in plan.scheduled if row.samples]
        return StepResult(
            token_ids={row.request_id: self._random.randrange(VOCAB) for row in rows}, operator="scripted"
        )

    def close(self) -> None:
        pass


def make_engine(
    num_blocks: int = 64,
    *,
    windows: Sequence[int | None] = (None, None),
    trace: TraceLog | None = None,
    seed: int = 0,
    fail_at: Sequence[int] = (),
    **config: object,
) -> tuple[Engine, TraceLog]:
    """An engine and the log it writes to."""
    log = trace if trace is not None else TraceLog()
    settings: dict = {
        "num_gpu_blocks_override": num_blocks,
        "trace": log,
        "max_num_batched_tokens": 128,
        **config,
    }
    model = ServedModel("scripted", tuple(windows), VOCAB, 4096)
    return Engine(EngineConfig(**settings), executor=ScriptedExecutor(seed, fail_at), model=model), log


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, detokenize=False, ignore_eos=True)


def random_run(engine: Engine, num_steps: int, seed: int = 0, *, load: float = 0.25) -> Iterator[int]:
    """Random arrivals (a third share a prefix), aborts and steps; yields after each step."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB) for _ in range(96)]
    live: list[str] = []
    for step in range(num_steps):
        while rng.random() < load:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(4, 160))]
            if rng.random() < 0.35:
                prompt = shared[: rng.choice((32, 64, 96))] + prompt[:20]
            live.append(engine.add_request(prompt, params(rng.randint(4, 70))))
        if live and rng.random() < 0.03:
            engine.abort(live.pop(rng.randrange(len(live))))
        engine.step()
        yield step
