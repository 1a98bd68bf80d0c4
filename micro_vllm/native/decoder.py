"""Runs a decoder's layers natively, over the same paged cache and the same batches as the model in PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from micro_vllm.attention.attention import AttentionContext, PagedKVCache
from micro_vllm.attention.metadata import AttentionMetadata
from micro_vllm.config import CacheGroup
from micro_vllm.models.decoder import DecoderForCausalLM
from micro_vllm.native import kernels
from micro_vllm.native.kernels import address
from micro_vllm.native.maxima import RowMaxima
from micro_vllm.native.weights import LayerWeights, NativeWeights

QUERIES = 4
"""Consecutive tokens of a request that read the same keys together: ``kQueries`` of ``attention.h``."""
MIN_PART = 128
"""Least positions worth a part of their own when a decode's keys are cut into parts."""


class NativeDecoder:
    """One engine's: it points into that engine's cache. Takes the place of the model in a step.

    Hidden states are float32 between the layers. Keys and values are stored as the cache has them, in bfloat16, so
    that a step computed here can follow one computed in PyTorch, and the other way round.
    """

    name = "native"

    def __init__(
        self,
        library: ctypes.CDLL,
        model: DecoderForCausalLM,
        weights: NativeWeights,
        cache: PagedKVCache,
        groups: Sequence[CacheGroup],
        maxima: RowMaxima | None = None,
    ) -> None:
        """``maxima``: where those of the logits are left."""
        assert cache.data.dtype == torch.bfloat16
        config = model.config
        self._library = library
        self._embedding = model.model.embed_tokens.weight.bfloat16()  # itself, as models that come here are
        self._rotary = model.model.rotary
        self._weights = weights  # what the structures point into
        self._cache = cache
        homes = {layer: (g, k) for g, group in enumerate(groups) for k, layer in enumerate(group.layer_ids)}
        layers = (kernels.Layer * config.num_layers)(
            *(
                _layer(weights.layers[i], cache.layers[homes[i][1]], homes[i][0], config.layer_windows[i])
                for i in range(config.num_layers)
            )
        )
        self._layers = layers
        self._model = kernels.Model(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.num_layers,
            config.rms_norm_eps,
            config.head_dim**-0.5,
            layers,
            address(self._embedding),
        )
        self._head = kernels.matrix(weights.head)
        self._maxima = maxima or RowMaxima()
        # All below is kept from step to step: fresh memory would be paid for page by page, and between two steps, when
        # the weights have just swept the caches, every call of torch costs tens of microseconds.
        self._groups = (kernels.Group * len(groups))()
        self._batch = kernels.Batch(block_size=cache.block_size, groups=self._groups)
        self._hidden = _Rows(config.hidden_size)
        self._logits = _Rows(self._head.rows)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._scratch_bytes: dict[tuple[int, int, int], int] = {}
        self._cos = self._sin = torch.empty(0, config.head_dim // 2)  # (positions, D / 2)
        self._singles = torch.empty(0, dtype=torch.int64)

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:
        """Hidden states ``(T, hidden) float32`` before the final norm, of tokens ``(T,)`` at ``positions (T,)``.

        Valid until the next call.
        """
        metadata = context.metadata
        num_tokens, num_requests = token_ids.numel(), len(metadata.query_lens)
        longest = max(metadata.seq_lens)
        self._know_positions(longest)
        if num_tokens == num_requests:
            starts = requests = self._count_singles(num_tokens)
            num_tasks = num_tokens
        else:
            starts, requests = _tasks(metadata)
            num_tasks = len(starts) - 1
        threads = torch.get_num_threads()
        parts = 1
        if metadata.num_decodes == num_requests:
            parts = _num_parts(longest, self._model.kv_heads * num_tasks, threads)
        for group, its in zip(self._groups, metadata.groups, strict=True):
            group.tables, group.slots = address(its.block_tables), address(its.slot_mapping)
            group.width = its.block_tables.shape[1]
        batch = self._batch
        batch.num_tokens, batch.num_tasks, batch.num_parts = num_tokens, num_tasks, parts
        batch.token_ids, batch.positions = address(token_ids), address(positions)
        batch.task_start, batch.request = address(starts), address(requests)
        batch.cos, batch.sin = address(self._cos), address(self._sin)
        hidden = self._hidden.first(num_tokens)
        scratch = self._scratch_for(num_tokens, parts, threads)
        self._library.mv_decode(self._model, batch, address(hidden), scratch, threads)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # (R, hidden) -> (R, vocab) float32
        """Of the rows that are sampled. The result is valid until the next call."""
        count, num_valid = hidden.shape[0], self._maxima.num_valid(self._head.rows)
        logits = self._logits.first(count)
        place, threads = logits.data_ptr(), torch.get_num_threads()
        self._library.mv_logits(
            self._model,
            self._head,
            address(self._weights.norm),
            address(hidden),
            count,
            num_valid,
            place,
            *self._maxima.make_room(count),
            self._scratch_for(count, 1, threads),
            threads,
        )
        self._maxima.mark(place, count, num_valid)
        return logits

    def _scratch_for(self, tokens: int, parts: int, threads: int) -> int:
        """Its address."""
        key = (tokens, parts, threads)
        needed = self._scratch_bytes.get(key)
        if needed is None:
            needed = self._library.mv_scratch_bytes(self._model, tokens, parts, threads) + 64
            self._scratch_bytes[key] = needed
        if self._scratch.numel() < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        start: int = self._scratch.data_ptr()
        return start + -start % 64

    def _know_positions(self, count: int) -> None:
        """Cosines and sines of the first ``count`` positions, and of as many again, so that this is rarely asked."""
        if count > self._cos.shape[0]:
            self._cos, self._sin = self._rotary.half_angles(torch.arange(2 * count))

    def _count_singles(self, count: int) -> torch.Tensor:
        """0, 1, ... at least ``count``: in a batch of single tokens every token is a request and a task of its own."""
        if self._singles.numel() <= count:
            self._singles = torch.arange(2 * count + 1)
        return self._singles


class _Rows:
    """A matrix of float32 with as many rows as were ever asked for."""

    def __init__(self, width: int) -> None:
        self._all = self._view = torch.empty(0, width)

    def first(self, count: int) -> torch.Tensor:
        """``(count, width)``, the same memory every time. Steps are often alike, so the last view is kept."""
        if self._view.shape[0] != count:
            if self._all.shape[0] < count:
                self._all = torch.empty(count, self._all.shape[1])
            self._view = self._all[:count]
        return self._view


def _layer(weights: LayerWeights, cache: torch.Tensor, group: int, window: int | None) -> kernels.Layer:
    keys, values = cache  # (blocks, block_size, H_kv, D) each
    return kernels.Layer(
        kernels.matrix(weights.qkv),
        kernels.matrix(weights.out),
        kernels.matrix(weights.gate_up),
        kernels.matrix(weights.down),
        address(weights.input_norm),
        address(weights.post_norm),
        address(weights.q_norm),
        address(weights.k_norm),
        address(keys),
        address(values),
        group,
        window or 0,
    )


def _tasks(metadata: AttentionMetadata) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each task's tokens start, and the end of the last; and for each token its row of the block tables."""
    starts, at = [0], 0
    for count in metadata.query_lens:
        starts += range(at + QUERIES, at + count, QUERIES)
        at += count
        starts.append(at)
    # numpy: torch would wake its threads for this
    requests = np.repeat(np.arange(len(metadata.query_lens)), metadata.query_lens)
    return torch.from_numpy(np.array(starts)), torch.from_numpy(requests)


def _num_parts(longest: int, tasks: int, threads: int) -> int:
    """Parts to cut the contexts of a batch of decodes into, so that few requests keep all threads busy."""
    return max(1, min(-(-4 * threads // tasks), longest // MIN_PART))
