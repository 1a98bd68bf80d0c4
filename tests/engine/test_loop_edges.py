"""EngineLoop where callers are careless, executors worse, and everything happens at once."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from micro_vllm.engine.loop import EngineLoop
from micro_vllm.errors import EngineClosedError, InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from tests.engine.support.scripted import ScriptedExecutor, scripted_engine, solo

LIMIT = 20.0


class SlowExecutor(ScriptedExecutor):
    """A step takes a moment, as a real one does."""

    def execute(self, plan):
        time.sleep(0.001)
        return super().execute(plan)


def on(count: int = 8, **more) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **more)


@pytest.fixture
def loop():
    with EngineLoop(scripted_engine(executor=SlowExecutor(), num_gpu_blocks_override=40)) as loop:
        yield loop


@pytest.mark.parametrize("request_id", [5, None, ["a"], [[]], b"x", {}])
def test_aborting_what_is_no_id_is_refused_and_the_loop_lives_on(loop, request_id):
    with pytest.raises(InvalidRequestError, match="is not a string"):
        loop.abort(request_id)
    assert list(loop.submit([3, 4], on()).result(LIMIT).outputs[0].token_ids) == solo(
        [3, 4], 8, ignore_eos=True
    )


@pytest.mark.parametrize("request_id", [5, [], ""])
def test_submitting_under_what_is_no_id_is_refused(loop, request_id):
    with pytest.raises(InvalidRequestError, match="request_id="):
        loop.submit([3, 4], on(), request_id=request_id)


@pytest.mark.parametrize("pace", ["fast", None, [], True, float("nan"), 61])
def test_a_pace_that_is_no_number_of_seconds_is_refused(loop, pace):
    with pytest.raises(InvalidRequestError, match="0 to 60 seconds"):
        loop.pace = pace


def test_odd_settings_of_one_caller_do_not_abort_the_others(loop):
    other = loop.submit([5, 6, 7], on(60))
    for more in ({"cache_salt": "\ud800"}, {"shared_prefix_len": "x"}):
        with pytest.raises(InvalidRequestError):
            loop.submit([3, 4, 5, 6, 7], on(), **more)
    assert other.result(LIMIT).outputs[0].finish_reason == "length"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_fails_all_who_wait_and_closes_the_loop():
    class Dying(ScriptedExecutor):
        def execute(self, plan):
            raise SystemExit

    loop = EngineLoop(scripted_engine(executor=Dying(), max_num_seqs=1))
    loop.pause()
    handles = [loop.submit([3, 4 + index], on()) for index in range(3)]
    loop.resume()
    ends = []
    for handle in handles:
        try:
            ends.append(handle.result(LIMIT).outputs[0].finish_reason)
        except EngineClosedError:
            ends.append("closed")
    assert sorted(ends) == ["abort", "abort", "closed"]
    loop.close()
    assert loop.engine.executor.closed
    assert loop.stats().num_free_blocks == loop.stats().num_blocks
    with pytest.raises(EngineClosedError):
        loop.submit([3], on())


def test_steps_asked_for_beyond_the_end_of_the_work_are_not_saved_up(loop):
    loop.pause()
    first = loop.submit([3, 4], on(2))
    for _ in range(5):
        loop.step_once()
    first.result(LIMIT)
    second = loop.submit([5, 6], on(9))
    for _ in range(3):
        loop.call(lambda engine: None)
    assert len(loop.engine.executor.plans) == 2
    assert second.latest is None


def test_a_step_asked_for_right_after_a_request_is_never_lost(loop, monkeypatch):
    """The request may be on its way from the caller to the engine, neither here nor there."""
    add, on_its_way, asked = loop.engine.add_checked, threading.Event(), threading.Event()

    def slowly(*args):
        on_its_way.set()
        assert asked.wait(LIMIT)
        return add(*args)

    monkeypatch.setattr(loop.engine, "add_checked", slowly)
    loop.pause()
    handle = loop.submit([3, 4], on(1))
    assert on_its_way.wait(LIMIT)
    loop.step_once()
    asked.set()
    assert handle.result(LIMIT).finished


def test_a_finished_handle_does_not_abort_its_namesake(loop):
    old = loop.submit([3, 4], on(2), request_id="same")
    old.result(LIMIT)
    loop.pause()
    new = loop.submit([5, 6], on(4), request_id="same")
    old.abort()
    loop.resume()
    assert new.result(LIMIT).outputs[0].finish_reason == "length"


def test_two_readers_of_one_handle_both_see_its_end_on_any_event_loop(loop):
    handle = loop.submit([3, 4], on(50))
    ends = []

    def read():
        *_, last = handle
        ends.append(len(last.outputs[0].token_ids))

    async def read_async():
        async for output in handle:
            last = output
        ends.append(len(last.outputs[0].token_ids))

    threads = [threading.Thread(target=read) for _ in range(2)]
    threads += [threading.Thread(target=lambda: asyncio.run(read_async())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert ends == [50] * 4


def test_closing_the_loop_ends_an_async_iteration_with_its_abort(loop):
    async def read():
        seen = []
        async for output in loop.submit([3, 4], on(90)):
            seen.append(output)
            if len(seen) == 3:
                threading.Thread(target=loop.close).start()
        return seen[-1].outputs[0].finish_reason

    assert asyncio.run(asyncio.wait_for(read(), LIMIT)) == "abort"


def test_fifty_threads_at_once_with_aborts_pauses_and_paces(loop):
    wrong, finished = [], []

    def use(seed):
        rng = random.Random(seed)
        for _ in range(6):
            prompt = [rng.randrange(3, 50) for _ in range(rng.randint(1, 20))]
            count = rng.randint(1, 40)
            handle = loop.submit(prompt, on(count), priority=rng.randrange(3))
            what = rng.choice(["wait"] * 5 + ["abort", "leave", "step", "pace", "check"])
            if what == "abort":
                handle.abort()
            elif what == "leave":
                for _ in handle:
                    break
            elif what == "step":
                loop.pause()
                loop.step_once()
                loop.resume()
            elif what == "pace":
                loop.pace = rng.choice([0, 0.0005])
            elif what == "check":
                loop.check_integrity()
            output = handle.result(60).outputs[0]
            if output.finish_reason == "length":
                finished.append(count)
                if list(output.token_ids) != solo(prompt, count, ignore_eos=True):
                    wrong.append((prompt, count))
            elif what not in ("abort", "leave"):
                wrong.append(output)

    def guarded(seed):
        try:
            use(seed)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert wrong == []
    assert len(finished) > 150
    loop.check_integrity()
    assert loop.call(lambda engine: engine.stats().num_free_blocks) == 40
