"""The steps of the window: how each was planned and, once that is over, computed."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from dataclasses import dataclass

from micro_vllm.trace import Fold, StepExecuted, StepFailed, StepPlanned
from ui.view import WINDOW_STEPS, StepRecord, StepRow


@dataclass(slots=True)
class _Step:
    planned: StepPlanned
    arrivals: tuple[int, ...]
    """Of the requests of its rows."""
    num_preempted: int
    num_evicted: int
    num_hit_tokens: int
    end: StepExecuted | StepFailed | None = None

    def draw(self) -> StepRecord:
        plan, end = self.planned, self.end
        done = end if isinstance(end, StepExecuted) else None
        return StepRecord(
            step=plan.step,
            time=plan.time,
            rows=tuple(
                [
                    StepRow(row.request_id, arrival, row.phase, row.start, row.count)
                    for row, arrival in zip(plan.rows, self.arrivals, strict=True)
                ]
            ),
            num_tokens=plan.num_tokens,
            token_budget=plan.token_budget,
            num_seats=plan.num_seats,
            max_num_seqs=plan.max_num_seqs,
            num_waiting=plan.num_waiting,
            stopped_by=plan.stopped_by,
            is_executed=done is not None,
            schedule_seconds=done.schedule_seconds if done else 0.0,
            build_seconds=done.build_seconds if done else 0.0,
            forward_seconds=done.forward_seconds if done else 0.0,
            sample_seconds=done.sample_seconds if done else 0.0,
            num_preempted=self.num_preempted,
            num_evicted=self.num_evicted,
            num_hit_tokens=self.num_hit_tokens,
            error=end.error if isinstance(end, StepFailed) else "",
        )


class Steps:
    """What happens while a step is planned is counted here before its StepPlanned comes."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=WINDOW_STEPS)
        self.num_preempted = 0
        self.num_evicted = 0
        self.num_hit_tokens = 0
        self._drawn: deque[StepRecord] = deque(maxlen=WINDOW_STEPS)

    def copy(self) -> Steps:
        """Goes its own way; what was drawn already is not copied."""
        other = copy.copy(self)
        other._drawn = deque(maxlen=WINDOW_STEPS)
        other._steps = self._steps.copy()
        if other._steps:
            other._steps[-1] = copy.copy(other._steps[-1])  # the only one that may still change
        return other

    def planned(self, event: StepPlanned, fold: Fold) -> None:
        arrivals = tuple([fold.requests[row.request_id].arrival for row in event.rows])
        counts = (self.num_preempted, self.num_evicted, self.num_hit_tokens)
        self._steps.append(_Step(event, arrivals, *counts))
        self.num_preempted = self.num_evicted = self.num_hit_tokens = 0

    def ended(self, event: StepExecuted | StepFailed) -> StepPlanned | None:
        """Its plan, if this trace has it."""
        if not self._steps or self._steps[-1].planned.step != event.step:
            return None
        self._steps[-1].end = event
        if self._drawn and self._drawn[-1].step == event.step:
            self._drawn.pop()  # drawn while it was being computed
        return self._steps[-1].planned

    def draw(self) -> tuple[StepRecord, ...]:
        """One a step, the newest last. Each is made once."""
        newest = self._drawn[-1].step if self._drawn else -1
        new = list(itertools.takewhile(lambda step: step.planned.step > newest, reversed(self._steps)))
        self._drawn.extend(step.draw() for step in reversed(new))
        return tuple(self._drawn)
