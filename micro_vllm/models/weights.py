"""Where a checkpoint's tensors go: names of the file on one side, rows of fused parameters on the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from micro_vllm.errors import ModelLoadError
from micro_vllm.layers.linear import FusedLinear


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The rows of a parameter that one checkpoint tensor fills."""

    parameter: nn.Parameter
    start: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.parameter.shape[1:])

    def fill(self, tensor: torch.Tensor) -> None:
        """Copy, converting dtype and device."""
        self.parameter.data[self.start : self.start + self.rows].copy_(tensor)


def weight_slots(model: nn.Module) -> dict[str, WeightSlot]:
    """Every tensor a checkpoint of ``model`` holds, by the checkpoint's name.

    Modules are named as in the checkpoint; a :class:`FusedLinear` stands for siblings named by its ``parts``.
    """
    slots: dict[str, WeightSlot] = {}
    for path, module in model.named_modules():
        parent = path.rpartition(".")[0]
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, FusedLinear):
                start = 0
                for part, rows in module.parts.items():
                    slots[f"{parent}.{part}.{name}"] = WeightSlot(parameter, start, rows)
                    start += rows
            else:
                slots[f"{path}.{name}"] = WeightSlot(parameter, 0, parameter.shape[0])
    return slots


def is_ignored(name: str, tied: bool) -> bool:
    """Tensors a checkpoint may hold beyond the model's own, by rule.

    A tied model's head *is* the embedding, whatever ``lm_head.weight`` beside it says; ``inv_freq`` is
    computed from the config (Llama checkpoints of 2023 hold it).
    """
    return (tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq")


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    tied: bool,
    *,
    source: str = "the checkpoint",
    files: Mapping[str, str] | None = None,
) -> None:
    """Compare names and shapes, before anything is allocated or copied. ``source``
    names the folder, ``files`` the file of each tensor.

    Raises:
        ModelLoadError: a tensor is missing, unexpected, or of another shape; the message names it.
    """
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelLoadError(f"{source} lacks {_some(missing)}; the folder is incomplete.")
    unexpected = [name for name in found if name not in expected and not is_ignored(name, tied)]
    if unexpected:
        raise ModelLoadError(
            f"{source} holds {_some(unexpected)}, which this architecture has no place for; "
            "config.json and weights do not belong together."
        )
    for name, shape in expected.items():
        if found[name] != shape:
            file = f", {files[name]}" if files else ""
            raise ModelLoadError(
                f"{source}{file}: tensor {name!r} has shape {list(found[name])}, "
                f"config.json asks for {list(shape)}."
            )


def fill_slots(
    slots: Mapping[str, WeightSlot], weights: Iterable[tuple[str, torch.Tensor]], tied: bool
) -> None:
    """Copy a stream of tensors into their slots.

    Raises:
        ModelLoadError: as :func:`check_tensors`; a tensor is checked before it is copied.
    """
    missing = dict.fromkeys(slots)
    for name, tensor in weights:
        slot = slots.get(name)
        if slot is None:
            if is_ignored(name, tied):
                continue
            raise ModelLoadError(
                f"the checkpoint holds tensor {name!r}, which this architecture has no place for."
            )
        check_tensors({name: slot.shape}, {name: tuple(tensor.shape)}, tied)
        slot.fill(tensor)
        missing.pop(name, None)
    if missing:
        raise ModelLoadError(f"the checkpoint lacks {_some(list(missing))}; the folder is incomplete.")


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
