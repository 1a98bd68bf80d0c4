"""Colours of code pass WCAG AA on the ground they stand on, light and dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).resolve().parents[2] / "assets" / "render.css").read_text(encoding="utf-8")
AA = 4.5


def variables(selector: str) -> dict[str, str]:
    (body,) = re.findall(rf"(?m)^{re.escape(selector)} \{{(.*?)\}}", CSS, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", body))


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("selector", [":root", ".dark"])
def test_code_is_readable(selector):
    colors = variables(selector)
    ground = colors.pop("mv-code")
    assert len(colors) == 9
    for name, color in colors.items():
        assert contrast(color, ground) >= AA, (selector, name)


def test_every_kind_of_code_has_its_colour():
    from ui.render.code import _KINDS

    for kind in {kind for _, kind in _KINDS}:
        assert f".hl-{kind} {{" in CSS
        assert f"hl-{kind}" in variables(":root")
        assert f"hl-{kind}" in variables(".dark")
