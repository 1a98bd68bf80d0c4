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
    ) -> None:
        assert cache.data.dtype == torch.bfloat16
        config = model.config
        self._library = library
        self._embedding = model.model.embed_tokens
        self._rotary = model.model.rotary
        self._weights = weights  # what the structures point into
        self._cache = cache
        self._num_groups = len(groups)
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
        )
        self._head = kernels.matrix(weights.head)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._logits = torch.empty(0)

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:
        """Hidden states ``(T, hidden) float32`` before the final norm, of tokens ``(T,)`` at ``positions (T,)``."""
        metadata = context.metadata
        hidden = self._embedding(token_ids).float()  # (T, hidden)
        cos, sin = self._rotary.half_angles(positions)  # (T, D / 2) each
        starts, requests = _tasks(metadata)
        groups = (kernels.Group * self._num_groups)(
            *(
                kernels.Group(address(g.block_tables), address(g.slot_mapping), g.block_tables.shape[1])
                for g in metadata.groups
            )
        )
        threads = torch.get_num_threads()
        parts = _num_parts(metadata, self._model.kv_heads, len(starts) - 1, threads)
        batch = kernels.Batch(
            len(token_ids),
            len(starts) - 1,
            parts,
            metadata.block_size,
            address(positions),
            address(requests),
            address(starts),
            address(cos),
            address(sin),
            groups,
        )
        scratch = self._scratch_for(len(token_ids), parts, threads)
        self._library.mv_decode(self._model, batch, address(hidden), address(scratch), threads)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # (R, hidden) -> (R, vocab) float32
        """Of the rows that are sampled. The result is valid until the next call."""
        count = len(hidden)
        if len(self._logits) < count:
            self._logits = torch.empty(count, self._head.rows)
        logits = self._logits[:count]
        threads = torch.get_num_threads()
        scratch = self._scratch_for(count, 1, threads)
        self._library.mv_logits(
            self._model,
            self._head,
            address(self._weights.norm),
            address(hidden),
            count,
            address(logits),
            address(scratch),
            threads,
        )
        return logits

    def _scratch_for(self, tokens: int, parts: int, threads: int) -> torch.Tensor:
        """Kept from step to step: fresh memory would be paid for page by page."""
        needed = self._library.mv_scratch_bytes(self._model, tokens, parts, threads) + 64
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        skip = -self._scratch.data_ptr() % 64
        return self._scratch[skip:]


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


def _num_parts(metadata: AttentionMetadata, kv_heads: int, tasks: int, threads: int) -> int:
    """Parts to cut every context into, so that few requests keep all threads busy: 1 unless there are only decodes."""
    if metadata.num_decodes < len(metadata.query_lens):
        return 1
    wanted = -(-4 * threads // (kv_heads * tasks))
    return max(1, min(wanted, max(metadata.seq_lens) // MIN_PART))
