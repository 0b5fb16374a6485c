"""The fleet of the morning peak, the loop in which it asks, and what is made of what came."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import morning_roles
from benchmarks.morning import SETTLED_MIN, busy, load
from benchmarks.morning_fleet import STEP_S, Fleet, fleet
from benchmarks.morning_loop import ARRIVE_S, START_S, play
from shoal.errors import Misuse
from shoal.sim.rng import Rng

#: Half hours x phones: one is always there, one in the second half hour and the fourth, one never.
PRESENT = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]], dtype=bool)


def drawn(devices: int, shift_s: int = STEP_S, half_hours: int = 4) -> Fleet:
    return fleet(PRESENT, devices, rng=Rng(3), first=0, half_hours=half_hours, shift_s=shift_s)


def test_without_a_shift_devices_follow_the_record() -> None:
    spans = drawn(60, shift_s=0).spans
    assert set(spans) == {((0.0, 7200.0),), ((1800.0, 3600.0), (5400.0, 7200.0)), ()}


def test_shifted_they_come_within_the_half_hour_before() -> None:
    of = drawn(200)
    twice = [spans for spans in of.spans if len(spans) == 2]
    assert len(twice) > 30
    assert all(0.0 <= first[0] < 1800.0 and 1800.0 <= first[1] < 3600.0 for first, _ in twice)
    assert len({first[0] for first, _ in twice}) == len(twice), "one by one"
    assert all(first[1] - first[0] == pytest.approx(1800.0) for first, _ in twice), "for as long as recorded"


def test_a_window_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(Misuse, match="there are fewer"):
        drawn(1, half_hours=5)


def asked(of: Fleet, *, per_s: float, spread: float = 0.1) -> tuple[np.ndarray, int, int, int]:
    course = play(of, per_s=per_s, lease_s=30.0, spread=spread, rng=Rng(5))
    return course.asked, course.done, course.lost, course.missed


def test_one_device_asks_lease_after_lease_while_it_is_there() -> None:
    of = Fleet(spans=[((600.0, 700.0), (1200.0, 1200.0 + START_S))], window_s=3600.0)
    by_minute, done, lost, _ = asked(of, per_s=0.0, spread=0.0)
    # At 604, 634, 664 and 694; the last lease would end at 724. Where there is no time to start, nothing is asked.
    assert by_minute[10:12].tolist() == [2, 2]
    assert by_minute.sum() == 4
    assert (done, lost) == (3, 1)


def test_who_is_gone_by_its_appointment_misses_it() -> None:
    """One request in ten seconds: the second device is told to come when it is gone, and asks anew once it is back."""
    of = Fleet(spans=[((600.0, 3600.0),), ((600.5, 606.0), (2000.0, 2008.0))], window_s=3600.0)
    course = play(of, per_s=0.1, lease_s=30.0, spread=0.0, rng=Rng(5))
    assert course.missed >= 1
    assert course.asked[33] >= 1, "it came again"


def test_a_crowd_is_served_at_the_pace_and_not_without_it() -> None:
    of = Fleet(spans=[((0.0, 7200.0),)] * 30 + [((3600.0, 5400.0),)] * 30, window_s=7200.0)
    free, free_done, _, _ = asked(of, per_s=0.0)
    steered, steered_done, _, _ = asked(of, per_s=1.0)
    quiet, crowded = slice(30, 55), slice(62, 88)
    assert free[crowded].mean() == pytest.approx(2 * free[quiet].mean(), rel=0.05)
    assert steered[quiet].mean() == pytest.approx(60, rel=0.1)
    assert steered[crowded].mean() == pytest.approx(60, rel=0.1)
    assert steered_done > 0.6 * free_done


def test_the_peak_is_where_more_than_the_mean_is_asked() -> None:
    by_minute = np.array([9_999] * SETTLED_MIN + [60] * 60 + [180] * 30 + [60] * 30)
    minutes = busy(by_minute)
    assert minutes.tolist() == [False] * 60 + [True] * 30 + [False] * 30
    everything = load(by_minute, np.full(120, True))
    assert (everything.mean, everything.peak, everything.peak_over_mean) == (1.5, 3.0, 2.0)
    assert load(by_minute, minutes).peak_over_mean == 1.0


def test_the_roles_serve_a_fleet_at_the_pace() -> None:
    """Twelve devices would ask once in ten seconds each; the leader aims at one request in two seconds."""
    of = Fleet(spans=[((0.0, 840.0),)] * 12, window_s=840.0)
    seen = morning_roles.play(of, per_s=0.5, lease_s=10.0, rng=Rng(2), seed=2)
    settled = slice(int(ARRIVE_S // 60) + 3, 14)
    assert seen.asked[settled].mean() == pytest.approx(30, rel=0.2)
    assert seen.lent[settled].mean() == pytest.approx(30 * 8 / 9, rel=0.2)
