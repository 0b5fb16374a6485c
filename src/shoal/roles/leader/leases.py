"""Leases that are out: their deadlines, their holders, and which update is uploaded next. A part of the leader.

The ledgers of training and evaluation say which batches are free, leased and applied. This part reads both: it extends
and expires leases, takes them back, and gives uploads to the leader their turn.
"""

from __future__ import annotations

import math
from heapq import nsmallest

from shoal.plan import LEASE_BATCHES_MAX
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WAIT_EVERY_S, WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.admission import Admission
from shoal.scheduling.deadlines import SHORTEST_S, STRETCH_MAX, TOGETHER_TIMES, LeaseClock, wait_s
from shoal.scheduling.ledger import Lease, Ledger
from shoal.states import WorkerState
from shoal.wire.messages import Go

#: The leader looks at deadlines this often.
TICK_S = 0.5

#: The name of the timer for a deadline before the next tick.
LATE = "late"

#: A timer shorter than this may not move the clock at all, and would be set again for ever.
LATE_LEAST_S = 0.001

#: A timer that fires this much late was held up: leases are extended by as much. It is recorded from the second on.
PAUSE_LEAST_S = 0.1
PAUSE_TOLD_S = 1.0

#: Beyond the time that a worker is given: its last message must have time to arrive.
LEASE_GRACE_S = 2.0

#: The holders of more leases than this are not looked up each time a worker is told why it waits.
HOLDERS_MANY = 200


class Leases:
    def __init__(self, machine: Machine, shared: Shared, *, admission: Admission, model_bytes: int) -> None:
        self._machine = machine
        self._job, self._term = shared.spec.job, shared.term
        self._plan = shared.spec.plan
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._evaluations = shared.evaluations
        self._admission = admission
        self.clock = LeaseClock(fixed_s=self._plan.lease_s, transfer_bytes=2 * model_bytes)
        self._evaluation_clock = LeaseClock(fixed_s=self._plan.lease_s, transfer_bytes=model_bytes)
        self._last = 0
        #: Leases whose updates are in a sealed sum: whatever becomes of their workers, they are not leased again.
        self.sealed_in: set[int] = set()
        #: Workers that gave up their leases since the part that seals last looked.
        self.given_up: set[str] = set()
        #: When an update was last returned.
        self._returned_s = -math.inf
        #: When the many holders of leases were last looked up, in an evaluation or not, at which version; their names.
        self._named: tuple[float, tuple[bool, int], str] = (0.0, (False, -1), "")

    # Which there are -----------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """Return the ledger that leases come from now."""
        evaluation = self._evaluations.now
        return evaluation.ledger if evaluation is not None else self._training.ledger

    def ledgers(self) -> list[Ledger]:
        return [ledger for _, ledger in self.clocked_ledgers()]

    def clocked_ledgers(self) -> list[tuple[LeaseClock, Ledger]]:
        training, evaluation = (self.clock, self._training.ledger), self._evaluations.now
        return [training, (self._evaluation_clock, evaluation.ledger)] if evaluation is not None else [training]

    def held_by(self, node: str) -> list[Lease]:
        return [lease for ledger in self.ledgers() for lease in ledger.held_by(node)]

    def holders(self) -> str:
        """The workers that others wait for. While they are many, they are looked up now and then."""
        ledger = self.ledger
        lent = (self._evaluations.now is not None, self._training.version)
        many = ledger.outstanding > HOLDERS_MANY
        named_s, of, names = self._named
        if many and of == lent and self._machine.now_s - named_s < WAIT_EVERY_S:
            return names
        holders = {lease.worker for lease in ledger.leases()}
        names = ", ".join(nsmallest(4, holders)) + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
        if many:
            self._named = (self._machine.now_s, lent, names)
        return names

    # Until when ----------------------------------------------------------------------------------------------

    def lend(self, worker: WorkerRecord, *, in_step: bool, examples: int = 0) -> tuple[Lease, float] | None:
        """Return a new lease for a worker and the seconds it has, or None if no batch is free. ``in_step``: others
        wait for it. ``examples``: the most that it may be over, or 0 for what the plan says."""
        is_training = self._evaluations.now is None
        clock = self.clock if is_training else self._evaluation_clock
        # A lease on a device's own examples is one thing, whatever the device has to do for it.
        count = self._batches(examples) if is_training and self._plan.data != "local" else 1
        is_sized = is_training and self._plan.work == "sized"
        sized_s = clock.sized_s(examples, budget_s=self._plan.budget_s) if is_sized else 0.0
        now_s, allowance_s = self._machine.now_s, clock.allowance_s() + sized_s
        # The worker's time and the others' patience differ: a worker that is late loses its lease and nothing else.
        waits_s = allowance_s + LEASE_GRACE_S
        if is_training and in_step:
            # Where no worker waits for it, it may take its time: one that is late now and then is not given up.
            own_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=waits_s)
            waits_s = max(own_s, sized_s + LEASE_GRACE_S) if sized_s else own_s
        lease = self.ledger.lease(
            self._last + 1,
            worker.node,
            version=self._training.version,
            count=count,
            now_s=now_s,
            deadline_s=now_s + waits_s,
            latest_s=now_s + allowance_s + LEASE_GRACE_S,
        )
        if lease is None:
            return None
        self._last = lease.id
        return lease, allowance_s

    def _batches(self, examples: int) -> int:
        """Return how many batches of shared examples a lease names: complete ones, and never none."""
        if not examples:
            return self._plan.lease_batches
        return min(LEASE_BATCHES_MAX, max(1, examples // self._plan.batch_size))

    def on_delivered(self, worker: WorkerRecord, lease: Lease, *, examples: int) -> None:
        """A worker returned the update of a lease, made of this many examples."""
        took_s = self._machine.now_s - lease.issued_s
        self.clock.returned(took_s, examples=examples)
        self._returned_s = self._machine.now_s
        worker.durations_s.append(took_s)
        worker.stretch = 1.0

    def on_evaluated(self, lease: Lease) -> None:
        self._evaluation_clock.returned(self._machine.now_s - lease.issued_s)

    def extend(self, lease: Lease) -> None:
        """Give its worker as much time as a new lease has."""
        deadline_s = self._machine.now_s + self.clock.allowance_s() + LEASE_GRACE_S
        self._training.ledger.extend(lease, deadline_s=deadline_s)

    def hold(self, lease: Lease) -> None:
        """Its work is done: it does not age while it waits for others."""
        self._training.ledger.extend(lease, deadline_s=math.inf)

    def watch_the_last(self) -> None:
        """Workers that are done wait for a lease that expires before the next tick: have that noticed in time."""
        left_s = self._training.ledger.next_deadline_s - self._machine.now_s
        if left_s < TICK_S:
            self._machine.timer(LATE, max(LATE_LEAST_S, left_s))

    def on_pause(self, late_s: float) -> None:
        """This leader stood still: messages that came meanwhile are handled before any lease expires."""
        if late_s < PAUSE_LEAST_S:
            return
        for ledger in self.ledgers():
            ledger.put_off(late_s + TICK_S)
        if late_s >= PAUSE_TOLD_S:
            told = f"its process stood still for {late_s:.1f} s; every lease is extended by that"
            self._machine.record("leader.paused", told)

    def expire(self) -> bool:
        """Take back the leases that are overdue. Return whether there was one."""
        self._wait_together()
        is_any = False
        for clock, ledger in self.clocked_ledgers():
            for lease in ledger.expire(self._machine.now_s):
                clock.expired()
                self._on_expired(lease)
                is_any = True
        return is_any

    def _wait_together(self) -> None:
        """One lease that is late is given to others. Where no worker returns anything, maybe none can: then late leases
        are extended for a while. A device that is alone is waited for too: no other can do its work."""
        now_s, training = self._machine.now_s, self._training.ledger
        late = training.late(now_s)
        holders = {lease.worker for lease in training.leases()} if late else set()
        for lease in late:
            worker = self._workers.get(lease.worker)
            if worker is None:
                continue
            own_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=lease.latest_s - lease.issued_s)
            is_alone = self._workers.trusted == 1
            is_quiet = len(holders) > 1 and self._returned_s < lease.issued_s + own_s / 2
            until_s = min(lease.latest_s, lease.issued_s + max(SHORTEST_S, TOGETHER_TIMES * own_s))
            if (is_alone or is_quiet) and now_s < until_s:
                training.extend(lease, deadline_s=min(until_s, now_s + max(own_s / 2, LATE_LEAST_S)))

    def _on_expired(self, lease: Lease) -> None:
        worker = self._workers.get(lease.worker)
        waited_s = self._machine.now_s - lease.issued_s
        if worker is not None:
            worker.state = WorkerState.LATE
            worker.stretch = min(2 * worker.stretch, STRETCH_MAX)
            worker.reason = f"no update for lease {lease.id} in {waited_s:.1f} s; its batches went to others"
        self._formations.forget(lease.id)
        self._machine.record("lease.expired", f"lease {lease.id} of {lease.worker}: no update in {waited_s:.1f} s")
        self.end_upload(lease.id)

    # Taken back ----------------------------------------------------------------------------------------------

    def give_up(self, node: str, *, fate: str) -> None:
        """Return every lease of a worker to the free batches, unless its update is in a sum already."""
        if self._plan.believes.sealed is not None:
            self.given_up.add(node)
        for ledger in self.ledgers():
            for lease in ledger.held_by(node):
                if ledger is self._training.ledger and self.has_arrived(lease.id):
                    continue
                self.take_back(ledger, lease, fate=fate)

    def has_arrived(self, lease_id: int) -> bool:
        """Its update is in a sum, wherever its worker is."""
        return lease_id in self.sealed_in or self._formations.has_arrived(lease_id)

    def take_back(self, ledger: Ledger, lease: Lease, *, fate: str) -> None:
        ledger.release(lease, fate=fate)
        self._formations.forget(lease.id)
        self.end_upload(lease.id)
        self._machine.record("lease.returned", f"lease {lease.id} {fate}")

    def forget_all(self, why: str) -> None:
        """No lease counts any more, since the ledgers go back."""
        for ledger in self.ledgers():
            for lease in ledger.leases():
                self._admission.done(lease.id)
                self._formations.forget(lease.id)
                self._machine.record("lease.returned", f"lease {lease.id} was taken back: {why}")

    def take_back_training(self, *, fate: str) -> None:
        """The job's time is over: no lease for training is waited for, and no worker uploads."""
        training = self._training.ledger
        for lease in training.leases():
            training.release(lease, fate=fate)
            self._formations.forget(lease.id)
            self._admission.done(lease.id)

    # Uploads to the leader -----------------------------------------------------------------------------------

    def has_credit(self, lease: Lease) -> bool:
        """Whether its update may be sent without an offer, since there is room for it."""
        return self._admission.in_advance(lease.id, workers=len(self._workers))

    def on_offer(self, worker: WorkerRecord, lease: Lease) -> None:
        """A worker has the update of this lease and asks whether it may send it."""
        if self._admission.holds(lease.id):
            # Its first Go was lost with a session. Its time to upload runs since then.
            self._go(lease)
            return
        if self.offer(lease):
            return
        # The work is done and waits for its turn: that is not the worker's fault, so it does not age.
        self.hold(lease)
        worker.state, worker.reason = WorkerState.WAITING, f"{self._admission.waiting} updates wait to be taken"

    def offer(self, lease: Lease) -> bool:
        """Have an update sent to the leader if there is room for it; otherwise it stands in line."""
        if not self._admission.offer(lease.id):
            return False
        self._admit(lease)
        return True

    def _admit(self, lease: Lease) -> None:
        self.extend(lease)
        self._go(lease)

    def _go(self, lease: Lease) -> None:
        self._machine.send(lease.worker, Go(job=self._job, term=self._term, lease=lease.id))

    def end_upload(self, lease_id: int) -> None:
        """Whatever became of this upload, its place is free: the next in line may send."""
        following = self._admission.done(lease_id)
        while following is not None:
            lease = self._training.ledger.get(following)
            if lease is not None:
                self._admit(lease)
                return
            following = self._admission.done(following)
