"""All charts of the page, in the order in which the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ui.charts import block_map, latency, prefix_cache, step_budget, timeline, usage
from ui.charts.focus import Figure, Focus
from ui.charts.theme import Look, Size
from ui.view import EngineView


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. ``caption`` is HTML of ours: one line that says what to look for, its terms with tooltips."""

    elem_id: str
    title: str
    caption: str
    figure: Callable[[EngineView, Look, Size, Focus], Figure]
    """Pure: the same arguments give the same figure."""


CHARTS: tuple[Chart, ...] = (
    Chart("kv-block-map", block_map.TITLE, block_map.CAPTION, block_map.figure),
    Chart("prefix-cache", prefix_cache.TITLE, prefix_cache.CAPTION, prefix_cache.figure),
    Chart("scheduler-timeline", timeline.TITLE, timeline.CAPTION, timeline.figure),
    Chart("step-budget", step_budget.TITLE, step_budget.CAPTION, step_budget.figure),
    Chart("kv-usage", usage.TITLE, usage.CAPTION, usage.figure),
    Chart("latency", latency.TITLE, latency.CAPTION, latency.figure),
)
