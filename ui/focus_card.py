"""The card of the request that a viewer follows: its numbers, and its block table in few characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ui.charts.focus import Focus
from ui.charts.palette import color_slot
from ui.view import EngineView, RequestTrack, Span

MAX_RANGES = 48
"""Longest block table that is written out; the rest is counted."""


def focus_card(view: EngineView, focus: Focus) -> dict[str, Any] | None:
    """JSON values for the page; None without a focus. ``found`` is False for a request that this step does not know."""
    if focus.request_id is None:
        return None
    track = view.request(focus.request_id)
    if track is None:
        return {"request": focus.request_id, "found": False}
    return {
        "request": track.request_id,
        "found": True,
        "label": track.label,
        "slot": color_slot(track.arrival),
        "yours": track.request_id in focus.mine,
        "state": state_words(track, view),
        "numbers": _numbers(track),
        "tables": [_table(view, track, group) for group in range(len(track.tables))],
        "token": _token(view, track, focus.position),
    }


def state_words(track: RequestTrack, view: EngineView) -> str:
    """waiting, prefill, decode, or how it ended."""
    if track.status == "done":
        return {
            "stop": "finished",
            "length": "finished (length limit)",
            "error": "failed",
            "abort": "stopped",
        }.get(track.finish_reason, "finished")
    if track.status == "waiting":
        return "waiting again, after a preemption" if track.num_preemptions else "waiting"
    last: Span | None = track.spans[-1] if track.spans else None
    return last.kind if last is not None and last.kind != "waiting" else "running"


def _numbers(track: RequestTrack) -> list[list[str]]:
    """[name, value, explanation] in reading order."""
    return [
        ["prompt", f"{track.num_prompt_tokens:,}", "tokens of the prompt"],
        ["cached", f"{track.num_cached_tokens:,}", "prompt tokens that the prefix cache had"],
        ["computed", f"{track.num_computed_tokens:,}", "tokens whose keys and values are in the cache now"],
        ["output", f"{track.num_output_tokens:,}", "tokens generated so far"],
        ["TTFT", _seconds(track.ttft), "time to first token, from the moment it was queued"],
        ["TPOT", _seconds(track.tpot), "time per output token after the first"],
        ["queued", _seconds(track.queue_time), "time until it was first admitted"],
        ["preempted", f"{track.num_preemptions} ×", "how often its blocks were taken away"],
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def _table(view: EngineView, track: RequestTrack, group: int) -> dict[str, Any]:
    info = view.info.groups[group] if group < len(view.info.groups) else None
    window = info.window if info is not None else None
    ranges = table_ranges(track.tables[group])
    return {
        "name": f"group {group}" + (f", window {window:,}" if window else ""),
        "num_blocks": sum(1 for block in track.tables[group] if block),
        "ranges": ranges[:MAX_RANGES],
        "more": max(0, len(ranges) - MAX_RANGES),
    }


def table_ranges(table: Sequence[int]) -> list[list[str]]:
    """[[logical, physical], ...]: runs of blocks that lie side by side as one range; "∅" for the null block."""
    runs: list[tuple[int, int, int]] = []  # (first logical, first physical, length)
    for logical, block in enumerate(table):
        if runs:
            first, physical, length = runs[-1]
            if block == (physical + length if physical else 0):
                runs[-1] = (first, physical, length + 1)
                continue
        runs.append((logical, block, 1))
    return [[_range(first, n), _range(physical, n) if physical else "∅"] for first, physical, n in runs]


def _range(first: int, length: int) -> str:
    return str(first) if length == 1 else f"{first}–{first + length - 1}"


def _token(view: EngineView, track: RequestTrack, position: int | None) -> dict[str, Any] | None:
    """Where the followed token's keys and values are."""
    if position is None:
        return None
    index, slot = divmod(position, view.info.block_size)
    blocks = [table[index] for table in track.tables if index < len(table)]
    is_computed = position < track.num_computed_tokens
    return {
        "position": position,
        "logical": index,
        "slot": slot,
        "blocks": blocks,
        "words": (
            "not computed yet" if not is_computed else "its blocks were given back" if not blocks else ""
        ),
    }
