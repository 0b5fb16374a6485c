"""A lease on a device's own examples, from the choice of rows to the result. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.learning.metrics import MetricSum
from shoal.trainer.device_side import DeviceSide
from shoal.trainer.lease import TaskLease
from shoal.trainer.protocol import TrainResult


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLease:
    """A lease for one of several devices."""

    side: DeviceSide
    epoch: int
    lease: int
    #: The most examples that it is over.
    examples: int


@dataclass(frozen=True, slots=True)
class DeviceResult:
    result: TrainResult
    #: What changed in the model.
    update: np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLease:
    """A lease whose rows are chosen, and whose new examples are evaluated."""

    side: DeviceSide
    told: TaskLease
    epoch: int
    lease: int
    held: int
    judged: int
    fresh_metrics: tuple[MetricSum, ...]
    examples: int
    #: The rows of each batch, over all passes, and the number of batches in the first.
    parts: Sequence[np.ndarray[Any, Any]]
    first_pass: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each batch."""
        return tuple(len(part) for part in self.parts)

    def rows(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Yield the rows of each batch, with the numbers that seed it."""
        assert self.side.examples is not None
        for step, rows in enumerate(self.side.examples.take_parts(self.parts)):
            yield rows, (self.epoch, self.lease, step)

    def result(
        self, loss_sum: float, *, finite: bool, labels: tuple[int, ...] = (), logged: tuple[MetricSum, ...] = ()
    ) -> TrainResult:
        return TrainResult(
            examples=self.examples,
            loss_sum=loss_sum,
            finite=finite,
            seconds=0.0,
            held=self.held,
            fresh=self.judged,
            fresh_metrics=self.fresh_metrics,
            labels=labels,
            logged=logged,
        )
