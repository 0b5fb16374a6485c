"""Schedules: what each phase is worth in each version, and what is none."""

from __future__ import annotations

import math

import pytest

from shoal.errors import Misuse
from shoal.learning.schedule import FLOOR, STEP_FLOOR, Schedule


def factors(text: str, *versions: int) -> list[float]:
    schedule = Schedule.parse(text)
    return [schedule.factor(version) for version in versions]


@pytest.mark.parametrize("text", ["", "constant", "constant 7"])
def test_a_constant_rate_stays_as_it_is(text: str) -> None:
    assert factors(text, 0, 1, 10**9) == [1.0, 1.0, 1.0]


def test_a_warmup_climbs_in_equal_steps_and_is_there_in_its_last_version() -> None:
    assert factors("warmup 4", 0, 1, 2, 3, 4, 99) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_the_floor_and_stays_there() -> None:
    assert factors("linear 4", 0, 2, 4, 5, 10**9) == pytest.approx([1.0, (1 + FLOOR) / 2, FLOOR, FLOOR, FLOOR])


def test_cosine_is_flat_at_both_ends() -> None:
    start, early, middle, late, end, after = factors("cosine 100", 0, 10, 50, 90, 100, 5000)
    assert (start, end, after) == pytest.approx((1.0, FLOOR, FLOOR))
    assert middle == pytest.approx((1 + FLOOR) / 2)
    # Half of 1 + cos(π/10) is 0.9755.
    assert early == pytest.approx(FLOOR + (1 - FLOOR) * 0.975528, abs=1e-6)
    assert late == pytest.approx(FLOOR + (1 - FLOOR) * (1 - 0.975528), abs=1e-6)


def test_a_step_multiplies_after_so_many_versions_and_never_comes_to_nothing() -> None:
    assert factors("step 3 x0.1", 0, 2, 3, 5, 6, 9) == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.001])
    assert factors("step 3 x.5", 3) == [0.5]
    assert factors("step 1 x0.1", 7, 10**9) == [STEP_FLOOR, STEP_FLOOR]
    assert factors("step 2 x1", 10**6) == [1.0]


def test_phases_follow_one_another() -> None:
    told = factors("warmup 2 constant 3 linear 10", 0, 1, 2, 4, 5, 10, 15, 16)
    assert told == pytest.approx([0.5, 1, 1, 1, 1, 1 - 0.5 * (1 - FLOOR), FLOOR, FLOOR])
    # As long as the cosine alone, from where the warmup ends.
    assert factors("warmup 20 cosine 2000", 20 + 700) == factors("cosine 2000", 700)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exponential 3", "is not a schedule that Shoal knows; write warmup N, constant"),
        ("cosine", "is not a schedule that Shoal knows"),
        ("cosine -3", "is not a schedule that Shoal knows"),
        ("cosine 1.5", "is not a schedule that Shoal knows"),
        ("cosine 20 warmup 5", "is not a schedule that Shoal knows"),
        ("cosine 20 linear 5", "is not a schedule that Shoal knows"),
        ("warmup 5  cosine 20", "is not a schedule that Shoal knows"),
        (" warmup 5", "is not a schedule that Shoal knows"),
        ("warmup 5cosine 20", "is not a schedule that Shoal knows"),
        ("warmup ٣", "is not a schedule that Shoal knows"),
        ("step 5 x2", "is not a schedule that Shoal knows"),
        ("warmup 0", "from 1 to 1000000000 versions"),
        ("linear 9999999999", "from 1 to 1000000000 versions"),
        ("constant cosine 20", "for how many versions it is constant"),
        ("step 5", "says what it multiplies by"),
        ("cosine 5 x0.5", "says what it multiplies by"),
        ("step 5 x0.0", "above 0 and at most 1"),
        ("warmup 1 " * 40, "is not a schedule that Shoal knows"),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_there_is(text: str, told: str) -> None:
    with pytest.raises(Misuse, match=told):
        Schedule.parse(text)


def test_the_floors_are_numbers_a_rate_can_be_multiplied_by() -> None:
    assert 0 < STEP_FLOOR < FLOOR < 1
    assert math.isfinite(1e-30 * STEP_FLOOR)
