"""Evaluations as plain rows for checkpoints and tables, and as short texts. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from shoal.wire.messages import EvaluationView, MetricView

#: The most figures in a list of evaluations, since a checkpoint's header and a reply are bounded.
FIGURES_MAX = 8000


class _Judged(Protocol):
    @property
    def metrics(self) -> tuple[MetricView, ...]: ...


def row_of(view: EvaluationView) -> dict[str, Any]:
    """Return an evaluation as JSON values."""
    return {field.name: getattr(view, field.name) for field in fields(view)} | {"metrics": metrics_row(view.metrics)}


def view_of(row: Mapping[str, Any]) -> EvaluationView:
    """Read the output of ``row_of``. A row of an older release has only accuracy and loss."""
    values = {**row}
    return EvaluationView(**values | {"metrics": metrics_in(values.get("metrics", ()))})


def metrics_row(metrics: Sequence[MetricView]) -> list[list[Any]]:
    return [[each.name, each.value, each.lower] for each in metrics]


def metrics_in(rows: Sequence[Sequence[Any]]) -> tuple[MetricView, ...]:
    """Read the metrics of a row. Raises ValueError or TypeError for anything else."""
    views = []
    for name, figure, lower in rows:
        if type(name) is not str or type(figure) not in (int, float, type(None)) or type(lower) is not bool:
            raise TypeError("a metric is a name, a figure and a direction")
        views.append(MetricView(name=name, value=figure, lower=lower))
    return tuple(views)


def latest_within(views: Sequence[_Judged], *, most: int, figures_max: int = FIGURES_MAX) -> int:
    """Return how many of the latest evaluations to send: at most ``most``, and so few that their figures fit."""
    figures = count = 0
    for view in reversed(views[-most:]):
        figures += len(view.metrics)
        if figures > figures_max:
            break
        count += 1
    return count


def figure_text(metric: MetricView) -> str:
    """Return ``accuracy 97.00 %``, or the name and four digits for other metrics."""
    if metric.value is None:
        return f"no {metric.name} yet"
    if metric.name == "accuracy" and 0 <= metric.value <= 1:
        return f"accuracy {100 * metric.value:.2f} %"
    return f"{metric.name} {metric.value:.4g}"


def figures_text(metrics: Sequence[MetricView]) -> str:
    return ", ".join(map(figure_text, metrics)) or "no metrics"
