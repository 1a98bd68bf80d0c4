"""EngineLoop: many callers, one thread. Waits are for events with a generous limit; what is asserted are counts."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from micro_vllm.engine.loop import EngineLoop
from micro_vllm.errors import CapacityError, EngineClosedError, InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from tests.engine.support.scripted import ScriptedExecutor, scripted_engine, solo

LIMIT = 20.0


class SlowExecutor(ScriptedExecutor):
    """A step takes a moment, as a real one does."""

    def execute(self, plan):
        time.sleep(0.002)
        return super().execute(plan)


@pytest.fixture
def loop():
    with EngineLoop(scripted_engine(executor=SlowExecutor(), num_gpu_blocks_override=64)) as loop:
        yield loop
        if not loop._closing:
            loop.check_integrity()


def on(count: int = 8, **more) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **more)


def wait_until(condition, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def all_free(loop) -> bool:
    stats = loop.stats()
    return stats.num_free_blocks == stats.num_blocks and stats.num_running == stats.num_waiting == 0


def test_many_threads_share_one_batch(loop):
    prompts = [[5 + index, 7, 9 + index] for index in range(8)]
    answers: dict[int, list[int]] = {}

    def ask(index):
        for output in loop.submit(prompts[index], on(20)):
            answers[index] = list(output.outputs[0].token_ids)

    loop.pause()
    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: loop.call(lambda engine: len(engine.scheduler.requests)) == 8)
    loop.resume()
    for thread in threads:
        thread.join(LIMIT)
    assert answers == {index: solo(prompts[index], 20, ignore_eos=True) for index in range(8)}
    widths = [len(plan.scheduled) for plan in loop.engine.executor.plans]
    assert max(widths) == 8
    assert len(widths) == 20, "all eight in the same twenty steps"


def test_outputs_are_cumulative_and_latest_wins_for_a_slow_reader(loop):
    fast_done = threading.Event()

    def fast():
        loop.submit([5, 6], on(60)).result(LIMIT)
        fast_done.set()

    handle = loop.submit([3, 4], on(60))
    threading.Thread(target=fast).start()
    seen = []
    for output in handle:
        seen.append(len(output.outputs[0].token_ids))
        if len(seen) == 1:
            assert fast_done.wait(LIMIT), "a slow reader delays nobody"
    assert seen == sorted(set(seen))
    assert seen[-1] == 60
    assert len(seen) < 10, "what it missed was skipped, not queued"


def test_async_iteration(loop):
    async def ask(prompt):
        async for output in loop.submit(prompt, on(10)):
            last = output
        return list(last.outputs[0].token_ids)

    async def ask_all():
        return await asyncio.gather(*(ask([7, index]) for index in range(5)))

    assert asyncio.run(ask_all()) == [solo([7, index], 10, ignore_eos=True) for index in range(5)]


def test_caller_of_an_async_stream_disappears(loop):
    """E32, gradio + engine: aborted, blocks free within one second."""

    async def leave_early():
        stream = loop.submit([3, 4, 5], on(100)).__aiter__()
        await stream.__anext__()
        await stream.aclose()

    asyncio.run(leave_early())
    wait_until(lambda: all_free(loop), limit=1.0)


def test_cancelled_task_aborts_its_request(loop):
    """E32."""

    async def cancelled():
        async def read():
            async for _ in loop.submit([3, 4, 5], on(100)):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    wait_until(lambda: all_free(loop), limit=1.0)


def test_dropped_sync_stream_aborts_its_request(loop):
    """E32: break, and an iterator nobody holds any more."""
    for _ in loop.submit([3, 4, 5], on(100)):
        break
    gc.collect()
    wait_until(lambda: all_free(loop), limit=1.0)


def test_abort_gives_a_last_output(loop):
    handle = loop.submit([3, 4, 5], on(100))
    wait_until(lambda: handle.latest is not None)
    loop.abort(handle.request_id)
    output = handle.result(LIMIT)
    assert output.outputs[0].finish_reason == "abort"
    assert 0 < len(output.outputs[0].token_ids) < 100
    wait_until(lambda: all_free(loop))
    loop.abort(handle.request_id)  # once more, and an id nobody knows: passed over
    loop.abort("unknown")


def test_wrong_request_raises_at_once_and_others_go_on(loop):
    good = loop.submit([3, 4], on(10))
    with pytest.raises(InvalidRequestError, match="ids 0 to 49"):
        loop.submit([3, 4000], on())
    with pytest.raises(CapacityError, match="max_model_len=128"):
        loop.submit([3] * 500, on())
    loop.pause()
    loop.submit([3], on(), request_id="same")
    with pytest.raises(InvalidRequestError, match="'same' is in use"):
        loop.submit([4], on(), request_id="same")
    loop.resume()
    assert len(good.result(LIMIT).outputs[0].token_ids) == 10


def test_pause_step_once_and_resume(loop):
    loop.pause()
    handle = loop.submit([3, 4], on(6))
    loop.call(lambda engine: None)
    assert handle.latest is None
    for count in range(1, 4):
        loop.step_once()
        wait_until(lambda count=count: len(loop.engine.executor.plans) == count)
        assert len(handle.latest.outputs[0].token_ids) == count
    loop.call(lambda engine: None)
    assert len(loop.engine.executor.plans) == 3, "paused in between"
    loop.resume()
    assert len(handle.result(LIMIT).outputs[0].token_ids) == 6


def test_step_once_without_work_is_not_saved_up(loop):
    loop.pause()
    for _ in range(3):
        loop.step_once()
    handle = loop.submit([3, 4], on(6))
    loop.call(lambda engine: None)
    assert handle.latest is None
    assert loop.engine.executor.plans == []
    loop.resume()
    handle.result(LIMIT)


def test_paused_loop_still_aborts(loop):
    loop.pause()
    handle = loop.submit([3, 4], on(6))
    handle.abort()
    assert handle.result(LIMIT).outputs[0].finish_reason == "abort"
    assert all_free(loop)


def test_pace_spreads_the_steps(loop):
    """Five steps have four gaps: a lower bound, which no slow machine can break."""
    loop.pace = 0.03
    began = time.monotonic()
    loop.submit([3, 4], on(5)).result(LIMIT)
    assert len(loop.engine.executor.plans) == 5
    assert time.monotonic() - began >= 4 * 0.03
    with pytest.raises(InvalidRequestError, match="0 to 60"):
        loop.pace = -1


def test_failing_step_fails_its_requests_and_the_loop_goes_on():
    failing = {"on": True}
    engine = scripted_engine(executor=ScriptedExecutor(fail_when=lambda plan: failing["on"]))
    with EngineLoop(engine) as loop:
        output = loop.submit([3, 4], on()).result(LIMIT)
        assert output.outputs[0].finish_reason == "error"
        assert "scripted failure" in output.outputs[0].error
        failing["on"] = False
        assert len(loop.submit([3, 4], on()).result(LIMIT).outputs[0].token_ids) == 8
        loop.check_integrity()


def test_close_ends_every_wait(loop):
    handles = [loop.submit([3, index + 3], on(100)) for index in range(12)]
    reader_ended = threading.Event()

    def read():
        for _ in handles[0]:
            pass
        reader_ended.set()

    threading.Thread(target=read).start()
    loop.close()
    assert reader_ended.wait(LIMIT)
    assert {handle.result(LIMIT).outputs[0].finish_reason for handle in handles} == {"abort"}
    assert loop.engine.executor.closed
    assert all_free(loop)
    with pytest.raises(EngineClosedError):
        loop.submit([3], on())
    loop.close()  # twice is fine


def test_call_runs_between_steps_on_the_loop_thread(loop):
    handle = loop.submit([3, 4], on(50))
    names = {loop.call(lambda engine: threading.current_thread().name) for _ in range(5)}
    assert len(names) == 1
    assert threading.current_thread().name not in names
    loop.check_integrity()
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda engine: 1 / 0)
    handle.result(LIMIT)
