"""Metrics as messages carry them: sums that go to a leader, figures that are shown to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shoal.errors import PeerViolation
from shoal.learning.metrics import METRICS_MAX, MetricSum, lower_is_better, shapes_problem
from shoal.until import METRIC_NAME_MAX_CHARS, is_metric_name
from shoal.wire.messages.base import Message, message


@message()
class MetricView(Message):
    """A metric's figure over an evaluation."""

    name: str
    #: None if nothing was measured.
    value: float | None = None
    #: Whether lower is better.
    lower: bool = False

    def _check(self) -> None:
        if not is_metric_name(self.name):
            raise PeerViolation(
                f"MetricView.name is {self.name[:80]!r}; it must have 1 to {METRIC_NAME_MAX_CHARS} printable characters"
            )
        if self.value is not None and not -math.inf < self.value < math.inf:
            raise PeerViolation(f"metric {self.name} is not finite")


def check_sums(metrics: Sequence[MetricSum]) -> None:
    """Refuse malformed metrics, or too many of them. The leader checks their values: it knows the lease, and counts a
    device's faults."""
    if (found := shapes_problem(metrics)) is not None:
        raise PeerViolation(found)
    if any(number != number for metric in metrics for number in metric.sums):
        raise PeerViolation("a metric has a sum that is NaN")


def check_views(metrics: Sequence[MetricView]) -> None:
    if len(metrics) > METRICS_MAX or len({each.name for each in metrics}) != len(metrics):
        raise PeerViolation(f"{len(metrics)} metrics were sent; at most {METRICS_MAX} may be, each name once")


def views_of(sums: Iterable[MetricSum]) -> tuple[MetricView, ...]:
    """Return the figures that these sums give."""
    # Imported here because it loads numpy, which a device without a job does not need to read messages.
    from shoal.learning.figures import value

    return tuple(MetricView(name=each.name, value=value(each), lower=each.lower) for each in sums)


def plain_views(*, accuracy: float | None, loss: float | None) -> tuple[MetricView, ...]:
    """Return the figures of an evaluation that has only these two."""
    figures = (("accuracy", accuracy), ("loss", loss))
    return tuple(
        MetricView(name=name, value=figure, lower=lower_is_better(name))
        for name, figure in figures
        if figure is not None and math.isfinite(figure)
    )


def figure_of(metrics: Iterable[MetricView], name: str) -> float | None:
    """Return the figure of the metric with this name, or None if it is missing or was not measured."""
    return next((each.value for each in metrics if each.name == name), None)
