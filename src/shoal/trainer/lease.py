"""A lease as a task's code sees it: which version, which epoch, at which rate, on which processor. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.errors import Misuse
from shoal.lease_log import LeaseLog


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLease:
    """Given to ``Task.step`` and ``Task.train``. Everything in it is the same on every device that trains the lease."""

    version: int
    epoch: int
    #: The learning rate that the plan's schedule sets for this version.
    rate: float
    device: torch.device
    #: ``bfloat16`` if the plan says so, `None` for float32 throughout.
    half: torch.dtype | None = None
    #: The values of this version, by name: views into the flat vector.
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    logged: LeaseLog = field(default_factory=LeaseLog, init=False, repr=False)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the plan's precision. The default loop does this; your own ``train`` has to use it itself."""
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.half)

    def anchor(self, name: str) -> Tensor:
        """Return a shared tensor's value in this version, before any step of the lease (FedProx pulls towards it)."""
        if name not in self.values:
            raise Misuse(f"lease.anchor({name!r}): no shared tensor has this name; others have no anchor")
        return torch.from_numpy(self.values[name]).to(self.device)

    def log(self, name: str, total: float, weight: float = 1.0) -> None:
        """Add to a sum: ``lease.log("loss", loss.item() * len(batch), len(batch))``. Shoal reports the mean: the loss
        of training, and each other figure beside the next evaluation as ``train/NAME``."""
        self.logged.add(name, total, weight)

    @property
    def loss(self) -> float | None:
        """The mean of the losses that were logged, or None if none were."""
        return self.logged.loss
