"""Token embedding, which a tied head shares."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class TokenEmbedding(nn.Module):
    """A row per token id. Rows beyond the tokenizer's size are padding; the sampler never draws them."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(vocab_size, hidden_size, dtype=dtype, device=device), requires_grad=False
        )

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:  # (T,) int64 -> (T, hidden)
        return F.embedding(token_ids, self.weight)
