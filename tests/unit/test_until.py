"""When a job ends: how it is said, typed, joined, and carried as JSON."""

import json

import pytest

import shoal
from shoal.errors import Misuse
from shoal.plan import Plan, Until
from shoal.trainer.package import plan_from
from shoal.until import Goal, Plateau, parse_until, until_from
from shoal.wire.encoding import from_json, to_json


def test_conditions_are_joined():
    until = (shoal.metric("f1") >= 0.9) | shoal.plateau("loss", patience=3) | shoal.epochs(5) | shoal.accuracy(0.98)
    assert until == Until(
        goals=(Goal(metric="f1", at_least=0.9),),
        plateaus=(Plateau(metric="loss", patience=3),),
        epochs=5,
        accuracy=0.98,
    )
    assert (until | until) == until
    assert until.metrics == ("f1", "loss")
    assert (shoal.metric("mae") <= 2).goals == (Goal(metric="mae", at_most=2.0),)
    assert Plan(until=shoal.plateau("loss")).until.is_set


def test_a_goal_is_met_from_its_side():
    high, low = Goal(metric="f1", at_least=0.9), Goal(metric="mae", at_most=0.0)
    assert [high.is_met(0.89), high.is_met(0.9)] == [False, True]
    assert [low.is_met(0.1), low.is_met(0.0), low.is_met(-1.0)] == [False, True, True]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: shoal.metric("f1") >= 0.9 | shoal.plateau("loss"),
        lambda: shoal.metric("f1") > 0.9,
        lambda: shoal.metric("f1") >= "0.9",
        lambda: shoal.metric("f1") >= float("nan"),
        lambda: bool(shoal.metric("f1")),
        lambda: shoal.metric(""),
        lambda: shoal.plateau("loss", patience=0),
        lambda: shoal.plateau("loss", patience=501),
        lambda: shoal.plateau("loss", min_change=-1),
        lambda: Goal(metric="f1"),
        lambda: Goal(metric="f1", at_least=1.0, at_most=2.0),
        lambda: Until(goals=("f1",)),
        lambda: Until(goals=tuple(Goal(metric=str(n), at_least=1.0) for n in range(17))),
        lambda: until_from({"metric": 3}),
        lambda: until_from({"goals": [{"name": "f1"}]}),
        lambda: Plan(judged_by="a\x1b"),
    ],
)
def test_misuse_is_told(wrong):
    with pytest.raises(Misuse):
        wrong()


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("f1>=0.9", Until(goals=(Goal(metric="f1", at_least=0.9),))),
        (" top 5 <= -2e-1 ", Until(goals=(Goal(metric="top 5", at_most=-0.2),))),
        ("plateau(loss,5)", Until(plateaus=(Plateau(metric="loss", patience=5),))),
        ("plateau( loss )", Until(plateaus=(Plateau(metric="loss", patience=5),))),
        ("plateau(mae, 3, 0.01)", Until(plateaus=(Plateau(metric="mae", patience=3, min_change=0.01),))),
    ],
)
def test_what_is_typed(text, until):
    assert parse_until(text) == until


@pytest.mark.parametrize(
    "text", ["", "f1", "f1>0.9", "f1>=x", "plateau()", "plateau(loss,x)", "plateau(loss,5,1,2)", "f1>=nan"]
)
def test_what_cannot_be_typed(text):
    with pytest.raises(Misuse):
        parse_until(text)


def test_a_plan_with_conditions_survives_its_json():
    until = (shoal.metric("f1") >= 0.9) | shoal.plateau("loss", 3, 0.5) | shoal.epochs(2)
    plan = Plan(until=until, judged_by="f1")
    plain = json.loads(json.dumps(to_json(plan)))
    assert from_json(Plan, plain) == plan
    assert plan_from(plain) == plan
