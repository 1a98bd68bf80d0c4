"""The native decoder against the readable one: same weights, same batches, a stated tolerance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from micro_vllm import LLM, SamplingParams
from micro_vllm.attention.attention import PagedKVCache
from micro_vllm.config import form_cache_groups
from micro_vllm.errors import ConfigError
from micro_vllm.model_loader import load_model
from micro_vllm.model_loader.default import iter_weights
from micro_vllm.native import compile as native_compile
from micro_vllm.native.compile import NativeUnavailableError
from micro_vllm.native.decoder import NativeDecoder
from micro_vllm.native.maxima import RowMaxima
from micro_vllm.native.prepare import check_native, prepare_native
from micro_vllm.native.quantize import GROUP, dequantize, interleave, quantize, quantize_activations
from tests.engine.support.models import save_tiny_model
from tests.engine.support.native import needs_native

SHAPE = {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 192, "initializer_range": 0.12}
VARIANTS = {
    "llama, 3 query heads to a kv head": (
        "llama", {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    ),
    "llama, a kv head each, biases": (
        "llama", {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "attention_bias": True},
    ),
    "mistral, window 21": (
        "mistral", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 21},
    ),
    "qwen3, full and sliding, head 128": (
        "qwen3",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "use_sliding_window": True,
         "sliding_window": 19, "max_window_layers": 0, "num_hidden_layers": 4,
         "layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
}  # fmt: skip
TOLERANCE = 0.5
"""Tokens may part only where the reference's top two logits are closer than this."""


@pytest.fixture(scope="module", params=list(VARIANTS), ids=lambda name: name)
def folder(request, tmp_path_factory):
    family, config = VARIANTS[request.param]
    path = tmp_path_factory.mktemp("native") / family
    return save_tiny_model(path, family, dtype=torch.bfloat16, **{**SHAPE, **config})


def reference_llm(folder, **settings) -> LLM:
    """The model in PyTorch, float32, with the very weights and rounded inputs of the int8 products."""
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    for module in loaded.model.modules():
        weight = getattr(module, "weight", None)
        if weight is not None and weight.dim() == 2 and not isinstance(module, torch.nn.Embedding):
            if type(module).__name__ == "TokenEmbedding":
                continue
            weight.data = dequantize(quantize(weight.data.bfloat16()))
            module.register_forward_pre_hook(lambda _, inputs: (quantize_activations(inputs[0]),))
    head = loaded.model.lm_head
    if head is None:
        tied = dequantize(quantize(loaded.model.model.embed_tokens.weight.data.bfloat16()))
        loaded.model.compute_logits = lambda hidden: F.linear(quantize_activations(hidden), tied)
    return LLM(loaded, skip_tokenizer_init=True, **settings)


def native_llm(folder) -> LLM:
    return LLM(str(folder), skip_tokenizer_init=True, execution="native", num_gpu_blocks_override=64)


def greedy(llm: LLM, prompts: list[list[int]], max_tokens: int = 24) -> list:
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, logprobs=2
    )
    outs = llm.generate(prompts, params, use_tqdm=False)
    llm.check_integrity()
    return outs


def assert_part_only_at_near_ties(ours, reference) -> int:
    """How many tokens agreed."""
    agreed = 0
    for a, b in zip(ours, reference, strict=True):
        for i, (x, y) in enumerate(zip(a.outputs[0].token_ids, b.outputs[0].token_ids, strict=True)):
            if x != y:
                best, second = sorted((p.logprob for p in b.outputs[0].logprobs[i].values()), reverse=True)[
                    :2
                ]
                assert best - second < TOLERANCE, (i, x, y, best, second)
                break
            agreed += 1
    return agreed


PROMPTS = [[(7 * i * i + 3 * j) % 300 + 3 for i in range(n)] for j, n in enumerate((5, 33, 70, 2))]


# ---------------------------------------------------------------- int8


def test_a_weight_is_its_int8_values_within_half_a_level():
    weight = torch.randn(64, 256)
    matrix = quantize(weight)
    level = weight.view(64, -1, GROUP).abs().amax(-1, keepdim=True) / 127
    level *= 1 + 2**-10  # scales are float16, and rounded up
    assert ((dequantize(matrix) - weight).view(64, -1, GROUP).abs() <= level * 0.5001).all()
    assert matrix.data.amin() >= 1
    assert matrix.shape == (64, 256)
    assert (dequantize(quantize(torch.zeros(32, 64))) == 0).all()
    faint = dequantize(quantize(torch.full((32, 64), 1e-6)))  # its scale is among the least that float16 has
    assert ((faint - 1e-6).abs() <= 2**-25).all()


def test_gate_and_up_alternate_by_sixteen():
    rows = torch.arange(96)[:, None]
    order = interleave(rows).flatten().tolist()
    assert order[:34] == [*range(16), *range(48, 64), 16, 17]
    assert sorted(order) == list(range(96))


@needs_native
def test_all_weights_lie_in_one_piece_of_memory_in_the_order_of_a_step(folder):
    weights = prepare_native(load_model(folder, skip_tokenizer_init=True)).weights
    layer = weights.layers[0]
    tensors = [layer.qkv.data, layer.qkv.scale, layer.out.data, layer.down.data, layer.input_norm]
    tensors += [weights.layers[1].qkv.data, weights.norm, weights.head.data, weights.head.scale]
    places = [tensor.data_ptr() for tensor in tensors]
    assert places == sorted(places)
    assert places[-1] - places[0] < 1.1 * weights.num_bytes
    assert all((place - places[0]) % 64 == 0 for place in places)


# ---------------------------------------------------------------- parity


@needs_native
def test_logits_of_the_head_are_the_exact_product_of_the_rounded_values(folder):
    loaded = load_model(folder, skip_tokenizer_init=True)
    parts = prepare_native(loaded)
    llm = LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=16)
    llm.engine.use_native(parts)
    decoder = llm.engine.executor._worker._runner._model
    for rows in (1, 2, 5, 6, 7, 13):
        hidden = torch.randn(rows, loaded.config.hidden_size)
        normed = F.rms_norm(hidden, hidden.shape[1:], parts.weights.norm, loaded.config.rms_norm_eps)
        wanted = F.linear(quantize_activations(normed), dequantize(parts.weights.head))
        torch.testing.assert_close(decoder.compute_logits(hidden), wanted, rtol=1e-4, atol=2e-2)


@needs_native
@pytest.mark.parametrize("num_valid", [1, 40, 97, 100_000])
@pytest.mark.parametrize("count", [1, 2, 7, 32])
def test_the_head_finds_the_maxima_of_its_logits(folder, count, num_valid):
    """Also among equals the first, of ids that count only, and NaN where a row holds one."""
    loaded = load_model(folder, dtype="bfloat16", skip_tokenizer_init=True)
    parts = prepare_native(loaded)
    maxima = RowMaxima(num_valid)
    groups = form_cache_groups(loaded.config.layer_windows)
    cache = PagedKVCache(groups, 16, 1, loaded.config.num_kv_heads, loaded.config.head_dim, torch.bfloat16)
    decoder = NativeDecoder(parts.library, loaded.model, parts.weights, cache, groups, maxima)
    hidden = torch.randn(count, loaded.config.hidden_size, generator=torch.Generator().manual_seed(count))
    hidden[count // 2] = 0  # all of its logits are equal
    if count > 2:
        hidden[-1, 3] = torch.nan
    logits = decoder.compute_logits(hidden)[:, :num_valid]
    assert maxima.take(logits)
    values, ids = (array.copy() for array in maxima.arrays)
    assert not maxima.take(logits), "only once"
    whole = count - (count > 2)
    assert values[:whole].tolist() == logits[:whole].amax(1).tolist()
    assert ids[:whole].tolist() == logits[:whole].numpy().argmax(1).tolist()
    if count > 2:
        assert np.isnan(values[-1])
    maxima.fill(parts.library, logits, threads=2)
    again = maxima.arrays
    assert np.array_equal(again[0], values, equal_nan=True)
    assert np.array_equal(again[1], ids)


@needs_native
def test_greedy_tokens_part_from_the_reference_only_at_near_ties(folder):
    reference = greedy(reference_llm(folder, num_gpu_blocks_override=64), PROMPTS)
    ours = greedy(native_llm(folder), PROMPTS)
    agreed = assert_part_only_at_near_ties(ours, reference)
    assert agreed > 24, "agreement of a few tokens would prove nothing"


@needs_native
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 16},
        {"block_size": 4, "num_gpu_blocks_override": 120},
        {"max_num_seqs": 1},
    ],
    ids=str,
)
def test_every_mode_gives_the_same_tokens_but_for_near_ties(folder, settings):
    whole = greedy(native_llm(folder), PROMPTS)
    settings = {"num_gpu_blocks_override": 64, **settings}
    ours = greedy(LLM(str(folder), skip_tokenizer_init=True, execution="native", **settings), PROMPTS)
    assert assert_part_only_at_near_ties(ours, whole) > 24


@needs_native
@pytest.mark.parametrize("threads", [2, 3], ids="{} threads".format)
def test_any_number_of_threads_gives_the_very_same_numbers(folder, threads):
    """3 are more than two cores have: some sleep while they wait for others."""
    prompts = [
        PROMPTS[:1],
        PROMPTS[1:3],
        PROMPTS,
    ]  # rows that every thread prepares for itself, and shared ones
    wanted = [out for some in prompts for out in greedy(native_llm(folder), some)]
    torch.set_num_threads(threads)
    try:
        found = [out for some in prompts for out in greedy(native_llm(folder), some)]
    finally:
        torch.set_num_threads(1)
    for ours, one in zip(found, wanted, strict=True):
        assert ours.outputs[0].token_ids == one.outputs[0].token_ids
        assert ours.outputs[0].logprobs == one.outputs[0].logprobs


@needs_native
@pytest.mark.parametrize("threads", [1, 3], ids="{} threads".format)
def test_a_long_context_is_cut_into_parts_with_the_same_result(tmp_path, threads):
    """A single decode over many keys runs in parts along them; a batch does not."""
    folder = save_tiny_model(
        tmp_path / "long", dtype=torch.bfloat16, max_position_embeddings=1024,
        **{**SHAPE, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    )  # fmt: skip
    prompt = [(5 * i) % 300 + 3 for i in range(700)]
    reference = greedy(reference_llm(folder, num_gpu_blocks_override=64), [prompt], 16)
    torch.set_num_threads(threads)
    try:
        ours = greedy(native_llm(folder), [prompt], 16)
    finally:
        torch.set_num_threads(1)
    assert assert_part_only_at_near_ties(ours, reference) > 3


# ---------------------------------------------------------------- taking over


@needs_native
def test_it_takes_over_between_two_steps_of_running_requests(folder):
    loaded = load_model(folder, skip_tokenizer_init=True)
    parts = prepare_native(loaded)
    eager = LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=64)
    wanted = greedy(eager, PROMPTS[:2])
    llm = LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=64)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False, logprobs=2)
    stream = llm.stream(PROMPTS[1], params)
    next(stream)
    llm.engine.use_native(parts)
    *_, last = stream
    assert len(last.outputs[0].token_ids) == 24
    llm.check_integrity()
    assert_part_only_at_near_ties([last], [wanted[1]])


@needs_native
def test_slots_that_were_not_written_are_not_read(folder):
    """Native steps do not clear fresh blocks: what a former owner left there, NaN even, must not matter."""
    loaded = load_model(folder, skip_tokenizer_init=True)
    parts = prepare_native(loaded)
    answers = []
    for left_behind in (0.0, float("nan")):
        llm = LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=64)
        llm.engine.use_native(parts)
        llm.engine.executor._worker._runner.cache.data[:, :, 1:] = left_behind
        answers.append([output.outputs[0].token_ids for output in greedy(llm, PROMPTS)])
    assert answers[0] == answers[1]


@needs_native
def test_a_decode_calls_pytorch_for_nothing_that_it_can_keep(folder):
    """Between two sweeps over the weights every call of torch costs tens of microseconds."""
    loaded = load_model(folder, skip_tokenizer_init=True)
    llm = LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=64, block_size=64)
    llm.engine.use_native(prepare_native(loaded))
    params = SamplingParams(temperature=0.7, max_tokens=24, ignore_eos=True, detokenize=False)
    for prompt in PROMPTS[:2]:
        llm.engine.add_request({"prompt_token_ids": prompt[:20]}, params)
    for _ in range(4):
        llm.engine.step()
    with torch.profiler.profile() as profile:
        for _ in range(8):
            llm.engine.step()
    assert [event.name for event in profile.events() if event.name.startswith("aten::")] == []


@needs_native
def test_engines_share_one_copy_of_the_int8_weights(folder):
    loaded = load_model(folder, skip_tokenizer_init=True)
    parts = prepare_native(loaded)
    engines = [LLM(loaded, skip_tokenizer_init=True, num_gpu_blocks_override=16) for _ in range(2)]
    for llm in engines:
        llm.engine.use_native(parts)
    decoders = [llm.engine.executor._worker._runner._model for llm in engines]
    assert decoders[0]._weights is decoders[1]._weights
    assert decoders[0]._cache is not decoders[1]._cache


# ---------------------------------------------------------------- where it cannot run


def test_without_a_compiler_it_says_what_to_install(monkeypatch, folder):
    monkeypatch.setattr(native_compile, "cpu_flags", lambda: frozenset(native_compile.NEEDED_CPU_FLAGS))
    monkeypatch.setattr(native_compile.shutil, "which", lambda name: None)
    with pytest.raises(NativeUnavailableError, match="install g\\+\\+"):
        check_native(load_model(folder, skip_tokenizer_init=True))


def test_without_vnni_it_names_what_the_cpu_lacks(monkeypatch, folder):
    monkeypatch.setattr(native_compile, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    with pytest.raises(NativeUnavailableError, match="lacks avx512bw, avx512dq, avx512vl, avx512_vnni"):
        LLM(str(folder), skip_tokenizer_init=True, execution="native")


def test_float32_is_refused_with_the_way_out(folder):
    with pytest.raises(NativeUnavailableError, match="dtype='bfloat16'"):
        check_native(load_model(folder, dtype="float32", skip_tokenizer_init=True))


def test_odd_shapes_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(native_compile, "check_available", lambda: None)
    monkeypatch.setattr("micro_vllm.native.prepare.check_available", lambda: None)
    odd = save_tiny_model(
        tmp_path / "odd",
        dtype=torch.bfloat16,
        head_dim=32,
        hidden_size=96,
        intermediate_size=128,
        vocab_size=320,
    )
    with pytest.raises(NativeUnavailableError, match="projection is"):
        check_native(load_model(odd, skip_tokenizer_init=True))


def test_unknown_execution_is_refused(folder):
    with pytest.raises(ConfigError, match="eager, native"):
        LLM(str(folder), execution="fast")


@needs_native
def test_a_failed_build_shows_the_words_of_the_compiler(tmp_path, monkeypatch):
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(NativeUnavailableError, match="no such header"):
        native_compile.load_kernels(tmp_path / "kernels")
    assert not list((tmp_path / "kernels").iterdir()), "nothing half-made is left"


# ---------------------------------------------------------------- the real model


@needs_native
@pytest.mark.slow
@pytest.mark.real_model
def test_smollm2_in_int8_reads_a_text_as_well_as_in_float32(smollm2_folder):
    """Perplexity within 1 % of the model's own, and nearly always the same greedy token."""
    parts = prepare_native(load_model(smollm2_folder))
    loaded = load_model(smollm2_folder, dtype="float32")
    text = (load_model.__doc__ or "") + (LLM.__doc__ or "") + (iter_weights.__doc__ or "") + TEXT
    ids = loaded.tokenizer.encode(text)[:768]
    exact, native = (_logits(loaded, ids, p) for p in (None, parts))
    target = torch.tensor(ids[1:])
    loss = [F.cross_entropy(x[:-1], target).item() for x in (exact, native)]
    assert abs(loss[1] - loss[0]) < 0.01, loss
    assert (exact.argmax(-1) == native.argmax(-1)).float().mean() > 0.93


TEXT = """
The lighthouse keeper had three rules. The lamp is lit before the sun touches the water. Every ship is written down,
with its name, its heading and the hour. And no letter is thrown away: what the sea brings belongs to somebody. In forty
years he had filled nine shelves. Some letters were orders for rope and tar, some were love letters that had lost their
ink, and one, in a child's hand, asked the sea whether it was ever tired. He had answered that one, every winter since.
"""


def _logits(loaded, ids: list[int], parts) -> torch.Tensor:
    """(T, vocab) of one prefill: through the model in float32, or through the native decoder."""
    from micro_vllm.attention.attention import AttentionContext
    from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
    from micro_vllm.attention.operators.registry import get_operator

    config, n = loaded.config, len(ids)
    groups = form_cache_groups(config.layer_windows)
    dtype = torch.float32 if parts is None else torch.bfloat16
    cache = PagedKVCache(groups, 16, n // 16 + 2, config.num_kv_heads, config.head_dim, dtype)
    positions = torch.arange(n)
    tables = torch.arange(1, n // 16 + 2)[None]
    group = GroupMetadata(tables, tables[0, positions // 16] * 16 + positions % 16)
    metadata = AttentionMetadata((n,), (0,), 0, positions, (group,), 16)
    with torch.inference_mode():
        model = loaded.model
        if parts is not None:
            model = NativeDecoder(parts.library, loaded.model, parts.weights, cache, groups)
        context = AttentionContext(cache, groups, metadata, get_operator("auto"))
        return model.compute_logits(model(torch.tensor(ids), positions, context)).float().clone()
