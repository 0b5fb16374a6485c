"""The losses that a lease's code logs, as a weighted mean. Pure."""

from __future__ import annotations

import math

from shoal.errors import Misuse


class LossLog:
    def __init__(self) -> None:
        self.total = 0.0
        self.weight = 0.0

    def add(self, name: str, total: float, weight: float, *, others: str) -> None:
        """Add to the sum. ``others``: where the caller's other figures go."""
        if name != "loss":
            raise Misuse(f"lease.log({name!r}): devices report the loss of training; return others from {others}")
        if not (math.isfinite(weight) and weight >= 0):
            raise Misuse(f"lease.log({name!r}): a weight is a number from 0, not {weight}")
        self.total += float(total)
        self.weight += float(weight)

    @property
    def mean(self) -> float | None:
        """None: nothing was logged."""
        return self.total / self.weight if self.weight else None
