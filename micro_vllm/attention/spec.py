"""What is visible: the semantics every attention operator must honour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention: causal, grouped-query, optionally windowed.

    A query at position p sees keys at positions ``max(0, p - window + 1) .. p``; ``window=None`` sees all.
    Query head h reads key-value head ``h // (num_heads // num_kv_heads)``.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None

    @property
    def queries_per_kv(self) -> int:
        return self.num_heads // self.num_kv_heads
