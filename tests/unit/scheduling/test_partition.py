"""Fixed shares of an epoch, in a ledger that is divided."""

from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.scheduling.ledger import Lease, Ledger
from shoal.scheduling.partition import cut


def lend(ledger: Ledger, number: int, worker: str, count: int = 1) -> Lease:
    lease = ledger.lease(number, worker, version=0, count=count, now_s=0.0, deadline_s=9.0)
    assert lease is not None
    return lease


def test_shares_are_neighbours_by_name_and_the_first_have_one_more() -> None:
    assert cut([3, 5, 6, 7, 9], ["b", "a"]) == {"a": [3, 5, 6], "b": [7, 9]}
    assert cut([], ["a"]) == {"a": []}
    with pytest.raises(Misuse, match="at least one worker"):
        cut([1], [])


def test_nobody_is_lent_what_is_anothers() -> None:
    ledger = Ledger(batches=4)
    ledger.divide(["a", "b"])
    assert lend(ledger, 1, "b", count=9).batches == (2, 3)
    assert ledger.lease(2, "b", version=0, count=1, now_s=0.0, deadline_s=9.0) is None
    assert ledger.lease(2, "c", version=0, count=1, now_s=0.0, deadline_s=9.0) is None
    assert (ledger.left_for("a"), ledger.left_for("b"), ledger.left_for("c")) == (2, 0, 0)
    assert ledger.has_free
    ledger.check()


def test_what_comes_back_is_its_holders() -> None:
    ledger = Ledger(batches=4)
    ledger.divide(["a", "b"])
    lease = lend(ledger, 1, "b", count=2)
    assert [expired.id for expired in ledger.expire(10.0)] == [1]
    assert not ledger.has_orphans
    assert lend(ledger, 2, "b", count=2).batches == lease.batches
    ledger.check()


def test_what_comes_back_from_one_who_has_no_share_is_nobodys_until_it_is_divided_anew() -> None:
    ledger = Ledger(batches=4)
    first = lend(ledger, 1, "c")
    assert first.batches == (0,)
    ledger.divide(["a"])
    ledger.release(first, fate="was taken back")
    assert ledger.has_orphans
    assert lend(ledger, 2, "a", count=9).batches == (1, 2, 3)
    assert ledger.has_free
    ledger.divide(["a", "b"])
    assert not ledger.has_orphans
    assert lend(ledger, 3, "a").batches == (0,)
    ledger.check()


def test_only_what_is_free_is_divided_and_the_next_epoch_is_not() -> None:
    ledger = Ledger(batches=5)
    done, held = lend(ledger, 1, "a"), lend(ledger, 2, "a")
    ledger.merge(done)
    ledger.apply(1)
    ledger.divide(["a", "b"])
    assert (ledger.left_for("a"), ledger.left_for("b")) == (2, 1)
    rest = [held, lend(ledger, 3, "a", count=9), lend(ledger, 4, "b", count=9)]
    assert [lease.batches for lease in rest] == [(1,), (2, 3), (4,)]
    for lease in rest:
        ledger.merge(lease)
    ledger.apply(2)
    ledger.next_epoch()
    assert ledger.sharers == ()
    assert lend(ledger, 5, "c").batches == (0,)
    ledger.check()


def test_a_snapshot_of_a_divided_ledger_knows_what_was_applied_and_no_shares() -> None:
    ledger = Ledger(batches=4)
    ledger.divide(["a", "b"])
    ledger.merge(lend(ledger, 1, "b"))
    ledger.apply(1)
    restored = Ledger.restore(ledger.snapshot())
    assert restored.sharers == ()
    restored.divide(["a"])
    assert restored.left_for("a") == 3
    assert lend(restored, 1, "a", count=9).batches == (0, 1, 3)
    restored.check()
