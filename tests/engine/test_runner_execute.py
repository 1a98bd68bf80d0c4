"""The runner and its executor on a tiny random Llama, driven by plans written by hand.

float32: outputs of different batchings are compared token by token.
"""

import pytest
import torch

from micro_vllm.attention.operators import registry
from micro_vllm.config import EngineConfig, form_cache_groups
from micro_vllm.core.scheduler_output import ExecutionPlan
from micro_vllm.errors import ConfigError, EngineClosedError, IntegrityError
from micro_vllm.executor.single_process import SingleProcessExecutor
from micro_vllm.model_loader.loaded import LoadedModel, load_model
from tests.engine.support.models import (
    load_transformers,
    save_tiny_model,
    transformers_greedy,
    transformers_logits,
)
from tests.engine.support.plans import PlanWriter

PROMPTS = {
    "a": [5, 17, 99, 3, 42, 8, 8, 120, 7],
    "b": [11, 12, 13, 14],
    "c": [150, 9, 77, 31, 2, 64, 18, 90, 33, 45, 101, 7, 6],
    "d": [66],
}
SAMPLING = {
    "a": {},
    "b": {"temperature": 0.9, "seed": 5, "top_p": 0.9},
    "c": {"temperature": 1.2, "seed": -9, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "d": {"temperature": 0.8, "seed": 5, "top_k": 20, "bad_words_token_ids": ((4,), (9, 9))},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def loaded(folder) -> LoadedModel:
    return load_model(folder, skip_tokenizer_init=True)


@pytest.fixture(scope="module")
def alone(loaded) -> dict[str, list[int]]:
    """Twelve tokens of every request, each the only one of an executor of its own."""
    return {name: _fresh(loaded, [name]).run(name, 12) for name in PROMPTS}


def _fresh(loaded: LoadedModel, names, **settings) -> PlanWriter:
    writer = PlanWriter(loaded, **settings)
    for name in names:
        writer.add(name, PROMPTS[name], **SAMPLING[name])
    return writer


def test_greedy_tokens_are_those_of_transformers(folder, alone):
    assert alone["a"] == transformers_greedy(load_transformers(folder), PROMPTS["a"], 12)


def test_raw_logprobs_are_those_of_transformers(folder, loaded):
    """E14, vllm #9453: under temperature and penalties. Tolerance 1e-4."""
    writer = PlanWriter(loaded)
    writer.add("x", PROMPTS["c"], temperature=1.5, seed=3, repetition_penalty=1.7, num_logprobs=4)
    output = writer.run("x", 6)
    logits = transformers_logits(load_transformers(folder), PROMPTS["c"] + output)
    expected = logits[len(PROMPTS["c"]) - 1 :].log_softmax(-1)
    for index, result in enumerate(writer.results):
        found = result.logprobs["x"]
        assert found.token_ids[0] == output[index]
        assert found.logprobs == pytest.approx(expected[index, list(found.token_ids)].tolist(), abs=1e-4)
        assert list(found.token_ids[1:]) == expected[index].topk(4).indices.tolist()


def test_prefills_and_decodes_in_one_batch_equal_each_alone(loaded, alone):
    writer = _fresh(loaded, PROMPTS)
    writer.step({"b": None})
    writer.step({"c": None, "b": None})  # a prefill before a decode in the plan
    writer.step({"d": None, "a": None, "b": None, "c": None})
    while any(len(r.output) < 12 for r in writer.requests.values()):
        writer.step({name: None for name, r in writer.requests.items() if len(r.output) < 12})
    assert {name: r.output for name, r in writer.requests.items()} == alone


@pytest.mark.parametrize("chunk", [1, 3, 4, 5])
def test_a_prompt_in_chunks_equals_the_whole(loaded, alone, chunk):
    writer = _fresh(loaded, ["c"])
    for start in range(0, len(PROMPTS["c"]), chunk):
        result = writer.step({"c": min(chunk, len(PROMPTS["c"]) - start)})
        finished = start + chunk >= len(PROMPTS["c"])
        assert list(result.token_ids) == (["c"] if finished else [])
    assert writer.run("c", 12) == alone["c"]


def test_a_resumed_request_goes_on_as_if_never_preempted(loaded, alone):
    """Its blocks pass through another request's hands in between."""
    writer = _fresh(loaded, ["a", "c"])
    writer.run("c", 5)
    writer.preempt("c")
    writer.run("a", 8)
    writer.preempt("a")
    writer.step({"c": 6})  # recompute in chunks
    writer.step({"c": 7})
    assert writer.run("c", 12) == alone["c"]
    assert writer.run("a", 12) == alone["a"]


def test_seeded_requests_do_not_depend_on_order_or_company(loaded, alone):
    """E15, vllm #17524."""
    for order in (["d", "c", "b", "a"], ["c", "a", "d"], ["b", "d"]):
        writer = _fresh(loaded, order)
        for _ in range(12):
            writer.step(dict.fromkeys(order))
            order = order[::-1]
        assert {name: writer.requests[name].output for name in order} == {n: alone[n] for n in order}


def test_two_executors_over_one_loaded_model_do_not_interfere(loaded, alone):
    before = {name: p.clone() for name, p in loaded.model.named_parameters()}
    one = _fresh(loaded, ["a", "b"], block_size=4)
    other = _fresh(loaded, ["c", "d"], block_size=8, attention="reference")
    for _ in range(12):
        one.step({"a": None, "b": None})
        other.step({"d": None, "c": None})
    found = {name: r.output for writer in (one, other) for name, r in writer.requests.items()}
    assert found == alone
    one.executor.close()
    assert other.step({"c": None}).token_ids.keys() == {"c"}
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_fresh_blocks_carry_nothing_of_their_former_owner(loaded, alone):
    """A former owner's NaN must not reach whoever gets the block, nor a slot that is masked."""
    writer = _fresh(loaded, ["a", "b"])
    writer.executor._worker._runner.cache.data[:, :, 1:] = float("nan")
    assert writer.run("a", 12) == alone["a"]
    assert writer.run("b", 12) == alone["b"]


def test_slots_not_written_yet_are_zero(loaded):
    """The invariant of PagedKVCache, which attention operators may lean on."""
    writer = _fresh(loaded, ["a"])
    cache = writer.executor._worker._runner.cache
    cache.data[:, :, 1:] = 7.0
    writer.step({"a": None})  # 9 tokens: two full blocks and one slot of the third
    first, _, last = writer.requests["a"].blocks[0]
    assert not cache.data[:, :, last, 1:].any()
    assert cache.data[:, :, last, 0].any()
    assert not (cache.data[:, :, first] == 7.0).any()
    assert (cache.data[:, :, writer.free] == 7.0).all()  # blocks of nobody are left alone
    before = cache.data.clone()
    writer.step({"a": None})  # a decode without a new block clears nothing
    changed = (cache.data != before).flatten(4).any(-1)[0, 0].nonzero().tolist()
    assert changed == [[last, 1]]


def test_a_plan_without_tokens_only_drops_rows(loaded):
    writer = _fresh(loaded, ["a", "b"])
    writer.step({"a": None, "b": None})
    writer.finish("a")
    writer.preempt("b")
    result = writer.step({})
    assert (dict(result.token_ids), dict(result.failed)) == ({}, {})
    assert result.timings.forward == 0
    assert writer.executor._worker._runner.batch.request_ids == ()


def test_a_request_with_nan_fails_alone(loaded, alone, monkeypatch):
    writer = _fresh(loaded, ["a", "b"])
    compute = type(loaded.model).compute_logits

    def spoiled(model, hidden):
        logits = compute(model, hidden)
        logits[1] = float("nan")
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(type(loaded.model), "compute_logits", spoiled)
        result = writer.step({"a": None, "b": None})
    assert dict(result.token_ids) == {"a": alone["a"][0]}
    assert set(result.failed) == {"b"}
    assert "not finite" in result.failed["b"]
    writer.finish("b")
    assert writer.run("a", 12) == alone["a"]


def test_a_step_that_raises_leaves_the_others_whole(loaded, alone, monkeypatch):
    """The engine finishes the requests of the failed step; the rest goes on, and an id may come back."""
    writer = _fresh(loaded, ["a", "b", "c"])
    writer.step({"a": None})
    writer.step({"a": None, "b": None})

    def fails(*args):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(loaded.model), "forward", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            writer.step({"b": None, "c": None})
    for name in ("b", "c"):
        writer.finish(name)
    assert writer.run("a", 6) == alone["a"][:6]
    assert writer.executor._worker._runner.batch.request_ids == ("a",)
    writer.add("c", PROMPTS["c"], **SAMPLING["c"])
    assert writer.run("c", 12) == alone["c"]
    assert writer.run("a", 12) == alone["a"]


def test_logits_are_computed_only_where_a_token_is_drawn(loaded, monkeypatch):
    rows = []
    compute = type(loaded.model).compute_logits
    monkeypatch.setattr(
        type(loaded.model),
        "compute_logits",
        lambda model, hidden: rows.append(len(hidden)) or compute(model, hidden),
    )
    writer = _fresh(loaded, ["a", "b", "c"])
    writer.step({"a": None, "c": 5})
    writer.step({"c": 4})
    writer.step({"a": None, "b": None, "c": None})
    assert rows == [1, 3]


def test_the_result_says_what_ran(loaded):
    writer = _fresh(loaded, ["a"], attention="reference")
    result = writer.step({"a": None})
    assert result.operator == "reference"
    assert min(result.timings.build, result.timings.forward, result.timings.sample) > 0
    assert _fresh(loaded, ["a"]).step({"a": None}).operator == registry.DEFAULT_OPERATOR


# ------------------------------------------------------------ padding, windows


def test_embedding_rows_beyond_the_tokenizer_are_never_drawn(tmp_path):
    """E25, vllm #16529: 260 rows, but the tokenizer knows fewer."""
    folder = save_tiny_model(tmp_path, vocab_size=400, tokenizer=True, initializer_range=0.02)
    loaded = load_model(folder)
    known = loaded.tokenizer.vocab_size
    assert known < 400
    writer = PlanWriter(loaded, max_num_seqs=64, num_blocks=128)
    for seed in range(60):
        writer.add(f"r{seed}", [5, 6, 7], temperature=5.0, seed=seed)
    seen = set()
    for _ in range(4):
        seen |= set(writer.step(dict.fromkeys(writer.requests)).token_ids.values())
    assert max(seen) < known
    assert len(seen) > 100  # nearly uniform: about 240 draws over the known ids


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_hybrid_windows_run_through_their_own_tables(tmp_path, attention):
    """Full and sliding layers of one model in groups of their own; blocks never freed here."""
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    folder = save_tiny_model(
        tmp_path, "qwen3", num_hidden_layers=4, layer_types=types, sliding_window=6,
        use_sliding_window=True, max_window_layers=0, head_dim=8,
    )  # fmt: skip
    loaded = load_model(folder, skip_tokenizer_init=True)
    assert loaded.config.layer_windows == (None, 6, 6, None)
    writer = PlanWriter(loaded, attention=attention)
    assert len(writer.groups) == 2
    writer.add("x", PROMPTS["c"])
    assert writer.run("x", 10) == transformers_greedy(load_transformers(folder), PROMPTS["c"], 10)


# ------------------------------------------------------------ the executor


def test_an_unknown_attention_operator_is_told_before_any_cache_is_made(loaded):
    with pytest.raises(ConfigError, match=r"'flash'.*reference"):
        SingleProcessExecutor(loaded, EngineConfig(attention="flash"), 64)


def test_another_device_than_the_models_is_refused(loaded):
    with pytest.raises(ConfigError, match="loaded on 'cpu'"):
        SingleProcessExecutor(loaded, EngineConfig(device="cuda"), 64)


def test_block_sizes_and_counts_add_up_to_the_memory(loaded):
    config = EngineConfig()
    executor = SingleProcessExecutor(loaded, config, 64)
    groups = form_cache_groups(loaded.config.layer_windows)
    # 3 layers, keys and values, 16 slots, 2 heads of 8, 4 bytes
    block = 3 * 2 * 16 * 2 * 8 * 4
    assert executor.block_bytes(groups, 16) == block
    assert executor.num_blocks_that_fit(groups, 16, 10 * block) == 9  # one is the null block
    assert executor.num_blocks_that_fit(groups, 16, block - 1) == 0
    executor.initialize_cache(groups, 16, 9)
    assert executor._worker._runner.cache.num_bytes == 10 * block


def test_a_closed_executor_says_so(loaded):
    executor = SingleProcessExecutor(loaded, EngineConfig(), 64)
    plan = ExecutionPlan(step=1, scheduled=())
    with pytest.raises(EngineClosedError, match="initialize_cache"):
        executor.execute(plan)
    executor.initialize_cache(form_cache_groups(loaded.config.layer_windows), 16, 4)
    executor.execute(plan)
    executor.close()
    with pytest.raises(EngineClosedError):
        executor.execute(plan)


def test_more_tokens_than_the_budget_are_refused(loaded):
    writer = PlanWriter(loaded, max_model_len=512, num_blocks=128)
    writer.add("long", [3] * 257)
    with pytest.raises(IntegrityError, match="max_num_batched_tokens=256"):
        writer.step({"long": None})
