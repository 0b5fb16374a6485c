"""A goal that is reached, a plateau, and a goal that no evaluation knows."""

from __future__ import annotations

import pytest

from shoal.roles.leader.goals import UnknownGoals, reached_by
from shoal.until import Until, metric, plateau
from shoal.wire.messages import EvaluationView, MetricView


def seen(*figures: float | None, name: str = "loss", lower: bool = True) -> list[EvaluationView]:
    return [
        EvaluationView(
            version=n, epoch=n, examples=10, seconds=1.0, metrics=(MetricView(name=name, value=figure, lower=lower),)
        )
        for n, figure in enumerate(figures, start=1)
    ]


def test_a_goal_names_metric_and_figures() -> None:
    until = metric("f1") >= 0.9
    assert reached_by(until, seen(0.95, 0.89, name="f1", lower=False)) is None, "only the latest counts"
    assert reached_by(until, seen(0.912345, name="f1", lower=False)) == "f1 reached 0.9123, the goal was f1 >= 0.9"
    assert reached_by(metric("mae") <= 2, seen(1.5, name="mae")) == "mae reached 1.5, the goal was mae <= 2"
    assert reached_by(until, seen(None, name="f1")) is None
    assert reached_by(until, seen(1.0, name="f2")) is None


@pytest.mark.parametrize(
    ("figures", "lower", "min_change", "is_flat"),
    [
        ((1.0, 0.9, 0.8), True, 0.0, False),
        ((1.0, 1.0), True, 0.0, False),
        ((1.0, 1.0, 1.0), True, 0.0, True),
        ((1.0, 0.5, 0.6, 0.7), True, 0.0, True),
        ((1.0, 0.5, 0.6, 0.4), True, 0.0, False),
        ((0.5, 0.6, 0.7), False, 0.0, False),
        ((0.7, 0.6, 0.5), False, 0.0, True),
        ((1.0, 0.95, 0.92), True, 0.1, True),
        ((1.0, 0.95, 0.89), True, 0.1, False),
        ((1.0, None, None, None), True, 0.0, False),
    ],
)
def test_a_plateau(figures: tuple[float | None, ...], lower: bool, min_change: float, is_flat: bool) -> None:
    until = plateau("loss", patience=2, min_change=min_change)
    reason = reached_by(until, seen(*figures, lower=lower))
    assert (reason is not None) == is_flat


def test_a_plateau_names_metric_and_figures() -> None:
    reason = reached_by(plateau("loss", patience=2), seen(1.0, 0.5, 0.625, 0.75))
    assert reason == "loss is on a plateau: no better than 0.5 in 2 evaluations in a row, lately 0.75"


def test_a_metric_that_is_not_there_is_told_once() -> None:
    goals = UnknownGoals((metric("f1") >= 0.9) | plateau("loss"))
    told = goals.unknown(seen(1.0)[0])
    assert told == "the job is to end by f1, which its evaluations do not report; they report loss"
    assert goals.unknown(seen(1.0)[0]) is None
    assert UnknownGoals(Until(accuracy=0.9)).unknown(seen(1.0)[0]) is not None
    assert UnknownGoals(plateau("loss")).unknown(seen(1.0)[0]) is None
