"""A decoder's weights for the native kernels: made once from the loaded model, shared by every engine over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from micro_vllm.models.decoder import DecoderForCausalLM, DecoderLayer
from micro_vllm.native.arena import Arena, padded_bytes
from micro_vllm.native.compile import NativeUnavailableError
from micro_vllm.native.quantize import COLUMNS, GROUP, QuantizedMatrix, can_quantize, interleave, quantize

HEAD_DIMS = (32, 64, 128)
"""What ``attention.h`` is compiled for."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    qkv: QuantizedMatrix
    out: QuantizedMatrix
    gate_up: QuantizedMatrix
    """Interleaved, see ``quantize.interleave``."""
    down: QuantizedMatrix
    input_norm: torch.Tensor  # (hidden,) float32
    post_norm: torch.Tensor  # (hidden,) float32
    q_norm: torch.Tensor | None  # (D,) float32
    k_norm: torch.Tensor | None  # (D,) float32


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """int8 copies of all products of a decoder, its head included; norms in float32."""

    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # (hidden,) float32
    head: QuantizedMatrix

    @property
    def num_bytes(self) -> int:
        """What a decode of one token reads."""
        return self.head.num_bytes + sum(matrix.num_bytes for matrix in self._matrices())

    def _matrices(self) -> Iterator[QuantizedMatrix]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)


def check_model(model: DecoderForCausalLM) -> None:
    """Raises NativeUnavailableError when the kernels do not cover this model; before any work is done."""
    config = model.config
    if config.head_dim not in HEAD_DIMS:
        raise NativeUnavailableError(
            f"the native decoder handles head dimensions {', '.join(map(str, HEAD_DIMS))}; this model has "
            f"{config.head_dim}. Use execution='eager'."
        )
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {
        "qkv": (q_size + 2 * kv_size, config.hidden_size),
        "output": (config.hidden_size, q_size),
        "gate and up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "head": (config.vocab_size, config.hidden_size),
    }
    for name, (rows, columns) in shapes.items():
        if not can_quantize(rows, columns):
            raise NativeUnavailableError(
                f"the native decoder needs weights with a multiple of {COLUMNS} outputs and of {GROUP} inputs; the "
                f"{name} projection is {rows} x {columns}. Use execution='eager'."
            )


def quantize_model(model: DecoderForCausalLM) -> NativeWeights:
    """From plain weights, so before ``model.prepack()``. A second or so for a hundred million weights.

    Raises:
        NativeUnavailableError: see :func:`check_model`.
    """
    check_model(model)
    decoder = model.model
    head = decoder.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
    return _together(
        NativeWeights(
            layers=tuple(_layer(layer) for layer in decoder.layers),  # type: ignore[arg-type]
            norm=_float(decoder.norm.weight),
            head=quantize(head),
        )
    )


def _layer(layer: DecoderLayer) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    gate_up = mlp.gate_up_proj
    bias = None if gate_up.bias is None else interleave(gate_up.bias)
    return LayerWeights(
        qkv=quantize(attention.qkv_proj.weight, attention.qkv_proj.bias),
        out=quantize(attention.o_proj.weight, attention.o_proj.bias),
        gate_up=quantize(interleave(gate_up.weight), bias),
        down=quantize(mlp.down_proj.weight, mlp.down_proj.bias),
        input_norm=_float(layer.input_layernorm.weight),
        post_norm=_float(layer.post_attention_layernorm.weight),
        q_norm=None if attention.q_norm is None else _float(attention.q_norm.weight),
        k_norm=None if attention.k_norm is None else _float(attention.k_norm.weight),
    )


def _together(weights: NativeWeights) -> NativeWeights:
    """The same in one piece of memory, in the order in which a step reads it."""
    arena = Arena(sum(map(padded_bytes, _tensors(weights))))
    return _moved(weights, arena)


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from _tensors(one)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))


def _moved(part: Any, arena: Arena) -> Any:
    if isinstance(part, torch.Tensor):
        return arena.place(part)
    if isinstance(part, tuple):
        return tuple(_moved(one, arena) for one in part)
    if is_dataclass(part):
        values = {field.name: _moved(getattr(part, field.name), arena) for field in fields(part)}
        return replace(part, **values)  # type: ignore[type-var]
    return part


def _float(x: torch.Tensor) -> torch.Tensor:
    return x.detach().float().contiguous()
