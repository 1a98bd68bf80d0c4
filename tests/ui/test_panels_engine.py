"""The engine panel without a browser: options from fields, what they cost, and the words about them."""

from __future__ import annotations

from types import SimpleNamespace

import gradio as gr
import pytest

from micro_vllm.config import EngineConfig
from micro_vllm.errors import ConfigError
from micro_vllm.trace import TraceLog
from tests.ui.support.scripted_engine import make_engine
from ui.host.engine_options import (
    FIELDS,
    EngineOptions,
    check_memory,
    in_mb,
    pace_words,
    pool_bytes,
)
from ui.panels.engine import default_values, panel_label, shown_values, status_html, summary_html, to_options
from ui.settings import Settings

NAMES = [field.name for field in FIELDS]
DEFAULTS = EngineOptions(max_model_len=2048)


def values(**changes) -> list:
    return [changes.get(name, getattr(DEFAULTS, name)) for name in NAMES]


class FakeHost:
    """A host over a scripted engine of 64 blocks of 16, whose block takes 16 KiB."""

    def __init__(self, **changes) -> None:
        engine, _ = make_engine(64, max_num_batched_tokens=256)
        self.settings = Settings()
        self.options = EngineOptions(num_blocks=64)
        self.engine = SimpleNamespace(loop=SimpleNamespace(engine=engine), bytes_per_token=1024)
        self.is_paused, self.pace = False, 0.0
        self.__dict__.update(changes)

    def check_options(self, options: EngineOptions) -> None:
        check_memory(options, 1024, 10_000_000)


@pytest.mark.parametrize(("longest", "context"), [(2048, 2048), (131_072, 8192)])
def test_defaults_are_those_of_the_start_also_for_what_the_model_decides(longest, context):
    """A context length that somebody applied stayed when Defaults was pressed."""
    host = FakeHost(default_options=EngineOptions(num_blocks=64))
    host.engine.longest_context = longest
    assert dict(zip(NAMES, shown_values(host), strict=True))["max_model_len"] not in (2048, 8192)
    defaults = to_options(default_values(host))
    assert defaults == EngineOptions(num_blocks=64, max_model_len=context)


def test_a_pool_that_memory_decides_stays_as_the_engine_has_it():
    host = FakeHost(default_options=EngineOptions(num_blocks=None))
    host.engine.longest_context = 2048
    assert to_options(default_values(host)).num_blocks == 64


def test_every_option_of_the_page_reaches_the_engines_config():
    given = {
        "num_blocks": 12, "block_size": 4, "max_model_len": 99, "max_num_batched_tokens": 31, "max_num_seqs": 7,
        "scheduling_policy": "priority", "attention": "reference", "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
    }  # fmt: skip
    # `execution` is no setting of the engine's start: it begins in PyTorch and changes over, see ui.host.fast_path.
    assert set(given) == set(NAMES) - {"execution"}
    config = to_options(values(**given)).to_config("m", 1, TraceLog())
    given["num_gpu_blocks_override"] = given.pop("num_blocks")
    for name, value in given.items():
        assert getattr(config, name) == value
        assert getattr(EngineConfig(), name) != value, "a value that is the default proves nothing"


def test_whole_numbers_may_come_as_floats():
    assert to_options(values(num_blocks=64.0)).num_blocks == 64


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_blocks": 0}, "KV blocks=0 is out of range; allowed: 1 to 8,192"),
        ({"num_blocks": 9000}, "KV blocks=9,000 is out of range"),
        ({"num_blocks": 1.5}, "KV blocks=1.5 is not a whole number"),
        ({"num_blocks": None}, "KV blocks is empty; allowed: 1 to 8,192"),
        ({"num_blocks": "many"}, "not a whole number"),
        ({"block_size": -16}, "1 to 256"),
        ({"max_num_seqs": 300}, "seats=300 is out of range; allowed: 1 to 256"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "Lower the seats or raise the token budget"),
        ({"max_model_len": 1}, "context length=1 is out of range"),
        ({"scheduling_policy": "lifo"}, "allowed: fcfs, priority"),
        ({"attention": "magic"}, "allowed: auto, reference, sdpa"),
        ({"enable_prefix_caching": "yes"}, "neither on nor off"),
    ],
)
def test_wrong_options_are_refused_with_field_and_range(changes, words):
    """P18, gradio #2371."""
    with pytest.raises(ConfigError, match=words):
        to_options(values(**changes))


def test_the_summary_tells_tokens_and_memory_before_they_are_applied():
    host = FakeHost()
    assert summary_html(host, shown_values(host)).count("not applied") == 0
    words = summary_html(host, values(num_blocks=128))
    assert "128 blocks × 16 slots = <b>2,048 tokens</b>" in words
    assert f"<b>{in_mb(129 * 16 * 1024)}</b>" in words
    assert "not applied yet" in words
    assert pool_bytes(128, 16, 1024) == 129 * 16 * 1024


def test_the_summary_tells_what_cannot_be():
    host = FakeHost()
    assert "allowed: 1 to 8,192" in summary_html(host, values(num_blocks=0))
    assert "at most 609 such blocks fit" in summary_html(host, values(num_blocks=5000))
    assert "when a model is loaded" in summary_html(FakeHost(engine=None), values(max_model_len=None))


def test_the_label_says_what_the_engine_has_and_does():
    assert panel_label(FakeHost()) == "Engine · 64 blocks × 16 · budget 256 · prefix cache on"
    assert "2 steps a second at most" in panel_label(FakeHost(pace=0.5))
    assert panel_label(FakeHost(is_paused=True)) == "Engine · paused: press Resume or One step"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "full speed"),
        (0.05, "20 steps a second at most"),
        (0.3, "3.3 steps a second at most"),
        (1, "a step a second at most"),
        (1.5, "a step every 1.5 s at most"),
    ],
)
def test_the_pace_in_words(seconds, words):
    assert pace_words(seconds) == words


def test_what_went_wrong_is_shown_as_text():
    state = SimpleNamespace(is_rebuilding=False, engine_problem="no <b>memory</b>.")
    assert "no &lt;b&gt;memory" in status_html(state)
    assert "goes on as it was" in status_html(state)


def test_every_option_has_words_for_its_tooltip():
    for field in FIELDS:
        assert len(field.help.split()) >= 12, field.name
        if field.low is not None and field.name != "max_model_len":
            assert field.hint == f"{field.low:,} to {field.high:,}"


def test_refresh_leaves_alone_what_is_being_typed():
    from ui.panels.engine import EnginePanel

    host = FakeHost()
    panel = EnginePanel(host, *[None] * 5, apply=object(), clock=(object(), object()))  # type: ignore[arg-type]
    state = SimpleNamespace(is_rebuilding=False, engine_problem="", status="ready")
    first = panel.updates(state, None)
    engine_id = first[1]
    assert first[2 : 2 + len(FIELDS)] == list(shown_values(host))
    again = panel.updates(state, engine_id)
    assert len(again) == len(first)
    assert all(value == gr.skip() for value in again[2 : 3 + len(FIELDS)])


def test_one_block_is_said_as_one():
    engine, _ = make_engine(1, max_num_batched_tokens=256)
    host = FakeHost(engine=SimpleNamespace(loop=SimpleNamespace(engine=engine), bytes_per_token=1024))
    assert panel_label(host).startswith("Engine · 1 block × 16")
    assert "1 block × 16 slots" in summary_html(host, values(num_blocks=1))
    assert "64 blocks × 16 slots" in summary_html(host, values(num_blocks=64))
