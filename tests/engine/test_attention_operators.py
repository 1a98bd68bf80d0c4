"""Both operators against the definition, over scattered blocks whose unseen slots all hold NaN."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from micro_vllm.attention.operators import sdpa
from micro_vllm.attention.operators.registry import get_operator, operators_available, register
from micro_vllm.attention.spec import AttentionSpec
from micro_vllm.errors import ConfigError
from tests.engine.support.attention import AttentionProblem

OPERATORS = ["reference", "sdpa"]
FLOAT32 = {"atol": 2e-6, "rtol": 0}
BFLOAT16 = {"atol": 2e-2, "rtol": 2e-2}

BATCHES = {
    "one decode": ((1,), (37,)),
    "decodes at block borders": ((1, 1, 1, 1), (3, 4, 7, 8)),
    "decodes of very different lengths": ((1,) * 6, (3, 500, 480, 9, 2, 260)),
    "first token of a prompt of one": ((1, 1), (0, 6)),
    "fresh prompts": ((5, 40, 1), (0, 0, 0)),
    "chunks with context": ((3, 33, 64, 1), (9, 70, 2, 5)),
    "decodes and chunks": ((1, 1, 1, 7, 50, 2), (11, 0, 90, 0, 13, 31)),
}


def spec(window: int | None = None, heads: int = 6, kv_heads: int = 2) -> AttentionSpec:
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=8, scale=8**-0.5, window=window)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("window", [None, 1, 4, 6, 16, 45])
@pytest.mark.parametrize("batch", list(BATCHES))
def test_operator_equals_the_definition_and_sees_no_poison(
    operator: str, window: int | None, batch: str
) -> None:
    """Null block, stale table entries, block tails and free blocks are NaN; none of it may show."""
    problem = AttentionProblem.random(spec(window), *BATCHES[batch])
    out = problem.run(operator)
    torch.testing.assert_close(out.double(), problem.expected(), **FLOAT32)


@pytest.mark.parametrize("heads", [(4, 4), (8, 1), (9, 3)])
def test_head_groupings(heads: tuple[int, int]) -> None:
    """Multi-head, multi-query and grouped heads, in decodes and in short and long chunks."""
    for operator in OPERATORS:
        problem = AttentionProblem.random(spec(12, *heads), (1, 1, 3, 40), (5, 30, 20, 7))
        torch.testing.assert_close(problem.run(operator).double(), problem.expected(), **FLOAT32)


@pytest.mark.parametrize("window", [None, 20])
def test_operators_agree_in_bfloat16(window: int | None) -> None:
    """2e-2: a bfloat16 has 8 bits of mantissa, and the operators round at different places."""
    problem = AttentionProblem.random(spec(window), (1, 1, 35, 4), (70, 3, 60, 0), dtype=torch.bfloat16)
    out, reference = problem.run("sdpa"), problem.run("reference")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, reference, **BFLOAT16)


@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(0, 90), max_size=5),
    chunks=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=3),
    window=st.one_of(st.none(), st.integers(1, 70)),
    block_size=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 3),
)
def test_random_batches_agree(
    decodes: list[int],
    chunks: list[tuple[int, int]],
    window: int | None,
    block_size: int,
    seed: int,
) -> None:
    if not decodes and not chunks:
        decodes = [5]
    query_lens = (1,) * len(decodes) + tuple(count for count, _ in chunks)
    context_lens = tuple(decodes) + tuple(context for _, context in chunks)
    problem = AttentionProblem.random(
        spec(window), query_lens, context_lens, block_size=block_size, seed=seed
    )
    reference = problem.run("reference", seed=seed)
    torch.testing.assert_close(problem.run("sdpa", seed=seed), reference, **FLOAT32)


def test_a_result_does_not_depend_on_where_the_blocks_lie() -> None:
    problem = AttentionProblem.random(spec(9), (1, 1, 12), (20, 44, 30))
    for operator in OPERATORS:
        assert torch.equal(problem.run(operator, seed=1), problem.run(operator, seed=2))


def test_one_long_decode_does_not_pad_all_the_short_ones() -> None:
    """Counts blocks gathered: 31 short requests beside one of 256 blocks."""
    lengths = [2] * 31 + [256]
    buckets = sdpa._split_by_length(lengths)
    members = [rows if rows is not None else list(range(32)) for rows in buckets]
    assert sorted(row for rows in members for row in rows) == list(range(32))
    gathered = sum(max(lengths[row] for row in rows) * len(rows) for rows in members)
    assert gathered == sum(lengths)
    assert len(buckets) == 2


def test_similar_decodes_share_one_bucket_in_order() -> None:
    assert sdpa._split_by_length([7, 8, 7, 8, 6]) == [None]
    assert sdpa._split_by_length([]) == []


def test_padding_stays_within_its_allowance() -> None:
    generator = random.Random(0)
    for _ in range(200):
        lengths = [generator.randrange(1, 400) for _ in range(generator.randrange(1, 40))]
        for rows in sdpa._split_by_length(lengths):
            part = lengths if rows is None else [lengths[row] for row in rows]
            assert max(part) * len(part) - sum(part) <= sdpa.BUCKET_OVERHEAD_BLOCKS


def test_auto_is_sdpa_and_an_unknown_operator_is_refused_with_the_known_ones() -> None:
    assert get_operator("auto").name == "sdpa"
    assert set(operators_available()) >= {"reference", "sdpa"}
    with pytest.raises(ConfigError, match="'flash9' is unknown; allowed: auto, reference, sdpa"):
        get_operator("flash9")


def test_a_registered_name_is_not_overwritten() -> None:
    with pytest.raises(ConfigError, match="registered already"):
        register("sdpa", "nowhere", "Nothing")
