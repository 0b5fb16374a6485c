"""The ledger as a machine: whatever happens to its leases, no batch is lost and none is applied twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.errors import Misuse
from shoal.scheduling.ledger import Lease, Ledger, Refusal
from shoal.scheduling.partition import BatchPartition, cut

WORKERS = st.sampled_from(["a", "b", "c"])


class LedgerMachine(RuleBasedStateMachine):
    @initialize(batches=st.integers(1, 9))
    def begin(self, batches: int) -> None:
        self.ledger = Ledger(batches=batches)
        self.now_s = 0.0
        self.last_lease = 0
        self.version = 0
        #: (epoch, batch) -> how often it was applied in the history that survives.
        self.applied: Counter[tuple[int, int]] = Counter()
        self.saved = (json.dumps(self.ledger.snapshot()), Counter(self.applied), 0)
        self.ended: dict[int, Lease] = {}
        #: Batch -> whose it is, while this epoch is divided. Nobody else may be lent it.
        self.owners: dict[int, str] = {}

    def pick(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(self.ledger.leases()))

    @rule(worker=WORKERS, count=st.integers(1, 4), allowed_s=st.floats(0.1, 5.0))
    def lend(self, worker: str, count: int, allowed_s: float) -> None:
        number = self.last_lease + 1
        deadline_s = self.now_s + allowed_s
        had = self.ledger.left_for(worker) if self.ledger.sharers else self.ledger.has_free
        lease = self.ledger.lease(
            number, worker, version=self.version, count=count, now_s=self.now_s, deadline_s=deadline_s
        )
        assert (lease is not None) == bool(had)
        if lease is not None:
            self.last_lease = number
            assert 1 <= len(lease.batches) <= count
            assert all(self.owners.get(batch, worker) == worker for batch in lease.batches)
            assert self.ledger.find(number, worker) == lease

    @precondition(lambda self: self.ledger.outstanding)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        lease = self.pick(data)
        self.ledger.merge(lease)
        self.ended[lease.id] = lease

    @precondition(lambda self: self.ledger.outstanding)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.pick(data)
        had = self.ledger.left_for(lease.worker)
        self.ledger.release(lease, fate="was taken back")
        self.ended[lease.id] = lease
        assert self.ledger.has_free
        if lease.worker in self.ledger.sharers:
            assert self.ledger.left_for(lease.worker) == had + len(lease.batches)
        else:
            assert self.ledger.has_orphans == bool(self.ledger.sharers)

    @rule(workers=st.sets(WORKERS, min_size=1))
    def divide(self, workers: set[str]) -> None:
        """What is free is cut anew; what is lent stays with its holder."""
        held = {batch: lease.worker for lease in self.ledger.leases() for batch in lease.batches}
        self.ledger.divide(workers)
        assert self.ledger.sharers == tuple(sorted(workers))
        assert not self.ledger.has_orphans
        shares = [self.ledger.left_for(worker) for worker in sorted(workers)]
        assert max(shares) - min(shares) <= 1
        free = sorted(set(range(self.ledger.batches)) - self.applied_now() - self.merged_now() - set(held))
        assert sum(shares) == len(free)
        self.owners = held | {batch: worker for worker, share in cut(free, workers).items() for batch in share}

    def applied_now(self) -> set[int]:
        return {batch for epoch, batch in self.applied if epoch == self.ledger.epoch}

    def merged_now(self) -> set[int]:
        return {batch for lease in self.ledger._merged for batch in lease.batches}

    @precondition(lambda self: self.ledger.outstanding)
    @rule(data=st.data(), allowed_s=st.floats(0.1, 9.0) | st.just(float("inf")))
    def extend(self, data: st.DataObject, allowed_s: float) -> None:
        self.ledger.extend(self.pick(data), deadline_s=self.now_s + allowed_s)

    @rule(passed_s=st.floats(0.0, 4.0))
    def expire(self, passed_s: float) -> None:
        self.now_s += passed_s
        due = {lease.id for lease in self.ledger.leases() if lease.deadline_s <= self.now_s}
        expired = self.ledger.expire(self.now_s)
        assert {lease.id for lease in expired} == due
        self.ended |= {lease.id: lease for lease in expired}

    @precondition(lambda self: self.ledger.merged)
    @rule()
    def apply(self) -> None:
        self.version += 1
        rows = self.ledger.apply(self.version)
        assert rows
        assert {row.version for row in rows} == {self.version}
        self.applied.update((row.epoch, row.batch) for row in rows)

    @rule()
    def next_epoch(self) -> None:
        if self.ledger.finished:
            self.ledger.next_epoch()
            assert self.ledger.sharers == ()
            self.owners = {}
        else:
            with pytest.raises(Misuse, match="not finished"):
                self.ledger.next_epoch()

    @rule()
    def save(self) -> None:
        self.saved = (json.dumps(self.ledger.snapshot()), Counter(self.applied), self.version)

    @rule()
    def crash(self) -> None:
        """Everything since the last save is forgotten: by the ledger, and by the history that survives."""
        snapshot, applied, self.version = self.saved
        self.applied = Counter(applied)
        self.ledger = Ledger.restore(json.loads(snapshot))
        self.ended.clear()
        self.owners = {}
        self.last_lease = 0

    @invariant()
    def agrees_with_itself(self) -> None:
        self.ledger.check()

    @invariant()
    def agrees_with_the_history(self) -> None:
        epoch = self.ledger.epoch
        assert all(count == 1 for count in self.applied.values())
        assert sum(e == epoch for e, _ in self.applied) == self.ledger.applied
        for done in range(epoch):
            assert sorted(batch for e, batch in self.applied if e == done) == list(range(self.ledger.batches))

    @invariant()
    def an_ended_lease_never_comes_back(self) -> None:
        for number, lease in self.ended.items():
            assert isinstance(self.ledger.find(number, lease.worker), Refusal)

    @invariant()
    def a_restored_ledger_agrees(self) -> None:
        restored = Ledger.restore(json.loads(json.dumps(self.ledger.snapshot())))
        restored.check()
        assert (restored.epoch, restored.applied, restored.finished) == (
            self.ledger.epoch,
            self.ledger.applied,
            self.ledger.finished,
        )
        assert restored.snapshot() == self.ledger.snapshot()


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase


@given(st.sets(st.integers(0, 999)), st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=9))
def test_a_partition_gives_every_batch_to_one_and_nobody_much_more_than_others(
    batches: set[int], workers: set[str]
) -> None:
    shares = cut(sorted(batches), workers)
    assert sorted(batch for share in shares.values() for batch in share) == sorted(batches)
    assert list(shares) == sorted(workers)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    partition = BatchPartition(batches, workers)
    assert len(partition) == len(batches)
    assert {worker: partition.take(worker, 1000) for worker in sorted(workers)} == shares
    assert not len(partition)


@given(st.sets(st.integers(0, 99), min_size=1))
def test_what_comes_back_to_a_partition_is_its_holders_or_nobodys(batches: set[int]) -> None:
    partition = BatchPartition(batches, ["a"])
    lowest = min(batches)
    assert partition.take("a", 1) == [lowest]
    partition.put_back("a", lowest)
    assert (partition.left("a"), partition.has_orphans) == (len(batches), False)
    assert partition.take("a", 1) == [lowest]
    partition.put_back("gone", lowest)
    assert (partition.left("a"), partition.has_orphans) == (len(batches) - 1, True)
    assert partition.batches() == sorted(batches)
    assert partition.take("gone", 1) == []
