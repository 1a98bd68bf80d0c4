"""The attention runtime: the physical KV cache, and what models call once per layer.

Layer k of every cache group lives in tensor k, so that one pool of block ids serves all groups and a block
costs one group's bytes. Two groups never use a block at the same time: the pool hands an id to one of them.
Source: https://arxiv.org/abs/2309.06180 (paged attention), vLLM's hybrid KV cache manager (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch

from micro_vllm.attention.metadata import AttentionMetadata
from micro_vllm.attention.operators.base import AttentionOperator
from micro_vllm.attention.spec import AttentionSpec
from micro_vllm.config import CacheGroup
from micro_vllm.errors import ConfigError
from micro_vllm.memory import on_huge_pages


class PagedKVCache:
    """Keys and values of all requests, in blocks of ``block_size`` token slots.

    ``data`` is ``(layers per group, 2, num_blocks + 1, block_size, num_kv_heads, head_dim)``; block 0 is
    the null block: it is never written, so it stays zero. Invariant for the operators of the registry, kept by whoever
    hands out blocks calling :meth:`zero_blocks`: a slot that was not written since its block was allocated is zero.
    (Native kernels read no such slot, and nothing is cleared for them.)
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        block_size: int,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (_layers_per_group(groups), 2, num_blocks + 1, block_size, num_kv_heads, head_dim)
        if torch.device(device).type == "cpu":
            memory = on_huge_pages(prod(shape) * dtype.itemsize)
            self.data = torch.frombuffer(memory, dtype=dtype).view(shape)
        else:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.layers: tuple[torch.Tensor, ...] = self.data.unbind(0)
        """Per cache tensor k, a view ``(2, num_blocks + 1, block_size, num_kv_heads, head_dim)``."""
        # Views made once: (slots, H_kv, D) of keys and of values, per cache tensor.
        self.slots: tuple[tuple[torch.Tensor, torch.Tensor], ...] = tuple(
            (layer[0].flatten(0, 1), layer[1].flatten(0, 1)) for layer in self.layers
        )

    @staticmethod
    def block_bytes(
        groups: Sequence[CacheGroup], block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes of one block: keys and values of one group's layers."""
        return _layers_per_group(groups) * 2 * block_size * num_kv_heads * head_dim * dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole cache, the null block included."""
        return self.data.numel() * self.data.element_size()

    def zero_blocks(self, block_ids: torch.Tensor) -> None:
        """Clear freshly allocated blocks ``(n,) int64`` in all layers, so that no earlier NaN stays."""
        self.data.index_fill_(2, block_ids, 0)


class AttentionContext:
    """What the layers of one step share. Built once per step and handed to the model as an argument."""

    def __init__(
        self,
        cache: PagedKVCache,
        groups: tuple[CacheGroup, ...],
        metadata: AttentionMetadata,
        operator: AttentionOperator,
    ) -> None:
        self.cache = cache
        self.groups = groups
        self.metadata = metadata
        self.operator = operator
        self._prepared: list[Any] = [None] * len(groups)

    @cached_property
    def _homes(self) -> dict[int, tuple[int, int]]:
        """Layer -> (group index, cache tensor k). Made when the first layer asks: native kernels do not."""
        return {
            layer: (index, k)
            for index, group in enumerate(self.groups)
            for k, layer in enumerate(group.layer_ids)
            if layer >= 0
        }

    def attend(
        self,
        layer_id: int,
        spec: AttentionSpec,
        query: torch.Tensor,  # (T, H, D)
        key: torch.Tensor,  # (T, H_kv, D)
        value: torch.Tensor,  # (T, H_kv, D)
    ) -> torch.Tensor:  # (T, H, D)
        """Write this step's keys and values to their slots, then attend over the cache.

        Raises:
            ConfigError: the layer belongs to no group, or its window is not the group's.
        """
        index, k = self._home(layer_id, spec)
        group = self.metadata.groups[index]
        key_slots, value_slots = self.cache.slots[k]
        key_slots.index_copy_(0, group.slot_mapping, key)
        value_slots.index_copy_(0, group.slot_mapping, value)
        prepared = self._prepared[index]
        if prepared is None:
            prepared = self.operator.prepare(self.metadata, group, spec, self.cache.data.dtype)
            self._prepared[index] = prepared
        return self.operator.attend(prepared, spec, query, key, value, self.cache.layers[k])

    def _home(self, layer_id: int, spec: AttentionSpec) -> tuple[int, int]:
        home = self._homes.get(layer_id)
        if home is None:
            raise ConfigError(
                f"layer {layer_id} is in no cache group; the groups hold layers {sorted(self._homes)}. "
                "Form the groups from the model's own attention_specs."
            )
        window = self.groups[home[0]].window
        if spec.window != window:
            raise ConfigError(
                f"layer {layer_id} has window {spec.window}, its cache group {window}. "
                "Form the groups from the model's own attention_specs."
            )
        return home


def _layers_per_group(groups: Sequence[CacheGroup]) -> int:
    sizes = {len(group.layer_ids) for group in groups}
    if len(sizes) != 1:
        raise ConfigError(f"cache groups must have equally many layers, padded with -1; got {sorted(sizes)}.")
    return sizes.pop()
