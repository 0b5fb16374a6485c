"""The figures that a lease's code logs, each a weighted mean by its name. Pure."""

from __future__ import annotations

import math

from shoal.errors import Misuse
from shoal.learning.metrics import LOGGED_MAX, LOSS, SUM_MAX, MetricSum, name_in_training
from shoal.until import check_metric_name


class LeaseLog:
    def __init__(self) -> None:
        #: Name -> total, weight.
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: float, weight: float) -> None:
        check_metric_name(name)
        check_metric_name(name_in_training(name))
        if not (math.isfinite(weight) and weight >= 0):
            raise Misuse(f"lease.log({name!r}): a weight is a number from 0, not {weight}")
        if name not in self._sums and name != LOSS and len(self._sums.keys() - {LOSS}) >= LOGGED_MAX:
            raise Misuse(f"lease.log({name!r}): a lease logs its loss and at most {LOGGED_MAX} other figures")
        before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (before[0] + float(total), before[1] + float(weight))

    @property
    def loss(self) -> float | None:
        """The mean loss; None: none was logged."""
        total, weight = self._sums.get(LOSS, (0.0, 0.0))
        return total / weight if weight else None

    @property
    def weight(self) -> float:
        """The weight of the losses."""
        return self._sums.get(LOSS, (0.0, 0.0))[1]

    def others(self) -> tuple[MetricSum, ...]:
        """The sums of all figures but the loss. A figure that is not finite is left out: the model may still be good,
        and a loss that is not finite says so itself."""
        return tuple(
            MetricSum(name=name, kind="mean", sums=sums)
            for name, sums in self._sums.items()
            if name != LOSS and sums[1] > 0 and abs(sums[0]) <= SUM_MAX
        )
