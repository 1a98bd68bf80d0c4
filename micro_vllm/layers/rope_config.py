"""The rotary part of ``config.json``, in both of its spellings.

transformers 4 writes ``rope_theta`` and ``rope_scaling``; transformers 5 writes ``rope_parameters``.
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from micro_vllm.errors import ModelLoadError, UnsupportedModelError

DEFAULT_THETA = 10_000.0

# Rope type -> the parameters it cannot do without.
REQUIRED_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


@dataclass(frozen=True)
class RopeConfig:
    """How positions turn the heads.

    ``parameters`` holds what the type needs beyond ``theta``: ``factor``,
    ``original_max_position_embeddings``, llama3's ``low_freq_factor`` and ``high_freq_factor``, yarn's
    ``beta_fast``, ``beta_slow``, ``attention_factor``, ``mscale``, ``mscale_all_dim``, ``truncate``.
    """

    theta: float = DEFAULT_THETA
    type: str = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def max_length(self, max_position_embeddings: int) -> int:
        """Tokens these positions carry: linear and yarn stretch by their factor, dynamic does not."""
        if self.type == "linear":
            return int(max_position_embeddings * self.parameters["factor"])
        if self.type == "yarn":
            original = self.parameters["original_max_position_embeddings"]
            return max(max_position_embeddings, int(original * self.parameters["factor"]))
        return max_position_embeddings


def read_rope(hf: Mapping[str, Any], max_position_embeddings: int, source: str) -> RopeConfig:
    """Read the rotary settings of a parsed ``config.json``.

    Raises:
        UnsupportedModelError: the type is not implemented, or only part of a head is rotated.
        ModelLoadError: a parameter the type needs is missing or no number.
    """
    key = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    given = hf.get(key) or {}
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"{source}: {key}={given!r} must be an object.")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnsupportedModelError(f"{source}: {key} differs by layer type, which is not implemented.")
    parameters = {name: value for name, value in given.items() if value is not None}
    old_type = parameters.pop("type", "default")
    rope_type = parameters.pop("rope_type", old_type)
    theta = parameters.pop("rope_theta", None) or hf.get("rope_theta") or DEFAULT_THETA
    if rope_type not in REQUIRED_PARAMETERS:
        raise UnsupportedModelError(
            f"{source}: rope type {rope_type!r} ({key}) is not implemented; "
            f"known: {', '.join(REQUIRED_PARAMETERS)}."
        )
    partial = parameters.pop("partial_rotary_factor", None) or hf.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModelError(
            f"{source}: partial_rotary_factor={partial!r} is not implemented; only 1 is."
        )
    if rope_type in ("llama3", "yarn"):
        # A value beside the rotary object wins over one inside it; the model's own length stands in for both.
        length = "original_max_position_embeddings"
        original = hf.get(length) or parameters.get(length)
        parameters[length] = original or max_position_embeddings
        if rope_type == "yarn" and "factor" not in parameters and original:
            parameters["factor"] = max_position_embeddings / original
    _check_numbers({**parameters, "rope_theta": theta}, rope_type, key, source)
    return RopeConfig(theta=float(theta), type=rope_type, parameters=parameters)


def _check_numbers(parameters: Mapping[str, Any], rope_type: str, key: str, source: str) -> None:
    required = REQUIRED_PARAMETERS[rope_type]
    for name in required:
        if name not in parameters:
            raise ModelLoadError(f"{source}: {key} of type {rope_type!r} has no {name!r}.")
    for name in (*required, "rope_theta", "original_max_position_embeddings", "attention_factor"):
        value = parameters.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelLoadError(f"{source}: {key}[{name!r}]={value!r} must be a number above 0.")
