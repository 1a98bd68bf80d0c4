"""Perplexity, agreement and partings: from given figures, and on a tiny model against plain arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from micro_vllm.engine.output import CompletionOutput, Logprob, RequestOutput
from micro_vllm.model_loader import load_model
from tests.benchmarks.quality import (
    BF16,
    INT8,
    LINE,
    REFERENCE,
    Quality,
    Reading,
    compare_answers,
    compare_readings,
    main,
    quality_lines,
    read,
    text_of_python,
    verdict_line,
    windows_of,
)
from tests.benchmarks.support import save_small_model
from tests.engine.support.models import load_transformers, save_tiny_model, transformers_logits
from tests.engine.support.native import needs_native


def reading(losses: list[float], tokens: list[int], gaps: list[float]) -> Reading:
    return Reading(torch.tensor(losses).double(), torch.tensor(tokens), torch.tensor(gaps))


def test_perplexity_agreement_and_the_widest_parting():
    exact = reading([1.0, 2.0, 3.0, 2.0], [5, 6, 7, 8], [4.0, 0.1, 0.3, 9.0])
    int8 = reading([1.1, 2.1, 3.1, 2.1], [5, 9, 9, 8], [4.0, 0.2, 0.2, 8.0])
    found = compare_readings(INT8, int8, REFERENCE, exact)
    assert exact.perplexity == pytest.approx(math.exp(2.0))
    assert found.perplexity == pytest.approx(math.exp(2.1))
    assert found.above == pytest.approx(math.exp(0.1) - 1)
    assert found.standard_error == pytest.approx(0, abs=1e-6)  # the same difference at every token
    assert found.agreement == 0.5
    assert found.widest_parting == pytest.approx(0.3)
    assert compare_readings(BF16, exact, REFERENCE, exact).widest_parting == 0
    assert exact.first(1).perplexity == pytest.approx(math.e)


def test_the_line_is_one_percent_above_bfloat16():
    def quality(above: float) -> Quality:
        return Quality(INT8, BF16, 1000, 12.0, above, 0.001, 0.95, 0.4)

    assert LINE == 0.01
    assert "+0.90% ± 0.10% against bfloat16 (at most +1%): met" in verdict_line(quality(0.009))
    assert verdict_line(quality(-0.02)).endswith("met")
    assert verdict_line(quality(0.011)).endswith("MISSED")
    assert "same likeliest token 95.0% of 1,000" in quality_lines([quality(0.0)])[0]


def output(token_ids: list[int], gap: float) -> RequestOutput:
    ranked = [{token_id: Logprob(-1.0, 1), -1: Logprob(-1.0 - gap, 2)} for token_id in token_ids]
    return RequestOutput("r", None, [], [CompletionOutput(0, "", token_ids, logprobs=ranked)], True)


def test_answers_count_up_to_their_first_difference():
    reference = [output([1, 2, 3, 4], 0.25), output([1, 2, 3, 4], 0.5)]
    found = compare_answers(INT8, [output([1, 2, 3, 4], 0.1), output([1, 9, 3, 4], 0.1)], reference)
    assert (found.num_answers, found.num_identical) == (2, 1)
    assert (found.num_tokens, found.num_before_parting) == (8, 5)
    assert found.widest_parting == pytest.approx(0.5)


def test_windows_are_spread_over_the_text_and_do_not_overlap():
    windows = windows_of(range(100), 10, 3)
    assert [next(iter(window)) for window in windows] == [0, 30, 60]
    assert {len(window) for window in windows} == {10}
    with pytest.raises(ValueError, match="10 windows of 10, not 11"):
        windows_of(range(100), 10, 11)


def test_the_text_comes_with_python_and_is_long():
    assert len(text_of_python()) > 200_000
    assert text_of_python() == text_of_python()


@pytest.mark.parametrize("tokens_a_step", [512, 7, 1])
def test_a_reading_is_what_the_model_says_of_every_token(tmp_path: Path, tokens_a_step: int):
    """transformers' logits of the whole window, in float32, are the reference; whatever the chunks."""
    folder = save_tiny_model(tmp_path)
    window = [(7 * i * i + 3) % 190 + 4 for i in range(40)]
    loaded = load_model(folder, dtype="float32", skip_tokenizer_init=True)
    found = read(loaded, None, [window, window[::-1]], tokens_a_step=tokens_a_step)
    logits = transformers_logits(load_transformers(folder), window)[:-1]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(window[1:]), reduction="none")
    assert len(found.losses) == 2 * 39
    torch.testing.assert_close(found.losses[:39].float(), losses, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.tokens[:39], logits.argmax(-1))
    best = logits.topk(2).values
    torch.testing.assert_close(found.gaps[:39], best[:, 0] - best[:, 1], rtol=1e-3, atol=1e-3)


@needs_native
def test_the_whole_report_runs_on_a_tiny_model(tmp_path: Path, capsys):
    folder = save_small_model(
        tmp_path,
        max_position_embeddings=96,
        initializer_range=0.06,
    )
    written = tmp_path / "quality.json"
    main(["--model", str(folder), "--windows", "2", "--json", str(written)])
    words = capsys.readouterr().out
    figures = json.loads(written.read_text())
    assert figures["window"] == 95
    bf16, int8, decode = figures["against_float32"]
    assert (bf16["num_tokens"], int8["num_tokens"], decode["num_tokens"]) == (188, 188, 94)
    assert 0 < abs(bf16["above"]) < 0.05
    assert 0 < abs(int8["above"]) < 0.05
    assert figures["against_bfloat16"]["reference"] == BF16
    assert [one["num_answers"] for one in figures["answers"]] == [2, 2]
    assert "against bfloat16 (at most +1%)" in words
