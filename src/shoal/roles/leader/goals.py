"""Whether a job's metrics say that it is over: a goal that is reached, or a plateau. Pure; knows no clock."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.until import Goal, Plateau, Until
from shoal.wire.messages import EvaluationView, MetricView


def reached_by(until: Until, evaluations: Sequence[EvaluationView]) -> str | None:
    """Why the job is over after the last of these evaluations; None: no metric says so."""
    latest = evaluations[-1]
    if until.accuracy is not None and latest.accuracy is not None and latest.accuracy >= until.accuracy:
        return f"reached {latest.accuracy:.2%}, the goal was {until.accuracy:.2%}"
    reached = (_goal_reached(goal, latest) for goal in until.goals)
    flat = (_flat(plateau, evaluations) for plateau in until.plateaus)
    return next((why for why in (*reached, *flat) if why is not None), None)


def _goal_reached(goal: Goal, latest: EvaluationView) -> str | None:
    metric = _metric(latest, goal.metric)
    if metric is None or metric.value is None or not goal.is_met(metric.value):
        return None
    return f"{goal.metric} reached {metric.value:.4g}, the goal was {goal}"


def _flat(plateau: Plateau, evaluations: Sequence[EvaluationView]) -> str | None:
    """Why the job is over by a plateau. The best is counted from the first evaluation on; one without the metric is
    passed over."""
    seen = [metric for view in evaluations if (metric := _metric(view, plateau.metric)) is not None]
    figures = [(metric.value, metric.lower) for metric in seen if metric.value is not None]
    best: float | None = None
    since = 0
    for figure, lower in figures:
        gain = 0.0 if best is None else best - figure if lower else figure - best
        if best is None or gain > plateau.min_change:
            best, since = figure, 0
        else:
            since += 1
    if best is None or since < plateau.patience:
        return None
    by = f" by more than {plateau.min_change:g}" if plateau.min_change else ""
    return (
        f"{plateau.metric} is on a plateau: no better than {best:.4g}{by} in {since} evaluations in a row,"
        f" lately {figures[-1][0]:.4g}"
    )


def _metric(view: EvaluationView, name: str) -> MetricView | None:
    return next((metric for metric in view.metrics if metric.name == name), None)


class UnknownGoals:
    """Says once that a job waits for a metric that its evaluations do not have."""

    def __init__(self, until: Until) -> None:
        wanted = (*until.metrics, *(("accuracy",) if until.accuracy is not None else ()))
        self._wanted: tuple[str, ...] = wanted
        self._is_told = False

    def unknown(self, view: EvaluationView) -> str | None:
        known = [metric.name for metric in view.metrics]
        missing = [name for name in self._wanted if name not in known]
        if not missing or self._is_told:
            return None
        self._is_told = True
        return (
            f"the job is to end by {', '.join(missing)}, which its evaluations do not report;"
            f" they report {', '.join(known) or 'no metric'}"
        )
