"""Weights laid out for the CPU's kernels give what the plain ones give, within one rounding of bfloat16."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from micro_vllm.layers.linear import Linear
from micro_vllm.layers.prepacked import PrepackedProduct, can_prepack
from micro_vllm.llm import LLM
from micro_vllm.model_loader import load_model
from micro_vllm.sampling.params import SamplingParams
from tests.engine.support.models import save_tiny_model

ROUNDING = 2.0**-7
"""Relative: one unit in the last place of bfloat16, since both accumulate in float32 and round once."""

needs_bfloat16 = pytest.mark.skipif(
    not can_prepack(torch.empty(1, 1, dtype=torch.bfloat16)),
    reason="this CPU has no bfloat16 kernels; weights stay plain on it",
)


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_product_equals_the_plain_one(rows, bias):
    torch.manual_seed(rows)
    weight = torch.randn(96, 80).bfloat16()
    offset = torch.randn(96).bfloat16() if bias else None
    x = torch.randn(rows, 160).bfloat16()[:, ::2]  # not contiguous
    packed = PrepackedProduct(weight)
    with torch.inference_mode():
        plain = F.linear(x, weight, offset).float()
        torch.testing.assert_close(packed(x, offset).float(), plain, rtol=ROUNDING, atol=ROUNDING)


@needs_bfloat16
def test_a_packed_layer_keeps_one_copy_and_still_tells_its_size():
    layer = Linear(64, 32, dtype=torch.bfloat16, device="cpu")
    layer.weight.data.normal_()
    layer.prepack()
    assert layer.weight.is_meta
    assert layer.weight.shape == (32, 64)
    layer.prepack()  # once more changes nothing


@needs_bfloat16
@pytest.mark.parametrize("tied", [True, False])
def test_model_gives_the_same_logits_packed_and_plain(tmp_path, tied):
    folder = save_tiny_model(tmp_path, tie_word_embeddings=tied, dtype=torch.bfloat16, seed=2)
    packed = load_model(folder, skip_tokenizer_init=True)
    plain = load_model(folder, skip_tokenizer_init=True, prepack=False)
    assert packed.num_parameters == plain.num_parameters
    settings = {"num_gpu_blocks_override": 64, "max_model_len": 64}
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, ignore_eos=True)
    prompts = [[5, 6, 7], [9] * 20, [3]]
    for one, other in zip(
        LLM(packed, **settings).generate(prompts, params, use_tqdm=False),
        LLM(plain, **settings).generate(prompts, params, use_tqdm=False),
        strict=True,
    ):
        mine, theirs = one.outputs[0].logprobs[0], other.outputs[0].logprobs[0]
        shared = mine.keys() & theirs.keys()
        assert len(shared) >= 4
        for token_id in shared:
            # Through three layers of roundings, on logits of up to about 30.
            assert mine[token_id].logprob == pytest.approx(theirs[token_id].logprob, abs=0.5)


def test_float32_is_never_packed(tmp_path):
    """There every bit is compared with the reference."""
    loaded = load_model(save_tiny_model(tmp_path), skip_tokenizer_init=True)
    assert loaded.dtype == torch.float32
    assert not any(parameter.is_meta for parameter in loaded.model.parameters())
