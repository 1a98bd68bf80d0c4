"""What is measured: requests by shape. Token ids are drawn from the workload's name and the number of the round.

So every system gets the same ids, and no round can live off what an earlier one left in a prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

FIRST_PLAIN_ID = 256
"""Ids below it are special tokens or single bytes in most vocabularies; prompts are drawn above them."""

NATIVE = "micro-vllm native"
EAGER = "micro-vllm eager"
GENERATE = "transformers generate"
CONTINUOUS = "transformers continuous batching"
LLAMA_CPP = ("llama.cpp Q8_0", "llama.cpp BF16", "llama.cpp Q4_1")
"""In the order of their formats' names in llama.cpp."""
OURS = (NATIVE, EAGER)


@dataclass(frozen=True, slots=True)
class Shape:
    """One request: its lengths in tokens. The answer always has ``num_output`` tokens; end-of-text does not stop it."""

    num_prompt: int
    num_output: int
    num_shared: int = 0
    """How many of the first prompt tokens are the same in all requests of the round."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in waves: a wave is submitted at once and timed until its last token, then the next one follows."""

    name: str
    title: str
    waves: tuple[tuple[Shape, ...], ...]
    metrics: tuple[str, ...]
    """Names in ``metrics.METRICS``; ratios are those of the first."""
    systems: tuple[str, ...] = (*OURS, GENERATE, CONTINUOUS, *LLAMA_CPP)
    """Who takes part."""
    temperature: float = 0.0
    picks_format: bool = True
    """Whether of several weight formats of one peer only those go on that are near its fastest in the warm-up."""
    every: Mapping[str, int] = field(default_factory=dict)
    """Systems so slow that they take part in every n-th round only."""

    @property
    def max_request_tokens(self) -> int:
        """Longest request, prompt and answer together."""
        return max(shape.num_prompt + shape.num_output for wave in self.waves for shape in wave)

    @property
    def max_wave_tokens(self) -> int:
        """Most tokens a wave ever holds in the KV cache."""
        return max(sum(shape.num_prompt + shape.num_output for shape in wave) for wave in self.waves)

    @property
    def num_output(self) -> int:
        """Output tokens of a round."""
        return sum(shape.num_output for wave in self.waves for shape in wave)

    @property
    def num_prompt(self) -> int:
        """Prompt tokens of a round."""
        return sum(shape.num_prompt for wave in self.waves for shape in wave)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a system is given: ids in, ``num_output`` ids out, greedy at temperature 0."""

    prompt_token_ids: tuple[int, ...]
    num_output: int
    temperature: float = 0.0


def _mixed(name: str, count: int) -> tuple[Shape, ...]:
    random = Random(name)
    return tuple(Shape(random.randint(16, 256), random.randint(16, 128)) for _ in range(count))


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "one request: 64 in, 128 out",
            ((Shape(64, 128),),),
            ("output rate",),
            (*OURS, GENERATE, *LLAMA_CPP),
            picks_format=False,
        ),
        Workload(
            "W2",
            "32 at once: 64 in, 64 out",
            ((Shape(64, 64),) * 32,),
            ("output rate",),
            (*OURS, GENERATE, *LLAMA_CPP),
        ),
        Workload(
            "W3",
            "one prompt of 1,536 tokens, until its first token",
            ((Shape(1536, 1),),),
            ("first token",),
            (*OURS, GENERATE, *LLAMA_CPP),
        ),
        Workload(
            "W4",
            "one request: 1,536 in, 64 out; rate after its first token",
            ((Shape(1536, 64),),),
            ("decode rate", "wall time"),
            (*OURS, *LLAMA_CPP),
        ),
        Workload(
            "W5",
            "64 at once: 16-256 in, 16-128 out, temperature 0.6",
            (_mixed("mixed64", 64),),
            ("wall time", "output rate"),
            (NATIVE, CONTINUOUS, *LLAMA_CPP),
            temperature=0.6,
            every={CONTINUOUS: 2},
        ),
        Workload(
            "W6",
            "16 one after another: 1,024 shared + 32 own in, 1 out; first token of the later 15 against the first",
            ((Shape(1056, 1, num_shared=1024),),) * 16,
            ("warm share", "cold first token", "warm first token"),
            (*OURS, CONTINUOUS, *LLAMA_CPP),
        ),
        Workload(
            "mixed16",
            "16 at once: 16-256 in, 16-128 out",
            (_mixed("mixed16", 16),),
            ("output rate",),
        ),
    )
}
DEFAULT_WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6")
ALIASES = {"alone": "W1", "batch32": "W2", "prefill1536": "W3", "mixed64": "W5", "shared1024": "W6"}
"""Names that figures were published under before."""


def token_requests(
    workload: Workload, round_number: int, vocab_size: int
) -> tuple[tuple[TokenRequest, ...], ...]:
    """The waves with token ids. Equal arguments give equal ids; another round gives others of the same lengths."""
    random = Random(f"{workload.name}/{round_number}")
    num_shared = max(shape.num_shared for wave in workload.waves for shape in wave)
    shared = [random.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(num_shared)]

    def fill(shape: Shape) -> TokenRequest:
        own = shape.num_prompt - shape.num_shared
        ids = [random.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(own)]
        return TokenRequest((*shared[: shape.num_shared], *ids), shape.num_output, workload.temperature)

    return tuple(tuple(fill(shape) for shape in wave) for wave in workload.waves)


def shortened(
    workload: Workload, num_output: int = 4, num_requests: int = 32, num_waves: int = 2
) -> Workload:
    """The same prompts with answers cut short, no more than are seated at once: enough to warm a system up."""
    waves = tuple(
        tuple(replace(shape, num_output=min(shape.num_output, num_output)) for shape in wave[:num_requests])
        for wave in workload.waves[:num_waves]
    )
    return replace(workload, waves=waves)


def shrunk(workload: Workload, factor: int = 16, num_requests: int = 3, num_waves: int = 3) -> Workload:
    """A few requests of a fraction of the length: shows that everything runs, measures nothing."""

    def shrink(shape: Shape) -> Shape:
        num_output = shape.num_output if shape.num_output == 1 else max(3, shape.num_output // factor)
        num_shared = shape.num_shared // factor
        own = max(2, (shape.num_prompt - shape.num_shared) // factor)
        return Shape(num_shared + own, num_output, num_shared)

    waves = tuple(tuple(map(shrink, wave[:num_requests])) for wave in workload.waves[:num_waves])
    return replace(workload, waves=waves)
