"""Plans side by side where some of their seeds failed. Made of outcomes by hand: nothing is simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shoal.cli.comparison import compare
from shoal.cli.simulation import Question
from shoal.cli.sweep import plans_of
from shoal.errors import Misuse
from shoal.learning.estimate import Estimate
from shoal.plan import Plan
from shoal.sim.outcome import Outcome, Point
from shoal.sim.series import SeedSeries, Setting

pytestmark = pytest.mark.timeout(60)


def _outcome(accuracy: float, **changes: Any) -> Outcome:
    loss = 1 - accuracy
    metrics: dict[str, float | None] = {"accuracy": accuracy, "loss": loss, "rmse": 10 * loss}
    point = Point(at_s=3.0, version=3, epoch=1, accuracy=accuracy, loss=loss, metrics=metrics)
    given = {
        "state": "finished",
        "reason": "1 of 1 epochs",
        "seconds": 3.0,
        "rounds": 3,
        "epochs": 1,
        "goal": None,
        "is_system_only": False,
        "evaluations": (point,),
        **dict.fromkeys(("refused", "leases_expired", "crashes"), 0),
        **dict.fromkeys(("devices", "lanes", "notes", "rates"), ()),
        "events": 1,
        "lower": ("loss", "rmse"),
    }
    return Outcome(**{**given, **changes})


def _failed(outcome: Outcome, **changes: Any) -> Outcome:
    return replace(outcome, state="failed", reason="the model is suspected", **changes)


def _series(name: str, *outcomes: Outcome) -> SeedSeries:
    setting = Setting(devices=4, seeds=tuple(range(len(outcomes))))
    nothing = (None,) * len(outcomes)
    return SeedSeries(name=name, plan=Plan(), setting=setting, bundle="0", outcomes=outcomes, divided=nothing)


FIRST = _series("first", _outcome(0.5), _outcome(0.75))


def test_a_seed_that_failed_is_in_no_mean_and_is_named() -> None:
    # Its last evaluation before it failed was the best of all, and is not what the plan gives.
    unlucky = _series("unlucky", _outcome(0.25), _failed(_outcome(1.0)))
    found = compare(FIRST, unlucky)
    row = found.rows()[1]
    assert (row["final"], row["difference"]) == (Estimate(0.25, None), Estimate(-0.25, None))
    assert found.best() is FIRST
    assert "unlucky is without seed 1 (failed: the model is suspected)" in str(found)
    assert "first is without" not in str(found)


def test_a_plan_without_any_result_takes_no_other_with_it() -> None:
    hopeless = _series("hopeless", *(_failed(_outcome(0.5), evaluations=()) for _ in range(2)))
    found = compare(hopeless, FIRST)
    assert found.metric == "accuracy"
    assert [row["final"] for row in found.rows()] == [None, Estimate.of([0.5, 0.75])]
    assert found.rows()[1]["difference"] is None
    assert found.best() is FIRST
    assert "hopeless is without seed 0 (failed: the model is suspected), and 1 other seed" in str(found)
    assert json.loads(json.dumps(found.to_plain()))["rows"][0]["final"] is None
    assert "none" in str(compare(hopeless))


def test_a_metric_that_nothing_has_is_answered_with_those_there_are() -> None:
    with pytest.raises(Misuse, match="no evaluation has the metric 'f1'; there are: accuracy, loss, rmse"):
        compare(FIRST, metric="f1")


@pytest.mark.parametrize("metric", ["accuracy", "loss", "rmse"])
def test_the_best_is_the_lowest_where_the_task_says_so(metric: str) -> None:
    worse = _series("worse", _outcome(0.25), _outcome(0.25))
    assert compare(worse, FIRST, metric=metric).best() is FIRST


def test_a_mean_of_what_is_not_finite_has_no_interval() -> None:
    assert Estimate.of([float("inf"), 1.0]) == Estimate(float("inf"), None)


def test_a_sweep_is_of_keys_that_need_others() -> None:
    typed = {"data": "local", "cohort": 3}
    question = Question(task="task.py", devices=3, profile="pi4-lan", plan=typed)
    plans = plans_of(question, ["local_epochs=1,5", "sampling=waited,uniform"])
    assert plans["local_epochs=5, sampling=uniform"] == {**typed, "local_epochs": 5, "sampling": "uniform"}
    assert all(Plan(**values).data == "local" for values in plans.values())
    assert len(plans) == 4
