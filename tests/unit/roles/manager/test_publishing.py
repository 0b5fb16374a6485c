"""Which version is served: what is published, what is left, what one goes back to, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Refused
from shoal.learning.significance import at_least
from shoal.plan import Plan, Until
from shoal.roles.manager.publishing import (
    KeepServed,
    Publish,
    Published,
    Serving,
    after_publishing,
    after_rollback,
    judged_at,
    news,
    rule_of,
    surplus,
    target,
    weigh,
)
from shoal.wire.messages import EvaluationView, MetricView


def seen(version: int, share: float, examples: int = 1000) -> EvaluationView:
    return EvaluationView(
        version=version, epoch=version // 10, accuracy=share, loss=0.2, examples=examples, seconds=1.0
    )


def made(version: int, number: int = 1, share: float | None = 0.9, examples: int = 1000) -> Published:
    return Published(
        version=version,
        number=number,
        epoch=1,
        accuracy=share,
        loss=0.1,
        examples=examples,
        sha256="0" * 64,
        size_bytes=9,
        at_s=5.0,
        reason="",
    )


def test_only_jobs_without_an_end_publish_by_themselves() -> None:
    endless = Until(endless=True)
    assert rule_of(Plan(until=endless)) == "better"
    assert rule_of(Plan(until=endless, publish="every")) == "every"
    assert rule_of(Plan(until=Until(epochs=3))) == "asked"
    assert rule_of(Plan(until=Until(epochs=3), publish="better")) == "better", "unless it is said"


def test_better_is_published_and_worse_is_not() -> None:
    serving = Serving(version=31)
    assert weigh("better", None, Serving(), seen(10, 0.1)) == Publish("the first that was evaluated")
    assert weigh("better", made(31, share=0.94), serving, seen(50, 0.95)) == Publish("better than version 31, 94.00 %")
    assert weigh("better", made(31, share=0.94), serving, seen(40, 0.912)) == KeepServed(
        "version 40 is worse, 91.20 % against 94.00 %: keeping version 31"
    )
    assert weigh("better", made(31, share=0.94), serving, seen(40, 0.94)) == KeepServed(
        "version 40 is no better, 94.00 % against 94.00 %: keeping version 31"
    )
    assert weigh("better", made(31, share=None), serving, seen(40, 0.1)) == Publish(
        "version 31 was not evaluated, and this one was"
    )


def test_a_lucky_score_over_few_is_not_enough_and_does_not_stand_for_ever() -> None:
    assert weigh("better", made(20), Serving(version=20), seen(30, 1.0, examples=4)) == KeepServed(
        "version 30 had 100.00 % of 4 examples right, too few to be sure against 90.00 % of 1,000 examples right: "
        "keeping version 20"
    )
    lucky = made(20, share=1.0, examples=4)
    assert isinstance(weigh("better", lucky, Serving(version=20), seen(30, 0.9)), Publish)


def test_where_data_drift_every_one_is_published_and_where_people_choose_none() -> None:
    assert weigh("every", made(20), Serving(version=20), seen(30, 0.5)) == Publish("the newest that was evaluated")
    told = weigh("asked", made(20), Serving(version=20), seen(30, 0.99))
    assert told == KeepServed(
        "version 30 had 99.00 % of 1,000 examples right: it is published when an operator says so"
    )


def test_what_was_rolled_back_holds_until_it_is_said_or_surely_better() -> None:
    serving = after_rollback(Serving(version=40), made(31), reason="it is odd", until_accuracy=None)
    assert (serving.version, serving.reason) == (31, "rolled back from version 40: it is odd")
    told = weigh("every", made(31), serving, seen(50, 0.99))
    assert isinstance(told, KeepServed)
    assert "held back: version 40 was withdrawn: it is odd; until one is published by an operator" in told.reason
    stated = after_rollback(Serving(version=40), made(31), until_accuracy=0.95)
    assert isinstance(weigh("better", made(31), stated, seen(50, 0.955)), KeepServed), "0.955 of 1,000 may be 0.94"
    assert weigh("better", made(31), stated, seen(50, 0.99)) == Publish("it surely has the 95.00 % that were asked for")
    over = after_publishing(stated, 50, "because")
    assert (over.version, over.reason, over.hold, over.until_accuracy) == (50, "because", None, None)


def test_none_is_weighed_twice() -> None:
    views = (seen(10, 0.5), seen(20, 0.6), seen(30, 7.0))
    assert news(views, Serving()) == views[1], "the last is no share of anything"
    assert news(views, Serving(judged=20)) is None
    assert news(views[:1], Serving(judged=20)) == views[0], "a damaged disk took the job back"
    assert news((), Serving()) is None


def test_another_history_is_weighed_although_its_versions_have_the_same_numbers() -> None:
    views, serving = (seen(20, 0.6),), Serving(version=21, judged=20)
    ours = replace(made(21, share=0.6), loss=0.2)
    assert news(views, serving, ours) is None
    other = replace(ours, accuracy=0.9)
    assert news(views, serving, other) == views[0]
    # What an operator chose, or held back, stays until the next evaluation.
    assert news(views, replace(serving, reason="an operator published it: a test"), other) is None
    assert news(views, replace(serving, hold="withdrawn"), other) is None


def test_an_evaluation_speaks_for_those_that_come_soon_after() -> None:
    views = (seen(20, 0.8), seen(30, 0.9))
    assert judged_at(views, 19) is None
    assert judged_at(views, 20) == judged_at(views, 29) == views[0]
    assert judged_at(views, 30) == judged_at(views, 40) == views[1]
    assert judged_at(views, 41) is None, "another was due by then"


def test_one_goes_back_to_the_one_before_or_to_any_that_is_kept() -> None:
    kept = [made(10, 1), made(30, 3), made(20, 2)]
    assert target(kept, Serving(version=30), None).version == 20
    assert target(kept, Serving(version=20), None).version == 10
    assert target(kept, Serving(version=10), 30).version == 30
    for serving, wanted, problem in (
        (Serving(version=10), None, "version 10 is the first that is kept: name another, of 10, 20, 30"),
        (Serving(version=30), 30, "version 30 is served already"),
        (Serving(version=30), 7, "version 7 is not among the published ones that are kept: 10, 20, 30"),
    ):
        with pytest.raises(Refused, match=problem):
            target(kept, serving, wanted)
    with pytest.raises(Refused, match="none to go back to"):
        target([], Serving(), None)


def test_as_many_are_kept_as_the_plan_says_and_the_served_one_always() -> None:
    kept = [made(10 * number, number) for number in range(1, 6)]
    assert [each.version for each in surplus(kept, served=50, keep=3)] == [10, 20]
    assert [each.version for each in surplus(kept, served=10, keep=3)] == [20, 30]
    assert [each.version for each in surplus(kept, served=10, keep=1)] == [20, 30, 40, 50]
    assert surplus(kept, served=50, keep=5) == []


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5000)), min_size=1, max_size=20))
def test_what_is_served_by_itself_never_becomes_worse(rounds: list[tuple[float, int]]) -> None:
    served: Published | None = None
    serving = Serving()
    for number, (share, examples) in enumerate(rounds, start=1):
        view = seen(10 * number, share, examples)
        decision = weigh("better", served, serving, view)
        serving = replace(serving, judged=view.version)
        if isinstance(decision, Publish):
            served = made(view.version, number, share, examples)
            serving = after_publishing(serving, view.version, decision.reason)
        assert decision.reason
    assert served is not None
    assert served.accuracy is not None
    best = max(at_least(share, examples) for share, examples in rounds)
    assert at_least(served.accuracy, served.examples) == best


def judged(version: int, **figures: float) -> EvaluationView:
    metrics = tuple(MetricView(name=name, value=value, lower=name == "mae") for name, value in figures.items())
    return EvaluationView(version=version, epoch=1, examples=1000, seconds=1.0, metrics=metrics)


def of(view: EvaluationView) -> Published:
    return replace(made(view.version, share=view.accuracy), loss=view.loss, metrics=view.metrics)


@pytest.mark.parametrize(
    ("old", "new", "judged_by", "is_better"),
    [
        ({"mae": 2.0}, {"mae": 1.5}, "", True),
        ({"mae": 2.0}, {"mae": 2.5}, "", False),
        ({"mae": 2.0}, {"mae": 2.0}, "", False),
        ({"f1": 0.5, "loss": 1.0}, {"f1": 0.6, "loss": 2.0}, "f1", True),
        ({"f1": 0.5, "loss": 1.0}, {"f1": 0.4, "loss": 0.5}, "f1", False),
        ({"accuracy": 0.9, "f1": 0.5}, {"accuracy": 0.5, "f1": 0.6}, "f1", True),
        # Without a name it is the accuracy that counts.
        ({"accuracy": 0.9, "f1": 0.5}, {"accuracy": 0.5, "f1": 0.6}, "", False),
        ({"loss": 1.0}, {"loss": 1.0, "f1": 0.6}, "f1", True),
        ({"f1": 0.5}, {"loss": 0.1}, "f1", False),
    ],
)
def test_versions_are_compared_by_the_plans_metric(
    old: dict[str, float], new: dict[str, float], judged_by: str, is_better: bool
) -> None:
    decision = weigh("better", of(judged(20, **old)), Serving(version=20), judged(30, **new), judged_by)
    assert isinstance(decision, Publish) == is_better, decision.reason


def test_a_metric_that_is_not_there_is_named() -> None:
    decision = weigh("better", of(judged(20, mae=1.0)), Serving(version=20), judged(30, mae=0.5), "f1")
    assert decision == KeepServed("version 30 has no f1, by which versions are judged; it has mae")
