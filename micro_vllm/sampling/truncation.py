"""min_p, top_k and top_p without sorting the vocabulary, and the race among the tokens that stay.

For every row a cutoff is found that provably keeps whatever the filters keep; the few tokens above it are
gathered, sorted and filtered exactly. The same rules, written plainly: :mod:`micro_vllm.sampling.reference`.
"""

from __future__ import annotations

import torch

from micro_vllm.sampling.noise import gumbel_noise

_BLOCK = 64
"""Tokens per block maximum in the search for a top_k cutoff."""
_FEW = 2048
"""Rows with more candidates than this are sorted apart, so that one flat row does not pad all others."""
_NEAR = -7.0
"""First guess of how far, in nats, the nucleus reaches below the likeliest token."""
_ROWS_AT_ONCE = 4
"""Rows of noise over the whole vocabulary made at once: what fits the processor's cache."""


def draw_unfiltered(scaled: torch.Tensor, seeds: torch.Tensor, output_index: torch.Tensor) -> torch.Tensor:
    """One token per row from ``softmax(scaled)``. ``scaled`` is (N, V) float32; returns (N,) int64."""
    token_ids = torch.arange(scaled.shape[1], device=scaled.device)  # (V,)
    drawn = []
    for first in range(0, len(scaled), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        noise = gumbel_noise(seeds[part], output_index[part], token_ids)  # (4, V)
        drawn.append(noise.add_(scaled[part]).argmax(dim=-1))
    return torch.cat(drawn)


def draw_filtered(
    scaled: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """One token per row after min_p, then top_k, then top_p.

    - min_p keeps tokens at least ``min_p`` times as likely as the likeliest.
    - top_k keeps the k likeliest; 0 is off.
    - top_p keeps the smallest set of likeliest tokens whose mass, among what is left, reaches ``top_p``;
      at least one token.
    Equal logits are ordered by token id, the smaller first, so that a cut through them is well defined.

    Args:
        scaled: (N, V) float32, logits over temperature, shifted so that every row's maximum is 0.
        top_k: (N,) int64.  top_p, min_p: (N,) float64.  seeds, output_index: (N,) int64.

    Returns:
        (N,) int64 token ids.
    """
    min_p_cutoff = min_p.log().to(scaled.dtype)  # (N,) -inf where off
    # With min_p or top_k the candidates hold all that these keep, and its mass is what top_p counts in; with
    # top_p alone that is the mass of the whole vocabulary, and the nucleus is first sought near the maximum.
    only_top_p = (top_k == 0) & (min_p == 0)
    cutoff = torch.where(only_top_p, _NEAR, torch.maximum(min_p_cutoff, _top_k_cutoff(scaled, top_k)))
    total = scaled.exp().sum(dim=-1).double() if bool(only_top_p.any()) else torch.zeros_like(top_p)  # (N,)

    rows, ids = (scaled >= cutoff[:, None]).nonzero(as_tuple=True)  # by row, then by id
    counts = rows.bincount(minlength=len(scaled))  # (N,)
    values = scaled[rows, ids]
    near = torch.zeros_like(total).index_add_(0, rows, values.double().exp_())  # (N,)
    missed = (only_top_p & (near <= top_p * total * (1 + 1e-6))).nonzero()[:, 0]
    if len(missed):
        # Tokens below (1 - top_p) * total / V each weigh less than (1 - top_p) * total together.
        far = ((1 - top_p[missed]) * total[missed] / scaled.shape[1]).log() - 1e-3  # margin for rounding
        cutoff[missed] = far.to(scaled.dtype)
        rows, ids = (scaled >= cutoff[:, None]).nonzero(as_tuple=True)
        counts = rows.bincount(minlength=len(scaled))
        values = scaled[rows, ids]

    drawn = torch.empty_like(seeds)
    for group in ((counts <= _FEW).nonzero()[:, 0], (counts > _FEW).nonzero()[:, 0]):
        if not len(group):
            continue
        logits, token_ids = _pad_sorted(rows, ids, values, counts, group)  # (n, M), (n, M)
        place = torch.arange(logits.shape[1], device=logits.device)  # (M,)
        stays = logits >= min_p_cutoff[group, None]
        stays &= (place < top_k[group, None]) | (top_k[group, None] == 0)
        mass = logits.double().exp_().mul_(stays)  # (n, M)
        whole = torch.where(only_top_p[group], total[group], mass.sum(dim=-1))  # (n,)
        nucleus = mass.cumsum(dim=-1) - mass < (top_p[group] * whole)[:, None]
        nucleus[:, 0] = True
        stays &= nucleus | (top_p[group, None] >= 1)
        score = logits + gumbel_noise(seeds[group], output_index[group], token_ids)  # (n, M)
        winner = score.masked_fill_(~stays, -torch.inf).argmax(dim=-1, keepdim=True)
        drawn[group] = token_ids.gather(1, winner)[:, 0]
    return drawn


def _top_k_cutoff(scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """(N,) a value that at least ``top_k`` tokens of the row reach; -inf where top_k is off.

    The k-th largest of the maxima of blocks of tokens is one: k blocks reach it, so k tokens do.
    """
    cutoff = torch.full_like(scaled[:, 0], -torch.inf)
    num_blocks = scaled.shape[1] // _BLOCK
    by_blocks = ((top_k > 0) & (top_k <= num_blocks)).nonzero()[:, 0]
    if len(by_blocks):
        blocks = scaled[:, : num_blocks * _BLOCK].unflatten(1, (num_blocks, _BLOCK))
        k = top_k[by_blocks]
        largest = blocks.amax(dim=-1)[by_blocks].topk(int(k.max()), dim=-1).values  # (n, most k)
        cutoff[by_blocks] = largest.gather(1, k[:, None] - 1)[:, 0]
    for row in ((top_k > num_blocks) & (top_k < scaled.shape[1])).nonzero()[:, 0].tolist():
        cutoff[row] = scaled[row].topk(int(top_k[row]), sorted=False).values.min()
    return cutoff


def _pad_sorted(
    rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, group: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates of the rows in ``group``, likeliest first, equals by id.

    ``rows``, ``ids``, ``values`` are flat, by row, then by id. Returns (n, M) logits, padded with -inf, and
    (n, M) token ids.
    """
    slot_of_row = torch.full_like(counts, -1)
    slot_of_row[group] = torch.arange(len(group), device=group.device)
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    slot = slot_of_row[rows]
    if len(group) < len(counts):
        mine = slot >= 0
        slot, place, ids, values = slot[mine], place[mine], ids[mine], values[mine]
    shape = (len(group), int(counts[group].max()))
    logits = torch.full(shape, -torch.inf, dtype=values.dtype, device=values.device)
    logits[slot, place] = values
    token_ids = torch.zeros(shape, dtype=torch.int64, device=values.device)
    token_ids[slot, place] = ids
    logits, order = logits.sort(dim=-1, descending=True, stable=True)
    return logits, token_ids.gather(1, order)
