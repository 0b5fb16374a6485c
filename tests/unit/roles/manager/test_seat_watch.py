"""What a manager saw of the seats of others, look by look."""

from __future__ import annotations

from shoal.roles.manager.seat_watch import Seat, SeatWatch


def test_no_job_is_taken_before_every_other_manager_was_seen_to_count() -> None:
    watch = SeatWatch()
    watch.silent([Seat(holder="b/1", beats=4), Seat(holder="c/1", beats=7)], 1.0)
    assert not watch.may_take, "the store may have gone back, and they would find out when they count"
    watch.silent([Seat(holder="b/1", beats=5), Seat(holder="c/1", beats=7)], 1.5)
    assert not watch.may_take
    watch.silent([Seat(holder="b/1", beats=5), Seat(holder="c/1", beats=8)], 2.0)
    assert watch.may_take, "the first has counted before, and need not count at every look"
