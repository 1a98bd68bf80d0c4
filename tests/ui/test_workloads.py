"""The catalogue of workloads on real schedulers: each shows what it says, whatever pool it meets."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from micro_vllm.errors import InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import RequestAdmitted, RequestPreempted, StepPlanned
from tests.ui.support.scripted_engine import VOCAB, make_engine
from ui.runs.sizing import MOST_TOKENS, blocks_for, overfill
from ui.runs.workloads import MOST_LINES, WORKLOADS, Built, Setting, fit, workload
from ui.settings import HOSTED_LIMITS, Limits

TEMPLATE = tuple(range(31))


def encode(system: str, prompt: str) -> tuple[int, ...]:
    """A chat template and one id a word: about as many tokens as the real thing."""
    words = (f"{system} \n {prompt}" if system else prompt).split(" ")
    return (*TEMPLATE, *(zlib.crc32(word.encode()) % VOCAB for word in words))


def encode_bytes(system: str, prompt: str) -> tuple[int, ...]:
    """One id a byte: five times as many."""
    return (*TEMPLATE, *f"{system}\n{prompt}".encode())


def setting_for(engine, **changes) -> Setting:
    return replace(Setting(engine.info, Limits(), encode), **changes)


def run(engine, built: Built, most_steps: int = 3000) -> dict[str, tuple[str, int]]:
    """All at once, as a run sends them. Card label -> (finish reason, tokens)."""
    labels, waiting = {}, [item for item in built.items if not item.refusal]
    done: dict[str, tuple[str, int]] = {}
    first_tokens = 0
    for _ in range(most_steps):
        while waiting and (first_tokens >= waiting[0].after_tokens or built.items[0].label in done):
            item = waiting.pop(0)
            plain = item.params.clone(detokenize=False)
            labels[engine.add_request(list(item.token_ids), plain)] = item.label
        if not waiting and not engine.has_unfinished_requests():
            return done
        for output in engine.step():
            answer = output.outputs[0]
            if labels[output.request_id] == built.items[0].label:
                first_tokens = len(answer.token_ids)
            if output.finished:
                done[labels[output.request_id]] = (answer.finish_reason, len(answer.token_ids))
        engine.check_integrity()
    raise AssertionError(f"not finished after {most_steps} steps: {len(done)} of {len(built.items)}")


def events(log, kind) -> list:
    return [event for event in log.since() if isinstance(event, kind)]


# ---------------------------------------------------------------- memory pressure


POOLS = [(blocks, size) for blocks in (64, 128, 256, 512) for size in (8, 16, 32)]


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "tokens"),
    [(*pool, encode) for pool in POOLS]
    # Prompts of bytes are five times as long: two of them need a pool of a thousand slots.
    + [(*pool, encode_bytes) for pool in POOLS if pool[0] * pool[1] >= 1024],
)
def test_memory_pressure_preempts_in_a_pool_of_any_size_and_everybody_finishes(
    num_blocks, block_size, tokens
):
    engine, log = make_engine(num_blocks, block_size=block_size, max_num_batched_tokens=256)
    built = workload("pressure").build(setting_for(engine, encode=tokens))
    done = run(engine, built)
    assert len(done) == len(built.items) >= 2
    assert all(
        count == item.params.max_tokens
        for item, (_, count) in zip(built.items, sorted_by(done, built), strict=True)
    )
    preempted = events(log, RequestPreempted)
    assert preempted, built.note
    assert str(num_blocks) in built.note
    # Somebody is pushed out, not everybody over and over.
    assert len(preempted) <= 3 * len(built.items)
    assert engine.stats().num_free_blocks == num_blocks


def sorted_by(done: dict, built: Built) -> list:
    return [done[item.label] for item in built.items]


@pytest.mark.parametrize(
    "settings", [{"max_num_batched_tokens": 48}, {"enable_prefix_caching": False}, {"max_num_seqs": 4}]
)
def test_memory_pressure_preempts_under_other_budgets_and_seats(settings):
    engine, log = make_engine(128, **{"max_num_batched_tokens": 256, **settings})
    built = workload("pressure").build(setting_for(engine))
    done = run(engine, built)
    assert len(done) == len(built.items)
    assert events(log, RequestPreempted)


def test_memory_pressure_preempts_when_it_is_run_again_over_a_warm_cache():
    engine, log = make_engine(128, max_num_batched_tokens=256)
    built = workload("pressure").build(setting_for(engine))
    run(engine, built)
    first = len(events(log, RequestPreempted))
    run(engine, built)
    assert len(events(log, RequestPreempted)) > first > 0


def test_memory_pressure_preempts_with_windowed_layers():
    engine, log = make_engine(160, windows=(None, 64), max_num_batched_tokens=64)
    built = workload("pressure").build(setting_for(engine))
    assert len(run(engine, built)) == len(built.items)
    assert events(log, RequestPreempted)


def test_memory_pressure_is_refused_with_numbers_where_it_cannot_be_shown():
    engine, _ = make_engine(2000)
    with pytest.raises(InvalidRequestError, match=r"2,000 blocks.*Choose another"):
        workload("pressure").build(setting_for(engine, limits=HOSTED_LIMITS))
    engine, _ = make_engine(20_000)
    with pytest.raises(InvalidRequestError, match=f"together {MOST_TOKENS:,}"):
        workload("pressure").build(setting_for(engine))
    with pytest.raises(InvalidRequestError, match="One request at a time"):
        workload("pressure").build(setting_for(engine, limits=Limits(max_requests_per_visitor=1)))


def test_memory_pressure_fits_the_limits_of_a_small_shared_server():
    """120 blocks hold less than two of the longest chats that a visitor may have there."""
    engine, log = make_engine(120, max_num_batched_tokens=256)
    built = workload("pressure").build(setting_for(engine, limits=HOSTED_LIMITS))
    assert len(built.items) == 2
    assert all(item.params.max_tokens <= HOSTED_LIMITS.max_answer_tokens for item in built.items)
    assert all(len(item.token_ids) <= HOSTED_LIMITS.max_prompt_tokens for item in built.items)
    assert len(run(engine, built)) == 2
    assert events(log, RequestPreempted)


def test_the_size_of_overfilling_requests_adds_up():
    engine, _ = make_engine(64)
    prompts = [list(range(40 + i)) for i in range(6)]
    size = overfill(engine.info, prompts, 1000)
    held = sum(
        blocks_for(engine.info, len(prompt) + size.num_output_tokens) for prompt in prompts[: size.count]
    )
    assert held >= size.blocks_wanted > 64
    with pytest.raises(InvalidRequestError, match="6 requests cannot overfill"):
        overfill(engine.info, prompts, 20)


# ---------------------------------------------------------------- the others


@pytest.mark.parametrize("budget", [64, 256, 512])
def test_all_but_the_first_find_the_shared_system_prompt_in_the_cache(budget):
    engine, log = make_engine(256, max_num_batched_tokens=budget)
    built = workload("shared").build(setting_for(engine))
    assert len(built.items) == 8
    run(engine, built)
    hits = [event.num_computed_tokens for event in events(log, RequestAdmitted)]
    shared = built.items[0].shared_prefix_len
    assert hits[0] == 0
    assert min(hits[1:]) >= shared // 16 * 16 >= 96
    assert str(shared) in built.note


def test_the_shared_part_is_the_system_prompt_and_nothing_of_the_questions():
    engine, _ = make_engine(256)
    built = workload("shared").build(setting_for(engine, size=30))
    assert len(built.items) == 30
    shared = built.items[0].shared_prefix_len
    fronts = {item.token_ids[:shared] for item in built.items}
    assert len(fronts) == 1
    assert len({item.token_ids[shared] for item in built.items}) > 5
    for other in WORKLOADS:
        if other.name not in ("shared", "lines"):
            assert not any(i.shared_prefix_len for i in other.build(setting_for(engine)).items)


@pytest.mark.parametrize(("num_blocks", "length"), [(256, 900), (64, 460)])
def test_a_long_prompt_is_read_in_chunks_beside_answers_that_go_on(num_blocks, length):
    engine, log = make_engine(num_blocks, max_num_batched_tokens=128)
    built = workload("long").build(setting_for(engine))
    (long,) = (item for item in built.items if item.label == "long")
    assert length * 0.5 < len(long.token_ids) <= length
    done = run(engine, built)
    assert len(done) == 7
    plans = [plan for plan in events(log, StepPlanned) if any(row.count > 60 for row in plan.rows)]
    chunked = [plan for plan in plans if sum(row.phase == "decode" for row in plan.rows) >= 4]
    assert len(chunked) >= 3, "no chunk ran beside decodes"


def test_a_burst_takes_all_seats_and_the_rest_waits():
    engine, log = make_engine(512, max_num_batched_tokens=256, max_num_seqs=16)
    built = workload("burst").build(setting_for(engine))
    assert len(built.items) == 40
    assert len(run(engine, built)) == 40
    plans = events(log, StepPlanned)
    assert {"seats", "budget"} <= {plan.stopped_by for plan in plans}
    assert max(plan.num_seats for plan in plans) == 16
    assert max(plan.num_waiting for plan in plans) >= 24


def test_own_lines_are_bounded_and_only_the_long_one_is_refused():
    engine, _ = make_engine(64)
    own = workload("lines")
    lines = f"  first \n\n{'word ' * 1100}\nthird"
    built = own.build(setting_for(engine, lines=lines, params=SamplingParams(seed=5, max_tokens=9)))
    assert [item.prompt for item in built.items][::2] == ["first", "third"]
    refusals = [item.refusal for item in built.items]
    assert refusals[0] == refusals[2] == ""
    assert "1,131 tokens" in refusals[1]
    assert "1,024" in refusals[1]
    assert [item.params.seed for item in built.items] == [5, 6, 7]
    for text, words in (
        ("", "nothing to run"),
        ("\n \n", "nothing to run"),
        ("a\n" * 65, f"at most {MOST_LINES}"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            own.build(setting_for(engine, lines=text))
    with pytest.raises(InvalidRequestError, match="100,000"):
        own.build(setting_for(engine, lines="x" * 100_001))


def test_every_workload_keeps_to_the_limits_of_a_shared_server():
    engine, _ = make_engine(2000, max_num_batched_tokens=256)
    for one in WORKLOADS:
        if one.name == "pressure":
            continue
        built = one.build(setting_for(engine, limits=HOSTED_LIMITS, lines="one\ntwo"))
        for item in built.items:
            assert len(item.token_ids) <= HOSTED_LIMITS.max_prompt_tokens
            assert item.params.max_tokens <= HOSTED_LIMITS.max_answer_tokens


def test_sentences_are_taken_as_long_as_they_fit():
    sentences = ("one two three", "four five", "six")
    assert fit(sentences, str.split, 5) == "one two three four five"
    assert fit(sentences, str.split, 100) == "one two three four five six"
    assert fit(sentences, str.split, 1) == "one two three"


def test_an_unknown_workload_is_refused_with_the_known_ones():
    for name in ("nothing", None, 7, {"a": 1}):
        with pytest.raises(InvalidRequestError, match="shared, long, burst, pressure, lines"):
            workload(name)
