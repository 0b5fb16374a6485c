"""A lease as a task's code sees it: which version, which epoch, at which rate, on which processor. Imports torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.errors import Misuse


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLease:
    """Given to ``Task.step`` and ``Task.train``. Everything in it is the same on every device that trains the lease."""

    version: int
    epoch: int
    #: The learning rate, as the plan's schedule has it for this version.
    rate: float
    device: torch.device
    #: ``bfloat16`` where the plan says so; None: float32 throughout.
    half: torch.dtype | None = None
    #: The values of this version, by name: views into the flat vector.
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: What the task logged: total and weight.
    logged: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the plan's precision. The default loop does this; a ``train`` of your own uses it itself."""
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.half)

    def anchor(self, name: str) -> Tensor:
        """The value of a shared tensor in this version, before any step of the lease (FedProx pulls towards it)."""
        if name not in self.values:
            raise Misuse(f"lease.anchor({name!r}): no shared tensor has this name; others have no anchor")
        return torch.from_numpy(self.values[name]).to(self.device)

    def log(self, name: str, total: float, weight: float = 1.0) -> None:
        """Add to a sum: ``lease.log("loss", loss.item() * len(batch), len(batch))``. Shoal reports the mean loss."""
        if name != "loss":
            raise Misuse(f"lease.log({name!r}): devices report the loss of training; return others from metrics()")
        if not (math.isfinite(weight) and weight >= 0):
            raise Misuse(f"lease.log({name!r}): a weight is a number from 0, not {weight}")
        before_total, before_weight = self.logged.get(name, (0.0, 0.0))
        self.logged[name] = (before_total + float(total), before_weight + float(weight))
