"""The whole engine on tiny random models: the same greedy tokens in every mode, and those are transformers'."""

from __future__ import annotations

import random

import pytest

from micro_vllm.llm import LLM
from micro_vllm.model_loader import load_model
from micro_vllm.sampling.params import SamplingParams
from tests.engine.support.models import load_transformers, save_tiny_model, transformers_greedy

MODELS = {
    "llama": {"family": "llama"},
    "mistral sliding": {"family": "mistral", "sliding_window": 9},
    "qwen3 hybrid": {
        "family": "qwen3",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 0,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
}
LENGTHS = (1, 5, 16, 17, 31, 33, 48, 50)
NUM_NEW = 24
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
SEEDED = [
    SamplingParams(temperature=1.2, top_p=0.9, seed=seed, max_tokens=NUM_NEW, ignore_eos=True)
    for seed in range(len(LENGTHS))
]
BASE = {
    "block_size": 4,
    "max_model_len": 128,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 600,
    "dtype": "float32",
}
MODES = {
    "prefix caching off": {"enable_prefix_caching": False},
    "chunks of 1": {"max_num_batched_tokens": 1, "max_num_seqs": 1},
    "chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    "chunks of 16": {"max_num_batched_tokens": 16},
    "one at a time": {"max_num_seqs": 1},
    "reference attention": {"attention": "reference"},
    "no chunked prefill": {"enable_chunked_prefill": False},
    "big blocks": {"block_size": 16},
    "tiny blocks": {"block_size": 1, "num_gpu_blocks_override": 2400},
    "priority": {"scheduling_policy": "priority"},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """(loaded model, prompts, transformers' greedy answers, our seeded answers in the base mode)."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), seed=5, **MODELS[request.param])
    rng = random.Random(7)
    shared = [rng.randrange(3, 199) for _ in range(30)]
    prompts = [shared[: n // 2] + [rng.randrange(3, 199) for _ in range(n - n // 2)] for n in LENGTHS]
    reference = load_transformers(folder)
    greedy = [transformers_greedy(reference, prompt, NUM_NEW) for prompt in prompts]
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    seeded = answers(LLM(loaded, **BASE), prompts, SEEDED)
    return loaded, prompts, greedy, seeded


def answers(llm: LLM, prompts, params):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.check_integrity()
    stats = llm.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_greedy_equals_transformers_and_a_warm_cache_changes_nothing(model):
    loaded, prompts, greedy, seeded = model
    llm = LLM(loaded, **BASE)
    assert answers(llm, prompts, GREEDY) == greedy
    assert answers(llm, prompts, GREEDY) == greedy, "now every full block is a hit"
    assert llm.stats().prefix_cache_hits > 0
    assert answers(llm, prompts, SEEDED) == seeded
    assert len({tuple(answer) for answer in seeded}) == len(seeded)


@pytest.mark.parametrize("mode", MODES)
def test_same_tokens_in_every_mode(model, mode):
    loaded, prompts, greedy, seeded = model
    llm = LLM(loaded, **{**BASE, **MODES[mode]})
    assert answers(llm, prompts, GREEDY) == greedy
    assert answers(llm, prompts, SEEDED) == seeded, "the noise depends on seed and output index only"


def test_same_tokens_in_a_pool_so_small_that_it_preempts(model):
    loaded, prompts, greedy, seeded = model
    only_windows = None not in loaded.config.layer_windows
    pool = 8 if only_windows else 46
    llm = LLM(loaded, **{**BASE, "num_gpu_blocks_override": pool, "max_num_batched_tokens": 16})
    preempted = count_preemptions(llm)
    assert answers(llm, prompts, GREEDY) == greedy
    assert answers(llm, prompts, SEEDED) == seeded
    # With windows in all layers a request soon holds all it ever will: admission alone avoids preemption.
    assert (len(preempted) > 0) != only_windows


def count_preemptions(llm: LLM) -> list[str]:
    preempted: list[str] = []
    schedule = llm.engine.scheduler.schedule

    def counting(step):
        plan = schedule(step)
        preempted.extend(plan.preempted_ids)
        return plan

    llm.engine.scheduler.schedule = counting
    return preempted


def test_order_and_company_do_not_change_a_seeded_request(model):
    """E15, vllm #17524."""
    loaded, prompts, _, seeded = model
    llm = LLM(loaded, **BASE)
    order = [3, 0, 7, 5, 1, 6, 2, 4]
    shuffled = answers(llm, [prompts[i] for i in order], [SEEDED[i] for i in order])
    assert shuffled == [seeded[i] for i in order]
    alone = [answers(LLM(loaded, **BASE), [prompts[i]], SEEDED[i])[0] for i in (2, 6)]
    assert alone == [seeded[2], seeded[6]]


def test_two_engines_over_one_loaded_model_run_side_by_side(model):
    loaded, prompts, greedy, _ = model
    one = LLM(loaded, **BASE)
    two = LLM(loaded, **{**BASE, "block_size": 16, "num_gpu_blocks_override": 64})
    weights = {parameter.data_ptr() for parameter in loaded.model.parameters()}
    streams = [one.stream(prompts[6], GREEDY), two.stream(prompts[7], GREEDY)]
    last = [None, None]
    for pair in zip(*streams, strict=True):  # one step of each in turn
        last = pair
    assert [list(output.outputs[0].token_ids) for output in last] == [greedy[6], greedy[7]]
    assert {parameter.data_ptr() for parameter in one.loaded.model.parameters()} == weights
    one.close()
    assert answers(two, prompts[:2], GREEDY) == greedy[:2], "closing one leaves the other whole"
