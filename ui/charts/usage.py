"""KV use: the pool after each step as one stack, and above it how much of what was looked up the prefix cache had.

Blocks in use are drawn in two parts: what their filled slots come to, and hatched on top of it what is empty in them,
the waste of half-filled blocks (internal fragmentation).

A large pool with one chat in it would be a hair line. So the stack over time has a scale of its own, which grows in
steps and names its top; beside it stands the whole pool as one bar, with two lines that say which part of it is seen
enlarged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ui.charts.focus import NO_FOCUS, Figure, Focus
from ui.charts.marks import INVISIBLE, Bar, bar_traces, note
from ui.charts.palette import mix
from ui.charts.theme import LIGHT, MONO, Look, Size, bare_axis, base_layout, quiet_axis
from ui.charts.timeline import step_range, step_ticks
from ui.charts.wording import percent
from ui.view import EngineView, StepUsage

TITLE = "KV use"
CAPTION = (
    'Blocks after each step; <abbr title="the whole pool, now; the dotted lines show which part of it is enlarged">'
    "bar: whole pool</abbr>, "
    '<abbr title="internal fragmentation: slots of blocks in use that hold no token yet; '
    'a request wastes less than one block in each cache group">hatched: waste</abbr>, '
    '<abbr title="share of looked-up prompt tokens that blocks of earlier prompts and answers had">'
    "line: prefix hits</abbr>."
)
_LEFT = 40
_RIGHT = 112
_BOTTOM = 22
_STACK_TOP = 0.76
_STRIP_BOTTOM = 0.84
_BAR_PX = 16
_WEDGE_PX = 22
"""Between the stack and the bar: what widens from the part of the bar to the stack."""
_LABEL_PX = 15
MIN_SCALE = 32


@dataclass(frozen=True, slots=True)
class Band:
    """One layer of the stack."""

    name: str
    color: str
    counts: list[float]
    """Blocks, one a step."""
    label: str
    """Words beside the bar."""
    words: str
    """What the counts are of, for the hover."""
    digits: int = 9
    """That the counts are shown with."""
    is_hatched: bool = False


def scale_for(peak: int, total: int) -> int:
    """Blocks at the top of the stack's axis: 32, 64, 128, ... or the whole pool, with an eighth of air over ``peak``.

    ``peak`` never falls in the life of an engine, and so does the scale.
    """
    scale = MIN_SCALE
    while scale < peak * 9 / 8:
        scale *= 2
    return min(scale, total)


def waste(usage: StepUsage, block_size: int) -> float:
    """Share of the slots of the blocks in use that hold no token, 0 to 1."""
    return 1 - usage.filled_slots / (usage.used * block_size) if usage.used else 0.0


def figure(view: EngineView, look: Look = LIGHT, size: Size | None = None, focus: Focus = NO_FOCUS) -> Figure:
    size = size or Size(height=180)
    steps = [u.step for u in view.usage]
    total = view.info.num_blocks
    scale = scale_for(view.peak_blocks, total)
    bands = make_bands(view, look)
    # A step lasts until the next one: draw it as wide as that, the newest too.
    x = [*steps, steps[-1] + 1]
    plot_w, plot_h = max(size.width - _LEFT - _RIGHT, 120), max(size.height - _BOTTOM - 4, 60)
    stack_right, bar_left = 1 - (_BAR_PX + _WEDGE_PX) / plot_w, 1 - _BAR_PX / plot_w
    left, right = step_range(view)
    return {
        "data": [
            *(_stack(x, band, look) for band in bands),
            _hit_rates(x, view, look),
            *_pool_bar(bands, total, look),
        ],
        "layout": base_layout(
            look,
            margin={"l": _LEFT, "r": _RIGHT, "t": 4, "b": _BOTTOM},
            barmode="overlay",
            xaxis=quiet_axis(
                look, range=[left, right], nticks=step_ticks(plot_w), anchor="y", domain=[0, stack_right]
            ),
            yaxis=quiet_axis(
                look,
                range=[0, scale],
                domain=[0, _STACK_TOP],
                tickvals=[0, scale // 2, scale],
                ticktext=["0", f"{scale // 2:,}", f"{scale:,}"],
            ),
            yaxis2=quiet_axis(
                look,
                range=[-8, 108],
                domain=[_STRIP_BOTTOM, 1],
                tickvals=[100],
                ticktext=["100 %"],
                tickfont={"family": MONO, "size": 10, "color": look.muted},
                showgrid=True,
            ),
            xaxis2=bare_axis(range=[0, 1], domain=[bar_left, 1], anchor="y3", fixedrange=True),
            yaxis3=bare_axis(range=[0, total], domain=[0, _STACK_TOP], anchor="x2", fixedrange=True),
            shapes=_wedge(stack_right, bar_left, scale / total, look),
            annotations=[
                *_band_labels([(band.label, band.counts[-1]) for band in bands], total, plot_h, look),
                _label(
                    f"<b>{_hit_words(view.usage[-1])}</b> prefix hits",
                    (_STRIP_BOTTOM + 1) / 2,
                    look,
                ),
            ],
        ),
    }


def make_bands(view: EngineView, look: Look) -> tuple[Band, Band, Band, Band]:
    """From below: filled slots and empty slots of the blocks in use, kept for reuse, free. They add up to the pool."""
    block_size = view.info.block_size
    filled = [round(u.filled_slots / block_size, 2) for u in view.usage]
    empty = [round(u.used - f, 2) for u, f in zip(view.usage, filled, strict=True)]
    now = view.usage[-1]
    share = percent(waste(now, block_size))
    return (
        Band(
            "filled",
            look.accent,
            filled,
            f"<b>{now.used:,}</b> in use",
            "blocks' worth of filled slots",
            digits=4,
        ),
        Band(
            "waste",
            mix(look.accent, look.card, 0.72),
            empty,
            f"<b>{share}</b> waste",
            "blocks' worth of empty slots<br>in blocks in use: internal fragmentation",
            digits=3,
            is_hatched=True,
        ),
        Band(
            "kept",
            look.cell_cached,
            [u.cached for u in view.usage],
            f"<b>{now.cached:,}</b> kept",
            "blocks kept for reuse, evictable",
        ),
        Band(
            "free",
            look.cell_free,
            [u.free for u in view.usage],
            f"<b>{now.free:,}</b> free",
            "blocks free",
        ),
    )


# ---------------------------------------------------------------- traces


def _stack(x: list[int], band: Band, look: Look) -> dict[str, Any]:
    area: dict[str, Any] = {
        "type": "scatter",
        "name": band.name,
        "mode": "lines",
        "x": x,
        "y": [*band.counts, band.counts[-1]],
        "stackgroup": "pool",
        "line": {"shape": "hv", "width": 0, "color": band.color},
        "fillcolor": band.color,
        "hovertemplate": f"%{{y:.{band.digits}~g}} {band.words}<br>step %{{x}}<extra></extra>",
    }
    if band.is_hatched:
        area["fillpattern"] = {
            "shape": "/",
            "fgcolor": look.accent,
            "bgcolor": band.color,
            "size": 5,
            "solidity": 0.4,
        }
    return area


def _hit_rates(x: list[int], view: EngineView, look: Look) -> dict[str, Any]:
    rates = [round(100 * u.hit_rate, 1) for u in view.usage]
    return {
        "type": "scatter",
        "x": x,
        "y": [*rates, rates[-1]],
        "mode": "lines",
        "yaxis": "y2",
        "line": {"shape": "hv", "width": 1.75, "color": look.accent},
        "hovertemplate": "%{y:.0f} % of looked-up tokens were cached<br>step %{x}<extra></extra>",
    }


def _pool_bar(bands: Sequence[Band], total: int, look: Look) -> list[dict[str, Any]]:
    """The whole pool, now."""
    bars = []
    floor = 0.0
    for band in bands:
        now = band.counts[-1]
        bars.append(
            Bar(
                base=round(floor, 2),
                length=now,
                at=0.5,
                width=1,
                fill=band.color,
                edge=INVISIBLE,
                pattern="/" if band.is_hatched else "",
                pattern_color=look.accent,
                words=f"{now:.{band.digits}g} {band.words}<br>of {total:,} in the pool, now",
            )
        )
        floor += now
    return bar_traces(bars, is_horizontal=False, edge_px=0, xaxis="x2", yaxis="y3")


def _wedge(stack_right: float, bar_left: float, share: float, look: Look) -> list[dict[str, Any]]:
    """From the part of the bar that the stack shows to the whole height of the stack."""
    ends = ((0.0, 0.0), (_STACK_TOP, share * _STACK_TOP))
    return [
        {
            "type": "line",
            "xref": "paper",
            "yref": "paper",
            "x0": stack_right,
            "x1": bar_left,
            "y0": at_stack,
            "y1": at_bar,
            "line": {"color": look.muted, "width": 1, "dash": "dot"},
        }
        for at_stack, at_bar in ends
    ]


# ---------------------------------------------------------------- words


def _hit_words(usage: StepUsage) -> str:
    """As the header of the page says it: nothing was looked up yet is not 0 %."""
    return f"{100 * usage.hit_rate:.0f} %" if usage.prefix_queries else "–"


def _band_labels(
    bands: Sequence[tuple[str, float]], total: int, plot_px: float, look: Look
) -> list[dict[str, Any]]:
    """Beside the bands of the bar, pushed apart where they are thin."""
    gap = _LABEL_PX / (plot_px * _STACK_TOP) * total
    places: list[float] = []
    floor = 0.0
    for _, count in bands:
        places.append(max(floor + count / 2, places[-1] + gap if places else gap / 3))
        floor += count
    ceiling = total - gap / 3
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], ceiling)
        ceiling = places[i] - gap
    return [
        _label(text, place / total * _STACK_TOP, look) for (text, _), place in zip(bands, places, strict=True)
    ]


def _label(text: str, y: float, look: Look) -> dict[str, Any]:
    beside = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 8}
    return note(text, look.text, size=12, y=round(y, 4), yref="paper", yanchor="middle", **beside)
