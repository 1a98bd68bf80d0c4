"""What the step budget shows, before it is drawn: the axis of two parts, bars of equal steps joined, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ui.charts.wording import counted, power_of_two
from ui.view import EngineView, StepRecord, StepRow, request_label

STOP_WORDS = {
    "nothing_waits": "nobody else waits",
    "budget": "the token budget is used up",
    "seats": "all seats are taken",
    "blocks": "too few blocks are free",
    "preemption": "a request was preempted",
}
STRETCHED = 0.5
"""Part of the height that the stretched part of the axis has."""


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Tokens to height 0..1: linear up to ``fine`` tokens in the lower half, linear from there to ``budget``."""

    fine: int
    budget: int

    @property
    def is_stretched(self) -> bool:
        return self.budget > 2 * self.fine

    @property
    def factor(self) -> float:
        """How much higher a token is in the lower half."""
        return (self.budget - self.fine) / self.fine

    def height(self, tokens: float) -> float:
        if not self.is_stretched:
            return tokens / self.budget
        if tokens <= self.fine:
            return STRETCHED * tokens / self.fine
        return STRETCHED + (1 - STRETCHED) * (tokens - self.fine) / (self.budget - self.fine)


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """One request that computed ``count`` tokens in each of the steps ``start .. stop - 1``, on top of ``base``."""

    request_id: str
    arrival: int
    start: int
    stop: int
    base: int
    count: int
    position: int
    """Index of its first token."""


def token_scale(view: EngineView) -> TokenScale:
    """Stretched as far as the largest number of decodes in the window allows; it grows by doubling."""
    decodes = max((len(decode_stack(step)) for step in view.steps), default=0)
    return TokenScale(power_of_two(decodes, 8), view.info.max_num_batched_tokens)


@lru_cache(maxsize=1024)
def decode_stack(step: StepRecord) -> tuple[StepRow, ...]:
    """Who decodes, from below, an entry a token: in order of arrival, so that most keep their place."""
    rows = sorted((row for row in step.rows if row.phase == "decode"), key=lambda row: row.arrival)
    return tuple(row for row in rows for _ in range(row.count))


def prefill_runs(steps: Sequence[StepRecord]) -> list[PrefillRun]:
    """On top of the decodes of their step; equal chunks of one request in steps that follow each other are one run."""
    runs: list[PrefillRun] = []
    last: dict[str, int] = {}
    for step in steps:
        base = len(decode_stack(step))
        if base == step.num_tokens:
            continue
        for row in sorted((r for r in step.rows if r.phase == "prefill"), key=lambda r: r.arrival):
            index = last.get(row.request_id)
            old = runs[index] if index is not None else None
            if old is not None and (old.stop, old.base, old.count) == (step.step, base, row.count):
                runs[index or 0] = replace(old, stop=step.step + 1)
            else:
                last[row.request_id] = len(runs)
                runs.append(
                    PrefillRun(
                        row.request_id, row.arrival, step.step, step.step + 1, base, row.count, row.start
                    )
                )
            base += row.count
    return runs


def stop_runs(steps: Sequence[StepRecord]) -> list[tuple[str, int, int]]:
    """(stopped_by, first step, end) of each stretch of steps that ended for the same reason."""
    runs: list[tuple[str, int, int]] = []
    for step in steps:
        if runs and runs[-1][0] == step.stopped_by and runs[-1][2] == step.step:
            runs[-1] = (step.stopped_by, runs[-1][1], step.step + 1)
        else:
            runs.append((step.stopped_by, step.step, step.step + 1))
    return runs


# ---------------------------------------------------------------- words


@lru_cache(maxsize=1024)
def step_words(step: StepRecord) -> str:
    """Everything about one step, for its hover."""
    prefills = [row for row in step.rows if row.phase == "prefill"]
    num_prefill = sum(row.count for row in prefills)
    num_decodes = len(step.rows) - len(prefills)
    lines = [
        f"<b>step {step.step}</b>",
        f"{step.num_tokens:,} of {step.token_budget:,} tokens: {counted(num_decodes, 'decode')}, "
        f"{num_prefill:,} prefilled by {counted(len(prefills), 'request')}",
        f"{step.num_seats} of {step.max_num_seqs} seats · {step.num_waiting} waiting",
        f"planning stopped: {STOP_WORDS[step.stopped_by]}",
    ]
    if step.num_preempted:
        lines.append(f"{counted(step.num_preempted, 'request')} preempted")
    if step.error:
        lines.append("the step failed; its requests ended with an error")
    return "<br>".join(lines)


RUN_TEMPLATE = "<b>request %{hovertext} of the request<extra></extra>"
"""What stands around ``run_words``: it is sent once and not with each bar."""


def run_words(run: PrefillRun) -> str:
    """The hover of one bar, inside RUN_TEMPLATE."""
    what = f"prefill, {counted(run.count, 'token')} in a step"
    last = run.position + run.count * (run.stop - run.start) - 1
    tokens = f"token {run.position:,}" if last == run.position else f"tokens {run.position:,}–{last:,}"
    return f"{request_label(run.arrival)}</b> · {what}<br>{steps_words(run.start, run.stop)} · {tokens}"


def steps_words(start: int, stop: int) -> str:
    return f"step {start}" if stop - start == 1 else f"steps {start}–{stop - 1}"
