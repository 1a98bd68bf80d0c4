"""Sharing of full blocks between requests, over a scripted executor that checks every cached slot it reads."""

from __future__ import annotations

import hashlib
import struct

import pytest

from micro_vllm.core.prefix_cache import ROOT_HASH, hash_block
from micro_vllm.sampling.params import SamplingParams
from tests.engine.support.scripted import EOS, run, scripted_engine, solo

LAYOUTS = {"full": (None, None), "sliding": (8, 8), "hybrid": (None, 8, 8, None, 8)}
ON = SamplingParams(max_tokens=8, ignore_eos=True)


def ids(length: int, start: int = 3) -> list[int]:
    return [3 + (start * 7 + index * index) % 47 for index in range(length)]


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


def ask(engine, prompt, params=ON, **more):
    """One request alone: (output tokens, tokens from the cache, tokens computed)."""
    before = engine.executor.computed_tokens
    request_id = engine.add_request(prompt, params, **more)
    cached = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            cached = output.num_cached_tokens
            tokens = list(output.outputs[0].token_ids)
        engine.check_integrity()
    assert request_id
    return tokens, cached, engine.executor.computed_tokens - before


def test_hash_is_a_fixed_serialisation():
    """Stable between runs and machines: recomputed here by hand."""
    data = bytes(32) + struct.pack("<Q", 3) + struct.pack("<qqq", 5, 6, 7) + b"salt"
    assert hash_block(ROOT_HASH, (5, 6, 7), "salt") == hashlib.sha256(data).digest()
    assert hash_block(ROOT_HASH, (5, 6, 7)) != hash_block(ROOT_HASH, (5, 6, 7), "salt")
    assert hash_block(ROOT_HASH, (1, 2)) != hash_block(hash_block(ROOT_HASH, (1,)), (2,))


def test_fully_cached_prompt_recomputes_at_least_one_token(layout):
    """E1, nano-vllm #144, #199: exactly k x block_size tokens, all cached."""
    engine = scripted_engine(layout)
    prompt = ids(16)
    cold = ask(engine, prompt)
    warm = ask(engine, prompt)
    assert cold == (solo(prompt, 8, ignore_eos=True), 0, 16 + 7)
    assert warm == (cold[0], 12, 4 + 7)


@pytest.mark.parametrize(("name", "blocks"), [("full", 16), ("hybrid", 30)])
def test_preempted_request_resumes_from_its_cached_prefix(name, blocks):
    """E2, nano-vllm #207, #211, #233: lookup first, then length."""
    on = SamplingParams(max_tokens=30, ignore_eos=True)
    engine = scripted_engine(
        LAYOUTS[name], num_gpu_blocks_override=blocks, max_num_batched_tokens=8, max_model_len=60
    )
    first, second = ids(9), ids(10, start=5)
    engine.add_request(first, on, request_id="first")
    engine.add_request(second, on, request_id="second")
    resumed_cached = 0
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
        for new in engine.executor.plans[-1].new:
            if new.is_resumed:
                start = next(
                    r.start for r in engine.executor.plans[-1].scheduled if r.request_id == new.request_id
                )
                resumed_cached += start
    assert resumed_cached > 0, "something was preempted, and came back on cached blocks"


def test_same_prompt_twice_in_one_step_both_right_and_the_twin_survives_eviction(layout):
    """E3, nano-vllm #208, #219, vllm #9643."""
    engine = scripted_engine(layout, max_num_batched_tokens=64, num_gpu_blocks_override=40)
    prompt = ids(17)
    engine.add_request(prompt, ON, request_id="a")
    engine.add_request(prompt, ON, request_id="b")
    done = run(engine)
    assert done["a"] == done["b"] == solo(prompt, 8, ignore_eos=True)
    twins = [blocks for blocks in engine.state().hash_table.values() if len(blocks) == 2]
    assert twins, "both computed the prompt side by side and both are registered"
    # Evict one twin's blocks: exactly those that are handed out next.
    pool, kv = engine.scheduler.kv.pool, engine.scheduler.kv
    one, other = twins[0]
    while kv.pool.blocks[one].key is not None and kv.pool.blocks[other].key is not None:
        pool.release(pool.allocate(1))
    engine.check_integrity()
    assert ask(engine, prompt)[0] == done["a"]


def test_equal_prefixes_inserted_while_both_run_then_evicted_under_pressure(layout):
    """E12, mini-sglang #142, #80, #46: no table points at a freed block (the executor would see foreign content)."""
    engine = scripted_engine(layout, num_gpu_blocks_override=44, max_num_batched_tokens=16, max_model_len=60)
    shared = ids(12)
    expected = {}
    for index in range(12):
        prompt = shared + ids(1 + index % 5, start=index)
        most = 6 + index
        request_id = engine.add_request(prompt, SamplingParams(max_tokens=most, ignore_eos=True))
        expected[request_id] = solo(prompt, most, ignore_eos=True)
    assert run(engine) == expected


def test_next_turn_of_a_chat_computes_only_what_is_new(layout):
    """All full blocks of earlier turns, answers included, are hits."""
    engine = scripted_engine(layout, num_gpu_blocks_override=100, max_model_len=400)
    history: list[int] = []
    computed_before = 0
    for turn in range(6):
        history += ids(7 + turn, start=turn)
        answer, cached, computed = ask(engine, history, SamplingParams(max_tokens=9, ignore_eos=True))
        # The last token of an answer is never computed in its own turn.
        assert cached == computed_before // 4 * 4
        assert computed == len(history) - cached + len(answer) - 1
        history += answer
        computed_before = len(history) - 1


def test_salt_keeps_visitors_apart_and_shares_the_prefix_marked_as_shared():
    engine = scripted_engine(num_gpu_blocks_override=64)
    system, rest = ids(8), ids(9, start=4)
    prompt = system + rest
    assert ask(engine, prompt, cache_salt="ann")[1] == 0
    assert ask(engine, prompt, cache_salt="bob")[1] == 0, "nothing of ann's"
    assert ask(engine, prompt, cache_salt="ann")[1] == 16
    assert ask(engine, prompt)[1] == 0, "unsalted is apart from both"
    assert ask(engine, prompt, cache_salt="carl", shared_prefix_len=8)[1] == 8, "the unsalted system prompt"
    assert ask(engine, prompt, cache_salt="dora", shared_prefix_len=8)[1] == 8, "nothing of carl's own part"
    assert ask(engine, prompt, cache_salt="dora", shared_prefix_len=8)[1] == 16


def test_answers_are_salted_whatever_is_marked_as_shared():
    engine = scripted_engine(num_gpu_blocks_override=64)
    prompt = ids(8)
    answer, _, _ = ask(engine, prompt, cache_salt="ann", shared_prefix_len=1000)
    again = prompt + answer
    assert ask(engine, again, cache_salt="bob", shared_prefix_len=1000)[1] == 8, (
        "the prompt, not ann's answer"
    )
    assert ask(engine, again, cache_salt="ann", shared_prefix_len=8)[1] == 12, "ann's own answer, for ann"


def test_a_group_alone_is_never_a_hit_for_another_group():
    """The key carries the group: full and sliding layers hold other keys and values for the same tokens."""
    engine = scripted_engine((None, 8), num_gpu_blocks_override=64)
    prompt = ids(20)
    ask(engine, prompt)
    groups = {key.split(":")[0] for key in engine.state().hash_table}
    assert groups == {"0", "1"}
    owners = [set(engine.state().hash_table[key]) for key in engine.state().hash_table]
    assert sum(map(len, owners)) == len(set().union(*owners)), "no block is registered for two groups"


def test_hybrid_hit_shrinks_to_what_every_group_can_give():
    """The fixed point: the full group has the whole prefix, the sliding one lost its early window blocks."""
    engine = scripted_engine((None, 8), num_gpu_blocks_override=64)
    prompt = ids(32)
    ask(engine, prompt)
    kv = engine.scheduler.kv
    # Evict the sliding group's blocks 6 and 7 (of 8): the longest hit it can still give ends before them.
    request_hashes = list(_hashes(prompt, 4))
    for index in (6, 5):
        key = next(k for k in kv.prefix_cache.table if k.group == 1 and k.hash == request_hashes[index])
        (block_id,) = kv.prefix_cache.table[key]
        kv.prefix_cache.evict(block_id, key)
        kv.pool.blocks[block_id].key = None
    engine.check_integrity()
    tokens, cached, _ = ask(engine, prompt)
    assert cached == 5 * 4
    assert tokens == solo(prompt, 8, ignore_eos=True)


def _hashes(prompt, block_size):
    parent, result = ROOT_HASH, []
    for start in range(0, len(prompt) - block_size + 1, block_size):
        parent = hash_block(parent, prompt[start : start + block_size])
        result.append(parent)
    return result


def test_freed_blocks_are_hits_until_they_are_handed_out_and_go_in_exact_lru_order():
    engine = scripted_engine(num_gpu_blocks_override=12, max_model_len=48)
    first, second = ids(8), ids(8, start=9)
    ask(engine, first, SamplingParams(max_tokens=1))
    ask(engine, second, SamplingParams(max_tokens=1))
    state = engine.state()
    assert len(state.free) == 12
    cached_in_order = [
        block for block in state.free if any(block in blocks for blocks in state.hash_table.values())
    ]
    # Tail first within a request, older request first.
    assert cached_in_order == [2, 1, 4, 3]
    ask(engine, ids(40, start=2), SamplingParams(max_tokens=1))  # takes ten: the eight unused, then 2 and 1
    assert ask(engine, [*second, EOS + 1], SamplingParams(max_tokens=1))[1] == 8


def test_without_prefix_caching_nothing_is_registered_and_nothing_is_hit(layout):
    engine = scripted_engine(layout, enable_prefix_caching=False)
    prompt = ids(16)
    assert ask(engine, prompt) == ask(engine, prompt) == (solo(prompt, 8, ignore_eos=True), 0, 16 + 7)
    assert engine.state().hash_table == {}
    assert engine.stats().prefix_cache_queries == 0


def test_decode_far_beyond_the_window_keeps_indices_and_holds_few_blocks():
    """E9, tt-metal #45184, vllm #2064: tables keep their index, passed blocks are null and free."""
    engine = scripted_engine((8, 8), num_gpu_blocks_override=16, max_model_len=400)
    engine.add_request(ids(6), SamplingParams(max_tokens=60, ignore_eos=True), request_id="r")
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
        if "r" in engine.scheduler.requests:
            (table,) = engine.state().requests["r"].tables
            computed = engine.state().requests["r"].num_computed_tokens
            assert len(table) == -(-computed // 4)
            assert sum(block != 0 for block in table) <= 4
