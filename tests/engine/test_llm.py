"""The public door, on a tiny random model with a byte-level tokenizer."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
import torch

from micro_vllm import LLM, SamplingParams
from micro_vllm.errors import CapacityError, ConfigError, InvalidRequestError, RequestFailedError
from micro_vllm.model_loader import load_model
from tests.engine.support.models import edit_json, load_transformers, save_tiny_model, transformers_logits

SETTINGS = {"block_size": 4, "max_model_len": 128, "num_gpu_blocks_override": 200, "dtype": "float32"}
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # 260 ids: 4 special and 256 bytes; 280 rows, so that 20 only pad.
    return save_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=280, tokenizer=True, seed=3)


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, dtype="float32")


@pytest.fixture
def llm(loaded):
    llm = LLM(loaded, **SETTINGS)
    yield llm
    llm.check_integrity()
    stats = llm.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.num_running == stats.num_waiting == 0


def generate(llm, prompts, params):
    return llm.generate(prompts, params, use_tqdm=False)


# ---------------------------------------------------------------- shapes of input and output


def test_every_form_of_prompt(llm):
    ids = llm.get_tokenizer().encode("hello")
    forms = ["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}]
    outputs = generate(llm, forms, GREEDY)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert outputs[0].prompt == "hello"
    assert outputs[1].prompt is None
    assert outputs[0].prompt_token_ids == ids
    assert len(generate(llm, "hello", GREEDY)) == len(generate(llm, ids, GREEDY)) == 1


def test_output_carries_metrics_and_counts(llm):
    (output,) = generate(llm, ["hello world"], GREEDY)
    (again,) = generate(llm, ["hello world"], GREEDY)
    assert output.finished
    assert output.outputs[0].finish_reason == "length"
    assert output.num_cached_tokens == 0
    assert again.num_cached_tokens == 8
    assert 0 <= output.metrics.queue_time <= output.metrics.ttft <= output.metrics.e2e
    assert output.metrics.tpot > 0


def test_params_one_or_a_list_as_long_as_the_prompts(llm):
    short = GREEDY.clone(max_tokens=2)
    outputs = generate(llm, ["a", "b"], [short, GREEDY])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 10]
    with pytest.raises(InvalidRequestError, match="3 sampling_params for 2 prompts"):
        generate(llm, ["a", "b"], [short] * 3)
    assert generate(llm, [], GREEDY) == []


def test_one_wrong_prompt_is_named_and_nothing_of_the_call_was_started(llm):
    with pytest.raises(CapacityError, match=r"prompt 1 of 3: the prompt has 300 tokens"):
        generate(llm, ["a", "x" * 300, "b"], GREEDY)
    assert not llm.engine.has_unfinished_requests()


def test_tqdm_shows_progress(llm, capsys):
    llm.generate(["a", "b"], GREEDY, use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


def test_generate_inside_an_open_stream_loses_nothing(llm):
    """E30, transformers #45943: generate twice on one LLM, and while a stream is open."""
    alone = [output.outputs[0].text for output in llm.stream("stream me", GREEDY)]
    (other,) = generate(llm, ["other"], GREEDY)
    seen = []
    for output in llm.stream("stream me", GREEDY):
        seen.append(output.outputs[0].text)
        if len(seen) == 3:
            (inside,) = generate(llm, ["other"], GREEDY)
            assert inside.outputs[0].text == other.outputs[0].text
    assert seen[-1] == alone[-1]
    assert [output.outputs[0].text for output in generate(llm, ["other"] * 2, GREEDY)] == [
        other.outputs[0].text
    ] * 2


def test_leaving_a_stream_aborts_it(llm):
    for _ in llm.stream("hello", GREEDY):
        break
    assert not llm.engine.has_unfinished_requests()
    llm.stream("never read", GREEDY)
    assert not llm.engine.has_unfinished_requests()
    with pytest.raises(CapacityError):
        llm.stream("x" * 300, GREEDY)


def test_skip_tokenizer_init_is_ids_in_ids_out(folder):
    llm = LLM(folder, skip_tokenizer_init=True, **SETTINGS)
    (output,) = generate(llm, [[5, 6, 7]], GREEDY)
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 10
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        generate(llm, ["text"], GREEDY)
    with pytest.raises(InvalidRequestError, match="stop needs a tokenizer"):
        generate(llm, [[5]], GREEDY.clone(stop=["x"]))


def test_detokenize_false_gives_ids_only(llm):
    (output,) = generate(llm, ["hello"], GREEDY.clone(detokenize=False))
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 10


def test_unknown_setting_is_told_before_the_model_is_loaded():
    with pytest.raises(ConfigError, match=r"'max_model_length'\. Did you mean 'max_model_len'"):
        LLM("no-such-model", max_model_length=3)


# ---------------------------------------------------------------- chat


def test_chat_template_is_applied_once_with_one_bos(llm):
    """E22, vllm #27486, #2012, #55197: a template that already holds BOS."""
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids.count(1) == 1
    assert output.prompt_token_ids[0] == 1
    assert llm.get_tokenizer().decode(output.prompt_token_ids) == "user: hi\nassistant: "


def test_several_conversations_in_one_call(llm):
    chats = [[{"role": "user", "content": text}] for text in ("hi", "ho")]
    assert len(llm.chat(chats, GREEDY, use_tqdm=False)) == 2
    with pytest.raises(InvalidRequestError, match="conversation is empty"):
        llm.chat([], GREEDY)


def test_next_turn_recomputes_only_what_is_new_also_at_temperature_1(loaded):
    """Answer ids are kept, so that every full block of earlier turns, answers included, is a hit."""
    llm = LLM(loaded, **{**SETTINGS, "max_model_len": 256})
    messages = []
    full_before = 0
    for turn in range(5):
        messages.append({"role": "user", "content": f"turn {turn}"})
        params = SamplingParams(temperature=1.0, seed=turn, max_tokens=9, ignore_eos=True)
        (output,) = llm.chat(messages, params, use_tqdm=False)
        assert output.num_cached_tokens == full_before
        if turn:
            assert output.num_cached_tokens > 0
        answer = list(output.outputs[0].token_ids)
        messages.append({"role": "assistant", "content": output.outputs[0].text, "token_ids": answer})
        # The last token of the answer was drawn, not computed.
        full_before = (len(output.prompt_token_ids) + len(answer) - 1) // 4 * 4


# ---------------------------------------------------------------- prompts at the edge


def test_empty_prompt_begins_with_bos_and_whitespace_is_text(llm):
    """E23, vllm #7283, #7632."""
    outputs = generate(llm, ["", " \n"], GREEDY)
    assert outputs[0].prompt_token_ids == [1]
    assert llm.get_tokenizer().decode(outputs[1].prompt_token_ids) == " \n"


def test_empty_prompt_without_bos_is_refused(folder, tmp_path):
    """E23."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        edit_json(copy / name, bos_token=None, bos_token_id=None)
    llm = LLM(copy, **SETTINGS)
    with pytest.raises(InvalidRequestError, match="no BOS"):
        generate(llm, [""], GREEDY)
    assert len(generate(llm, ["x"], GREEDY)) == 1


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([5, 260], {}, "the prompt holds token id 260; .* ids 0 to 259"),
        ([5, -1], {}, "token id -1"),
        ([5, "a"], {}, "'a', which is not a token id"),
        ([5, True], {}, "True, which is not a token id"),
        ([5], {"stop_token_ids": [279]}, "stop_token_ids holds token id 279"),
        ([5], {"allowed_token_ids": [900]}, "allowed_token_ids holds token id 900"),
        ([5], {"logit_bias": {900: 1.0}}, "logit_bias holds token id 900"),
        ({"text": "a"}, {}, "'prompt' or 'prompt_token_ids' .*; this one has .*text"),
        (3.5, {}, "got float"),
    ],
)
def test_ids_beyond_the_vocabulary_and_wrong_forms_are_refused(llm, prompt, params, message):
    """E25, vllm #13175, #16529; rows 260 to 279 only pad the embedding."""
    with pytest.raises(InvalidRequestError, match=message):
        generate(llm, [prompt], SamplingParams(**params))


def test_padded_rows_are_never_sampled(loaded):
    """E25: at a temperature that makes all rows alike."""
    llm = LLM(loaded, **SETTINGS)
    params = [
        SamplingParams(temperature=50.0, seed=seed, max_tokens=100, ignore_eos=True) for seed in range(8)
    ]
    drawn = [token for output in generate(llm, ["a"] * 8, params) for token in output.outputs[0].token_ids]
    assert len(drawn) == 800
    assert max(drawn) < 260


# ---------------------------------------------------------------- ends


def eos_of(llm, prompt="hello"):
    """The greedy answer's tokens, to be declared EOS or stop by a test."""
    return list(generate(llm, [prompt], GREEDY)[0].outputs[0].token_ids)


def test_every_eos_of_generation_config_stops_and_is_masked_until_min_tokens(folder, tmp_path, llm):
    """E19, vllm #4180, #4182, #5849, #4589."""
    import shutil

    greedy = eos_of(llm)
    first_two = list(dict.fromkeys(greedy))[:2]
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    edit_json(copy / "generation_config.json", eos_token_id=first_two)
    model = LLM(copy, **SETTINGS)
    ends = SamplingParams(temperature=0, max_tokens=10)
    (output,) = generate(model, ["hello"], ends)
    assert output.outputs[0].token_ids == greedy[:1]
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason is None
    (late,) = generate(model, ["hello"], ends.clone(min_tokens=6))
    assert not set(late.outputs[0].token_ids[:6]) & {*first_two, 2}
    (ignoring,) = generate(model, ["hello"], ends.clone(ignore_eos=True))
    assert ignoring.outputs[0].token_ids == greedy


def test_stop_token_id_ends_and_is_named(llm):
    greedy = eos_of(llm)
    wanted = greedy[4]
    (output,) = generate(llm, ["hello"], GREEDY.clone(stop_token_ids=[wanted]))
    end = greedy.index(wanted) + 1
    assert output.outputs[0].token_ids == greedy[:end]
    assert output.outputs[0].stop_reason == wanted
    assert output.outputs[0].text == llm.get_tokenizer().decode(greedy[: end - 1])


def test_stop_string_cuts_the_text_and_keeps_the_ids(llm):
    """E20, vllm #3672, #8468. Bytes are tokens here, so every stop string spans tokens."""
    only_letters = GREEDY.clone(
        allowed_token_ids=[llm.get_tokenizer().encode(c)[0] for c in "abcdefgh"], max_tokens=40
    )
    full = generate(llm, ["hello"], only_letters)[0].outputs[0]
    stop = full.text[5:8]
    cut = full.text.index(stop)
    (output,) = generate(llm, ["hello"], only_letters.clone(stop=[stop, "zzz"]))
    assert output.outputs[0].text == full.text[:cut]
    assert output.outputs[0].token_ids == full.token_ids[: cut + 3]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    (included,) = generate(llm, ["hello"], only_letters.clone(stop=stop, include_stop_str_in_output=True))
    assert included.outputs[0].text == full.text[: cut + 3]
    # The last thing generated: max_tokens is reached with the stop's last token.
    (last,) = generate(llm, ["hello"], only_letters.clone(stop=stop, max_tokens=cut + 3))
    assert (last.outputs[0].text, last.outputs[0].finish_reason) == (full.text[:cut], "stop")
    (never,) = generate(llm, ["hello"], only_letters.clone(stop="zzz"))
    assert never.outputs[0].text == full.text, "nothing is cut elsewhere"
    for streamed in llm.stream("hello", only_letters.clone(stop=stop)):
        assert full.text[:cut].startswith(streamed.outputs[0].text), "never a part of a stop string"


def test_stream_never_shows_half_a_character(llm):
    """E21, exo #1691: bytes are tokens, so every character beyond ASCII comes in pieces."""
    text = "héllo 世界 👩‍👩‍👧 ok"
    ids = llm.get_tokenizer().encode(text)
    for index, count in ((0, len(ids)), (1, len(ids) - 10)):  # whole, and ending inside a character
        llm2 = LLM(llm.loaded, **SETTINGS)
        _force(llm2, ids)
        seen = [
            output.outputs[0].text
            for output in llm2.stream("say", SamplingParams(max_tokens=count, temperature=0))
        ]
        assert all("�" not in part for part in seen[:-1])
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(seen))
        assert seen[-1] == (text if index == 0 else llm.get_tokenizer().decode(ids[:count]))


def _force(llm, ids):
    """Make the engine answer with these ids: replaces the draw, keeps everything around it."""
    execute = llm.engine.executor.execute

    def forced(plan):

        result = execute(plan)
        tokens = {
            row.request_id: ids[row.output_index]
            for row in plan.scheduled
            if row.request_id in result.token_ids
        }
        return msgspec.structs.replace(result, token_ids=tokens)

    llm.engine.executor.execute = forced


# ---------------------------------------------------------------- sampling end to end


def test_top_k_1_equals_greedy_and_greedy_neutralises_the_rest(llm):
    """E16, vllm #5404, nano-vllm #249; E17, vllm #1748."""
    greedy = eos_of(llm)
    for params in (
        GREEDY.clone(temperature=1.0, top_k=1),
        GREEDY.clone(top_p=0.1, top_k=5, min_p=0.5),
        GREEDY.clone(temperature=0.7, top_p=1e-9),
    ):
        assert eos_of_with(llm, params) == greedy


def eos_of_with(llm, params):
    return list(generate(llm, ["hello"], params)[0].outputs[0].token_ids)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 0.0}, "top_p=0 is out of range; allowed: more than 0 to 1"),
        ({"temperature": -1}, "temperature=-1 is out of range; allowed: 0 or more"),
        ({"max_tokens": 0}, "max_tokens=0 is out of range; allowed: 1 or more"),
        ({"n": 0}, "n=0 is out of range"),
        ({"n": 2}, "n=2 is not supported yet"),
        ({"prompt_logprobs": 1}, "prompt_logprobs=1 is not supported yet"),
        ({"temprature": 1}, "unknown sampling parameter 'temprature'. Did you mean 'temperature'"),
        ({"top_k": -2}, "top_k=-2 is out of range; allowed: 0 or more"),
        ({"top_k": 1.5}, "top_k=1.5 is not a whole number"),
        ({"temperature": math.nan}, "temperature=nan is not a number"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens=9 is greater than max_tokens=3"),
        ({"stop": [""]}, "must be a non-empty string"),
        ({"logprobs": 21}, "logprobs=21 is out of range; allowed: 0 to 20"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
    ],
)
def test_wrong_parameters_say_value_range_and_what_to_do(values, message):
    """E18, vllm docs (without the halves of n > 1 and prompt_logprobs, which are refused by name)."""
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert message in str(caught.value)


def test_top_k_minus_1_and_0_are_off():
    """E18."""
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_logprobs_are_raw_whatever_temperature_and_penalties(llm, folder):
    """E14, vllm #9453: tested against transformers' log_softmax."""
    params = SamplingParams(
        temperature=0.3, presence_penalty=1.5, repetition_penalty=1.4, top_k=20, seed=1, max_tokens=6, logprobs=4,
        ignore_eos=True,
    )  # fmt: skip
    (output,) = generate(llm, ["hello"], params)
    completion = output.outputs[0]
    tokens = output.prompt_token_ids + list(completion.token_ids)
    expected = torch.log_softmax(transformers_logits(load_transformers(folder), tokens), dim=-1)
    total = 0.0
    for index, (token_id, entry) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        row = expected[len(output.prompt_token_ids) - 1 + index]
        assert {token_id} <= entry.keys()
        assert 4 <= len(entry) <= 5
        for candidate, logprob in entry.items():
            assert logprob.logprob == pytest.approx(row[candidate].item(), abs=1e-4)
        assert {c for c in entry if entry[c].rank <= 4} == set(row[:260].topk(4).indices.tolist())
        total += row[token_id].item()
    assert completion.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_a_request_with_nan_fails_alone(llm):
    """One request fails with a clear error; everyone else goes on; no block leaks."""
    execute = llm.engine.executor.execute
    poisoned = {"id": None}

    def poison(plan):

        result = execute(plan)
        bad = poisoned["id"]
        if bad not in result.token_ids:
            return result
        tokens = {r: t for r, t in result.token_ids.items() if r != bad}
        return msgspec.structs.replace(result, token_ids=tokens, failed={bad: "logits are NaN"})

    llm.engine.executor.execute = poison
    poisoned["id"] = "request-1"
    with pytest.raises(RequestFailedError, match="1 of 3 requests failed: logits are NaN") as caught:
        generate(llm, ["a", "b", "c"], GREEDY)
    reasons = [output.outputs[0].finish_reason for output in caught.value.outputs]
    assert reasons == ["length", "error", "length"]
