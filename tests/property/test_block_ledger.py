"""A hub's ledger as a machine: whatever devices do, a lease is in the sum once or comes back, and none has two."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.errors import Misuse
from shoal.scheduling.block_ledger import BlockLedger

DEVICES = ("a", "b", "c", "d")


class BlockLedgerMachine(RuleBasedStateMachine):
    @initialize(leases=st.integers(1, 6), devices=st.lists(st.sampled_from(DEVICES), max_size=6))
    def begin(self, leases: int, devices: list[str]) -> None:
        self.leases = range(10, 10 + leases)
        self.ledger = BlockLedger(self.leases, devices)
        self.now_s = 0.0
        #: What is in the sum, as a hub would add it up: each lease, and who brought it.
        self.summed: list[tuple[int, str]] = []
        self.held: dict[str, tuple[int, float]] = {}
        self.out: set[str] = set()

    @precondition(lambda self: self.ledger.idle and self.ledger.has_free)
    @rule(data=st.data(), for_s=st.floats(0.1, 5.0))
    def sublet(self, data: st.DataObject, for_s: float) -> None:
        device = data.draw(st.sampled_from(self.ledger.idle))
        lease = self.ledger.sublet(device, now_s=self.now_s, until_s=self.now_s + for_s)
        assert lease not in {lease for lease, _ in self.summed}, "its update is in the sum"
        assert lease not in {lease for lease, _ in self.held.values()}, "another has it"
        assert self.ledger.holder(lease) == device
        self.held[device] = (lease, self.now_s + for_s)

    @rule(device=st.sampled_from(DEVICES), lease=st.integers(9, 16))
    def bring(self, device: str, lease: int) -> None:
        """A device brings an update: what it has, a copy of what it brought, or what it lost."""
        if self.ledger.holder(lease) != device:
            with pytest.raises(Misuse, match="not assigned"):
                self.ledger.take(lease, device, now_s=self.now_s)
            return
        assert self.held.pop(device)[0] == lease
        self.ledger.take(lease, device, now_s=self.now_s)
        self.summed.append((lease, device))
        assert self.ledger.taken[lease] == device
        assert device in self.ledger.idle

    @rule(device=st.sampled_from(DEVICES))
    def drop(self, device: str) -> None:
        self.ledger.drop(device, f"{device} is gone")
        self.out.add(device)
        lost = self.held.pop(device, None)
        assert lost is None or self.ledger.returned()[lost[0]] == f"{device} is gone"

    @rule(passed_s=st.floats(0.0, 4.0))
    def expire(self, passed_s: float) -> None:
        self.now_s += passed_s
        late = {device for device, (_, until_s) in self.held.items() if until_s <= self.now_s}
        assert set(self.ledger.expire(self.now_s)) == late
        for device in late:
            del self.held[device]
            self.out.add(device)

    @invariant()
    def each_lease_is_somewhere_once(self) -> None:
        self.ledger.check()
        summed = [lease for lease, _ in self.summed]
        assert len(set(summed)) == len(summed), "in the sum twice"
        assert dict(self.summed) == self.ledger.taken
        assert sorted([*summed, *self.ledger.returned()]) == list(self.leases)
        assert self.ledger.outstanding == len(self.held)
        assert not self.out.intersection(self.ledger.idle), "a device that left or was late gets no other lease"
        due_s = min((until_s for _, until_s in self.held.values()), default=None)
        assert self.ledger.next_deadline_s == due_s


TestBlockLedger = BlockLedgerMachine.TestCase
TestBlockLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
