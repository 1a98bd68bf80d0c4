"""The native decoder against the readable one: same weights, same batches, a stated tolerance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from micro_vllm import LLM, SamplingParams
from micro_vllm.errors import ConfigError
from micro_vllm.model_loader import load_model
from micro_vllm.model_loader.cache import default_cache_root
from micro_vllm.model_loader.default import iter_weights
from micro_vllm.native import compile as native_compile
from micro_vllm.native.compile import NativeUnavailableError, load_kernels
from micro_vllm.native.kernels import declare
from micro_vllm.native.prepare import KERNEL_FOLDER, check_native, prepare_native
from micro_vllm.native.quantize import GROUP, dequantize, interleave, quantize, quantize_activations
from micro_vllm.native.sampling import NativeSampling
from micro_vllm.sampling.logprobs import gather_logprobs
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.sampling.settings import Asking, Filters, Race
from micro_vllm.sampling.truncation import draw_filtered, draw_unfiltered
from tests.engine.support.models import save_tiny_model
from tests.engine.support.native import needs_native
from tests.engine.support.sampling import sample

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
    assert ((dequantize(matrix) - weight).view(64, -1, GROUP).abs() <= level * 0.5001).all()
    assert matrix.shape == (64, 256)
    assert (dequantize(quantize(torch.zeros(32, 64))) == 0).all()


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
    tensors += [weights.layers[1].qkv.data, weights.norm, weights.head.data, weights.head.offset]
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


# ---------------------------------------------------------------- drawing


@pytest.fixture(scope="module")
def kernels():
    return NativeSampling(declare(load_kernels(default_cache_root() / KERNEL_FOLDER)))


@needs_native
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 8.0])
@pytest.mark.parametrize("vocabulary", [17, 300, 1001, 5000])
def test_draws_are_those_of_the_plain_race(kernels, vocabulary, spread):
    """Also in any batch, order and number of threads."""
    generator = torch.Generator().manual_seed(vocabulary)
    padded = torch.randn(40, vocabulary + 5, generator=generator) * spread
    logits = padded[:, :vocabulary]  # ids behind it only pad, and must not win
    padded[:, vocabulary:] = 100
    padded[7, :9] = -torch.inf  # as masks leave it
    temperature = torch.rand(40, generator=generator) * 2 + 0.02
    temperature[3], temperature[4] = 1e-5, torch.finfo(torch.float32).max
    seeds = torch.randint(-(2**63), 2**63 - 1, (40,), generator=generator)
    index = torch.arange(40)
    maxima, likeliest = logits.max(dim=-1)
    wanted = draw_unfiltered((logits - maxima[:, None]) / temperature[:, None], seeds, index)

    def drawn(rows):
        _, tokens = kernels.maxima(logits)
        race = Race(rows, len(rows) == 40, temperature[rows], seeds[rows], None)
        kernels.draw(logits, tokens, race, index.tolist())
        others = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False).numpy()
        assert (tokens[others] == likeliest.numpy()[others]).all()  # rows of no race keep their maximum
        return torch.tensor(tokens)[rows]

    assert torch.equal(drawn(torch.arange(40)), wanted)
    order = torch.randperm(40, generator=generator)
    assert torch.equal(drawn(order), wanted[order])
    torch.set_num_threads(3)
    try:
        for i in (0, 7, 39):
            assert drawn(torch.tensor([i])) == wanted[i]
    finally:
        torch.set_num_threads(1)


@needs_native
@pytest.mark.parametrize("spread", [0.0, 0.2, 2.0, 9.0])
@pytest.mark.parametrize("vocabulary", [17, 300, 5003])
def test_filtered_draws_are_those_of_the_plain_way(kernels, vocabulary, spread):
    generator = torch.Generator().manual_seed(vocabulary)
    count = 120
    padded = torch.randn(count, vocabulary + 5, generator=generator) * spread
    logits = padded[:, :vocabulary]
    padded[:, vocabulary:] = 100
    padded[7, :9] = -torch.inf
    logits[8] = logits[8].mul(2).round()  # equals are cut by id
    temperature = torch.rand(count, generator=generator) * 2 + 0.05
    temperature[3] = 1e-5

    def some(values, dtype):
        return torch.tensor([values[i % len(values)] for i in range(count)], dtype=dtype)

    top_k = some([0, 1, 0, 5, 0, vocabulary - 1, 0, 50 % vocabulary], torch.int64)
    top_p = some([0.9, 1.0, 0.5, 0.95, 1.0, 0.999, 0.01], torch.float64)
    min_p = some([0.0, 0.0, 0.1, 0.0, 0.02], torch.float64)
    off = (top_k == 0) & (top_p == 1) & (min_p == 0)
    top_p[off] = 0.7  # whoever asks for nothing is drawn otherwise
    seeds = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    index = torch.arange(count)
    maxima = logits.amax(dim=-1)
    scaled = (logits - maxima[:, None]) / temperature[:, None]
    wanted = draw_filtered(scaled, top_k, top_p, min_p, seeds, index)

    def drawn(rows):
        _, tokens = kernels.maxima(logits)
        filters = Filters(top_k[rows], top_p[rows], min_p[rows])
        race = Race(rows, len(rows) == count, temperature[rows], seeds[rows], filters)
        kernels.draw(logits, tokens, race, index.tolist())
        return torch.tensor(tokens)[rows]

    assert torch.equal(drawn(torch.arange(count)), wanted)
    order = torch.randperm(count, generator=generator)[:31]
    torch.set_num_threads(3)
    try:
        found = drawn(order)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, wanted[order])


@needs_native
@pytest.mark.parametrize("vocabulary", [1, 15, 16, 17, 1003])
def test_maxima_are_torchs_first_ones_and_nan_wins(kernels, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    padded = torch.randint(-9, 9, (12, vocabulary + 3), generator=generator).float()  # many are equal
    padded[:, vocabulary:] = 100
    logits = padded[:, :vocabulary]
    logits[1] = -torch.inf
    logits[2, vocabulary // 2] = torch.inf
    logits[3, vocabulary // 3 :: 5] = torch.nan
    logits[4, -1], logits[4, 0] = torch.nan, torch.inf
    logits[5, ::2] = -torch.inf
    logits[6, -1] = 50
    for some in (logits, logits[:2], logits[2:5], logits[3:4]):
        maxima, ids = kernels.maxima(some)
        assert ids.tolist() == some.numpy().argmax(axis=-1).tolist()
        torch.testing.assert_close(
            torch.tensor(maxima), some.max(dim=-1).values, equal_nan=True, rtol=0, atol=0
        )


@needs_native
@pytest.mark.parametrize("vocabulary", [9, 16, 40, 3001])
def test_logprobs_and_ranks_are_those_of_the_plain_way(kernels, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(10, vocabulary + 7, generator=generator) * 4  # 7 ids only pad
    logits[1] = logits[1].mul(8).round()  # some are equal
    logits[2, :30] = 20.0  # as many as the plain way still orders by id
    logits[3, :4] = -torch.inf
    logits[4, -2] = 90
    sampled = torch.randint(0, vocabulary, (10,), generator=generator)
    sampled[5] = logits[5, :vocabulary].argmax()
    sampled[6], sampled[7] = 0, vocabulary - 1
    counts = [0, 1, 5, 20, 2, 3, 7, 0, 20, 4]
    for rows in (torch.arange(10), torch.tensor([7]), torch.tensor([3, 1, 8]), torch.tensor([0])):
        asked = [counts[i] for i in rows.tolist()]
        _, tokens = kernels.maxima(logits)
        tokens[:] = sampled
        found = kernels.logprobs(logits, tokens, Asking(rows, len(rows) == 10, tuple(asked)), vocabulary)
        wanted = gather_logprobs(logits[rows], sampled[rows], asked, vocabulary)
        for ours, one in zip(found, wanted, strict=True):
            assert ours.token_ids == one.token_ids
            assert ours.ranks == one.ranks
            assert ours.logprobs == pytest.approx(one.logprobs, abs=3e-6, rel=1e-6)


@needs_native
def test_a_sampler_with_native_kernels_draws_what_the_plain_one_does(kernels):
    logits = torch.randn(24, 900, generator=torch.Generator().manual_seed(5)) * 2
    specs = [
        SamplingSpec(
            seed=i,
            temperature=(0, 0.6, 1.3)[i % 3],
            top_p=0.9 if i % 4 == 0 else 1,
            presence_penalty=0.5 if i % 5 == 0 else 0,
            num_logprobs=3 if i % 6 == 0 else None,
        )
        for i in range(24)
    ]
    wanted = sample(logits, specs)
    found = sample(logits, specs, kernels=kernels)
    assert found.token_ids == wanted.token_ids
    assert found.logprobs.keys() == wanted.logprobs.keys() == set(range(0, 24, 6))
    broken = logits.clone()
    broken[1, 5] = torch.nan
    assert list(sample(broken, specs, kernels=kernels).failed) == [1]


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
    from micro_vllm.attention.attention import AttentionContext, PagedKVCache
    from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
    from micro_vllm.attention.operators.registry import get_operator
    from micro_vllm.config import form_cache_groups
    from micro_vllm.native.decoder import NativeDecoder

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
