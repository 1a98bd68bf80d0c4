"""Fixtures of the page's tests."""

from __future__ import annotations

import pytest

import ui.feed.scenes
from ui.feed.chart_budget import ChartBudget


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view for every question: what views may cost is tested in test_live_clock."""
    monkeypatch.setattr(ui.feed.scenes, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(ChartBudget, "spend", lambda self, seconds: None)
