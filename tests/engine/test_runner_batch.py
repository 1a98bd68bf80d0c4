"""InputBatch: rows kept between plans, and the flattened batch built from them."""

import numpy as np
import pytest

from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest
from micro_vllm.errors import IntegrityError
from micro_vllm.sampling.params import SamplingSpec
from micro_vllm.worker.input_batch import InputBatch


def make_batch(**settings) -> InputBatch:
    defaults = {
        "max_num_seqs": 4,
        "max_model_len": 16,
        "num_groups": 1,
        "block_size": 4,
        "num_valid_ids": 100,
    }
    return InputBatch(**{**defaults, **settings})


def new(request_id, tokens, blocks=((),), num_prompt=None, **sampling) -> NewRequest:
    spec = SamplingSpec(**{"seed": 0, **sampling})
    return NewRequest(request_id, spec, tuple(tokens), num_prompt or len(tokens), tuple(map(tuple, blocks)))


def row(request_id, tokens, start, blocks=((),), samples=False, output_index=0) -> ScheduledRequest:
    blocks = tuple(map(tuple, blocks))
    return ScheduledRequest(request_id, tuple(tokens), start, blocks, samples, output_index)


def step(batch: InputBatch, *scheduled, **lists):
    plan = ExecutionPlan(step=1, scheduled=scheduled, **lists)
    batch.apply_plan(plan)
    return batch.build(plan) if scheduled else None


def test_a_batch_is_laid_out_decodes_first():
    batch = make_batch()
    step(batch, row("d", [1, 2, 3], 0, [[9]]), new=(new("d", [1, 2, 3]),))
    inputs = step(
        batch,
        row("p", [10, 11, 12, 13, 14, 15], 0, [[5, 2]], samples=False),
        row("d", [4], 3, samples=True, output_index=1),
        row("q", [20, 21], 0, [[7]], samples=True),
        new=(new("p", range(10, 17), temperature=0.5), new("q", [20, 21], temperature=0.7, seed=-3)),
    )
    attention = inputs.attention
    assert inputs.token_ids.tolist() == [4, 10, 11, 12, 13, 14, 15, 20, 21]
    assert attention.positions.tolist() == [3, 0, 1, 2, 3, 4, 5, 0, 1]
    assert (attention.num_decodes, attention.query_lens, attention.context_lens) == (1, (1, 6, 2), (3, 0, 0))
    assert attention.groups[0].slot_mapping.tolist() == [39, 20, 21, 22, 23, 8, 9, 28, 29]
    assert attention.groups[0].block_tables.tolist() == [[9, 0], [5, 2], [7, 0]]
    assert inputs.sampling_ids == ("d", "q")
    assert inputs.logits_indices.tolist() == [0, 8]
    assert inputs.sampling.output_index == [1, 0]
    assert inputs.sampling.settings.temperature.tolist() == [0.0, 0.7]
    assert inputs.sampling.settings.seeds.tolist() == [0, -3]


def test_every_group_has_its_own_table_and_slots():
    batch = make_batch(num_groups=2)
    # The second group's window has passed its first block: null there, and never written.
    inputs = step(batch, row("a", [7, 8], 4, [[3], [6]]), new=(new("a", [1, 2, 3, 4, 7, 8], [[1], [0]]),))
    full, sliding = inputs.attention.groups
    assert full.block_tables.tolist() == [[1, 3]]
    assert sliding.block_tables.tolist() == [[0, 6]]
    assert full.slot_mapping.tolist() == [12, 13]
    assert sliding.slot_mapping.tolist() == [24, 25]


def test_a_reused_row_shows_nothing_of_its_former_owner():
    batch = make_batch(max_num_seqs=1)
    long = new("old", range(12), temperature=1.0, top_k=9, top_p=0.5, min_p=0.1, frequency_penalty=1.0,
               num_logprobs=3)  # fmt: skip
    step(batch, row("old", range(12), 0, [[1, 2, 3]], samples=True), new=(long,))
    inputs = step(
        batch,
        row("new", [5], 0, [[4]], samples=True),
        new=(new("new", [5]),),
        finished_ids=("old",),
    )
    assert batch.request_ids == ("new",)
    assert inputs.attention.groups[0].block_tables.tolist() == [[4]]
    settings = inputs.sampling.settings
    columns = (settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.num_logprobs)
    assert [values.tolist() for values in columns] == [[0.0], [0], [1.0], [0.0], [-1]]
    assert not inputs.sampling.constrained
    # Wider again: what the old row held in later cells must be gone.
    batch.apply_plan(ExecutionPlan(step=3, scheduled=(), finished_ids=("new",)))
    step(batch, row("x", [1], 0, [[6]]), new=(new("x", [1]),))
    assert batch._block_tables[0][0].tolist() == [6, 0, 0, 0, 0]


def test_preempted_and_resumed_requests_bring_their_tokens_back():
    batch = make_batch()
    words = {"bad_words_token_ids": ((3, 4),), "frequency_penalty": 0.5}
    step(batch, row("a", [1, 2], 0, [[1]], samples=True), new=(new("a", [1, 2], **words),))
    step(batch, row("a", [3], 2, samples=True, output_index=1))
    kept = batch.build(ExecutionPlan(2, (row("a", [3], 2, samples=True, output_index=1),)))
    batch.apply_plan(ExecutionPlan(step=3, scheduled=(), preempted_ids=("a",)))
    assert batch.request_ids == ()
    # Recomputed in two chunks: the second must not count the output twice.
    step(batch, row("a", [1], 0, [[8]]), new=(new("a", [1, 2, 3], num_prompt=2, **words),))
    resumed = step(batch, row("a", [2, 3], 1, samples=True, output_index=1))
    for inputs in (kept, resumed):
        (constrained,) = inputs.sampling.constrained
        counts = constrained.constraints.counts
        seen = dict(zip(counts.token_ids.tolist(), counts.output_counts.tolist(), strict=True))
        assert seen == {1: 0, 2: 0, 3: 1}
        assert constrained.constraints.masked_ids(1).tolist() == [4]


def test_a_chunked_prompt_is_not_counted_as_output():
    batch = make_batch()
    request = new("a", [1, 2, 3, 4], presence_penalty=1.0)
    step(batch, row("a", [1, 2], 0, [[1]]), new=(request,))
    step(batch, row("a", [3, 4], 2, samples=True))
    inputs = step(batch, row("a", [5], 4, [[2]], samples=True, output_index=1))
    counts = inputs.sampling.constrained[0].constraints.counts
    assert counts.output_counts.tolist() == [0, 0, 0, 0, 1]
    assert counts.token_ids[4] == 5


def test_tokens_known_already_are_counted_once():
    batch = make_batch()
    step(batch, row("a", [1], 0, [[1]]), new=(new("a", [1, 2, 3], num_prompt=2, frequency_penalty=1.0),))
    # Tokens 2 and 3 came with the request, 9 is new.
    inputs = step(batch, row("a", [2, 3, 9], 1, samples=True, output_index=2))
    assert inputs.sampling.constrained[0].constraints.counts.output_counts.tolist() == [0, 0, 1, 1]


def test_ids_without_a_row_may_leave():
    batch = make_batch()
    batch.apply_plan(ExecutionPlan(1, (), preempted_ids=("ghost",), finished_ids=("ghost", "other")))
    assert batch.request_ids == ()


def test_a_request_may_come_back_as_new_after_its_step_failed():
    batch = make_batch(max_num_seqs=1)
    for blocks in ([[1]], [[2]]):
        inputs = step(batch, row("a", [1, 2], 0, blocks), new=(new("a", [1, 2]),))
    assert inputs.attention.groups[0].block_tables.tolist() == [[2]]


def test_tables_grow_beyond_the_planned_width():
    batch = make_batch(max_model_len=4)
    blocks = list(range(1, 10))
    inputs = step(batch, row("a", range(34), 0, [blocks]), new=(new("a", range(34)),))
    assert inputs.attention.groups[0].block_tables.tolist() == [blocks]
    assert (
        inputs.attention.groups[0].slot_mapping.tolist() == [b * 4 + i for b in blocks for i in range(4)][:34]
    )


def test_what_stays_the_same_is_kept_and_dropped_with_its_reason():
    batch = make_batch()
    step(
        batch,
        row("a", [1, 2], 0, [[1]]),
        row("b", [1, 2], 0, [[2]]),
        new=(new("a", [1, 2]), new("b", [1, 2])),
    )

    def decode(start, ids=("a", "b"), blocks=((),), **lists):
        return step(
            batch,
            *(row(i, [start], start, blocks if i == "a" else ((),), True, start - 1) for i in ids),
            **lists,
        )

    first, second = decode(2), decode(3)
    assert second.sampling.settings is first.sampling.settings
    assert second.attention.groups[0].block_tables is first.attention.groups[0].block_tables
    assert second.attention.groups[0].slot_mapping.tolist() == [7, 11]
    assert second.sampling.output_index == [2, 2]
    # A block for one of them: other tables, the same settings.
    step(batch, row("b", [4], 4, [[4]], True, 3))
    third = decode(4, ids=("a",), blocks=[[3]])
    assert third.attention.groups[0].block_tables.tolist() == [[1, 3]]
    both = decode(5)
    assert both.attention.groups[0].block_tables.tolist() == [[1, 3], [2, 4]]
    assert both.sampling.settings is not first.sampling.settings  # "a" and "b" alone came between
    # The same ids, but another request that has come back under one of them.
    step(batch, row("a", [9], 0, [[5]]), new=(new("a", [9, 9], temperature=0.5),), finished_ids=("a",))
    again = step(batch, row("a", [9], 1, samples=True), row("b", [6], 6, samples=True, output_index=5))
    assert again.sampling.settings.temperature.tolist() == [0.5, 0.0]
    assert again.attention.groups[0].block_tables.tolist() == [[5, 0], [2, 4]]
    assert again.attention.groups[0].slot_mapping.tolist() == [21, 18]


def test_single_tokens_of_which_some_do_not_draw():
    """The last tokens of chunked prompts, one each, beside a decode."""
    batch = make_batch()
    step(batch, row("d", [1], 0, [[9]], samples=True), new=(new("d", [1]),))
    inputs = step(
        batch,
        row("p", [5], 0, [[5]]),
        row("d", [2], 1, samples=True, output_index=1),
        new=(new("p", [5, 6], temperature=0.5),),
    )
    assert inputs.logits_indices.tolist() == [1]
    assert inputs.sampling_ids == ("d",)
    assert inputs.sampling.settings.temperature.tolist() == [0.0]
    inputs = step(batch, row("p", [6], 1, samples=True), row("d", [3], 2, samples=True, output_index=2))
    assert inputs.logits_indices is None  # all of them, in order
    assert inputs.sampling.settings.temperature.tolist() == [0.5, 0.0]


def test_contradictions_are_told():
    batch = make_batch(max_num_seqs=1)
    with pytest.raises(IntegrityError, match="'a' is scheduled"):
        step(batch, row("a", [1], 0, [[1]]))
    with pytest.raises(IntegrityError, match="'a' has 1 blocks in group 0, but its 5 tokens need 2"):
        step(batch, row("a", range(5), 0, [[1]]), new=(new("a", range(5)),))
    with pytest.raises(IntegrityError, match="'a' has 1 blocks in group 0, but its 5 tokens need 2"):
        step(batch, row("a", [4], 4))
    with pytest.raises(IntegrityError, match="max_num_seqs=1"):
        batch.apply_plan(ExecutionPlan(1, (), new=(new("b", [1]),)))
    # Once the engine has finished what failed, the batch works on.
    inputs = step(batch, row("b", [1], 0, [[1]]), new=(new("b", [1]),), finished_ids=("a",))
    assert inputs.token_ids.tolist() == [1]


def test_random_life_equals_tables_kept_plainly():
    """300 steps of arrivals, growth and departures against dicts of lists."""
    rng = np.random.default_rng(0)
    batch = make_batch(max_num_seqs=5, max_model_len=64, num_groups=2)
    tables, lengths, next_block = {}, {}, 1
    for number in range(300):
        leaving = [name for name in tables if rng.random() < 0.1 or lengths[name] > 55]
        for name in leaving:
            del tables[name], lengths[name]
        arriving = [f"r{number}"] if len(tables) < 5 and rng.random() < 0.5 else []
        for name in arriving:
            tables[name], lengths[name] = [[], []], 0
        scheduled = []
        for name in rng.permutation(list(tables)).tolist():
            if rng.random() < 0.7 or name in arriving:
                count = int(rng.choice([1, 1, 3, 6]))
                fresh = [[], []]
                while len(tables[name][0]) * 4 < lengths[name] + count:
                    for group in (0, 1):
                        fresh[group].append(next_block)
                        tables[name][group].append(next_block)
                        next_block += 1
                scheduled.append(row(name, rng.integers(0, 99, count).tolist(), lengths[name], fresh))
                lengths[name] += count
        inputs = step(
            batch,
            *scheduled,
            new=tuple(new(name, [], ((), ())) for name in arriving),
            finished_ids=tuple(leaving),
        )
        if not scheduled:
            continue
        ordered = [s for s in scheduled if s.count == 1] + [s for s in scheduled if s.count > 1]
        for group in (0, 1):
            found = inputs.attention.groups[group]
            slots = [
                tables[s.request_id][group][p // 4] * 4 + p % 4
                for s in ordered
                for p in range(s.start, s.start + s.count)
            ]
            assert found.slot_mapping.tolist() == slots
            for cells, s in zip(found.block_tables.tolist(), ordered, strict=True):
                mine = tables[s.request_id][group]
                assert cells[: len(mine)] == mine
                assert not any(cells[len(mine) :])
