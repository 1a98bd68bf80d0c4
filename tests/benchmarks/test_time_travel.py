"""The benchmark itself, on a small trace: it measures what it says, and counts bound what a seek may fold."""

from __future__ import annotations

import json

from tests.benchmarks.time_travel import main, measure_time_travel, travel_lines
from ui.story.tape import keyframe_distance


def test_no_question_folds_more_than_the_distance_of_two_keyframes():
    found = measure_time_travel(4_000, 128, repeats=25)
    assert found.num_events >= 4_000
    assert found.num_steps > 100
    costs = {cost.name: cost for cost in found.costs}
    for name in ("any step", "one step back", "jump to a mark"):
        assert 0 < costs[name].folded <= keyframe_distance(128), name
    assert costs["one step forward"].folded <= keyframe_distance(128)
    assert costs["events of one kind"].folded == 0
    assert all(0 < cost.median <= cost.p95 <= cost.longest for cost in found.costs)
    assert found.replay_megabytes > 0
    assert found.follow_seconds_a_step > 0
    words = "\n".join(travel_lines(found))
    assert "128 blocks" in words
    assert "one step back" in words


def test_figures_are_printed_and_written(tmp_path, capsys):
    main(
        ["--events", "1500", "--blocks", "64,96", "--repeats", "10", "--json", str(tmp_path / "figures.json")]
    )
    written = json.loads((tmp_path / "figures.json").read_text())
    assert [one["num_blocks"] for one in written] == [64, 96]
    assert "96 blocks" in capsys.readouterr().out
