"""The systems under test answer alike: same weights, same ids, same greedy tokens. Tiny float32 models, no timing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from micro_vllm.model_loader import load_model
from tests.benchmarks.gguf_weights import gguf_name, interleave_rope_halves, write_bf16_gguf
from tests.benchmarks.micro_vllm_system import MicroVllm
from tests.benchmarks.overhead import RUNNING, measure_overhead
from tests.benchmarks.systems import System
from tests.benchmarks.transformers_systems import ContinuousBatching, Generate
from tests.benchmarks.workloads import Shape, Workload, token_requests
from tests.engine.support.models import save_tiny_model

VOCAB = 600
MIXED = Workload("tiny", "tiny", ((Shape(20, 6), Shape(7, 9), Shape(33, 3)),), "output tok/s")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("bench"), "llama", vocab_size=VOCAB)


def outputs_of(system: System) -> tuple[tuple[int, ...], ...]:
    system.prepare(MIXED)
    (wave,) = token_requests(MIXED, 0, VOCAB)
    result = system.run(wave)
    system.close()
    assert result.seconds > 0
    return result.outputs


def test_ours_and_both_ways_of_transformers_give_the_same_tokens(folder: Path):
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ours = outputs_of(MicroVllm(loaded, max_model_len=128))
    assert [len(ids) for ids in ours] == [6, 9, 3]
    assert outputs_of(Generate(model)) == ours
    assert outputs_of(ContinuousBatching(model)) == ours


def test_ours_counts_one_forward_a_step(folder: Path):
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    system = MicroVllm(loaded, max_model_len=128)
    system.prepare(MIXED)
    (wave,) = token_requests(MIXED, 0, VOCAB)
    assert system.run(wave).num_forwards == 9  # all prompts in the first step, then the longest answer's 8
    system.close()


def test_overhead_is_taken_from_steps_in_which_sixteen_requests_decode(folder: Path):
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    found = measure_overhead(loaded, 1, max_model_len=128)
    assert RUNNING == 16
    assert 0 < found.num_steps < 64
    assert 0 < found.share < 1
    assert found.schedule + found.update < found.step


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
