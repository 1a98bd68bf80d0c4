"""``tests.benchmarks.live_cost`` itself, in short, on a tiny model: it counts what it says."""

from __future__ import annotations

import pytest

from tests.benchmarks.live_cost import (
    BrowserFigures,
    browser_lines,
    measure_browser,
    measure_share,
    share_lines,
)
from tests.benchmarks.live_latency import LatencyFigures, latencies_of
from ui.charts.registry import CHARTS

pytestmark = pytest.mark.browser


def test_latency_is_from_a_step_to_the_first_picture_that_shows_it_or_a_later_one():
    steps = {1: 10.0, 2: 10.1, 3: 10.2, 4: 10.3, 5: 10.4}
    pictures = [[0, 9.9], [2, 10.25], [2, 10.3], [4, 10.5]]
    assert latencies_of(steps, pictures) == pytest.approx([0.25, 0.15, 0.3, 0.2])
    assert latencies_of(steps, []) == []


def test_growth_is_from_the_first_sample_to_the_last():
    beside, apart = LatencyFigures(10, 5, 0.1, 0.2), LatencyFigures(10, 5, 0.05, 0.15)
    found = BrowserFigures(beside, apart, 1.0, (20.0, 25.0, 21.0), (100.0, 100.0, 101.0), (5, 5, 5))
    assert found.heap_growth == pytest.approx(0.05)
    assert found.rss_growth == pytest.approx(0.01)
    words = "\n".join(browser_lines(found))
    assert "+5 %" in words
    assert "200 ms p95" in words
    assert "150 ms p95" in words


def test_three_tabs_share_every_frame_and_a_browser_sees_the_steps(served, open_tab):
    share = measure_share(served, 4)
    assert share.num_tabs == 3
    assert share.num_steps > 20
    assert share.num_polls > share.num_frames > 2
    # Each chart is made once a frame, however many tabs show it.
    assert share.num_figures <= len(CHARTS) * (share.num_frames + 1)
    assert 0 < share.chart_seconds <= share.poll_seconds
    assert "3 tabs" in "\n".join(share_lines(share))
    assert share.answers.num_steps > share.num_steps, "each tab saw most of the steps"
    assert 0 < share.answers.p50 <= share.answers.p95

    found = measure_browser(served, open_tab(served.url), minutes=0.15, samples=3)
    for latency in (found.beside, found.apart):
        assert latency.num_steps > 10
        assert latency.num_pictures > 2
        assert 0 < latency.p50 <= latency.p95
    runner = served.loop.engine.executor._worker._runner
    assert type(runner._model).__name__ != "_WaitingModel", "the model is back"
    assert len(found.heap_megabytes) == len(found.rss_megabytes) == len(found.dom_nodes) == 3
    assert found.dom_nodes[-1] < found.dom_nodes[0] * 1.5
