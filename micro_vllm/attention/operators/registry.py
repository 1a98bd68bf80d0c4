"""The attention operators by name, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from micro_vllm.errors import ConfigError

if TYPE_CHECKING:  # who only asks for names needs no torch
    from micro_vllm.attention.operators.base import AttentionOperator

DEFAULT_OPERATOR = "sdpa"
"""What ``attention="auto"`` means."""

# name -> (module, class). Faster ones register beside these; `reference` is what they must agree with.
_OPERATORS: dict[str, tuple[str, str]] = {
    "reference": ("micro_vllm.attention.operators.reference", "ReferenceAttention"),
    "sdpa": ("micro_vllm.attention.operators.sdpa", "SDPAAttention"),
}


def register(name: str, module: str, factory: str) -> None:
    """Make ``attention=name`` build ``module.factory()``; the module is imported when first asked for."""
    if name == "auto" or name in _OPERATORS:
        raise ConfigError(f"attention operator {name!r} is registered already; choose another name.")
    _OPERATORS[name] = (module, factory)


def operators_available() -> tuple[str, ...]:
    """Names that :func:`get_operator` knows, ``auto`` not counted."""
    return tuple(_OPERATORS)


def get_operator(name: str) -> AttentionOperator:
    """Build the operator ``name``; ``auto`` is the default one.

    Raises:
        ConfigError: no operator has this name; the message lists those that exist.
    """
    chosen = DEFAULT_OPERATOR if name == "auto" else name
    if chosen not in _OPERATORS:
        known = ", ".join(("auto", *_OPERATORS))
        raise ConfigError(f"attention={name!r} is unknown; allowed: {known}.")
    module, factory = _OPERATORS[chosen]
    build: Callable[[], AttentionOperator] = getattr(import_module(module), factory)
    return build()
