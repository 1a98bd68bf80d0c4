"""The real model: SmolLM2-135M-Instruct, in float32 against transformers, and in the dtype people run."""

from __future__ import annotations

import pytest
import torch

from micro_vllm import LLM, SamplingParams
from micro_vllm.model_loader import load_model

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

NUM_NEW = 64
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "Q: What is 12 times 12?\nA:",
    "Die Hauptstadt von Deutschland ist",
    "The three laws of thermodynamics are:\n1.",
    "Dear Sir or Madam,\n\nI am writing to",
]


@pytest.fixture(scope="module", autouse=True)
def _all_cores():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def float32(smollm2_folder):
    return load_model(smollm2_folder, dtype="float32")


@pytest.fixture(scope="module")
def bfloat16(smollm2_folder):
    return load_model(smollm2_folder)


@pytest.fixture(scope="module")
def expected(smollm2_folder):
    """transformers' own greedy answers, eager attention, one prompt at a time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model = AutoModelForCausalLM.from_pretrained(
        smollm2_folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = model.generate(
                ids, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )  # fmt: skip
        answers.append(out[0, ids.shape[1] :].tolist())
    return answers


def tokens(outputs):
    return [list(output.outputs[0].token_ids) for output in outputs]


def finish(llm):
    llm.check_integrity()
    assert llm.stats().num_free_blocks == llm.stats().num_blocks


def test_64_greedy_tokens_on_8_prompts_equal_transformers(float32, expected):
    llm = LLM(float32, num_gpu_blocks_override=256)
    assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected, "warm"
    finish(llm)


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "reference", "enable_prefix_caching": False},
        {"max_num_batched_tokens": 7, "max_num_seqs": 7},
        {"num_gpu_blocks_override": 24, "max_model_len": 256},
    ],
    ids=["reference attention, no prefix cache", "chunks of 7", "preempting"],
)
def test_same_tokens_in_other_modes(float32, expected, settings):
    llm = LLM(float32, **{"num_gpu_blocks_override": 256, **settings})
    assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    finish(llm)


def test_chat_about_france_names_paris(bfloat16):
    llm = LLM(bfloat16, num_gpu_blocks_override=128)
    (output,) = llm.chat(
        [{"role": "user", "content": "What is the capital of France?"}],
        SamplingParams(temperature=0, max_tokens=48),
        use_tqdm=False,
    )
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    assert "<|im_end|>" not in output.outputs[0].text
    finish(llm)


def test_next_turn_recomputes_only_what_is_new_at_temperature_1(bfloat16):
    """All full blocks of earlier turns, answers included, are hits: the ids of answers are kept."""
    llm = LLM(bfloat16, num_gpu_blocks_override=256)
    messages, full_before, round_trips = [], 0, []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Tell me fact number {turn} about whales."})
        params = SamplingParams(temperature=1.0, seed=turn + 20, max_tokens=40)
        (output,) = llm.chat(messages, params, use_tqdm=False)
        assert output.num_cached_tokens == full_before
        completion = output.outputs[0]
        messages.append(
            {"role": "assistant", "content": completion.text, "token_ids": list(completion.token_ids)}
        )
        tokenizer = llm.get_tokenizer()
        again = tokenizer.encode(tokenizer.decode(completion.token_ids), add_special_tokens=False)
        round_trips.append(again == list(completion.token_ids)[: len(again)])
        full_before = (len(output.prompt_token_ids) + len(completion.token_ids) - 1) // 16 * 16
    assert full_before > 16
    finish(llm)


def test_requests_with_different_settings_share_one_batch(bfloat16):
    llm = LLM(bfloat16, num_gpu_blocks_override=256, max_num_seqs=8)
    params = [
        SamplingParams(temperature=0, max_tokens=12),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=12, repetition_penalty=1.2),
        SamplingParams(temperature=1.0, top_k=30, min_p=0.05, seed=2, max_tokens=12, logprobs=3),
        SamplingParams(max_tokens=12, stop=["\n"], bad_words=["the"], seed=3),
    ]
    together = tokens(llm.generate(PROMPTS[:4], params, use_tqdm=False))
    assert all(0 < len(answer) <= 12 for answer in together)
    finish(llm)
