"""What the latency chart shows, before it is drawn: one row a request, medians, shares of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from ui.charts.wording import counted, duration, percent, round_up
from ui.view import EngineView, RequestTrack, StepRecord

PARTS = ("forward", "sample", "build", "schedule")
"""Of a step, from below in the picture."""


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One request. Seconds since it was queued."""

    track: RequestTrack
    queue: float
    """Until it was admitted, or so far."""
    first_token: float
    """From then to the first token, or so far; 0 before it was admitted."""
    is_open: bool
    """Still growing: no first token yet."""

    @property
    def total(self) -> float:
        return self.queue + self.first_token


def rows_of(view: EngineView, most: int, first: str | None = None) -> list[LatencyRow]:
    """At most ``most`` requests, live ones before done ones, newer before older; in order of arrival.

    ``first`` is shown in any case.
    """
    known = [track for track in view.requests if track.times.queued is not None]
    if len(known) > most:
        ranked = sorted(
            known, key=lambda t: (t.request_id == first, t.status != "done", t.arrival), reverse=True
        )
        known = sorted(ranked[:most], key=lambda t: t.arrival)
    return [_row(track, view.time) for track in known]


def _row(track: RequestTrack, now: float) -> LatencyRow:
    times = track.times
    assert times.queued is not None
    end = times.first_token
    is_open = end is None and times.finished is None
    if end is None:
        end = times.finished if times.finished is not None else max(now, times.queued)
    admitted = times.admitted if times.admitted is not None else end
    return LatencyRow(track, max(admitted - times.queued, 0.0), max(end - admitted, 0.0), is_open)


def ttft_cell(row: LatencyRow) -> str:
    """The number beside the bar."""
    if row.is_open:
        return f"{duration(row.total)} …"
    return "none" if row.track.ttft is None else duration(row.track.ttft)


def tpot_cell(row: LatencyRow) -> str:
    return "–" if row.track.tpot is None else duration(row.track.tpot)


def median_words(view: EngineView, num_shown: int) -> list[str]:
    """About all requests of the window, the longest wording first."""
    ttfts = [t.ttft for t in view.requests if t.ttft is not None]
    tpots = [t.tpot for t in view.requests if t.tpot is not None]
    total = sum(t.times.queued is not None for t in view.requests)
    some = f" · {num_shown} of {total} requests" if num_shown < total else ""
    if not ttfts:
        return [f"no first token yet{some}"]
    words = f"median TTFT <b>{duration(median(ttfts))}</b>"
    each = f" · TPOT <b>{duration(median(tpots))}</b>" if tpots else ""
    return [f"{words}{each}{some}", f"{words}{each}", words]


def row_words(row: LatencyRow) -> str:
    """The hover of a row."""
    track = row.track
    lines = [f"<b>request {track.label}</b> · {counted(track.num_prompt_tokens, 'prompt token')}"]
    if track.times.admitted is None:
        so_far = " so far" if row.is_open else ", then it was ended"
        lines.append(f"waited {duration(row.queue)}{so_far}")
    else:
        lines.append(f"{duration(row.queue)} in the queue")
        until = (
            "to the first token"
            if track.ttft is not None
            else "and no token yet"
            if row.is_open
            else "no token"
        )
        lines.append(f"+ {duration(row.first_token)} computing {until}")
    if track.ttft is not None:
        lines.append(f"time to first token (TTFT) {duration(track.ttft)}")
    if track.tpot is not None:
        lines.append(
            f"time per later token (TPOT) {duration(track.tpot)}, {counted(track.num_output_tokens, 'token')} so far"
            if track.status != "done"
            else f"time per later token (TPOT) {duration(track.tpot)}, {counted(track.num_output_tokens, 'token')}"
        )
    if track.num_cached_tokens:
        lines.append(f"{counted(track.num_cached_tokens, 'token')} came from the prefix cache")
    if track.num_preemptions:
        lines.append(f"preempted {counted(track.num_preemptions, 'time')}")
    return "<br>".join(lines)


# ---------------------------------------------------------------- steps


def executed(view: EngineView) -> list[StepRecord]:
    return [step for step in view.steps if step.is_executed]


def step_top(steps: Sequence[StepRecord]) -> float:
    """Seconds at the top of the axis. A few steps that are far beyond all others do not flatten these."""
    totals = sorted(step.seconds for step in steps)
    if not totals:
        return 0.1
    usual = totals[min(int(len(totals) * 0.95), len(totals) - 1)]
    return round_up(totals[-1] if totals[-1] <= 4 * usual else 1.2 * usual)


def part_medians(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Seconds of each part."""
    columns = zip(*map(part_seconds, steps), strict=True) if steps else [(0.0,)] * len(PARTS)
    return {part: median(column) for part, column in zip(PARTS, columns, strict=True)}


@lru_cache(maxsize=1024)
def part_seconds(step: StepRecord) -> tuple[float, ...]:
    """By PARTS, to the microsecond."""
    return tuple(round(getattr(step, f"{part}_seconds"), 6) for part in PARTS)


def overhead_share(steps: Sequence[StepRecord]) -> float:
    """What schedule and build take of all the time of these steps."""
    total = sum(step.seconds for step in steps)
    return sum(step.schedule_seconds + step.build_seconds for step in steps) / total if total else 0.0


def overhead_words(steps: Sequence[StepRecord]) -> list[str]:
    """The longest wording first."""
    if not steps:
        return [""]
    step = f"median step <b>{duration(median(s.seconds for s in steps))}</b>"
    share = f"schedule + build <b>{percent(overhead_share(steps))}</b>"
    return [f"{step} · {share} of the time", f"{step} · {share}", share]


@lru_cache(maxsize=1024)
def step_words(step: StepRecord) -> str:
    """The hover of a step."""
    lines = [f"<b>step {step.step}</b> · {duration(step.seconds)} for {counted(step.num_tokens, 'token')}"]
    for part in reversed(PARTS):
        seconds = getattr(step, f"{part}_seconds")
        share = f" ({percent(seconds / step.seconds)})" if step.seconds else ""
        lines.append(f"{part} {duration(seconds)}{share}")
    return "<br>".join(lines)
