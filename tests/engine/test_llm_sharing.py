"""One LLM and several callers: threads, open streams, whoever touches the engine beneath, and the garbage collector."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from micro_vllm import LLM, SamplingParams
from micro_vllm.errors import EngineClosedError, InvalidRequestError, RequestFailedError
from micro_vllm.model_loader import load_model
from tests.engine.support.models import save_tiny_model

SETTINGS = {"block_size": 4, "max_model_len": 128, "num_gpu_blocks_override": 200, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MOST_STEPS = 200


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=280, tokenizer=True, seed=3)
    return load_model(folder, dtype="float32")


@pytest.fixture
def llm(loaded):
    llm = LLM(loaded, **SETTINGS)
    count_steps(llm)
    yield llm
    llm.check_integrity()
    stats = llm.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_running == stats.num_waiting == 0
    kept = [*llm._outputs, *llm._open, *llm._left]
    assert kept == [], "nothing is kept for callers who have gone"


def count_steps(llm):
    """Waiting for ever becomes a failure: an LLM that steps without end is stopped."""
    step, llm.num_steps = llm.engine.step, 0

    def counted():
        llm.num_steps += 1
        assert llm.num_steps < MOST_STEPS, "it would step for ever"
        return step()

    llm.engine.step = counted


def before_step(llm, number, action):
    """Do something in the middle of a step: planned, and not yet computed."""
    execute, steps = llm.engine.executor.execute, []

    def executing(plan):
        steps.append(plan)
        if len(steps) == number:
            action()
        return execute(plan)

    llm.engine.executor.execute = executing


def tokens(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_threads_share_one_llm(loaded):
    llm = LLM(loaded, **SETTINGS)
    asked = {(who, turn): [f"p{who}{turn}", f"q{who}{turn}"] for who in range(4) for turn in range(5)}
    answers, errors = {}, []

    def ask(who):
        try:
            for turn in range(5):
                answers[who, turn] = tokens(llm.generate(asked[who, turn], GREEDY, use_tqdm=False))
                *_, last = llm.stream(asked[who, turn][0], GREEDY)
                assert tokens([last]) == answers[who, turn][:1]
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=ask, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    llm.check_integrity()
    assert llm.stats().num_free_blocks == 200
    alone = LLM(loaded, **SETTINGS)
    assert answers == {key: tokens(alone.generate(asked[key], GREEDY, use_tqdm=False)) for key in asked}


def test_a_stream_whose_request_is_aborted_beneath_it_ends_with_the_reason(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    seen = next(stream)
    llm.engine.abort(seen.request_id)
    with pytest.raises(RequestFailedError, match="ended from outside") as caught:
        next(stream)
    assert caught.value.outputs == [seen]


def test_ctrl_c_in_generate_ends_an_open_stream_with_the_reason(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)

    def interrupt():
        raise KeyboardInterrupt

    before_step(llm, 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("other", GREEDY, use_tqdm=False)
    with pytest.raises(RequestFailedError, match="interrupted step"):
        list(stream)
    assert len(tokens(llm.generate("other", GREEDY, use_tqdm=False))[0]) == 12, "and the LLM goes on"


def test_a_stream_of_a_closed_llm_says_so(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(EngineClosedError):
        next(stream)


def test_a_forgotten_stream_collected_in_the_middle_of_a_step_is_aborted_after_it(llm):
    alone = tokens(llm.generate("other", GREEDY, use_tqdm=False))
    stream = llm.stream("hello", GREEDY)
    next(stream)
    circle = [stream]
    circle.append(circle)  # only the collector can find it
    del stream

    def collect():
        nonlocal circle
        circle = None
        gc.collect()

    before_step(llm, 2, collect)
    assert tokens(llm.generate("other", GREEDY, use_tqdm=False)) == alone
    assert llm.num_steps == 12 + 1 + 12


def test_a_call_that_cannot_be_queued_whole_queues_nothing(llm, monkeypatch):
    add, added = llm.engine.add_checked, []

    def failing(checked, *more):
        if len(added) == 2:
            raise InvalidRequestError("no third one")
        added.append(add(checked, *more))
        return added[-1]

    monkeypatch.setattr(llm.engine, "add_checked", failing)
    with pytest.raises(InvalidRequestError, match="no third one"):
        llm.generate(["a", "b", "c"], GREEDY, use_tqdm=False)
    assert len(added) == 2
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize("use_tqdm", [False, True])
def test_a_step_of_generate_does_not_look_at_all_its_prompts(loaded, monkeypatch, use_tqdm):
    """1,000 prompts, 4 at a time: asked for once each and once a step, not 1,000 times a step."""
    llm = LLM(loaded, **{**SETTINGS, "max_num_seqs": 4})
    monkeypatch.setattr("micro_vllm.llm._Progress.SECONDS", 3600.0)
    asked = []
    is_done = llm._is_done
    monkeypatch.setattr(llm, "_is_done", lambda request_id: asked.append(1) or is_done(request_id))
    count_prompts = 1000
    llm.generate([[5]] * count_prompts, GREEDY.clone(max_tokens=1), use_tqdm=use_tqdm)
    num_steps = count_prompts // 4
    assert len(asked) <= 2 * count_prompts + 4 * num_steps
