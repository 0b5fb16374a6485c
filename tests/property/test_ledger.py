"""The ledger as a machine: whatever happens to its leases, no batch is lost and none is applied twice."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.errors import Misuse
from shoal.workload.ledger import Lease, Ledger, Refusal

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

    def pick(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(self.ledger.leases()))

    @rule(worker=WORKERS, count=st.integers(1, 4), allowed_s=st.floats(0.1, 5.0))
    def lend(self, worker: str, count: int, allowed_s: float) -> None:
        number = self.last_lease + 1
        deadline_s = self.now_s + allowed_s
        had_free = self.ledger.has_free
        lease = self.ledger.lease(
            number, worker, version=self.version, count=count, now_s=self.now_s, deadline_s=deadline_s
        )
        assert (lease is not None) == had_free
        if lease is not None:
            self.last_lease = number
            assert 1 <= len(lease.batches) <= count
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
        self.ledger.release(lease, fate="was taken back")
        self.ended[lease.id] = lease
        assert self.ledger.has_free

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
