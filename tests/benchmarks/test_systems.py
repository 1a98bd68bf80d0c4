"""The systems under test answer alike: same weights, same ids, same greedy tokens. Tiny models, no timing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from micro_vllm.model_loader import LoadedModel, load_model
from micro_vllm.native.compile import NativeUnavailableError
from micro_vllm.native.prepare import NativeParts, prepare_native
from tests.benchmarks.gguf_weights import gguf_name, interleave_rope_halves, write_bf16_gguf
from tests.benchmarks.micro_vllm_system import MicroVllm, weight_sizes
from tests.benchmarks.overhead import ALONE_ROUNDS, PARTS, measure_overhead, measure_waiting
from tests.benchmarks.systems import System
from tests.benchmarks.transformers_systems import build_systems
from tests.benchmarks.workloads import EAGER, LLAMA_CPP, NATIVE, Shape, Workload, token_requests
from tests.engine.support.models import save_tiny_model

VOCAB = 640
MIXED = Workload("tiny", "tiny", ((Shape(20, 6), Shape(7, 9), Shape(33, 3)),), ("output rate",))
DRAWN = Workload("drawn", "drawn", MIXED.waves, ("output rate",), temperature=0.6)

needs_llama_cpp = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="pip install -r tests/benchmarks/requirements.txt"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(
        tmp_path_factory.mktemp("bench"),
        dtype=torch.bfloat16,
        vocab_size=VOCAB,
        hidden_size=192,
        intermediate_size=192,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
    )


@pytest.fixture(scope="module")
def exact(folder: Path) -> LoadedModel:
    return load_model(folder, dtype="float32", skip_tokenizer_init=True)


@pytest.fixture(scope="module")
def bf16(folder: Path) -> LoadedModel:
    return load_model(folder, dtype="bfloat16", skip_tokenizer_init=True)


@pytest.fixture(scope="module")
def parts(bf16: LoadedModel) -> NativeParts:
    try:
        return prepare_native(bf16)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def outputs_of(system: System, workload: Workload = MIXED) -> tuple[tuple[int, ...], ...]:
    system.prepare(workload)
    (wave,) = token_requests(workload, 0, VOCAB)
    result = system.run(wave)
    system.close()
    assert result.seconds > 0
    assert [len(ids) for ids in result.outputs] == [6, 9, 3]
    assert all(0 <= token_id < VOCAB for ids in result.outputs for token_id in ids)
    return result.outputs


def test_ours_and_both_ways_of_transformers_give_the_same_tokens(folder: Path, exact: LoadedModel):
    ours = outputs_of(MicroVllm(exact, num_gpu_blocks_override=64))
    for system in build_systems(folder, weight_sizes(exact), torch.float32):
        assert outputs_of(system) == ours, system.info.name
        outputs_of(system, DRAWN)


def test_native_and_eager_are_told_apart_and_each_counts_its_own_bytes(bf16: LoadedModel, parts: NativeParts):
    eager, native = (
        MicroVllm(bf16, num_gpu_blocks_override=64),
        MicroVllm(bf16, parts, num_gpu_blocks_override=64),
    )
    assert (eager.info.name, eager.info.arithmetic) == (EAGER, "bf16")
    assert (native.info.name, native.info.arithmetic) == (NATIVE, "int8")
    weights = (
        bf16.num_parameters
    )  # 8 norms of 192 and two embeddings of VOCAB x 192, one of which is the head
    assert eager.info.weight_bytes == 2 * (weights - VOCAB * 192)
    # A scale of two bytes for each 64.
    assert 0.51 < native.info.weight_bytes / eager.info.weight_bytes < 0.52
    outputs_of(native)


def test_a_native_system_that_computes_eagerly_is_an_error(
    bf16: LoadedModel, parts: NativeParts, monkeypatch
):
    system = MicroVllm(bf16, parts, num_gpu_blocks_override=64)
    monkeypatch.setattr("micro_vllm.engine.engine.Engine.use_native", lambda self, parts: None)
    system.prepare(MIXED)
    (wave,) = token_requests(MIXED, 0, VOCAB)
    with pytest.raises(RuntimeError, match="native was computed by"):
        system.run(wave)


def test_ours_counts_one_forward_a_step_and_knows_its_first_token(exact: LoadedModel):
    system = MicroVllm(exact, num_gpu_blocks_override=64)
    system.prepare(MIXED)
    (wave,) = token_requests(MIXED, 0, VOCAB)
    result = system.run(wave)
    assert result.num_forwards == 9  # all prompts in the first step, then the longest answer's 8
    assert result.first_token_seconds is not None
    assert 0 < result.first_token_seconds < result.seconds
    system.close()


# ---------------------------------------------------------------- llama.cpp


@needs_llama_cpp
def test_llama_cpp_gives_as_many_tokens_as_asked_in_every_format(folder: Path, bf16: LoadedModel):
    from tests.benchmarks.llama_cpp_system import build_systems as build

    systems = build(folder, weight_sizes(bf16))
    assert tuple(system.info.name for system in systems) == LLAMA_CPP
    ours = outputs_of(MicroVllm(bf16, num_gpu_blocks_override=64))
    for system in systems:
        found = outputs_of(system)
        outputs_of(system, DRAWN)
        if system.info.arithmetic == "bf16":
            assert [ids[0] for ids in found] == [ids[0] for ids in ours]
    sizes = {system.info.name: system.info.weight_bytes for system in systems}
    assert sizes["llama.cpp Q4_1"] < sizes["llama.cpp Q8_0"] < sizes["llama.cpp BF16"]
    assert sizes["llama.cpp BF16"] == pytest.approx(weight_sizes(bf16).bf16_bytes, rel=0.01)


@needs_llama_cpp
def test_llama_cpp_keeps_the_prompt_that_the_next_request_shares(folder: Path, bf16: LoadedModel):
    from tests.benchmarks.llama_cpp_system import build_systems as build

    shared = Workload("shared", "shared", ((Shape(40, 2, num_shared=32),),) * 2, ("warm share",))
    first, second = token_requests(shared, 0, VOCAB)
    system = build(folder, weight_sizes(bf16))[1]
    system.prepare(shared)
    system.run(first)
    warm = system.run(second).outputs
    system.prepare(shared)
    assert system.run(second).outputs == warm


@needs_llama_cpp
def test_draws_for_llama_cpp_follow_the_chances_at_a_temperature():
    from tests.benchmarks.llama_cpp_system import draw

    logits = torch.log(torch.tensor([0.7, 0.2, 0.1])).repeat(20_000, 1)
    counts = np.bincount(draw(logits, 1.0, np.random.default_rng(1)), minlength=3) / 20_000
    assert counts == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    sharper = np.bincount(draw(logits, 0.5, np.random.default_rng(1)), minlength=3) / 20_000
    assert sharper[0] == pytest.approx(0.49 / 0.54, abs=0.02)
    assert draw(logits[:2], 0.0, np.random.default_rng(1)) == [0, 0]


def test_rope_halves_become_neighbouring_pairs():
    weight = torch.arange(2 * 4, dtype=torch.float32).view(8, 1)  # two heads of 4 rows
    assert interleave_rope_halves(weight, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_gguf_names_follow_the_conversion_of_the_loader():
    assert gguf_name("model.layers.3.mlp.up_proj.weight") == "blk.3.ffn_up.weight"
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"


def test_gguf_written_for_llama_cpp_holds_the_same_bfloat16_weights(folder: Path, tmp_path: Path):
    import gguf

    write_bf16_gguf(folder, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert reader.fields["llama.vocab_size"].contents() == VOCAB
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    wanted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()

    def stored(name: str) -> torch.Tensor:
        return torch.tensor(gguf.dequantize(tensors[name].data, tensors[name].tensor_type))

    assert torch.equal(stored("blk.1.ffn_up.weight"), wanted["model.layers.1.mlp.up_proj.weight"].float())
    query = wanted["model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(stored("blk.1.attn_q.weight"), interleave_rope_halves(query, 6).float())


# ---------------------------------------------------------------- overhead


def test_overhead_is_taken_from_steps_in_which_all_requests_decode(exact: LoadedModel):
    found = measure_overhead(exact, None, 1, Shape(8, 6), num_gpu_blocks_override=64)
    assert [(one.num_running, one.temperature) for one in found] == [(1, 0.0), (1, 0.6), (32, 0.0), (32, 0.6)]
    for one in found:
        assert one.execution == "eager"
        rounds = ALONE_ROUNDS if one.num_running == 1 else 1
        # Five tokens come after the first, and the last one ends the request.
        assert 4 * (rounds - 1) < one.num_steps <= 4 * rounds
        assert 0 < one.share < 1
        assert 0 < one.median_share < 1
        assert list(one.parts) == [*PARTS, "rest"]
        assert all(seconds > 0 for seconds in one.parts.values())


def test_a_queue_is_measured_with_everyone_in_place():
    found = measure_waiting(50, 4, 10)
    assert (found.num_running, found.num_waiting) == (4, 50)
    assert 0 < found.schedule_none < found.none_waiting
    assert 0 < found.schedule_many < found.many_waiting
