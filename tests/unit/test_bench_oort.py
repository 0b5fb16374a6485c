"""Oort's utility on small numbers."""

from __future__ import annotations

import math

import pytest

from benchmarks.oort import oort_utility, slowness, staleness_bonus, statistical_utility
from shoal.errors import Misuse


def test_many_examples_that_the_model_is_bad_at() -> None:
    # 10 · sqrt(4) = 20.
    assert statistical_utility(10, 4.0) == 20.0
    assert statistical_utility(0, 4.0) == statistical_utility(10, 0.0) == 0.0


def test_only_those_slower_than_wanted_are_punished() -> None:
    assert slowness(10.0, 5.0) == slowness(10.0, 10.0) == 1.0
    assert slowness(10.0, 20.0) == 0.25
    assert slowness(10.0, 20.0, power=1.0) == 0.5


def test_who_was_not_asked_for_long_is_tried_again() -> None:
    # sqrt(0.1 · ln 100 / 4).
    assert staleness_bonus(100, 4) == pytest.approx(math.sqrt(0.1 * math.log(100) / 4))
    assert staleness_bonus(100, 4) > staleness_bonus(100, 50)
    assert staleness_bonus(0, 0) == 0.0


def test_the_whole() -> None:
    found = oort_utility(examples=10, mean_squared_loss=4.0, wanted_s=10.0, took_s=20.0, round_now=100, round_last=4)
    assert found == pytest.approx((20.0 + staleness_bonus(100, 4)) / 4)


@pytest.mark.parametrize(("examples", "loss"), [(-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)])
def test_losses_that_make_no_sense_are_refused(examples: int, loss: float) -> None:
    with pytest.raises(Misuse, match="0 or more"):
        statistical_utility(examples, loss)
