"""Credits for uploads: bounded, first come first served, never leaked."""

from __future__ import annotations

import pytest

from shoal.scheduling.admission import Admission


def two_at_a_time() -> Admission:
    return Admission(update_bytes=10, budget_bytes=20)


@pytest.mark.parametrize(
    ("update_bytes", "budget_bytes", "capacity"),
    # The last two: one slow upload must not stop all others, and an empty model must not divide by zero.
    [(10, 100, 10), (30, 100, 3), (500, 100, 2), (0, 100, 100)],
)
def test_capacity_is_what_the_budget_holds_and_at_least_two(
    update_bytes: int, budget_bytes: int, capacity: int
) -> None:
    admission = Admission(update_bytes=update_bytes, budget_bytes=budget_bytes)
    assert admission.capacity == capacity
    assert not admission.in_advance(1, workers=capacity + 1)
    assert all(admission.in_advance(lease, workers=capacity) for lease in range(capacity))


def test_what_is_granted_in_advance_takes_a_place() -> None:
    admission = two_at_a_time()
    assert admission.in_advance(1, workers=2)
    assert admission.in_advance(2, workers=2)
    assert not admission.in_advance(3, workers=2), "one left and another came: two places are still taken"
    assert not admission.offer(3)
    assert admission.done(1) == 3


def test_beyond_capacity_updates_queue_and_are_served_in_order() -> None:
    admission = two_at_a_time()
    assert [admission.offer(lease) for lease in (1, 2, 3, 4)] == [True, True, False, False]
    assert admission.waiting == 2
    assert admission.done(2) == 3
    assert admission.done(1) == 4
    assert admission.waiting == 0
    assert admission.done(3) is None


def test_an_offer_made_again_is_the_same_offer() -> None:
    admission = two_at_a_time()
    for lease in (1, 2, 3, 3, 4):
        admission.offer(lease)
    assert admission.offer(1), "its first credit was lost with a session"
    assert admission.waiting == 2
    assert admission.holds(1)
    assert not admission.holds(3)


def test_one_who_gives_up_waiting_loses_only_its_own_place() -> None:
    admission = two_at_a_time()
    for lease in (1, 2, 3, 4):
        admission.offer(lease)
    assert admission.done(3) is None, "it held no credit, so none is free"
    assert admission.done(1) == 4


def test_credits_do_not_leak() -> None:
    admission = two_at_a_time()
    for lease in range(1, 1000):
        admission.offer(lease)
        admission.done(lease)
        admission.done(lease)
    assert admission.offer(2000)
    assert admission.offer(2001)
    assert not admission.offer(2002)
