"""What the scheduler timeline says on hover: about one bar or mark, and the numbers of its request."""

from __future__ import annotations

from collections.abc import Mapping

from ui.charts.wording import counted, duration
from ui.view import Mark, RequestTrack, Span, StepRecord


def numbers(track: RequestTrack) -> str:
    """The numbers of a request: the part that all hovers of its row share."""
    lines = [
        f"prompt {track.num_prompt_tokens:,} · cached {track.num_cached_tokens:,}",
        f"computed {track.num_computed_tokens:,} · output {track.num_output_tokens:,}",
    ]
    times = [
        f"{name} {duration(value)}"
        for name, value in (("queue", track.queue_time), ("TTFT", track.ttft), ("TPOT", track.tpot))
        if value is not None
    ]
    if times:
        lines.append(" · ".join(times))
    if track.num_preemptions:
        lines.append(f"preempted {counted(track.num_preemptions, 'time')}")
    return "<br>".join(lines)


def span_words(track: RequestTrack, span: Span, steps: Mapping[int, StepRecord]) -> str:
    match span.kind:
        case "waiting":
            what = "waiting for a seat or for blocks"
        case "decode":
            what = f"decode, one token a step: {span.tokens}"
        case _:
            what = f"prefill chunk, {_chunk(track, span, steps)}"
    return f"<b>{track.label}</b> · {what}<br>{_steps(span.start, span.stop)}"


def _chunk(track: RequestTrack, span: Span, steps: Mapping[int, StepRecord]) -> str:
    """From where to where in the prompt, if the window has the step."""
    record = steps.get(span.start)
    for row in record.rows if record else ():
        if row.request_id == track.request_id:
            last = row.start + row.count - 1
            return (
                f"tokens {row.start:,}–{last:,} ({row.count:,})" if row.count > 1 else f"token {row.start:,}"
            )
    return counted(span.tokens, "token")


def _steps(start: int, stop: int) -> str:
    return f"step {start}" if stop - start == 1 else f"steps {start}–{stop - 1}"


def mark_words(track: RequestTrack, mark: Mark) -> str:
    tokens = counted(mark.tokens, "token")
    match mark.kind:
        case "hit":
            what = f"prefix hit: {tokens} taken from the cache"
        case "preempted":
            what = f"preempted: no block was free<br>{tokens} to compute again"
        case "aborted":
            what = f"stopped by its caller after {tokens}"
        case "failed":
            what = f"failed after {tokens}"
        case _:
            why = "length limit" if mark.text == "length" else "the model ended it"
            what = f"finished after {tokens} ({why})"
    return f"<b>{track.label}</b> · {what}<br>step {mark.step}"


def left_out(hidden: list[RequestTrack]) -> str:
    """For example "12 more not shown: 3 waiting, 9 finished"."""
    names = {"running": "running", "waiting": "waiting", "done": "finished"}
    parts = []
    for status, name in names.items():
        number = sum(track.status == status for track in hidden)
        if number:
            parts.append(f"{number:,} {name}")
    return f"{len(hidden):,} more not shown: {', '.join(parts)}"
