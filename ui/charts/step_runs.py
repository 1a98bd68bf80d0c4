"""What the step budget shows, before it is drawn: the axis of two parts, bars of equal steps joined, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class TokenRun:
    """One request that computed ``count`` tokens in each of the steps ``start .. stop - 1``, on top of ``base``."""

    request_id: str
    arrival: int
    phase: str
    start: int
    stop: int
    base: int
    count: int
    position: int
    """Index of its first token."""


def token_scale(view: EngineView) -> TokenScale:
    """Stretched as far as the largest number of decodes in the window allows; it grows by doubling."""
    decodes = max((sum(r.count for r in s.rows if r.phase == "decode") for s in view.steps), default=0)
    return TokenScale(power_of_two(decodes, 8), view.info.max_num_batched_tokens)


def token_runs(steps: Sequence[StepRecord]) -> list[TokenRun]:
    """The bars: equal neighbours joined, so that a long decode is one bar and not a hundred."""
    done: list[TokenRun] = []
    growing: dict[str, TokenRun] = {}
    for step in steps:
        grown: dict[str, TokenRun] = {}
        base = 0
        for row in sorted(step.rows, key=_stacking):
            old = growing.get(row.request_id)
            if old is not None and (old.stop, old.base, old.count, old.phase) == (
                step.step,
                base,
                row.count,
                row.phase,
            ):
                start, position = old.start, old.position
            else:
                if old is not None:
                    done.append(old)
                start, position = step.step, row.start
            grown[row.request_id] = TokenRun(
                row.request_id, row.arrival, row.phase, start, step.step + 1, base, row.count, position
            )
            base += row.count
        done += [run for request_id, run in growing.items() if request_id not in grown]
        growing = grown
    return done + list(growing.values())


def _stacking(row: StepRow) -> tuple[bool, int]:
    """Decodes below: what comes every step keeps its place when a prefill comes once."""
    return row.phase == "prefill", row.arrival


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


def run_words(run: TokenRun) -> str:
    """The hover of one bar, inside RUN_TEMPLATE."""
    each = counted(run.count, "token")
    what = f"prefill, {each} in a step" if run.phase == "prefill" else f"decode, {each} a step"
    last = run.position + run.count * (run.stop - run.start) - 1
    tokens = f"token {run.position:,}" if last == run.position else f"tokens {run.position:,}–{last:,}"
    return f"{request_label(run.arrival)}</b> · {what}<br>{steps_words(run.start, run.stop)} · {tokens}"


def steps_words(start: int, stop: int) -> str:
    return f"step {start}" if stop - start == 1 else f"steps {start}–{stop - 1}"
