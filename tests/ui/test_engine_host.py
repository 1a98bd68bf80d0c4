"""The host: what it shows when, and that models and engines change without two of what there should be one."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

from micro_vllm.attention.attention import PagedKVCache
from micro_vllm.errors import ConfigError, EngineClosedError, FetchCancelledError
from micro_vllm.model_loader import load_model
from micro_vllm.model_loader.fetch import FetchProgress
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import RequestAborted
from tests.engine.support.models import save_tiny_model
from tests.ui.support.waiting import wait_until
from ui.host.engine_host import EngineHost
from ui.host.engine_options import EngineOptions
from ui.host.serving import LoadWatch, load_for_good
from ui.settings import Settings

SAMPLE = Path(__file__).parents[2] / "assets" / "sample_trace.jsonl"
LONG = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", tokenizer=True, vocab_size=300)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory) -> Path:
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "other",
        tokenizer=True,
        vocab_size=300,
        max_position_embeddings=128,
    )


def is_settled(host: EngineHost) -> bool:
    return host.state.status not in ("empty", "loading") and not host.state.is_rebuilding


def load(host: EngineHost, name) -> None:
    assert host.load(str(name))
    wait_until(lambda: is_settled(host))


def rebuild(host: EngineHost, **options) -> None:
    host.rebuild(EngineOptions(**options))
    wait_until(lambda: is_settled(host))


def submit(host: EngineHost, num_prompt_tokens: int = 20):
    return host.engine.loop.submit({"prompt_token_ids": [*range(5, 5 + num_prompt_tokens)]}, LONG)


def num_tokens(handle) -> int:
    return len(handle.latest.outputs[0].token_ids) if handle.latest else 0


@pytest.fixture
def host(folder):
    host = EngineHost(Settings(model=str(folder), num_blocks=32), sample_path=SAMPLE)
    load(host, folder)
    yield host
    host.close()


def test_what_stays_is_left_alone_by_the_garbage_collector_but_a_model_that_goes_is_not(folder):
    usual = gc.get_threshold()
    try:
        first = load_for_good(str(folder), progress=LoadWatch("one", lambda *_: None))
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        weights = weakref.ref(first.model)
        del first
        second = load_for_good(str(folder), progress=LoadWatch("two", lambda *_: None))
        assert weights() is None
        assert gc.get_freeze_count() < 1.2 * frozen
        assert second.model is not None
        assert gc.get_threshold()[0] > usual[0], (
            "what a step leaves behind is not looked through ten times a second"
        )
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)


# ---------------------------------------------------------------- other options


def test_a_rebuilt_engine_has_the_new_options_and_the_very_same_weights(host, folder):
    loads = []
    host._load_model = lambda name, progress: loads.append(name)
    before = host.engine
    weight = next(before.loaded.model.parameters())
    rebuild(
        host, num_blocks=16, block_size=8, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=100,
        enable_prefix_caching=False, scheduling_policy="priority", attention="reference",
    )  # fmt: skip
    after = host.engine
    assert after is not before
    assert after.loaded is before.loaded
    assert next(after.loaded.model.parameters()).data_ptr() == weight.data_ptr()
    assert loads == []
    info, config = after.loop.engine.info, after.loop.engine.config
    assert (info.num_blocks, info.block_size, info.max_num_seqs) == (16, 8, 4)
    assert (info.max_num_batched_tokens, info.max_model_len, info.policy) == (32, 100, "priority")
    assert (config.enable_prefix_caching, config.attention) == (False, "reference")
    assert host.options == after.options
    handle = submit(host, 10)
    assert len(handle.result(20).outputs[0].token_ids) == 90
    assert host.state.engine_problem == ""


def test_rebuilding_leaves_one_pool(host):
    def pools() -> int:
        gc.collect()
        return sum(type(one) is PagedKVCache for one in gc.get_objects())

    before = pools()
    for num_blocks in (8, 40, 12):
        rebuild(host, num_blocks=num_blocks)
        wait_until(lambda: pools() == before)
    assert host.engine.loop.stats().num_blocks == 12


def test_what_runs_is_told_why_it_ends_and_keeps_what_came_so_far(host):
    host.engine.loop.pace = 0.01
    old = host.engine
    handles = [submit(host), submit(host, 25)]
    wait_until(lambda: all(num_tokens(handle) >= 3 for handle in handles))
    rebuild(host, num_blocks=64)
    for handle in handles:
        wait_until(lambda handle=handle: handle.finished)
        with pytest.raises(EngineClosedError, match="the engine was rebuilt with other settings"):
            handle.result(1)
        assert 3 <= num_tokens(handle) < 200
    aborted = [event for event in old.log.since() if isinstance(event, RequestAborted)]
    assert [event.num_output_tokens for event in aborted] == [num_tokens(handle) for handle in handles]
    # Who held on to the old engine for a moment too long is told as well.
    with pytest.raises(EngineClosedError, match="rebuilt"):
        old.loop.submit({"prompt_token_ids": [5, 6, 7]}, LONG)
    assert submit(host).result(20).finished


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 1000}, r"context length=1,000.*2 to 256"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, "without chunked prefill"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once_and_the_old_engine_goes_on(host, options, words):
    before, handle = host.engine, submit(host)
    with pytest.raises(ConfigError, match=words):
        host.rebuild(EngineOptions(**options))
    assert host.engine is before
    assert len(handle.result(20).outputs[0].token_ids) == 200


def test_a_pool_beyond_the_machine_is_refused_with_what_fits(host, monkeypatch):
    limit = 10_000_000
    monkeypatch.setattr("ui.host.engine_host.memory_limit", lambda: limit)
    with pytest.raises(ConfigError, match=r"MB.*at most ([\d,]+) such blocks fit") as refused:
        host.rebuild(EngineOptions(num_blocks=8000, block_size=64))
    fit = int(str(refused.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    per_block = host.engine.bytes_per_token * 64
    assert (fit + 1) * per_block <= limit < (fit + 2) * per_block
    host.check_options(EngineOptions(num_blocks=fit, block_size=64))


def test_an_engine_that_cannot_be_built_leaves_the_old_one_and_says_why(host, monkeypatch):
    before, handle = host.engine, submit(host)

    def fail(*_):
        raise ConfigError("there is no memory left for it.")

    monkeypatch.setattr("ui.host.engine_host.start_engine", fail)
    rebuild(host, num_blocks=64)
    assert host.engine is before
    assert host.state.engine_problem == "there is no memory left for it."
    assert host.state.status == "ready"
    assert len(handle.result(20).outputs[0].token_ids) == 200


def test_a_shared_servers_engine_is_fixed(folder):
    host = EngineHost(Settings(model=str(folder), is_hosted=True, num_blocks=32))
    load(host, folder)
    with pytest.raises(ConfigError, match="fixed"):
        host.rebuild(EngineOptions(num_blocks=8))
    assert host.engine.loop.stats().num_blocks == 32
    host.close()


# ---------------------------------------------------------------- what is on show


def test_the_sample_is_on_show_until_an_engine_has_computed_something(host, folder):
    """P23, vllm-playground 0.1.7: after that, each engine shows its own story, also while it is empty."""
    assert host.replay().is_sample
    assert host.view().is_sample
    handle = submit(host)
    handle.result(20)
    assert host.replay() is host.engine.replay
    view = host.view()
    assert not view.is_sample
    assert view.executed_step >= 200
    assert len(view.requests) == 1

    load(host, folder)  # another engine, the old charts are gone
    view = host.view()
    assert not view.is_sample
    assert (view.executed_step, view.requests, view.num_used) == (0, (), 0)
    assert {cell.state for cell in view.blocks[1:]} == {"free"}


def test_a_rebuilt_engine_shows_its_empty_blocks_at_once(host):
    assert host.view().is_sample
    rebuild(host, num_blocks=64)
    view = host.view()
    assert not view.is_sample
    assert len(view.blocks) == 65
    assert {cell.state for cell in view.blocks[1:]} == {"free"}


# ---------------------------------------------------------------- the engine's own clock


def test_a_paused_engine_computes_one_step_at_a_time(host):
    host.pause()
    assert host.is_paused
    assert host.state.is_paused
    handle = submit(host)
    assert num_tokens(handle) == 0
    for count in (1, 2, 3):
        host.step_once()
        wait_until(lambda count=count: num_tokens(handle) == count)
    assert host.view().executed_step == 3
    host.resume()
    assert not host.state.is_paused
    assert len(handle.result(20).outputs[0].token_ids) == 200


def test_a_step_pauses_an_engine_that_runs_and_says_when_there_is_nothing_to_do(host):
    assert host.step_once() is False
    assert host.is_paused
    host.resume()
    host.engine.loop.pace = 0.02
    handle = submit(host)
    wait_until(lambda: num_tokens(handle) >= 2)
    assert host.step_once() is True
    host.engine.loop.pace = 0  # at full speed it would step between any two of the calls below
    wait_until(lambda: host.engine.loop._single_steps == 0)
    counts = [host.engine.loop.call(lambda engine: num_tokens(handle)) for _ in range(5)]
    assert len(set(counts)) == 1, "it went on by itself"
    assert not handle.finished


def test_pause_and_pace_outlive_a_rebuild(host):
    host.set_pace(0.25)
    host.pause()
    rebuild(host, num_blocks=64)
    assert host.is_paused
    assert host.state.is_paused
    assert host.pace == host.engine.loop.pace == 0.25


@pytest.mark.parametrize("pace", [99, -0.1, None, True, "fast", float("nan")])
def test_a_pace_out_of_range_is_refused(host, pace):
    """P18, gradio #2371."""
    with pytest.raises(ConfigError, match="0 to 2 seconds a step"):
        host.set_pace(pace)
    assert host.pace == 0


def test_without_an_engine_there_is_nothing_to_pause(folder):
    host = EngineHost(Settings(model=str(folder)))
    for act in (host.pause, host.resume, host.step_once):
        with pytest.raises(ConfigError, match="No model is loaded"):
            act()
    with pytest.raises(ConfigError, match="No model is loaded"):
        host.rebuild(EngineOptions())


# ---------------------------------------------------------------- another model


def test_another_model_gets_the_options_and_its_own_context(host, other_folder):
    rebuild(host, num_blocks=24, max_model_len=200, enable_chunked_prefill=False, max_num_batched_tokens=256)
    load(host, other_folder)
    info = host.engine.loop.engine.info
    assert (info.num_blocks, info.max_model_len) == (24, 128)
    assert host.engine.loop.engine.config.enable_chunked_prefill is False
    assert host.state.serving == "other"


def test_a_load_that_fails_names_the_reason_and_the_old_model_answers(host, tmp_path):
    (tmp_path / "wrong").mkdir()
    load(host, tmp_path / "wrong")
    assert host.state.status == "error"
    assert "config.json" in host.state.message
    assert host.state.serving == "tiny"
    assert host.health()["status"] == "ok"
    assert submit(host).result(20).finished


class SlowLoader:
    """Fetches for ever, and tells how far it is, as the real one does."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()

    def __call__(self, name, progress):
        try:
            while True:
                progress(FetchProgress("Downloading", 40, 100))
                self.begun.set()
                time.sleep(0.01)
        finally:
            self.ended.set()


def test_a_cancelled_load_ends_and_the_old_model_answers(host):
    slow = host._load_model = SlowLoader()
    assert host.load("some/model")
    assert slow.begun.wait(10)
    assert (host.state.status, host.state.message, host.state.progress) == ("loading", "Downloading", 0.4)
    assert host.load("another") is False
    with pytest.raises(ConfigError, match="waits for some/model"):
        host.rebuild(EngineOptions())
    assert host.cancel_load()
    wait_until(lambda: is_settled(host))
    assert slow.ended.is_set()
    assert (host.state.status, host.state.serving, host.state.model) == ("ready", "tiny", "tiny")
    assert host.state.message == "Loading some/model was cancelled."
    assert host.cancel_load() is False
    assert submit(host).result(20).finished


def test_a_cancelled_first_load_leaves_the_page_ready_for_another(folder):
    slow = SlowLoader()
    host = EngineHost(Settings(model="some/model"), load=slow)
    assert host.load("some/model")
    assert slow.begun.wait(10)
    host.cancel_load()
    wait_until(lambda: is_settled(host))
    assert host.state.status == "error"
    host._load_model = lambda name, progress: load_model(name, progress=progress)
    load(host, folder)
    assert host.health()["status"] == "ok"
    host.close()


def test_closing_ends_a_load_that_goes_on():
    slow = SlowLoader()
    host = EngineHost(Settings(model="some/model"), load=slow)
    assert host.load("some/model")
    assert slow.begun.wait(10)
    host.close()
    assert slow.ended.wait(5)
    assert "shutting down" in host.state.message


def test_load_model_tells_how_many_weights_it_has_read_and_stops_when_cancelled(folder):
    stages: list[FetchProgress] = []
    cancel = threading.Event()
    load_model(str(folder), progress=stages.append, cancel=cancel)
    fractions = [stage.fraction for stage in stages if stage.stage == "Reading weights"]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) >= 10
    assert 0.5 < fractions[-1] < 1

    def stop_half_way(stage: FetchProgress) -> None:
        if (stage.fraction or 0) > 0.5:
            cancel.set()

    with pytest.raises(FetchCancelledError):
        load_model(str(folder), progress=stop_half_way, cancel=cancel)
