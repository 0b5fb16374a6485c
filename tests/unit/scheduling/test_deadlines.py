"""How long a lease may take."""

from __future__ import annotations

from shoal.scheduling.deadlines import LeaseClock, wait_s


def after(*durations_s: float, transfer_bytes: int = 0) -> LeaseClock:
    clock = LeaseClock(transfer_bytes=transfer_bytes)
    for duration_s in durations_s:
        clock.returned(duration_s)
    return clock


def test_a_fixed_allowance_stays_fixed() -> None:
    clock = LeaseClock(fixed_s=7.0)
    for _ in range(20):
        clock.returned(1.0)
    assert clock.allowance_s() == 7.0


def test_before_anything_is_known_it_is_generous() -> None:
    assert LeaseClock().allowance_s() == 60.0
    # 1 MB at 125,000 bytes a second takes 8 s more.
    assert LeaseClock(transfer_bytes=1_000_000).allowance_s() == 68.0
    assert after(*[1.0] * 7).allowance_s() == 60.0


def test_it_learns_eight_times_the_median() -> None:
    # Median of 1..8 is 4.5; 8 · 4.5 = 36.
    clock = after(*map(float, range(1, 9)))
    assert clock.typical_s == 4.5
    assert clock.allowance_s() == 36.0


def test_one_very_slow_lease_does_not_move_it() -> None:
    assert after(*[2.0] * 8, 10_000.0).allowance_s() == 16.0


def test_it_stays_within_bounds() -> None:
    assert after(*[0.01] * 8).allowance_s() == 3.0
    assert after(*[100.0] * 8).allowance_s() == 300.0


def test_a_large_model_on_a_slow_link_is_never_allowed_less_than_it_takes() -> None:
    # 100 MB at 125,000 bytes a second is 800 s: with a cap of 300 s no lease would ever come back.
    clock = after(*[500.0] * 8, transfer_bytes=100_000_000)
    assert clock.allowance_s() == 860.0


def test_only_recent_leases_count() -> None:
    assert after(*[100.0] * 64, *[1.0] * 64).typical_s == 1.0


def test_nothing_came_back_yet() -> None:
    assert LeaseClock().typical_s == 0.0


def test_one_that_came_back_shows_that_the_others_are_stuck() -> None:
    clock = after(1.0)
    before_s = clock.allowance_s()
    clock.expired()
    assert clock.allowance_s() == before_s
    nobody = after()
    nobody.expired()
    assert nobody.allowance_s() == 2 * before_s


def test_a_worker_is_waited_for_by_its_own_pace() -> None:
    assert wait_s([0.4, 0.4], stretch=1.0, longest_s=7.0) == 7.0, "it has no pace yet"
    assert wait_s([0.1, 0.1, 0.1], stretch=1.0, longest_s=7.0) == 0.5
    assert wait_s([0.5, 0.5, 9.0], stretch=1.0, longest_s=7.0) == 1.0
    assert wait_s([0.5, 0.5, 9.0], stretch=2.0, longest_s=7.0) == 2.0
    assert wait_s([0.5, 0.5, 0.5, 2.0, 9.0], stretch=1.0, longest_s=7.0) == 3.0, "it is slow now and then"
    assert wait_s([5.0, 5.0, 5.0], stretch=1.0, longest_s=7.0) == 7.0
