"""The ledger: free, leased, merged, applied; and what a restart knows of it."""

from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.scheduling import ledger as ledgers
from shoal.scheduling.ledger import Applied, Lease, Ledger, Refusal


def lend(ledger: Ledger, number: int, worker: str = "a", *, count: int = 1, deadline_s: float = 10.0) -> Lease:
    lease = ledger.lease(number, worker, version=0, count=count, now_s=0.0, deadline_s=deadline_s)
    assert lease is not None
    return lease


def fate(ledger: Ledger, number: int, worker: str = "a") -> str:
    found = ledger.find(number, worker)
    assert isinstance(found, Refusal)
    return found.reason


def test_batches_are_lent_in_order_and_those_that_came_back_first() -> None:
    ledger = Ledger(batches=5)
    first = lend(ledger, 1, count=2)
    assert first.batches == (0, 1)
    assert lend(ledger, 2).batches == (2,)
    ledger.release(first, fate="was taken back")
    assert lend(ledger, 3, count=3).batches == (0, 1, 3)
    assert lend(ledger, 4, count=3).batches == (4,)
    assert not ledger.has_free
    assert ledger.lease(5, "a", version=0, count=1, now_s=0, deadline_s=1) is None
    ledger.check()


def test_merged_is_not_applied() -> None:
    ledger = Ledger(batches=2)
    lease = lend(ledger, 7, "pi-3", count=2)
    ledger.merge(lease)
    assert (ledger.merged, ledger.outstanding, ledger.applied) == (1, 0, 0)
    assert not ledger.finished
    assert ledger.apply(4) == [
        Applied(epoch=0, batch=0, version=4, node="pi-3", lease=7),
        Applied(epoch=0, batch=1, version=4, node="pi-3", lease=7),
    ]
    assert ledger.finished
    assert ledger.apply(5) == [], "a batch is applied once"
    ledger.check()


def test_a_late_update_is_told_what_became_of_its_lease() -> None:
    ledger = Ledger(batches=4)
    ledger.merge(lend(ledger, 1))
    ledger.release(lend(ledger, 2), fate="failed on a: out of memory")
    lend(ledger, 3, deadline_s=5.0)
    assert [lease.id for lease in ledger.expire(5.0)] == [3]
    lend(ledger, 4, "b")
    assert fate(ledger, 1) == "lease 1 was merged already: a duplicate"
    assert fate(ledger, 2) == "lease 2 failed on a: out of memory"
    assert fate(ledger, 3) == "lease 3 expired after 5.0 s; its batches were given out again"
    assert fate(ledger, 4) == "lease 4 belongs to b, not to a"
    assert fate(ledger, 99) == "lease 99 is not known to this leader"


def test_a_lease_ends_at_its_deadline_and_not_before() -> None:
    ledger = Ledger(batches=3)
    lend(ledger, 1, deadline_s=5.0)
    lend(ledger, 2, deadline_s=3.0)
    assert ledger.expire(2.9) == []
    assert [lease.id for lease in ledger.expire(4.0)] == [2]
    assert [lease.id for lease in ledger.expire(6.0)] == [1]
    assert ledger.expire(100.0) == []


def test_a_lease_that_was_given_another_deadline_keeps_to_it() -> None:
    ledger = Ledger(batches=1)
    ledger.extend(lend(ledger, 1, deadline_s=5.0), deadline_s=9.0)
    assert ledger.expire(8.0) == []
    lease = ledger.get(1)
    assert lease is not None
    ledger.extend(lease, deadline_s=6.0)
    assert [lease.id for lease in ledger.expire(6.0)] == [1]


def test_a_number_is_used_once() -> None:
    ledger = Ledger(batches=3)
    lend(ledger, 1)
    ledger.release(lend(ledger, 2), fate="was taken back")
    for number in (1, 2):
        with pytest.raises(Misuse, match="was used before"):
            lend(ledger, number)


def test_what_a_worker_holds() -> None:
    ledger = Ledger(batches=4)
    for number, worker in enumerate("abba", start=1):
        lend(ledger, number, worker)
    assert [lease.id for lease in ledger.held_by("a")] == [1, 4]
    assert ledger.held_by("nobody") == []
    assert [lease.id for lease in ledger.leases()] == [1, 2, 3, 4]


def test_only_a_finished_epoch_ends() -> None:
    ledger = Ledger(batches=2)
    ledger.merge(lend(ledger, 1, count=2))
    with pytest.raises(Misuse, match="epoch 0 is not finished: 0 of 2"):
        ledger.next_epoch()
    ledger.apply(1)
    ledger.next_epoch()
    assert (ledger.epoch, ledger.applied, ledger.has_free) == (1, 0, True)
    assert lend(ledger, 2).epoch == 1
    assert fate(ledger, 1) == "lease 1 was merged already: a duplicate"


def test_a_snapshot_keeps_what_is_applied_and_nothing_else() -> None:
    ledger = Ledger(batches=6)
    leases = [lend(ledger, number) for number in range(1, 6)]
    for index in (1, 2, 4):
        ledger.merge(leases[index])
    ledger.apply(1)
    ledger.merge(leases[3])
    # Batches 1, 2 and 4 are applied; 3 is merged, 0 leased, 5 free.
    assert ledger.snapshot() == {"epoch": 0, "batches": 6, "applied": [[1, 3], [4, 5]]}
    restored = Ledger.restore(ledger.snapshot())
    restored.check()
    assert restored.applied == 3
    assert lend(restored, 1, count=9).batches == (0, 3, 5)


@pytest.mark.parametrize("runs", [[[0, 7]], [[-1, 2]], [[2, 2]], [[3, 1]], [[0, 3], [2, 4]], [[4, 5], [0, 1]]])
def test_a_snapshot_that_cannot_be_is_refused(runs: list[list[int]]) -> None:
    with pytest.raises(Misuse, match="the ledger snapshot"):
        Ledger.restore({"epoch": 0, "batches": 6, "applied": runs})


def test_what_is_remembered_of_ended_leases_is_bounded() -> None:
    ledger = Ledger(batches=1)
    for number in range(1, ledgers._REMEMBERED + 11):
        ledger.release(lend(ledger, number), fate="failed: " + "x" * 4000)
    assert len(ledger._ended) == ledgers._REMEMBERED
    assert fate(ledger, 10) == "lease 10 is not known to this leader"
    assert len(fate(ledger, 11)) < 300


def test_a_ledger_has_batches() -> None:
    with pytest.raises(Misuse, match="at least one batch"):
        Ledger(batches=0)


def test_check_notices_a_ledger_that_contradicts_itself() -> None:
    ledger = Ledger(batches=3)
    lend(ledger, 1)
    ledger._state[0] = ledgers.FREE
    with pytest.raises(Misuse, match="disagree"):
        ledger.check()
    ledger = Ledger(batches=3)
    ledger._next = 1
    with pytest.raises(Misuse, match="lost a batch"):
        ledger.check()


def test_a_restored_ledger_has_nothing_free_where_all_that_is_left_was_applied() -> None:
    whole = Ledger.restore({"epoch": 0, "batches": 3, "applied": [[0, 3]]})
    assert whole.finished
    assert not whole.has_free
    # Batch 1 alone is open: once it is lent, what follows was applied before and is not free.
    middle = Ledger.restore({"epoch": 0, "batches": 4, "applied": [[0, 1], [2, 4]]})
    lease = middle.lease(1, "a", version=0, count=2, now_s=0.0, deadline_s=1.0)
    assert lease is not None
    assert lease.batches == (1,)
    assert not middle.has_free
