"""Metrics as messages carry them: sums on their way to a leader, figures on their way to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from shoal.errors import PeerViolation
from shoal.learning.metrics import METRICS_MAX, MetricSum, lower_is_better, shapes_problem
from shoal.until import is_metric_name
from shoal.wire.messages.base import Message, message


@message()
class MetricView(Message):
    """A metric's figure over an evaluation."""

    name: str
    #: None: nothing was measured.
    value: float | None = None
    #: Less is better.
    lower: bool = False

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_metric_name(self.name):
            raise PeerViolation(f"a metric's name that cannot be: {self.name[:80]!r}")
        if self.value is not None and not -math.inf < self.value < math.inf:
            raise PeerViolation(f"metric {self.name} is not finite")


def check_sums(metrics: Sequence[MetricSum]) -> None:
    """Refuse sums that are no metrics, or too many. Whether their numbers can be, the leader judges: it knows the
    lease, and counts what a device does wrong."""
    if (found := shapes_problem(metrics)) is not None:
        raise PeerViolation(found)
    if any(number != number for metric in metrics for number in metric.sums):
        raise PeerViolation("a metric with a sum that is not a number")


def check_views(metrics: Sequence[MetricView]) -> None:
    if len(metrics) > METRICS_MAX or len({each.name for each in metrics}) != len(metrics):
        raise PeerViolation(f"{len(metrics)} metrics: at most {METRICS_MAX} are told, each once")


def views_of(sums: Iterable[MetricSum]) -> tuple[MetricView, ...]:
    """The figures of some sums."""
    # Here, for numpy: a device that has no job yet reads messages without it.
    from shoal.learning.figures import value

    return tuple(MetricView(name=each.name, value=value(each), lower=each.lower) for each in sums)


def plain_views(*, accuracy: float | None, loss: float | None) -> tuple[MetricView, ...]:
    """The figures of an evaluation that knows these two alone."""
    told = (("accuracy", accuracy), ("loss", loss))
    return tuple(
        MetricView(name=name, value=figure, lower=lower_is_better(name))
        for name, figure in told
        if figure is not None and math.isfinite(figure)
    )


def figure_of(metrics: Iterable[MetricView], name: str) -> float | None:
    """The figure of the metric of this name; None: there is none."""
    return next((each.value for each in metrics if each.name == name), None)
