"""Means over seeds with their intervals, against figures from a table of Student's t."""

from __future__ import annotations

import math

import pytest

from shoal.learning.estimate import Estimate, paired

pytestmark = pytest.mark.timeout(60)


def test_an_interval_is_that_of_students_t() -> None:
    # Mean 3, standard deviation 1, three values: 4.303 / sqrt(3).
    found = Estimate.of([2.0, 3.0, 4.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(4.303 / math.sqrt(3))
    many = Estimate.of([1.0, -1.0] * 50)
    assert many.half == pytest.approx(2.042 * math.sqrt(100 / 99) / 10)


def test_of_one_value_nobody_knows_how_it_varies() -> None:
    assert Estimate.of([0.8]) == Estimate(0.8, None)
    assert not Estimate.of([0.8]).is_apart_from_zero


def test_differences_are_seed_by_seed() -> None:
    # The seeds differ by tens, the plans by one: only pairs show that.
    ours, theirs = [11.0, 21.05, 30.95], [10.0, 20.0, 30.0]
    assert paired(ours, theirs).is_apart_from_zero
    assert paired(ours, theirs).mean == pytest.approx(1.0)
    assert not paired([10.0, 22.0, 29.0], theirs).is_apart_from_zero
    with pytest.raises(ValueError, match="longer"):
        paired([1.0], theirs)
