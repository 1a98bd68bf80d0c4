"""Faults of other engines where a weaker test would pass by luck: edges, and ends that come by themselves."""

from __future__ import annotations

import asyncio
import gc
import random
import time

import pytest

from micro_vllm.engine.loop import EngineLoop
from micro_vllm.errors import CapacityError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import TraceLog
from micro_vllm.trace.events import StepPlanned
from tests.engine.support.scripted import run, scripted_engine, solo


def on(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 50) for _ in range(count)]


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("window", range(1, 10))
def test_a_window_lets_go_of_a_block_neither_early_nor_late(window, block_size):
    """E9, tt-metal #45184, vllm #2064: in a pool as small as it may be, a block let go one token too early is written
    over at once; and what is held is to the block what the window reaches, and no more than was reserved."""
    chunk = 3
    reach = -(-(window - 1 + chunk) // block_size) + 1
    engine = scripted_engine(
        (window, window), block_size=block_size, num_gpu_blocks_override=reach, max_model_len=400,
        max_num_batched_tokens=chunk, max_num_seqs=1, enable_prefix_caching=False,
    )  # fmt: skip
    engine.add_request(ids(20), on(60), request_id="r")
    answer = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            answer = list(output.outputs[0].token_ids)
        engine.check_integrity()
        (row,) = engine.executor.plans[-1].scheduled
        if "r" in engine.scheduler.requests:
            (table,) = engine.state().requests["r"].tables
            held = [index for index, block_id in enumerate(table) if block_id]
            first = max(0, row.start - window + 1) // block_size
            assert held == list(range(first, -(-(row.start + row.count) // block_size)))
            assert len(held) <= engine.scheduler.kv.blocks_for(row.start + row.count)
    assert answer == solo(ids(20), 60, ignore_eos=True)
    assert all(plan.preempted_ids == () for plan in engine.executor.plans)


@pytest.mark.parametrize("length", [39, 40, 41])
def test_a_prompt_may_fill_the_context_but_for_one_token(length):
    """E24, vllm #33418: exactly as long as max_model_len is one too many."""
    engine = scripted_engine(max_model_len=40)
    engine.add_request(ids(6, seed=1), on(4), request_id="other")
    if length < 40:
        engine.add_request(ids(length), on(10), request_id="long")
        assert len(run(engine)["long"]) == 1
    else:
        with pytest.raises(CapacityError, match=rf"{length} tokens; max_model_len=40.*at most 39"):
            engine.add_request(ids(length), on(10))
        assert run(engine) == {"other": solo(ids(6, seed=1), 4, ignore_eos=True)}


def test_the_victim_of_a_preemption_had_its_place_in_the_step_and_gives_it_back():
    """E31, vllm #23347: "low" stands first and needs no block in the step in which "high" runs out of them."""
    log = TraceLog()
    engine = scripted_engine(
        num_gpu_blocks_override=6, scheduling_policy="priority", max_model_len=24, enable_prefix_caching=False,
        trace=log,
    )  # fmt: skip
    low, high = ids(5), ids(7, seed=1)
    engine.add_request(low, on(12), request_id="low", priority=9)
    engine.step()
    engine.add_request(high, on(12), request_id="high", priority=0)
    while not engine.executor.plans[-1].preempted_ids:
        engine.step()
        engine.check_integrity()
    plan = engine.executor.plans[-1]
    assert plan.preempted_ids == ("low",)
    before = engine.executor.plans[-2].scheduled
    assert [row.request_id for row in before] == ["low", "high"]
    assert (before[0].start + 2) % 4 != 1, "low itself would not have needed a block"
    assert (plan.scheduled[0].request_id, plan.scheduled[0].start % 4) == ("high", 0)
    planned = [event for event in log.since() if isinstance(event, StepPlanned)][-1]
    assert [row.request_id for row in planned.rows] == [row.request_id for row in plan.scheduled] == ["high"]
    assert planned.num_tokens == plan.num_tokens == 1, "the budget of low's token was given back"
    done = run(engine)
    assert done == {"low": solo(low, 12, ignore_eos=True), "high": solo(high, 12, ignore_eos=True)}


@pytest.mark.parametrize("how", ["break", "drop", "aclose", "cancel"])
def test_who_leaves_a_stream_has_aborted_it_long_before_it_would_have_ended(how):
    """E32, gradio + engine: within one second, although a hundred tokens take six."""
    with EngineLoop(scripted_engine()) as loop:
        loop.pace = 0.06
        handle = loop.submit([3, 4, 5], on(100))

        async def leave() -> None:
            stream = handle.__aiter__()
            await stream.__anext__()
            if how == "aclose":
                await stream.aclose()
                return
            task = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        if how == "break":
            for _ in handle:
                break
        elif how == "drop":
            iterator = iter(handle)
            next(iterator)
            del iterator
            gc.collect()
        else:
            asyncio.run(leave())
        deadline = time.monotonic() + 1.0
        while loop.stats().num_free_blocks < loop.stats().num_blocks and time.monotonic() < deadline:
            time.sleep(0.005)
        assert loop.stats().num_free_blocks == loop.stats().num_blocks
        assert handle.result(1.0).outputs[0].finish_reason == "abort"
        assert len(loop.engine.executor.plans) < 50
