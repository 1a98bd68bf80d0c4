"""What ModelConfig makes of a config.json, and what it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from micro_vllm.errors import ConfigError, ModelLoadError, UnsupportedModelError
from micro_vllm.models.config import ModelConfig

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def read(architecture: str = "LlamaForCausalLM", generation: dict[str, Any] | None = None, **keys: Any):
    return ModelConfig.from_hf({"architectures": [architecture], **SIZES, **keys}, generation)


def test_head_dim_comes_from_the_config_not_from_the_division() -> None:
    """E28, optimum-neuron #879, lmdeploy #2761."""
    assert read("Qwen3ForCausalLM", head_dim=128, num_key_value_heads=2).head_dim == 128
    assert read("Qwen3ForCausalLM", num_key_value_heads=2).head_dim == 128  # transformers' default for Qwen3
    assert read(head_dim=None).head_dim == 16
    assert read().head_dim == 16


def test_llama_without_num_key_value_heads_has_as_many_as_queries() -> None:
    assert read().num_kv_heads == 4
    assert read(num_key_value_heads=None).num_kv_heads == 4


def test_mistral_window_null_is_full_attention_and_a_missing_key_is_the_default() -> None:
    """E10, lorax #127."""
    mistral = "MistralForCausalLM"
    assert read(mistral, num_key_value_heads=2, sliding_window=None).layer_windows == (None,) * 4
    assert read(mistral, num_key_value_heads=2, sliding_window=9).layer_windows == (9,) * 4
    assert read(mistral, num_key_value_heads=2).layer_windows == (4096,) * 4


def test_qwen3_windows_are_read_per_layer() -> None:
    """E8, vllm #51756."""

    def windows(**keys: Any) -> tuple[int | None, ...]:
        return read("Qwen3ForCausalLM", num_key_value_heads=2, **keys).layer_windows

    assert windows(sliding_window=7) == (None,) * 4  # use_sliding_window is off by default
    assert windows(sliding_window=7, use_sliding_window=True, max_window_layers=2) == (None, None, 7, 7)
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows(sliding_window=7, use_sliding_window=True, layer_types=kinds) == (7, None, None, 7)
    assert windows(sliding_window=7, use_sliding_window=False, layer_types=kinds) == (None,) * 4


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("window", [0, -1, "8", True])
def test_a_window_that_is_no_count_is_refused(architecture: str, window: Any) -> None:
    with pytest.raises(ModelLoadError, match="sliding_window="):
        read(architecture, num_key_value_heads=2, sliding_window=window, use_sliding_window=True)


def test_layer_types_that_are_unknown_too_few_or_mixed_in_mistral_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="'chunked_attention', which is not implemented"):
        read("Qwen3ForCausalLM", num_key_value_heads=2, layer_types=["chunked_attention"] * 4)
    with pytest.raises(ModelLoadError, match="each of the 4 layers"):
        read("Qwen3ForCausalLM", num_key_value_heads=2, layer_types=["full_attention"])
    mixed = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(UnsupportedModelError, match="MistralForCausalLM does not know"):
        read("MistralForCausalLM", num_key_value_heads=2, sliding_window=8, layer_types=mixed)


def test_eos_ids_are_the_union_of_both_files() -> None:
    """E19, vllm #4180."""
    assert read(eos_token_id=5, generation={"eos_token_id": [7, 5, 9]}).eos_token_ids == (5, 7, 9)
    assert read(eos_token_id=[3, 4]).eos_token_ids == (3, 4)
    assert read(eos_token_id=None, generation={}).eos_token_ids == ()
    with pytest.raises(ModelLoadError, match=r"generation_config.json: eos_token_id holds '</s>'"):
        read(generation={"eos_token_id": "</s>"})


def test_dtype_has_two_spellings() -> None:
    assert read(dtype="bfloat16").dtype == "bfloat16"
    assert read(torch_dtype="torch.float16").dtype == "float16"
    assert read().dtype is None
    with pytest.raises(UnsupportedModelError, match="float8_e4m3fn"):
        read(dtype="float8_e4m3fn")


def test_biases_count_only_where_the_family_has_them() -> None:
    assert read(attention_bias=True, mlp_bias=True).attention_bias
    assert read(attention_bias=True, mlp_bias=True).mlp_bias
    assert not read("MistralForCausalLM", num_key_value_heads=2, attention_bias=True).attention_bias


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3]])
def test_a_config_without_an_architecture_is_refused(architectures: Any) -> None:
    with pytest.raises(ModelLoadError, match="names no architecture"):
        ModelConfig.from_hf({"architectures": architectures, **SIZES})


def test_an_unknown_architecture_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"'GPT2LMHeadModel' is not implemented; known: LlamaForCausalLM"
    ):
        read("GPT2LMHeadModel")
    with pytest.raises(UnsupportedModelError, match=r"'auto_map'.* is never run"):
        read("MyRemoteModel", auto_map={"AutoModelForCausalLM": "modeling.MyRemoteModel"})
    assert read(auto_map={"AutoConfig": "configuration.C"}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .'gptq'."),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "rope type 'longrope'"),
        ({"rope_parameters": {"rope_type": "mrope2"}}, "rope type 'mrope2' .rope_parameters."),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "differs by layer type",
        ),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_its_key(keys: dict[str, Any], message: str) -> None:
    """E29: unknown rope types by name."""
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read(**keys)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": "100"}, "vocab_size='100'"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"rms_norm_eps": 0}, "rms_norm_eps=0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "of type 'linear' has no 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, r"\['factor'\]='2'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no 'low_freq_factor'"),
        ({"rope_parameters": ["default"]}, "must be an object"),
    ],
)
def test_a_broken_config_names_file_and_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        read(**keys)
    assert "config.json" in str(caught.value)


def test_longest_length_by_rope_type() -> None:
    """Linear and yarn stretch by their factor; dynamic depends on the batch beyond its own length, so it stops."""
    assert read().max_model_len == 512
    assert read(rope_scaling={"type": "linear", "factor": 4.0}).max_model_len == 2048
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read(rope_scaling=yarn).max_model_len == 2048
    dynamic = read(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert dynamic.max_model_len == 512
    dynamic.check_max_model_len(512)
    with pytest.raises(ConfigError, match=r"max_model_len=513 .*allowed: 2 to 512 \(dynamic rope"):
        dynamic.check_max_model_len(513)


def test_yarn_without_factor_takes_the_ratio_of_the_lengths() -> None:
    yarn = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 128}
    assert read(rope_parameters=yarn).rope.parameters["factor"] == 4.0
