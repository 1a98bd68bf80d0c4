"""``python -m tests.benchmarks.quality [--windows 16] [--json FILE]``: what the weights in int8 cost in quality.

Every mode reads the same text, the language reference that comes with Python, and answers the same prompts. The
reference is the model in float32; the line is perplexity within 1 % of bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from micro_vllm import LLM, SamplingParams
from micro_vllm.engine.output import RequestOutput
from micro_vllm.model_loader import LoadedModel, load_model

if TYPE_CHECKING:
    from micro_vllm.attention.attention import AttentionContext
    from micro_vllm.native.prepare import NativeParts

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
WINDOW = 1024
"""Tokens read in one go; each is predicted from those before it in its window."""
LINE = 0.01
"""Most that the perplexity of int8 may lie above that of bfloat16."""
REFERENCE, BF16, INT8, INT8_DECODE = (
    "float32 eager",
    "bfloat16 eager",
    "int8 native",
    "int8 native, token by token",
)
PROMPT_TOKENS = ANSWER_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """What a mode made of every token of a text but the first of each window."""

    losses: torch.Tensor
    """(N,) float64: -log of the chance it gave to the token that came"""
    tokens: torch.Tensor
    """(N,) int64: the one it found likeliest"""
    gaps: torch.Tensor
    """(N,) float32: how far its two largest logits are apart"""

    @property
    def perplexity(self) -> float:
        return math.exp(self.losses.mean().item())

    def first(self, count: int) -> Reading:
        """Of the first ``count`` tokens."""
        return Reading(self.losses[:count], self.tokens[:count], self.gaps[:count])


@dataclass(frozen=True, slots=True)
class Quality:
    """One mode, measured at the same tokens of a reference."""

    mode: str
    reference: str
    num_tokens: int
    perplexity: float
    above: float
    """Its perplexity over the reference's, minus 1."""
    standard_error: float
    """Of ``above``, from the differences token by token."""
    agreement: float
    """Share of tokens at which both find the same one likeliest."""
    widest_parting: float
    """Largest distance of the reference's two largest logits at a token where they do not."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Greedy answers of a mode beside the reference's."""

    mode: str
    num_answers: int
    num_identical: int
    num_tokens: int
    num_before_parting: int
    """Tokens before each answer's first difference; after it two answers are about different texts."""
    widest_parting: float
    """Largest distance of the reference's two likeliest log-probabilities at such a first difference."""


def compare_readings(mode: str, reading: Reading, reference_name: str, reference: Reading) -> Quality:
    """Of the same tokens."""
    differences = reading.losses - reference.losses  # (N,)
    parted = reading.tokens != reference.tokens  # (N,)
    ratio = math.exp(differences.mean().item())
    error = differences.std().item() / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return Quality(
        mode=mode,
        reference=reference_name,
        num_tokens=len(differences),
        perplexity=reading.perplexity,
        above=ratio - 1,
        standard_error=ratio * error,
        agreement=1 - parted.double().mean().item(),
        widest_parting=reference.gaps[parted].max().item() if parted.any() else 0.0,
    )


class _Recorder:
    """Stands in for a runner's model: hands everything on, and keeps what each row says of the token after it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.window: Sequence[int] = ()
        self.readings: list[Reading] = []

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:
        hidden: torch.Tensor = self._model(token_ids, positions, context)  # (T, hidden)
        assert token_ids.tolist() == [self.window[position] for position in positions.tolist()]
        known = positions < len(self.window) - 1  # (T,) the token after the last one is not in the text
        if known.any():
            targets = torch.tensor(self.window)[positions[known] + 1]  # (R,)
            logits = self._model.compute_logits(hidden[known]).float()  # (R, V)
            best = logits.topk(2, dim=-1)
            losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")  # (R,)
            self.readings.append(
                Reading(losses.double(), best.indices[:, 0].clone(), best.values[:, 0] - best.values[:, 1])
            )
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.compute_logits(hidden)
        return logits


def read(
    loaded: LoadedModel,
    parts: NativeParts | None,
    windows: Sequence[Sequence[int]],
    *,
    tokens_a_step: int = 512,
    on_window: Callable[[int], None] = lambda index: None,
) -> Reading:
    """Through an engine: paged cache, chunks of ``tokens_a_step``; natively with ``parts``."""
    llm = _engine(loaded, parts, len(windows[0]) + 1, max_num_batched_tokens=tokens_a_step, max_num_seqs=1)
    runner: Any = llm.engine.executor._worker._runner  # type: ignore[attr-defined]
    recorder = runner._model = _Recorder(runner._model)
    for index, window in enumerate(windows):
        on_window(index)
        recorder.window = window
        llm.generate([list(window)], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    llm.close()
    whole = Reading(
        *(
            torch.cat([getattr(one, name) for one in recorder.readings])
            for name in ("losses", "tokens", "gaps")
        )
    )
    expected = sum(len(window) - 1 for window in windows)
    if len(whole.losses) != expected:
        raise RuntimeError(f"{len(whole.losses)} tokens were read instead of {expected}.")
    return whole


def answer(
    loaded: LoadedModel, parts: NativeParts | None, prompts: Sequence[Sequence[int]], num_output: int
) -> list[RequestOutput]:
    """Greedy, all at once, with the two likeliest tokens at every place."""
    llm = _engine(loaded, parts, max(map(len, prompts)) + num_output)
    params = SamplingParams(
        temperature=0, max_tokens=num_output, ignore_eos=True, detokenize=False, logprobs=2
    )
    outputs = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    llm.close()
    return outputs


def _engine(loaded: LoadedModel, parts: NativeParts | None, max_model_len: int, **settings: Any) -> LLM:
    llm = LLM(
        loaded,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        num_gpu_blocks_override=32 * (max_model_len // 16 + 2),
        **settings,
    )
    if parts is not None:
        llm.engine.use_native(parts)
    return llm


def compare_answers(
    mode: str, outputs: Sequence[RequestOutput], reference: Sequence[RequestOutput]
) -> Answers:
    """Up to each answer's first difference."""
    before, identical, widest = 0, 0, 0.0
    for output, wanted in zip(outputs, reference, strict=True):
        ours, theirs = output.outputs[0].token_ids, wanted.outputs[0].token_ids
        pairs = enumerate(zip(ours, theirs, strict=True))
        place = next((index for index, (a, b) in pairs if a != b), None)
        if place is None:
            before += len(theirs)
            identical += 1
            continue
        before += place
        ranked = wanted.outputs[0].logprobs
        assert ranked is not None
        best, second = sorted((one.logprob for one in ranked[place].values()), reverse=True)[:2]
        widest = max(widest, best - second)
    total = sum(len(output.outputs[0].token_ids) for output in reference)
    return Answers(mode, len(reference), identical, total, before, widest)


def text_of_python() -> str:
    """The language reference that ``help()`` shows: English prose with examples, nearly half a million characters."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def windows_of(ids: Sequence[int], length: int, count: int) -> list[Sequence[int]]:
    """``count`` pieces of ``length``, spread evenly over the text, without overlap.

    Raises:
        ValueError: the text has too few tokens.
    """
    whole = len(ids) // length
    if whole < count:
        raise ValueError(f"the text has {len(ids):,} tokens: {whole} windows of {length}, not {count}.")
    return [ids[index * length : (index + 1) * length] for index in range(0, whole, whole // count)][:count]


# ---------------------------------------------------------------- report


def quality_lines(found: Sequence[Quality]) -> list[str]:
    """Against the reference; the last one against bfloat16 is the line."""
    lines = []
    for one in found:
        lines.append(
            f"  {one.mode:28} {one.perplexity:8.3f}  {one.above:+.2%} ± {one.standard_error:.2%} against "
            f"{one.reference}; same likeliest token {one.agreement:.1%} of {one.num_tokens:,}; parts only where its "
            f"top two logits are within {one.widest_parting:.2f}"
        )
    return lines


def verdict_line(int8: Quality) -> str:
    """``int8``: measured against bfloat16."""
    state = "met" if int8.above <= LINE else "MISSED"
    return (
        f"perplexity of int8 {int8.above:+.2%} ± {int8.standard_error:.2%} against bfloat16 "
        f"(at most {LINE:+.0%}): {state}"
    )


def answer_lines(found: Sequence[Answers]) -> list[str]:
    """One a mode."""
    return [
        f"  {one.mode:28} {one.num_identical} of {one.num_answers} identical; {one.num_before_parting} of "
        f"{one.num_tokens} tokens before the first difference, always where its top two log-probabilities are within "
        f"{one.widest_parting:.2f}"
        for one in found
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.quality", description="Perplexity and greedy agreement of int8."
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"a name or a folder (default: {DEFAULT_MODEL})"
    )
    parser.add_argument("--windows", type=int, default=16, help=f"of {WINDOW:,} tokens (default: 16)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
    args = parser.parse_args(argv)
    if args.windows < 1:
        parser.error(f"--windows {args.windows}: at least 1")

    from micro_vllm.native.prepare import prepare_native

    began = perf_counter()
    bf16 = load_model(args.model, dtype="bfloat16")
    parts = prepare_native(bf16)
    exact = load_model(args.model, dtype="float32")
    assert bf16.tokenizer is not None
    length = min(WINDOW, bf16.config.max_model_len - 1)
    ids = bf16.tokenizer.encode(text_of_python(), add_special_tokens=False)
    windows = windows_of(ids, length, args.windows)
    modes: dict[str, tuple[LoadedModel, NativeParts | None]] = {
        REFERENCE: (exact, None),
        BF16: (bf16, None),
        INT8: (bf16, parts),
    }
    print(
        f"{bf16.name} ({bf16.badge}); text: {args.windows} x {length:,} tokens of Python {platform.python_version()}'s "
        "language reference (pydoc_data.topics)",
        flush=True,
    )

    def progress(mode: str) -> Callable[[int], None]:
        def show(index: int) -> None:
            if sys.stderr.isatty():
                print(f"\r\x1b[K{mode}: {index + 1} of {len(windows)}", end="", file=sys.stderr, flush=True)

        return show

    readings = {mode: read(*model, windows, on_window=progress(mode)) for mode, model in modes.items()}
    few = windows[: max(1, args.windows // 8)]  # a step a token takes its time
    readings[INT8_DECODE] = read(bf16, parts, few, tokens_a_step=1, on_window=progress(INT8_DECODE))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)

    def quality(mode: str, reference: str) -> Quality:
        count = min(len(readings[mode].losses), len(readings[reference].losses))
        return compare_readings(
            mode, readings[mode].first(count), reference, readings[reference].first(count)
        )

    against_exact = [quality(mode, REFERENCE) for mode in (BF16, INT8, INT8_DECODE)]
    against_bf16 = quality(INT8, BF16)
    print(f"perplexity\n  {REFERENCE:28} {readings[REFERENCE].perplexity:8.3f}")
    print(*quality_lines([*against_exact, against_bf16]), sep="\n")
    print(verdict_line(against_bf16), flush=True)

    num_output = min(ANSWER_TOKENS, length // 2)
    prompts = [window[: min(PROMPT_TOKENS, length // 2)] for window in windows]
    outputs = {mode: answer(*model, prompts, num_output) for mode, model in modes.items()}
    answers = [compare_answers(mode, outputs[mode], outputs[REFERENCE]) for mode in (BF16, INT8)]
    print(f"greedy answers of {num_output} tokens against {REFERENCE}", *answer_lines(answers), sep="\n")
    print(f"{perf_counter() - began:.0f} s in all")
    if args.json:
        figures = {
            "format": 1,
            "model": bf16.name,
            "python": platform.python_version(),
            "num_windows": args.windows,
            "window": length,
            "reference_perplexity": readings[REFERENCE].perplexity,
            "against_float32": [asdict(one) for one in against_exact],
            "against_bfloat16": asdict(against_bf16) | {"line": LINE, "is_met": against_bf16.above <= LINE},
            "answers": [asdict(one) for one in answers],
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
