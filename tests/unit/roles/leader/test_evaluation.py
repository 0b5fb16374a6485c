"""One evaluation: chunks of a thousand, sums that add up, impossible results refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from shoal.learning.metrics import MetricSum, judged_sums
from shoal.roles.leader.evaluation import Evaluation, chunk_range, chunk_size
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import Evaluated


def result(lease: Lease, **changes: Any) -> Evaluated:
    values: dict[str, Any] = {"version": 7, "examples": 1000, "loss_sum": 500.0, "correct": 900} | changes
    sums = judged_sums(examples=values["examples"], loss_sum=values.pop("loss_sum"), correct=values.pop("correct"))
    return Evaluated(job="a", term=1, lease=lease.id, **{"metrics": sums} | values)


def mean(name: str, total: float, weight: float) -> MetricSum:
    return MetricSum(name=name, kind="mean", sums=(total, weight), lower=True)


def lend(exam: Evaluation, number: int) -> Lease:
    lease = exam.ledger.lease(number, "a", version=7, count=1, now_s=0, deadline_s=9)
    assert lease is not None
    return lease


def test_held_out_data_is_cut_into_chunks() -> None:
    assert [chunk_range(chunk, examples=2500) for chunk in range(3)] == [(0, 1000), (1000, 2000), (2000, 2500)]


def test_shares_add_up() -> None:
    exam = Evaluation(version=7, epoch=3, examples=1500)
    first, second = lend(exam, 1), lend(exam, 2)
    exam.add(result(second, examples=500, loss_sum=100.0, correct=150), second)
    assert not exam.finished
    exam.add(result(first), first)
    assert exam.finished
    view = exam.view(seconds=12.0)
    # 1050 of 1500 right; a loss of 600 over 1500.
    assert (view.accuracy, view.loss, view.examples) == (0.7, 0.4, 1500)
    assert (view.version, view.epoch, view.seconds) == (7, 3, 12.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"correct": 1000}, None),
        ({"version": 6}, "evaluated version 6, not 7"),
        ({"correct": 1001}, "an accuracy of 1001 right of 1000"),
        ({"correct": -1}, "an accuracy of -1 right of 1000"),
        ({"examples": 999}, "an evaluation over 999 examples; the lease holds 1000"),
        ({"metrics": (mean("mae", 1.0, 1e12),)}, "metric mae weighs 1e+12 over 1000 examples"),
        ({"metrics": (mean("mae", math.inf, 1.0),)}, "a mae that is not finite"),
        ({"metrics": (replace(mean("f", 0.0, 0.0), kind="f1", sums=(1.0, -1.0, 1.0)),)}, "a f with a count below 0"),
        ({"metrics": ()}, None),
        ({"loss_sum": math.inf}, "a loss that is not finite: try a lower learning rate"),
    ],
)
def test_impossible_results_are_named(changes: dict[str, Any], told: str | None) -> None:
    exam = Evaluation(version=7, epoch=3, examples=1500)
    lease = lend(exam, 1)
    problem = exam.problem(result(lease, **changes), lease)
    assert problem == told if told is None else problem is not None and problem.startswith(told)


def test_the_last_share_is_as_long_as_what_is_left() -> None:
    exam = Evaluation(version=7, epoch=3, examples=1500)
    lend(exam, 1)
    last = lend(exam, 2)
    assert exam.problem(result(last), last) == "an evaluation over 1000 examples; the lease holds 500"


def test_workers_must_agree_on_what_a_metric_is() -> None:
    exam = Evaluation(version=7, epoch=3, examples=3000)
    first, second, third = (lend(exam, number) for number in (1, 2, 3))
    exam.add(result(first, metrics=(mean("mae", 30.0, 10.0),)), first)
    other = replace(mean("mae", 1.0, 2.0), kind="ratio")
    assert exam.problem(result(second, metrics=(other,)), second) == "metric mae is a mean here and a ratio there"
    many = tuple(mean(str(number), 1.0, 1.0) for number in range(32))
    assert exam.problem(result(second, metrics=many), second) == "more than 32 metrics in one evaluation"
    # A metric that only some shares have is over those.
    exam.add(result(second, metrics=(mean("mae", 10.0, 10.0), mean("bias", -3.0, 6.0))), second)
    exam.add(result(third, metrics=()), third)
    view = exam.view(seconds=1.0)
    assert [(each.name, each.value) for each in view.metrics] == [("mae", 2.0), ("bias", -0.5)]
    assert (view.accuracy, view.loss, view.examples) == (None, None, 3000)


def test_an_evaluation_lease_takes_seconds_not_a_thousand_examples() -> None:
    assert chunk_size(None, batch_size=32) == 1000
    assert chunk_size(0.001, batch_size=32) == 1000, "a fast model is judged in few leases, as ever"
    slow = chunk_size(1.0, batch_size=8)
    assert slow == 32, "a detector on a board: ten seconds, in whole batches"
    assert chunk_size(600.0, batch_size=8) == 8
    evaluation = Evaluation(version=3, epoch=1, examples=70, size=slow)
    assert evaluation.ledger.batches == 3
    assert [chunk_range(chunk, examples=70, size=slow) for chunk in range(3)] == [(0, 32), (32, 64), (64, 70)]
