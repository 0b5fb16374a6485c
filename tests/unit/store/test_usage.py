"""Calls to a store are counted once each, and only what the store failed at counts as its error."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from shoal.errors import Misuse, ShoalError
from shoal.store.base import Away, Database
from shoal.store.measured import MeasuredDatabase
from shoal.store.seat import Deposed
from shoal.store.usage import BOUNDS_S, StoreUsage, is_failure

pytestmark = pytest.mark.timeout(120)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_calls_are_counted_by_how_long_they_took() -> None:
    clock = Clock()
    usage = StoreUsage(clock=clock)
    for took_s in (0.005, 0.006, 11.0):
        with usage.call():
            clock.now_s += took_s
    used = usage.now()
    # 5 ms is within the first bound, 6 ms within the second, 11 s beyond the last.
    assert used.counts == (1, 1, *[0] * (len(BOUNDS_S) - 2), 1)
    assert used.seconds == pytest.approx(11.011)
    assert (used.errors, used.failed_ago_s, used.waiting_s) == (0, None, 0.0)


def test_an_open_call_shows_how_long_it_has_waited() -> None:
    clock = Clock()
    usage = StoreUsage(clock=clock)
    with usage.call():
        clock.now_s += 4
        with usage.call():
            clock.now_s += 1
            assert usage.now().waiting_s == 5, "that of the oldest"
    assert usage.now().waiting_s == 0


def test_a_failure_is_over_with_the_next_call_that_works() -> None:
    clock = Clock()
    usage = StoreUsage(clock=clock)
    with pytest.raises(Away), usage.call():
        raise Away("gone")
    clock.now_s += 3
    assert (usage.now().errors, usage.now().failed_ago_s) == (1, 3)
    with usage.call():
        pass
    assert (usage.now().errors, usage.now().failed_ago_s) == (1, None)


def test_what_a_caller_did_wrong_is_no_failure_of_the_store() -> None:
    assert is_failure(Away("gone"))
    assert is_failure(ShoalError("locked"))
    assert not is_failure(Misuse("a row that cannot be"))
    assert not is_failure(Deposed("another manager has taken over"))


def test_a_database_counts_a_transaction_once(open_database: Callable[[], Database]) -> None:
    usage = StoreUsage()
    database = MeasuredDatabase(open_database(), usage)
    try:
        with database.transaction() as inside:
            inside.change("INSERT INTO facts VALUES (?, ?)", ("one", "1"))
            # As a registry does that was given the whole database.
            assert database.rows("SELECT value FROM facts WHERE name = ?", ("one",)) == [{"value": "1"}]
        assert sum(usage.now().counts) == 1
        counted = threading.Thread(target=database.rows, args=("SELECT 1 AS one",))
        counted.start()
        counted.join(60)
        assert sum(usage.now().counts) == 2
        with pytest.raises(ShoalError):
            database.rows("SELECT * FROM no_such_table")
        with pytest.raises(Misuse), database.transaction():
            raise Misuse("said the caller")
        assert (sum(usage.now().counts), usage.now().errors) == (4, 1)
    finally:
        database.close()
