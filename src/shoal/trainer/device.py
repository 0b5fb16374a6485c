"""The one place that moves tensors between a device's processors. Imports torch.

This project's CI has no hardware for CUDA and MPS. It tests the choice of a device, the refusal of one that is missing,
and moves (with torch's ``meta`` device).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from shoal.errors import Misuse


def choose(name: str) -> torch.device:
    """Return the processor to train on, by its name: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise Misuse(f"--device {name}: there is auto, cpu, cuda:N and mps") from None
    count = torch.cuda.device_count() if device.type == "cuda" else int(device.type != "mps" or _has_mps())
    if (device.index or 0) >= count:
        found = f"{count} CUDA device{'' if count == 1 else 's'}" if device.type == "cuda" else "no MPS"
        raise Misuse(f"--device {name}: PyTorch {torch.__version__} finds {found} here; take --device auto or cpu")
    return device


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def move(batch: Any, device: torch.device) -> Any:
    """Return the same structure (lists, tuples, dicts, dataclasses, objects with ``to``) with its tensors moved."""
    if device.type == "cpu":
        return batch
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=True)
        case dict():
            return type(batch)({name: move(value, device) for name, value in batch.items()})
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(move(value, device) for value in batch))
        case list() | tuple():
            return type(batch)(move(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {each.name: move(getattr(batch, each.name), device) for each in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **fields)
    return batch.to(device) if hasattr(batch, "to") else batch
