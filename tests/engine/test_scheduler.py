"""The scheduler over a scripted executor: budgets, admission, preemption, refusals. Counts, never seconds."""

from __future__ import annotations

import random

import pytest

from micro_vllm.config import EngineConfig
from micro_vllm.errors import CapacityError, ConfigError, InvalidRequestError
from micro_vllm.sampling.params import SamplingParams
from micro_vllm.trace import StepExecuted, StepPlanned, TraceLog
from tests.engine.support.scripted import ScriptedExecutor, run, scripted_engine, solo

ON = SamplingParams(max_tokens=8, ignore_eos=True)


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 50) for _ in range(length)] for _ in range(count)]


def counts(engine) -> list[dict[str, int]]:
    """Per step, how many tokens of each request were planned."""
    return [{row.request_id: row.count for row in plan.scheduled} for plan in engine.executor.plans]


# ---------------------------------------------------------------- budgets


def test_prefill_is_chunked_by_the_token_budget_and_mixed_with_decodes():
    engine = scripted_engine(max_num_batched_tokens=16)
    engine.add_request(prompts(1, 4)[0], ON, request_id="short")
    engine.step()
    engine.add_request(prompts(1, 40, seed=1)[0], ON, request_id="long")
    run(engine)
    assert counts(engine)[0] == {"short": 4}
    # The decode goes first with its one token; the prompt gets what is left of 16.
    assert counts(engine)[1] == {"short": 1, "long": 15}
    assert counts(engine)[2] == {"short": 1, "long": 15}
    assert counts(engine)[3] == {"short": 1, "long": 10}
    assert all(plan.num_tokens <= 16 for plan in engine.executor.plans)


def test_no_more_requests_run_than_there_are_seats():
    engine = scripted_engine(max_num_seqs=3)
    for index, prompt in enumerate(prompts(7, 4)):
        engine.add_request(prompt, ON, request_id=f"r{index}")
    done = run(engine)
    assert len(done) == 7
    assert max(len(step) for step in counts(engine)) == 3


def test_without_chunked_prefill_a_prompt_is_computed_in_one_step():
    engine = scripted_engine(max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False)
    for index, prompt in enumerate(prompts(3, 40)):
        engine.add_request(prompt, ON, request_id=f"r{index}")
    run(engine)
    prefills = [count for step in counts(engine) for count in step.values() if count > 1]
    assert prefills == [40, 40, 40]


def test_without_chunked_prefill_a_budget_below_the_context_is_refused():
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=32 is less than max_model_len=64"):
        scripted_engine(max_num_batched_tokens=32, max_model_len=64, enable_chunked_prefill=False)


def test_a_step_costs_o_running_with_ten_thousand_waiting():
    """The plan, and what is kept of the queue in it, does not grow with the queue."""
    events = []

    class Sink:
        def emit(self, event):
            events.append(event)

    engine = scripted_engine(max_num_seqs=2, trace=Sink())
    for prompt in prompts(10_000, 2):
        engine.add_request(prompt, SamplingParams(max_tokens=2))
    looked = 0
    lookup = engine.scheduler.kv.lookup

    def counting(request):
        nonlocal looked
        looked += 1
        return lookup(request)

    engine.scheduler.kv.lookup = counting
    for _ in range(5):
        engine.step()
    assert looked <= 5 * 2
    planned = [event for event in events if event.kind == "StepPlanned"][-1]
    assert len(planned.waiting) == 64
    assert planned.num_waiting > 9_900


# ---------------------------------------------------------------- policy


def test_fcfs_admits_in_order_of_arrival_whatever_the_priority():
    engine = scripted_engine(max_num_seqs=1)
    for index, prompt in enumerate(prompts(3, 4)):
        engine.add_request(prompt, ON, request_id=f"r{index}", priority=-index)
    assert list(run(engine)) == ["r0", "r1", "r2"]


def test_priority_policy_admits_the_lowest_number_first():
    engine = scripted_engine(max_num_seqs=1, scheduling_policy="priority")
    for index, prompt in enumerate(prompts(3, 4)):
        engine.add_request(prompt, ON, request_id=f"r{index}", priority=-index)
    assert list(run(engine)) == ["r2", "r1", "r0"]


def test_pool_run_dry_preempts_and_goes_on():
    """E4, nano-vllm #274, #277: several long requests in a pool too small for all."""
    engine = scripted_engine(num_gpu_blocks_override=16, max_model_len=64)
    on = SamplingParams(max_tokens=40, ignore_eos=True)
    many = prompts(4, 8)
    for index, prompt in enumerate(many):
        engine.add_request(prompt, on, request_id=f"r{index}")
    done = run(engine)
    assert {r: len(tokens) for r, tokens in done.items()} == {f"r{i}": 40 for i in range(4)}
    assert done == {f"r{i}": solo(p, 40, ignore_eos=True) for i, p in enumerate(many)}
    assert sum(len(plan.preempted_ids) for plan in engine.executor.plans) > 0


@pytest.mark.parametrize("windows", [(None, None), (8, 8), (None, 6)])
def test_a_decode_asks_the_groups_only_when_a_table_changes(monkeypatch, windows):
    """At a new block, or when one falls out of a window: never more than twice in the tokens of a block."""
    engine = scripted_engine(windows, num_gpu_blocks_override=64)
    asked = []
    for group in engine.scheduler.kv.groups:
        missing = group.num_missing
        monkeypatch.setattr(
            group, "num_missing", lambda r, n, missing=missing: asked.append(n) or missing(r, n)
        )
    on = SamplingParams(max_tokens=60, ignore_eos=True)
    engine.add_request(prompts(1, 5)[0], on)
    run(engine)  # the executor checks that every token has its slot, and that what is seen is still there
    groups, kinds = len(engine.scheduler.kv.groups), len({w for w in windows if w} | {None})
    assert len(set(asked)) <= (5 + 60) // 4 * kinds + 1
    assert len(asked) == len(set(asked)) * groups


def test_a_trace_counts_as_decodes_what_it_calls_decodes():
    """A chunk of one token, of a request that is computed again, is none."""
    log = TraceLog()
    engine = scripted_engine(
        num_gpu_blocks_override=10,
        max_model_len=64,
        max_num_batched_tokens=3,
        max_num_seqs=3,
        trace=log,
        enable_prefix_caching=False,
    )
    for prompt, most in zip(prompts(4, 4), (8, 20, 14, 14), strict=True):
        engine.add_request(prompt, SamplingParams(max_tokens=most, ignore_eos=True))
    run(engine)
    events = log.since()
    planned = [sum(row.phase == "decode" for row in e.rows) for e in events if isinstance(e, StepPlanned)]
    rows = [row for plan in engine.executor.plans for row in plan.scheduled]
    assert any(row.count == 1 and row.output_index and not row.samples for row in rows)
    assert planned == [e.num_decodes for e in events if isinstance(e, StepExecuted)]


def test_preempted_request_comes_back_ahead_of_later_ones():
    engine = scripted_engine(num_gpu_blocks_override=12, max_model_len=40, enable_prefix_caching=False)
    on = SamplingParams(max_tokens=20, ignore_eos=True)
    for index, prompt in enumerate(prompts(5, 8)):
        engine.add_request(prompt, on, request_id=f"r{index}")
    assert list(run(engine)) == ["r0", "r1", "r2", "r3", "r4"]


def test_preempting_a_request_already_in_this_step_gives_back_its_tokens_budget_and_blocks():
    """E31, vllm #23347: under the priority policy the victim may stand ahead in the order of planning."""
    engine = scripted_engine(
        num_gpu_blocks_override=6, scheduling_policy="priority", max_model_len=24, enable_prefix_caching=False
    )
    low, high = prompts(2, 7)
    engine.add_request(low, SamplingParams(max_tokens=12, ignore_eos=True), request_id="low", priority=9)
    engine.step()
    engine.add_request(high, SamplingParams(max_tokens=12, ignore_eos=True), request_id="high", priority=0)
    preempting = None
    while engine.has_unfinished_requests():
        engine.step()
        engine.check_integrity()
        plan = engine.executor.plans[-1]
        if plan.preempted_ids and preempting is None:
            preempting = plan
            assert plan.preempted_ids == ("low",)
            # "low" stood first and had its token; none of it is left in the plan.
            assert [row.request_id for row in plan.scheduled] == ["high"]
            assert engine.scheduler.requests["low"].num_computed_tokens == 0
    assert preempting is not None


def test_first_chunk_fits_but_the_rest_never_does_waits_without_thrashing():
    """E7, vllm #25538: admitted only when its whole prompt fits beside what runs."""
    engine = scripted_engine(num_gpu_blocks_override=20, max_num_batched_tokens=8, max_model_len=80)
    (running,), (waiting,) = prompts(1, 30), prompts(1, 48, seed=1)
    engine.add_request(running, SamplingParams(max_tokens=20, ignore_eos=True), request_id="running")
    engine.add_request(waiting, SamplingParams(max_tokens=4, ignore_eos=True), request_id="waiting")
    done = run(engine)
    assert done == {
        "running": solo(running, 20, ignore_eos=True),
        "waiting": solo(waiting, 4, ignore_eos=True),
    }
    assert sum(len(plan.preempted_ids) for plan in engine.executor.plans) == 0
    assert engine.executor.computed_tokens == 30 + 19 + 48 + 3, "nothing was computed twice"


def test_running_prompts_keep_their_claim_while_they_are_chunked():
    """E7: what a running prompt still needs is reserved when the next one asks to be admitted."""
    engine = scripted_engine(num_gpu_blocks_override=20, max_num_batched_tokens=8, max_model_len=64)
    for index, prompt in enumerate(prompts(3, 40)):
        engine.add_request(prompt, SamplingParams(max_tokens=2, ignore_eos=True), request_id=f"r{index}")
    run(engine)
    assert sum(len(plan.preempted_ids) for plan in engine.executor.plans) == 0


# ---------------------------------------------------------------- refusals


def test_request_longer_than_the_pool_is_refused_when_added_and_others_run():
    """E5, vllm #39734: shorter than max_model_len, larger than the whole pool, with others behind it."""
    engine = scripted_engine(num_gpu_blocks_override=8, max_model_len=100)
    first, behind = prompts(2, 6)
    engine.add_request(first, ON, request_id="first")
    with pytest.raises(CapacityError, match=r"50 tokens.*8 blocks of 4 tokens.*at most 32"):
        engine.add_request(prompts(1, 50)[0], ON, request_id="huge")
    engine.add_request(behind, ON, request_id="behind")
    assert run(engine).keys() == {"first", "behind"}


def test_prompt_longer_than_the_context_names_both_numbers():
    """E24, vllm #33418."""
    engine = scripted_engine(max_model_len=40)
    engine.add_request(prompts(1, 6)[0], ON, request_id="other")
    with pytest.raises(CapacityError, match=r"41 tokens; max_model_len=40"):
        engine.add_request(prompts(1, 41)[0], ON)
    assert run(engine).keys() == {"other"}


def test_answer_that_outgrows_the_pool_ends_with_length():
    """DESIGN: it never preempts itself for ever. The last token needs no slot, so 32 slots carry 33 tokens."""
    engine = scripted_engine(num_gpu_blocks_override=8, max_model_len=100)
    prompt = prompts(1, 20)[0]
    engine.add_request(prompt, SamplingParams(max_tokens=None, ignore_eos=True), request_id="r")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
        engine.check_integrity()
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert len(outputs[-1].outputs[0].token_ids) == 33 - 20
    assert engine.scheduler.requests == {}
    assert sum(len(plan.preempted_ids) for plan in engine.executor.plans) == 0


def test_prompt_that_fills_the_pool_exactly_gets_one_token():
    engine = scripted_engine(num_gpu_blocks_override=8, max_model_len=100)
    engine.add_request(prompts(1, 32)[0], ON, request_id="r")
    assert len(run(engine)["r"]) == 1


def test_length_cap_wins_over_min_tokens():
    """E6, vllm #51299: min_tokens larger than the context allows."""
    engine = scripted_engine(max_model_len=20)
    engine.add_request(prompts(1, 10)[0], SamplingParams(max_tokens=None, min_tokens=50), request_id="r")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert len(outputs[-1].outputs[0].token_ids) == 10


def test_duplicate_request_id_is_refused_for_the_second_only():
    """E11, vllm #15041 (the half without n > 1)."""
    engine = scripted_engine()
    prompt = prompts(1, 6)[0]
    engine.add_request(prompt, ON, request_id="same")
    with pytest.raises(InvalidRequestError, match="'same' is in use"):
        engine.add_request(prompt, ON, request_id="same")
    assert run(engine) == {"same": solo(prompt, 8, ignore_eos=True)}
    engine.add_request(prompt, ON, request_id="same")  # free again once it has ended
    assert run(engine) == {"same": solo(prompt, 8, ignore_eos=True)}


def test_abort_frees_all_blocks_at_once():
    """E11, vllm #14326 (the half without n > 1)."""
    engine = scripted_engine()
    for index, prompt in enumerate(prompts(4, 12)):
        engine.add_request(prompt, ON, request_id=f"r{index}")
    engine.step()
    outputs = engine.abort(["r0", "r1", "r2", "r3", "unknown"])
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort"] * 4
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    engine.check_integrity()


# ---------------------------------------------------------------- failures


def test_failing_step_ends_its_requests_with_the_reason_and_the_engine_goes_on():
    failing = {"on": True}
    engine = scripted_engine(executor=ScriptedExecutor(fail_when=lambda plan: failing["on"]))
    engine.add_request(prompts(1, 6)[0], ON, request_id="hit")
    (output,) = engine.step()
    assert output.outputs[0].finish_reason == "error"
    assert "RuntimeError: scripted failure" in output.outputs[0].error
    engine.check_integrity()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    failing["on"] = False
    prompt = prompts(1, 6, seed=2)[0]
    engine.add_request(prompt, ON, request_id="after")
    assert run(engine)["after"] == solo(prompt, 8, ignore_eos=True)
    assert engine.executor.rows.keys() <= {"after"}, "rows of failed requests were dropped"


def test_ctrl_c_in_the_middle_of_a_step_leaves_the_engine_whole():
    def interrupt(plan):
        raise KeyboardInterrupt

    engine = scripted_engine(executor=ScriptedExecutor(fail_when=interrupt))
    engine.add_request(prompts(1, 6)[0], ON)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.check_integrity()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    assert not engine.has_unfinished_requests()


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blok_size": 16}, "unknown engine setting 'blok_size'. Did you mean 'block_size'"),
        ({"block_size": 0}, "block_size=0 is out of range; allowed: a whole number, 1 or more"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "less than max_num_seqs=64"),
        ({"scheduling_policy": "lifo"}, "'lifo' is unknown; allowed: fcfs, priority"),
        ({"dtype": "int3"}, "'int3' is unknown; allowed: auto, float32"),
        ({"enable_prefix_caching": "yes"}, "neither True nor False"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override=0"),
    ],
)
def test_wrong_setting_says_value_range_and_what_to_do(settings, message):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**settings)
    assert message in str(caught.value)


def test_context_longer_than_the_model_is_refused():
    with pytest.raises(ConfigError, match=r"max_model_len=5,000 .*4,096 positions"):
        scripted_engine(max_model_len=5000)
