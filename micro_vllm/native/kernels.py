"""The native kernels as Python sees them: structures, and pointers into tensors.

Whoever makes a structure keeps the tensors that it points into: a structure holds addresses, not references.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int64, c_void_p

import torch

from micro_vllm.native.quantize import QuantizedMatrix


class Matrix(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("group", c_int64),
        ("window", c_int64),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("num_layers", c_int64),
        ("eps", c_float),
        ("scale", c_float),
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
    )


class Group(ctypes.Structure):
    _fields_ = (("tables", c_void_p), ("slots", c_void_p), ("width", c_int64))


class Batch(ctypes.Structure):
    _fields_ = (
        ("num_tokens", c_int64),
        ("num_tasks", c_int64),
        ("num_parts", c_int64),
        ("block_size", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("request", c_void_p),
        ("task_start", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("groups", POINTER(Group)),
    )


class Draws(ctypes.Structure):
    """Plain draws have no filters."""

    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocabulary", c_int64),
        ("rows", c_void_p),
        ("tokens", c_void_p),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("seeds", c_void_p),
        ("output_index", c_void_p),
        ("count", c_int64),
    )


class Listing(ctypes.Structure):
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocabulary", c_int64),
        ("valid", c_int64),
        ("rows", c_void_p),
        ("sampled", c_void_p),
        ("count", c_int64),
        ("most", c_int64),
    )


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the signatures. Its calls release the interpreter lock."""
    library.mv_scratch_bytes.argtypes = (POINTER(Model), c_int64, c_int64, c_int64)
    library.mv_scratch_bytes.restype = c_int64
    library.mv_decode.argtypes = (POINTER(Model), POINTER(Batch), c_void_p, c_void_p, c_int64)
    library.mv_decode.restype = None
    library.mv_logits.argtypes = (
        POINTER(Model), POINTER(Matrix), c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p,
        c_int64,
    )  # fmt: skip
    library.mv_logits.restype = None
    library.mv_maxima.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64)
    library.mv_maxima.restype = None
    library.mv_logprobs.argtypes = (POINTER(Listing), c_void_p, c_void_p, c_void_p, c_void_p, c_int64)
    library.mv_logprobs.restype = None
    library.mv_draw.argtypes = (POINTER(Draws), c_int64)
    library.mv_draw.restype = None
    library.mv_draw_filtered.argtypes = (POINTER(Draws), c_int64)
    library.mv_draw_filtered.restype = None
    return library


def address(tensor: torch.Tensor | None) -> int | None:
    """Of a tensor that is whole in memory; None for none."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def matrix(weight: QuantizedMatrix) -> Matrix:
    rows, cols = weight.shape
    return Matrix(address(weight.data), address(weight.scale), address(weight.bias), rows, cols)
