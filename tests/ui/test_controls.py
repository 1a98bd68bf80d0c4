"""Sampling panel: values to SamplingParams, and the sentence that sums them up."""

from __future__ import annotations

import re

import pytest

from micro_vllm.errors import InvalidRequestError
from ui.panels.sampling import (
    FIELDS,
    NAMES,
    PRESETS,
    apply_preset,
    parse_stop_strings,
    preset_of,
    problem_html,
    sentence,
    to_params,
)

DEFAULTS = [field.default if field.default is not None else "" for field in FIELDS]


def values(stop: str = "", **changes) -> list:
    return [changes.get(name, default) for name, default in zip(NAMES, DEFAULTS, strict=True)] + [stop]


def test_defaults_are_balanced():
    params = to_params(values())
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.7, 0.95, 256, None)
    assert params.stop is None
    assert sentence(*values()) == "Sampling balanced · temperature 0.7 · top-p 0.95"


def test_every_field_reaches_the_params():
    given = {
        "temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "max_tokens": 9, "seed": "42",
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5,
    }  # fmt: skip
    params = to_params(values("END\n\\n\\n\n", **given))
    for name, value in given.items():
        assert getattr(params, name) == (int(value) if name == "seed" else value)
    assert params.stop == ("END", "\n\n")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_told_by_name(name):
    changed = dict(zip(NAMES[:4], apply_preset(name), strict=True))
    assert preset_of(*values(**changed)) == name
    assert sentence(*values(**changed)).startswith(f"Sampling {name}")


def test_greedy_draws_nothing_and_precise_little():
    greedy, precise, balanced, creative = (apply_preset(name)[0] for name in PRESETS)
    assert list(PRESETS) == ["greedy", "precise", "balanced", "creative"]
    assert greedy == 0 < precise < balanced < creative
    assert to_params(values(**PRESETS["greedy"])).is_greedy
    assert not to_params(values(**PRESETS["precise"])).is_greedy


def test_the_sentence_names_what_is_on():
    words = sentence(*values("x\ny", temperature=0.9, seed="3", top_k=5))
    assert words == "Sampling your own · temperature 0.9 · top-p 0.95 · top-k 5 · seed 3 · 2 stop strings"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": 99}, "temperature=99 is out of range; allowed: 0 to 2"),
        ({"temperature": float("inf")}, "0 to 2"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 99}, "0 to 1"),
        ({"top_k": 1.5}, "whole number"),
        ({"seed": "abc"}, "whole number"),
        ({"min_p": None}, "min-p is empty"),
        ({"max_tokens": 0}, "max tokens=0 is out of range; allowed: 1 or more (empty: as many as fit)"),
        ({"presence_penalty": 3}, "-2 to 2"),
    ],
)
def test_wrong_values_are_refused_with_field_and_range(changes, words):
    """P18, gradio #2371."""
    with pytest.raises(InvalidRequestError, match=re.escape(words)):
        to_params(values(**changes))
    assert words in problem_html(values(**changes)), "told before Send, too"


def test_values_in_range_are_no_problem():
    assert problem_html(values()) == ""
    assert problem_html(values(max_tokens=512), 512) == ""
    assert "allows (512)" in problem_html(values(max_tokens=513), 512), "the limit of a shared server"
    assert problem_html(values(temperature=2, top_p=1, seed="7", max_tokens=None)) == ""
    assert "<b>" not in problem_html(values(seed="<b>"))


def test_a_shared_server_caps_the_answer():
    assert to_params(values(max_tokens=None), 100).max_tokens == 100
    with pytest.raises(InvalidRequestError, match=r"256.*100"):
        to_params(values(), 100)


def test_large_seeds_keep_every_digit():
    assert to_params(values(seed="9007199254740993")).seed == 9007199254740993


def test_stop_strings_are_one_a_line():
    assert parse_stop_strings(None) == []
    assert parse_stop_strings("a\n\n b \n\\t") == ["a", " b ", "\t"]
