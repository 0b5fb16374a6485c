"""Evaluations as plain rows, in checkpoints and in tables, and in a few words. Pure; knows no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from shoal.wire.messages import EvaluationView, MetricView

#: Figures that a list of evaluations may carry in all: a checkpoint's header and a reply are bounded.
FIGURES_MAX = 8000


class _Judged(Protocol):
    @property
    def metrics(self) -> tuple[MetricView, ...]: ...


def row_of(view: EvaluationView) -> dict[str, Any]:
    """An evaluation as JSON values."""
    return {field.name: getattr(view, field.name) for field in fields(view)} | {"metrics": metrics_row(view.metrics)}


def view_of(row: Mapping[str, Any]) -> EvaluationView:
    """The inverse. A row of an older release has accuracy and loss alone."""
    values = {**row}
    return EvaluationView(**values | {"metrics": metrics_in(values.get("metrics", ()))})


def metrics_row(metrics: Sequence[MetricView]) -> list[list[Any]]:
    return [[each.name, each.value, each.lower] for each in metrics]


def metrics_in(rows: Sequence[Sequence[Any]]) -> tuple[MetricView, ...]:
    """Raises ValueError or TypeError where these are no metrics."""
    views = []
    for name, figure, lower in rows:
        if type(name) is not str or type(figure) not in (int, float, type(None)) or type(lower) is not bool:
            raise TypeError("a metric is a name, a figure and a direction")
        views.append(MetricView(name=name, value=figure, lower=lower))
    return tuple(views)


def latest_within(views: Sequence[_Judged], *, most: int, figures_max: int = FIGURES_MAX) -> int:
    """How many of the latest evaluations may be told: at most these, and so few that their figures fit."""
    figures = count = 0
    for view in reversed(views[-most:]):
        figures += len(view.metrics)
        if figures > figures_max:
            break
        count += 1
    return count


def figure_text(metric: MetricView) -> str:
    """``97.00% right`` of an accuracy; else the name and four digits."""
    if metric.value is None:
        return f"no {metric.name} yet"
    if metric.name == "accuracy" and 0 <= metric.value <= 1:
        return f"{metric.value:.2%} right"
    return f"{metric.name} {metric.value:.4g}"


def figures_text(metrics: Sequence[MetricView]) -> str:
    return ", ".join(map(figure_text, metrics)) or "no metrics"
