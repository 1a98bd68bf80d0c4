"""The look that all charts share: light and dark colours, fonts, and a layout without frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


@dataclass(frozen=True, slots=True)
class Look:
    """Colours of one theme. ``muted`` and everything darker pass WCAG AA on ``card``."""

    name: str
    card: str
    text: str
    muted: str
    grid: str
    accent: str
    danger: str
    cell_free: str
    cell_cached: str
    cell_used: str
    """Empty slots of a block in use."""
    outline: str


LIGHT = Look(
    name="light",
    card="#ffffff",
    text="#16202c",
    muted="#5b6878",
    grid="#e8ecf1",
    accent="#0b7a6b",
    danger="#c22a2a",
    cell_free="#f0f3f6",
    cell_cached="#c9d1da",
    cell_used="#dfe6ec",
    outline="#0f1720",
)
DARK = Look(
    name="dark",
    card="#151c25",
    text="#e7edf4",
    muted="#9aa8b8",
    grid="#253040",
    accent="#4cc5b1",
    danger="#ff7b72",
    cell_free="#1d2631",
    cell_cached="#4a5666",
    cell_used="#2c3846",
    outline="#ffffff",
)
LOOKS = {look.name: look for look in (LIGHT, DARK)}


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels that a chart has on the page; cells and labels adapt to it."""

    width: int = 800
    height: int = 260


def base_layout(look: Look, **changes: Any) -> dict[str, Any]:
    """Layout of a chart. ``uirevision`` is constant, so that zoom and hover outlive an update."""
    layout: dict[str, Any] = {
        "uirevision": "keep",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": SANS, "size": 12, "color": look.text},
        "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        "hoverlabel": {
            "bgcolor": look.card,
            "bordercolor": look.muted,
            "align": "left",
            "font": {"family": SANS, "size": 12, "color": look.text},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": look.muted, "activecolor": look.accent},
    }
    layout.update(changes)
    return layout


def bare_axis(**changes: Any) -> dict[str, Any]:
    """An axis that shows nothing."""
    return {"visible": False, "fixedrange": False, **changes}


def quiet_axis(look: Look, **changes: Any) -> dict[str, Any]:
    """Numbers in a monospaced font, few grid lines, no frame."""
    return {
        "showline": False,
        "zeroline": False,
        "showgrid": False,
        "gridcolor": look.grid,
        "ticks": "",
        "tickangle": 0,
        # Otherwise Plotly measures every label of every frame, and remembers all that it has ever measured.
        "ticklabeloverflow": "allow",
        "tickfont": {"family": MONO, "size": 11, "color": look.muted},
        **changes,
    }
