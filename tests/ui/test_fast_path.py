"""The fast path: answers flow before it is ready, it takes over between two steps, and where it cannot, it says so."""

from __future__ import annotations

import threading

import pytest
import torch

from micro_vllm.native import compile as native_compile
from micro_vllm.native import prepare
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import StepExecuted
from tests.engine.support.models import save_tiny_model
from tests.engine.support.native import needs_native
from tests.ui.support.waiting import wait_until
from ui.host.engine_host import EngineHost
from ui.host.engine_options import EngineOptions
from ui.host.fast_path import NATIVE
from ui.settings import Settings

LONG = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "fast", dtype=torch.bfloat16, tokenizer=True, vocab_size=320,
        hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        max_position_embeddings=512,
    )  # fmt: skip


@pytest.fixture
def host(folder):
    one = EngineHost(Settings(model=str(folder)))
    assert one.load(str(folder))
    yield one
    one.close()


def operators(host) -> list[str]:
    return [event.operator for event in host.engine.log.since() if isinstance(event, StepExecuted)]


@needs_native
def test_an_answer_begun_in_pytorch_goes_on_natively(folder, monkeypatch):
    may_go_on = threading.Event()
    made = prepare.prepare_native
    monkeypatch.setattr(prepare, "prepare_native", lambda *a: may_go_on.wait(30) and made(*a))
    host = EngineHost(Settings(model=str(folder)))
    try:
        host.load(str(folder))
        wait_until(lambda: host.engine is not None)
        host.engine.loop.pace = 0.005
        handle = host.engine.loop.submit([5, 6, 7], LONG)
        wait_until(lambda: len(operators(host)) > 3)
        assert host.state.kernels == ""
        may_go_on.set()
        assert len(handle.result(60).outputs[0].token_ids) == 200
        used = operators(host)
        assert used[0] == "sdpa"
        assert used[-1] == "native"
        assert used == sorted(used, reverse=True), "once it has taken over it stays"
        assert host.state.kernels == NATIVE
        host.engine.loop.check_integrity()
    finally:
        may_go_on.set()
        host.close()


@needs_native
def test_a_rebuilt_engine_takes_what_was_prepared_for_the_first(host, monkeypatch):
    wait_until(lambda: host.state.kernels == NATIVE)
    monkeypatch.setattr(prepare, "prepare_native", lambda *_: pytest.fail("prepared twice"))
    old = host.engine
    host.rebuild(EngineOptions(num_blocks=32))
    wait_until(lambda: host.engine is not old and host.state.kernels == NATIVE)
    host.engine.loop.submit([5, 6, 7], LONG).result(60)
    wait_until(lambda: "native" in operators(host))


@needs_native
def test_eager_and_a_chosen_operator_stay_in_pytorch(host):
    wait_until(lambda: host.state.kernels == NATIVE)
    for options in (EngineOptions(execution="eager"), EngineOptions(attention="reference")):
        old = host.engine
        host.rebuild(options)
        wait_until(lambda old=old: host.engine is not old)
        wait_until(lambda: host.state.kernels == "")
        host.engine.loop.submit([5, 6, 7], LONG).result(60)
        assert set(operators(host)) == {"reference" if options.attention == "reference" else "sdpa"}


def test_a_machine_that_cannot_goes_on_in_pytorch(folder, monkeypatch, caplog):
    monkeypatch.setattr(native_compile, "cpu_flags", lambda: frozenset({"avx2"}))
    host = EngineHost(Settings(model=str(folder)))
    try:
        with caplog.at_level("INFO"):
            host.load(str(folder))
            wait_until(lambda: "stays in PyTorch" in caplog.text)
        assert host.state.kernels == ""
        handle = host.engine.loop.submit(
            [5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
        )
        assert len(handle.result(30).outputs[0].token_ids) == 4
        assert set(operators(host)) == {"sdpa"}
    finally:
        host.close()
