"""The model panel without a browser: the list, and the words about a load."""

from __future__ import annotations

import dataclasses

import pytest

from micro_vllm.model_loader import catalogue as catalogue_module
from micro_vllm.model_loader.catalogue import ResolvedModel, catalogue
from ui.host.engine_host import HostState
from ui.panels.model import panel_label, shelf_html, shelf_states, status_html

DEFAULT = catalogue()[0]
QWEN = next(entry for entry in catalogue() if entry.name.startswith("Qwen"))


@pytest.fixture
def only_default_here(monkeypatch, tmp_path):
    """The default's 4-bit weights are in the cache, and nothing else."""

    def look_up(name, source, cache):
        if name == DEFAULT.name and source.badge == "4-bit origin":
            return ResolvedModel(name, tmp_path, "cache", source.badge, "key")
        return None

    monkeypatch.setattr(catalogue_module, "_look_up", look_up)


def test_the_list_tells_size_licence_and_weights_of_every_model():
    page = shelf_html(False)
    for entry in catalogue():
        assert entry.license == "Apache-2.0"
        row = page.split(f'data-row="{entry.name}"')[1].split("</tr>")[0]
        assert f">{entry.license}<" in row
        assert f"{entry.parameters / 1e6:,.0f} M" in row
        assert "GB" in row or "MB" in row
        assert f'data-model="{entry.name}"' in row
    assert "<button" not in shelf_html(True), "on a shared server there is nothing to choose"


def test_states_tell_what_is_here_and_what_a_download_takes(only_default_here):
    states = shelf_states(HostState(status="empty"))
    assert states[DEFAULT.name][:2] == ["here", "✓ here · 4-bit origin"]
    assert states[QWEN.name][:2] == ["away", "↓ 1.5 GB to download"]


def test_states_tell_who_answers_and_how_far_a_load_is(only_default_here):
    state = HostState(
        status="loading", model=QWEN.name, message="Downloading", progress=0.4, serving=DEFAULT.name
    )
    states = shelf_states(state)
    assert states[DEFAULT.name][:2] == ["serving", "● answers · 4-bit origin"]
    assert states[QWEN.name] == ["loading", "loading 40%", "Downloading"]
    # The same model by its name on the Hub.
    by_id = shelf_states(dataclasses.replace(state, model=QWEN.hub_id))
    assert by_id[QWEN.name][0] == "loading"


@pytest.mark.parametrize(
    ("state", "label", "words"),
    [
        (HostState(), "Model · none", "No model yet."),
        (
            HostState(status="loading", model="m", message="Unpacking", progress=0.4),
            "m 40%",
            "Unpacking · 40%",
        ),
        (HostState(status="ready", model="m", serving="m"), "Model · m", "m is ready."),
        (
            HostState(status="error", model="x", message="x has <no> weights.", serving="m"),
            "the last load failed",
            "Not loaded: x has &lt;no&gt; weights. m still answers.",
        ),
        (
            HostState(status="ready", model="m", serving="m", message="Loading x was cancelled."),
            "Model · m",
            "Loading x was cancelled. m still answers.",
        ),
    ],
)
def test_words_about_a_load(state, label, words):
    assert label in panel_label(state)
    assert words in status_html(state)
