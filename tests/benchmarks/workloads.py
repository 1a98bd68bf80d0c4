"""What is measured: requests by shape. Token ids are drawn from the workload's name and the number of the repeat.

So every system gets the same ids, and no repeat can live off what an earlier one left in a prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

FIRST_PLAIN_ID = 256
"""Ids below it are special tokens or single bytes in most vocabularies; prompts are drawn above them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One request: its lengths in tokens. The answer always has ``num_output`` tokens; end-of-text does not stop it."""

    num_prompt: int
    num_output: int
    num_shared: int = 0
    """How many of the first prompt tokens are the same in all requests of the repeat."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in waves: a wave is submitted at once and timed until its last token, then the next one follows."""

    name: str
    title: str
    waves: tuple[tuple[Shape, ...], ...]
    unit: Literal["output tok/s", "prompt tok/s", "warm share"]
    """What is reported: tokens a second, or the last wave's time as a share of the first one's."""

    @property
    def max_request_tokens(self) -> int:
        """Longest request, prompt and answer together."""
        return max(shape.num_prompt + shape.num_output for wave in self.waves for shape in wave)

    @property
    def max_wave_tokens(self) -> int:
        """Most tokens a wave ever holds in the KV cache."""
        return max(sum(shape.num_prompt + shape.num_output for shape in wave) for wave in self.waves)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a system is given: ids in, ``num_output`` greedy ids out."""

    prompt_token_ids: tuple[int, ...]
    num_output: int


def _mixed(name: str, count: int) -> tuple[Shape, ...]:
    random = Random(name)
    return tuple(Shape(random.randint(16, 256), random.randint(16, 128)) for _ in range(count))


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("alone", "one request: 64 in, 128 out", ((Shape(64, 128),),), "output tok/s"),
        Workload("batch32", "32 at once: 64 in, 64 out", ((Shape(64, 64),) * 32,), "output tok/s"),
        Workload("mixed16", "16 at once: 16-256 in, 16-128 out", (_mixed("mixed16", 16),), "output tok/s"),
        Workload("mixed64", "64 at once: 16-256 in, 16-128 out", (_mixed("mixed64", 64),), "output tok/s"),
        Workload("prefill1536", "one prompt of 1,536 tokens, 1 out", ((Shape(1536, 1),),), "prompt tok/s"),
        Workload(
            "shared1024",
            "1,024 shared + 16 own tokens, 1 out: second request against the first",
            ((Shape(1040, 1, num_shared=1024),),) * 2,
            "warm share",
        ),
    )
}


def token_requests(workload: Workload, repeat: int, vocab_size: int) -> tuple[tuple[TokenRequest, ...], ...]:
    """The waves with token ids. Equal arguments give equal ids; another ``repeat`` gives others of the same lengths."""
    random = Random(f"{workload.name}/{repeat}")
    num_shared = max(shape.num_shared for wave in workload.waves for shape in wave)
    shared = [random.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(num_shared)]

    def fill(shape: Shape) -> TokenRequest:
        own = shape.num_prompt - shape.num_shared
        ids = [random.randrange(FIRST_PLAIN_ID, vocab_size) for _ in range(own)]
        return TokenRequest((*shared[: shape.num_shared], *ids), shape.num_output)

    return tuple(tuple(fill(shape) for shape in wave) for wave in workload.waves)


def shortened(workload: Workload, num_output: int = 4) -> Workload:
    """The same prompts with answers cut short: enough to warm a system up."""
    waves = tuple(
        tuple(Shape(s.num_prompt, min(s.num_output, num_output), s.num_shared) for s in wave)
        for wave in workload.waves
    )
    return Workload(workload.name, workload.title, waves, workload.unit)
