"""Busy or free."""

from __future__ import annotations

import pytest

from shoal.flock.pairing.resources import Thresholds, judge
from shoal.roles.events import Condition

WELL = Condition(memory_available_mb=500.0, battery=0.8, is_charging=False, in_use=0.1, load=0.4)


def changed(**values: float | bool | None) -> Condition:
    known: dict[str, float | bool | None] = {
        "memory_available_mb": 500.0,
        "battery": 0.8,
        "is_charging": False,
        "in_use": 0.1,
        "load": 0.4,
    }
    return Condition(**(known | values))  # type: ignore[arg-type]


def test_a_device_that_is_well_is_free() -> None:
    assert judge(WELL).is_free
    assert judge(WELL).reason == "free by 4 of 4 known values"


def test_what_is_not_known_makes_nobody_busy() -> None:
    assert judge(Condition()).is_free
    assert judge(Condition()).reason == "free: no value is known"
    for name in ("memory_available_mb", "battery", "is_charging", "in_use", "load"):
        assert judge(changed(**{name: None})).is_free, name
    # No battery, so there is nothing to charge.
    assert judge(changed(battery=None, is_charging=None), Thresholds(only_charging=True)).is_free


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"memory_available_mb": 63.0}, "63 MB of memory free, 64 needed"),
        ({"battery": 0.19}, "battery at 19%; 20% needed"),
        ({"battery": 0.04, "is_charging": True}, "battery at 4%, though charging; 5% needed"),
        ({"in_use": 0.51}, "in use: other programs take 51% of its processors"),
        ({"load": 2.3}, "load per processor is 2.3; the limit is 2.0"),
        # The first of several.
        ({"load": 2.3, "memory_available_mb": 1.0}, "1 MB of memory free, 64 needed"),
    ],
)
def test_each_of_the_five_makes_it_busy(values: dict[str, float | bool], reason: str) -> None:
    verdict = judge(changed(**values))
    assert not verdict.is_free
    assert verdict.reason == reason


def test_on_the_charger_a_low_battery_is_no_reason() -> None:
    assert judge(changed(battery=0.1, is_charging=True)).is_free
    assert not judge(changed(battery=0.1, is_charging=None)).is_free


def test_only_while_charging() -> None:
    only = Thresholds(only_charging=True)
    assert judge(changed(battery=1.0), only).reason == "not charging, and configured to work only while charging"
    assert judge(changed(battery=1.0, is_charging=True), only).is_free
    assert judge(changed(battery=1.0, is_charging=None), only).is_free, "not known"


def test_the_edge_itself_is_free() -> None:
    assert judge(changed(memory_available_mb=64.0, battery=0.2, in_use=0.5, load=2.0)).is_free


def test_who_was_busy_must_be_better_by_a_margin() -> None:
    for values in ({"memory_available_mb": 66.0}, {"battery": 0.21}, {"in_use": 0.49}, {"load": 1.9}):
        assert judge(changed(**values)).is_free
        assert not judge(changed(**values), was_free=False).is_free
    assert judge(WELL, was_free=False).is_free
