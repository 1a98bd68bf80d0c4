"""An executor without weights: drives the real scheduler, KV manager and trace with made-up tokens.

It also plays the model runner's part of the contract strictly: it keeps rows from what plans say is new, and fails
on any plan that does not add up (wrong start, missing slot, unknown request, a block two requests write to).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from micro_vllm.config import CacheGroup, EngineConfig
from micro_vllm.core.scheduler_output import ExecutionPlan, StepResult
from micro_vllm.engine.engine import Engine
from micro_vllm.engine.served_model import ServedModel

VOCAB = 50
EOS = 2


class PlanError(BaseException):
    """The plan breaks the contract. Not an Exception: the engine must not turn it into a failed request."""


@dataclass
class _Row:
    token_ids: list[int]
    tables: list[list[int]]


@dataclass
class ScriptedExecutor:
    """Token = hash of the whole sequence so far, so that output depends on the tokens and on nothing else."""

    fail_when: Callable[[ExecutionPlan], Mapping[str, str] | bool] | None = None
    """Returns True to raise, or a dict of requests that fail by themselves."""
    num_blocks: int = 64
    plans: list[ExecutionPlan] = field(default_factory=list)
    computed_tokens: int = 0
    rows: dict[str, _Row] = field(default_factory=dict)
    closed: bool = False

    def block_bytes(self, groups: Sequence[CacheGroup], block_size: int) -> int:
        return len(groups[0].layer_ids) * block_size

    def num_blocks_that_fit(self, groups: Sequence[CacheGroup], block_size: int, memory_bytes: int) -> int:
        return self.num_blocks

    def initialize_cache(self, groups: Sequence[CacheGroup], block_size: int, num_blocks: int) -> None:
        self.groups, self.block_size = groups, block_size
        self.contents: dict[tuple[int, int], list[tuple[int, ...] | None]] = {}

    def close(self) -> None:
        self.closed = True

    def execute(self, plan: ExecutionPlan) -> StepResult:
        self.plans.append(plan)
        verdict = self.fail_when(plan) if self.fail_when else False
        if verdict is True:
            raise RuntimeError("scripted failure")
        for request_id in (*plan.finished_ids, *plan.preempted_ids):
            self.rows.pop(request_id, None)
        for new in plan.new:
            if new.request_id in self.rows:
                raise PlanError(f"{new.request_id} is new twice")
            self.rows[new.request_id] = _Row(list(new.token_ids), [list(ids) for ids in new.block_ids])
        tokens = {}
        for scheduled in plan.scheduled:
            row = self._row(scheduled.request_id)
            known = row.token_ids[scheduled.start : scheduled.start + scheduled.count]
            if list(scheduled.new_token_ids) != known or not known:
                raise PlanError(
                    f"{scheduled.request_id}: plan says {scheduled.new_token_ids}, row has {known}"
                )
            for group, new_ids in enumerate(scheduled.new_block_ids):
                row.tables[group].extend(new_ids)
            self._write(row, scheduled.start, scheduled.count)
            self.computed_tokens += scheduled.count
        for scheduled in plan.scheduled:
            row = self.rows[scheduled.request_id]
            self._check_cache(row, scheduled.start, scheduled.count)
            if scheduled.samples:
                token = draw(row.token_ids)
                row.token_ids.append(token)
                tokens[scheduled.request_id] = token
        failed = dict(verdict) if isinstance(verdict, Mapping) else {}
        return StepResult({r: t for r, t in tokens.items() if r not in failed}, failed=failed)

    def _row(self, request_id: str) -> _Row:
        if request_id not in self.rows:
            raise PlanError(f"{request_id} is scheduled but was never new")
        return self.rows[request_id]

    # A model of the physical cache: a slot remembers the whole prefix it was computed from, so that a wrong hit, a
    # block overwritten too early or a lost window block is seen at the next read. As in the real one, all requests of a
    # step write before any of them reads: a block let go one token too early and handed out again at once is lost.

    def _write(self, row: _Row, start: int, count: int) -> None:
        for group, table in enumerate(row.tables):
            for position in range(start, start + count):
                block, offset = divmod(position, self.block_size)
                if block >= len(table) or table[block] == 0:
                    raise PlanError(f"no slot for position {position} in group {group}: {table}")
                slots = self.contents.setdefault((table[block], offset), [None])
                slots[0] = (group, *row.token_ids[: position + 1])

    def _check_cache(self, row: _Row, start: int, count: int) -> None:
        for group, table in enumerate(row.tables):
            window = self.groups[group].window
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, start + count):
                block, offset = divmod(position, self.block_size)
                stored = self.contents.get((table[block], offset), [None])[0]
                if stored != (group, *row.token_ids[: position + 1]):
                    raise PlanError(
                        f"position {position} in group {group} reads block {table[block]}, which holds "
                        f"{stored and stored[-3:]} instead of its own prefix"
                    )


def draw(token_ids: Sequence[int]) -> int:
    """The scripted model: any id but 0, EOS about one time in forty."""
    digest = hashlib.sha256(repr(list(token_ids)).encode()).digest()
    if digest[1] < 6:
        return EOS
    return 3 + digest[0] % (VOCAB - 3)


def scripted_engine(
    layer_windows: Sequence[int | None] = (None, None),
    executor: ScriptedExecutor | None = None,
    **settings,
) -> Engine:
    """An engine over a ScriptedExecutor with small defaults."""
    defaults = {
        "block_size": 4,
        "num_gpu_blocks_override": 32,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 8,
        "max_model_len": 128,
    }
    model = ServedModel(
        name="scripted",
        layer_windows=tuple(layer_windows),
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        eos_token_ids=frozenset({EOS}),
        bos_token_id=1,
    )
    config = EngineConfig(model="scripted", **{**defaults, **settings})
    return Engine(config, executor=executor or ScriptedExecutor(), model=model)


def run(engine: Engine, *, most_steps: int = 10_000, check: bool = True) -> dict[str, list[int]]:
    """Step until nothing is left. Returns request id -> output tokens; checks integrity after every step."""
    done: dict[str, list[int]] = {}
    for _ in range(most_steps):
        if not engine.has_unfinished_requests():
            return done
        for output in engine.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
        if check:
            engine.check_integrity()
    raise AssertionError(f"not finished after {most_steps} steps")


def solo(prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> list[int]:
    """What the scripted model answers when it is alone and nothing is cached."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(draw(tokens))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]
