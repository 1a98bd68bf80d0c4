"""Whatever a caller passes: an error that says what to do, or a right answer. Never somebody else's failure."""

from __future__ import annotations

import errno
import math
import mmap
import sys

import pytest

from micro_vllm import LLM, EngineConfig, SamplingParams
from micro_vllm.detokenizer import StopStrings
from micro_vllm.errors import ConfigError, InvalidRequestError
from micro_vllm.memory import memory_limit, on_huge_pages
from micro_vllm.model_loader import load_model
from tests.engine.support.models import save_tiny_model
from tests.engine.support.scripted import run, scripted_engine

SETTINGS = {"block_size": 4, "max_model_len": 128, "num_gpu_blocks_override": 200, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=280, tokenizer=True, seed=3)
    return load_model(folder, dtype="float32")


@pytest.fixture
def llm(loaded):
    llm = LLM(loaded, **SETTINGS)
    yield llm
    llm.check_integrity()
    stats = llm.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_running == stats.num_waiting == 0


def generate(llm, prompts, params=GREEDY):
    return llm.generate(prompts, params, use_tqdm=False)


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (b"abc", "prompts are a bytes"),
        (bytearray(b"abc"), "prompts are a bytearray"),
        ([bytearray(b"abc")], "got bytearray"),
        ([memoryview(b"abc")], "got memoryview"),
        ((text for text in ["a"]), "prompts are a generator"),
        (
            [{"prompt": "a", "multi_modal_data": {}}],
            "takes nothing else; this one has 'prompt', 'multi_modal",
        ),
        ([{"prompt": "a", "cache_salt": "mine"}], "takes nothing else"),
        ([{1: 2, "prompt": "a"}], "this one has 1, 'prompt'"),
        ([{"prompt": [5, 6]}], "'prompt' is a list"),
        ([{"prompt_token_ids": "abc"}], "'prompt_token_ids' is text"),
        ([{"prompt": None}], "this one has nothing"),
    ],
)
def test_what_is_no_prompt_is_refused(llm, prompts, message):
    with pytest.raises(InvalidRequestError, match=message):
        generate(llm, prompts)


def test_a_prompt_dict_with_ids_and_text_computes_the_ids_and_shows_the_text(llm):
    ids = llm.get_tokenizer().encode("hello")
    (output,) = generate(llm, [{"prompt": "hello", "prompt_token_ids": ids, "multi_modal_data": None}])
    assert (output.prompt, output.prompt_token_ids) == ("hello", ids)


@pytest.mark.parametrize(
    "messages",
    [{"role": "user", "content": "x"}, "hi", None, 5, iter([]), {1}],
    ids=lambda m: type(m).__name__,
)
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(InvalidRequestError, match=r"pass a list of \{'role'"):
        llm.chat(messages, GREEDY, use_tqdm=False)


@pytest.mark.parametrize("ids", ["abc", 5, [None], [10**30], [-1], [1.5], [True]])
def test_kept_ids_of_an_answer_that_are_no_ids_are_refused(llm, ids):
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "x", "token_ids": ids}]
    with pytest.raises(InvalidRequestError, match="is not a list of token ids"):
        llm.chat(messages, GREEDY, use_tqdm=False)


# ---------------------------------------------------------------- what would only fail inside a step, for everybody


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"cache_salt": "\ud800"}, "without lone surrogates"),
        ({"shared_prefix_len": "4"}, "shared_prefix_len='4' is out of range"),
        ({"shared_prefix_len": None}, "0 or more"),
        ({"shared_prefix_len": -1, "cache_salt": "mine"}, "shared_prefix_len=-1"),
        ({"request_id": 5}, "request_id=5 is not a non-empty string"),
        ({"request_id": []}, "request_id="),
        ({"request_id": ""}, "request_id=''"),
        ({"request_id": "\udc00"}, "request_id="),
    ],
)
def test_an_odd_setting_is_refused_before_it_is_queued(more, message):
    engine = scripted_engine()
    engine.add_request([3, 4, 5, 6, 7, 8], GREEDY, request_id="other")
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request([3, 4, 5, 6, 7], GREEDY, **more)
    assert run(engine).keys() == {"other"}


def test_a_name_the_engine_would_choose_may_be_taken_already():
    engine = scripted_engine()
    engine.add_request([3, 4], GREEDY, request_id="request-1")
    chosen = engine.add_request([5, 6], GREEDY)
    assert run(engine).keys() == {"request-1", chosen}
    assert chosen != "request-1"


@pytest.mark.parametrize("ids", [5, None, [5], [[]], b"x"])
def test_aborting_what_can_be_no_id_is_refused(ids):
    with pytest.raises(InvalidRequestError, match="is not a string"):
        scripted_engine().abort(ids)


@pytest.mark.parametrize("top_k", [2**31, 2**63, 10**30])
def test_a_top_k_beyond_every_number_keeps_all_tokens_and_fails_nobody(llm, top_k):
    params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True)
    huge, off, other = generate(llm, ["a", "a", "b"], [params.clone(top_k=top_k), params, GREEDY])
    assert huge.outputs[0].token_ids == off.outputs[0].token_ids
    assert len(other.outputs[0].token_ids) == 5


@pytest.mark.parametrize("temperature", [1e38, 1e39, 1e308])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.3}], ids=str)
def test_masked_tokens_stay_masked_at_any_temperature(llm, temperature, filters):
    params = SamplingParams(
        temperature=temperature, allowed_token_ids=[7, 8], seed=1, max_tokens=20, ignore_eos=True, **filters
    )
    (output,) = generate(llm, ["a"], params)
    assert set(output.outputs[0].token_ids) == {7, 8}


@pytest.mark.parametrize("penalty", [1e-300, 1e-39, 1e39, 1e300])
@pytest.mark.filterwarnings("error")
def test_a_repetition_penalty_beyond_float32_is_that_of_its_largest_number(llm, penalty):
    params = GREEDY.clone(repetition_penalty=penalty, max_tokens=12)
    (output,) = generate(llm, ["ab"], params)
    tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    answered = range(len(output.prompt_token_ids), len(tokens))
    repeats = [index for index in answered if tokens[index] in tokens[:index]]
    assert repeats == (list(answered) if penalty < 1 else [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 10**400}, "temperature=1000"),
        ({"repetition_penalty": 10**400}, "repetition_penalty=1000"),
        ({"logit_bias": {5: 10**400}}, "values numbers"),
        ({"logit_bias": {5.7: 1}}, "keys must be token ids"),
        ({"logit_bias": {True: 1}}, "keys must be token ids"),
        ({"logit_bias": {5: math.nan}}, "logit_bias[5]=nan"),
        ({"bad_words": "abc"}, "is not a list"),
        ({"stop": b"a"}, "is not a list"),
    ],
)
def test_odd_numbers_and_keys_are_refused(values, message):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert message in str(caught.value)


def test_positional_settings_are_refused_by_our_own_error():
    with pytest.raises(InvalidRequestError, match="name each"):
        SamplingParams(0.5)
    with pytest.raises(ConfigError, match="name each"):
        EngineConfig("model")


def test_logit_bias_takes_ids_as_json_has_them():
    assert SamplingParams(logit_bias={"5": 1}) == SamplingParams(logit_bias={5: 1.0})


def test_nothing_left_to_sample_fails_its_request_only(llm):
    params = SamplingParams(allowed_token_ids=[2], min_tokens=3, max_tokens=5)
    from micro_vllm.errors import RequestFailedError

    with pytest.raises(RequestFailedError, match="no token is left to draw") as caught:
        generate(llm, ["a", "b"], [params, GREEDY])
    assert [output.outputs[0].finish_reason for output in caught.value.outputs] == ["error", "length"]


# ---------------------------------------------------------------- stop strings without end


@pytest.mark.parametrize("shape", ["one very long stop", "a thousand stops"])
def test_a_character_is_held_against_the_stops_once_however_long_they_are(shape):
    text = "ab" * 2000
    stops = ("b" + "ab" * 5000,) if shape == "one very long stop" else tuple(f"zq{i}" for i in range(1000))
    asked = []

    class Counting(str):
        __slots__ = ()

        def startswith(self, tail, *more):
            asked.append(len(tail))
            return super().startswith(tail, *more)

    searching = StopStrings(tuple(map(Counting, stops)))
    shown = 0
    for end in range(1, len(text) + 1):
        shown = searching.first_held(text[:end], shown)
    assert shown == (1 if len(stops) == 1 else len(text))
    assert len(asked) <= 2 * len(text) * len(stops)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trace": object()}, "has no emit"),
        ({"device": 5}, "device=5 is not a string"),
        ({"attention": []}, r"attention=\[\] is not a string"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16', but the model was loaded as 'float32'"),
    ],
)
def test_settings_that_cannot_be_are_refused(loaded, settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM(loaded, **{**SETTINGS, **settings})


@pytest.mark.parametrize("model", [5, None, b"x", ["a"]])
def test_what_names_no_model_is_refused(model):
    with pytest.raises(ConfigError, match="pass a catalogue name"):
        LLM(model)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux' account of memory")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gpu_blocks_override": 10**9}, r"at most [\d,]+ such blocks fit"),
        ({"num_gpu_blocks_override": 10**30}, "this machine has"),
        ({"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 10**18}, "this machine has"),
        ({"block_size": 10**12}, "such blocks fit"),
        ({"max_num_seqs": 10**10, "max_num_batched_tokens": 10**10}, "Lower max_num_seqs"),
    ],
)
def test_more_than_the_machine_holds_is_an_error_and_allocates_nothing(
    loaded, monkeypatch, settings, message
):
    def never(*args, **kwargs):
        raise AssertionError("allocated")

    monkeypatch.setattr("micro_vllm.worker.worker.ModelRunner", never)
    with pytest.raises(ConfigError, match=message):
        LLM(loaded, **{**SETTINGS, **settings})


def test_a_pool_that_the_system_does_not_give_is_a_config_error(loaded, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(
        ConfigError,
        match=r"cannot be allocated: [\d,]+ bytes of memory: Cannot.*Lower num_gpu_blocks_override",
    ):
        LLM(loaded, **SETTINGS)


def test_memory_on_huge_pages_is_zeroed_or_refused():
    assert on_huge_pages(5000)[:] == bytes(5000)
    assert len(on_huge_pages(0)) == 1  # a mapping of nothing is an error, an empty tensor is not
    with pytest.raises(MemoryError, match="bytes of memory: "):
        on_huge_pages(1 << 62)


def test_the_memory_limit_is_the_smallest_that_is_told(tmp_path):
    assert memory_limit(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:  2000 kB\n")
    assert memory_limit(tmp_path) == 2000 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == 2000 * 1024
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    assert memory_limit(tmp_path) == 1_000_000
