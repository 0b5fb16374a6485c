"""The leader's side of aggregation: it drives the shape step by step. A part of the leader.

It listens to sub-leaders, asks them for sums, and changes the shape and the pace when the policy wants another or the
present formation is broken. It sends by the machine. It merges nothing and lends nothing: it returns what the leader
should merge (``Summed``), which update to refuse (``Spoiled``), and whether workers may be lent leases again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadValues, PeerViolation
from shoal.learning.pace import PACES
from shoal.roles.crew import Member
from shoal.roles.formation import Report
from shoal.roles.leading.leases import Leases
from shoal.roles.leading.shared import Shared
from shoal.roles.machine import Machine
from shoal.roles.pulse import Pulse
from shoal.roles.shape import Summed
from shoal.roles.shaping import Shaping, Wanted
from shoal.states import WorkerState
from shoal.wire.coded import bytes_of
from shoal.wire.messages import Formed, Gathered, Made, Routed, Spoilt, Update
from shoal.workload.ledger import Lease, Refusal


@dataclass(frozen=True, slots=True)
class Spoiled:
    """An update that the leader must refuse, since a sub-leader found it bad or never got its piece."""

    worker: Member
    update: Update
    lease: Lease
    violation: PeerViolation


class AggregationController:
    def __init__(self, machine: Machine, shared: Shared, *, shaping: Shaping, leases: Leases, pulse: Pulse) -> None:
        self._machine = machine
        self._plan = shared.spec.plan
        self._term = shared.term
        self._course, self._crew, self._shape = shared.course, shared.crew, shared.shape
        self._portions = shared.portions
        self._shaping = shaping
        self._leases = leases
        self._pulse = pulse
        #: ``auto`` begins in step.
        self.pace_name = "sync" if self._plan.pace == "auto" else self._plan.pace
        self.pace = PACES[self.pace_name](self._plan.buffer)
        #: Bytes between devices as their sub-leaders counted them, and of models that sub-leaders relayed.
        self.bytes_up = 0
        self.bytes_down = 0

    # Workers come and go -----------------------------------------------------------------------------------

    def on_worker_lost(self, node: str, reason: str) -> None:
        self._shaping.on_workers_changed()
        self._shape.on_left(node, reason)

    def on_suspect(self, node: str, reason: str) -> bool:
        """A worker is suspect. True: it is a sub-leader, and the present formation is broken by that.

        Every worker waits for a sub-leader. To do without it costs less than to find out whether it comes back.
        """
        if not self._shape.is_sub_leader(node):
            return False
        self._doubt([node], f"{node}, a sub-leader, is suspect: {reason}")
        return True

    def _doubt(self, nodes: Sequence[str], reason: str) -> None:
        """Use these nodes as sub-leaders no longer, for a while."""
        self._shaping.exclude(nodes)
        self._shape.mark_broken(reason)

    # Messages of workers and sub-leaders -------------------------------------------------------------------

    def on_message(self, sender: str, message: Formed | Routed | Spoilt | Gathered) -> Summed | Spoiled | Member | None:
        """Returns updates to merge, an update to refuse, or a worker that may be lent a lease now."""
        match message:
            case Formed():
                self._shape.on_formed(sender, message)
                return None
            case Routed():
                return self._on_routed(sender, message)
            case Spoilt():
                return self._on_spoilt(sender, message)
            case Gathered():
                return self._on_gathered(sender, message)

    def _on_routed(self, sender: str, message: Routed) -> Member | None:
        self._shape.on_routed(sender, message)
        self._portions.on_changed()
        worker = self._crew.get(sender)
        if worker is not None and self._crew.is_idle(sender):
            # It may have been waiting for its route.
            self._crew.make_idle(worker)
        return worker

    def _on_spoilt(self, sender: str, message: Spoilt) -> Spoiled | None:
        """A sub-leader got a piece that is none. It names the worker; the leader knows whose lease it is."""
        worker, lease = self._crew.get(message.node), self._course.ledger.find(message.lease, message.node)
        if worker is None or isinstance(lease, Refusal) or self._shape.has_arrived(lease.id):
            return None
        if not self._shape.is_sub_leader(sender):
            return None
        update = Update(job=message.job, term=self._term, lease=lease.id, version=lease.version, examples=1)
        return Spoiled(worker, update, lease, BadValues(f"{message.reason} (found by {sender})"))

    def _on_gathered(self, sender: str, message: Gathered) -> Summed | Spoiled | None:
        if (phantom := self._shape.without_its_piece(sender, message)) is not None:
            return self._on_phantom(sender, phantom)
        try:
            summed = self._shape.on_gathered(sender, message)
        except PeerViolation as violation:
            self._shaping.on_failed([sender])
            self._shape.mark_broken(f"{sender} sent {violation.reason}")
            self._machine.record("sub-leader", f"{sender} sent {violation.reason}")
            return None
        if self._shape.is_sub_leader(sender):
            # Bytes between devices are this job's traffic too.
            self.bytes_up += message.bytes_up
            self.bytes_down += message.bytes_down
        if summed is not None:
            self._shaping.on_sum_merged()
        return summed

    def _on_phantom(self, sender: str, report: Report) -> Spoiled | None:
        """A worker said that every sub-leader had its update, one has none. Other sums contain it: they are void."""
        worker, lease = self._crew.get(report.lease.worker), self._course.ledger.get(report.lease.id)
        reason = f"{sender} has no piece of the update of {report.lease.worker}, which said that it was sent"
        self._shape.mark_broken(reason)
        if worker is None or lease is None:
            self._machine.record("sub-leader", reason)
            return None
        return Spoiled(worker, report.update, lease, PeerViolation(reason))

    def expects_report(self, worker: Member, update: Update, lease: Lease) -> bool:
        """Whether a worker's report, that sub-leaders have its update, is of the present formation and new."""
        if self._shape.has_arrived(lease.id):
            if not self._crew.is_idle(worker.node):
                # It was thought lost in between. It waits for the sum like everyone.
                self._crew.make_idle(worker)
            return False
        if self._shape.is_due(lease, update.formation):
            return True
        # That formation is over. The update goes by the present one; or by the next, once that is set up.
        if self._shape.held_up() is None:
            self._send_again(lease)
        return False

    def on_report(self, update: Update, lease: Lease) -> None:
        """The sub-leaders have every piece of a checked update."""
        # The work is done, and the sub-leaders' time is not the worker's: the lease does not age.
        self._leases.hold(lease)
        self._shape.on_report(Report(lease, update, self._course.scale_of(lease, update)))

    def on_made(self, worker: Member, made: Made) -> None:
        """An update is on its way to the sub-leaders. If that takes long, the worker is not late."""
        lease = self._course.ledger.find(made.lease, worker.node)
        if isinstance(lease, Lease) and self._shape.lent_by(lease.id) and lease.deadline_s < math.inf:
            worker.state, worker.reason = WorkerState.DELIVERING, "the update is on its way to the sub-leaders"
            self._leases.extend(lease)

    def on_undelivered(self, worker: Member, lease: Lease) -> str | None:
        """An update cannot go to its sub-leaders: it goes another way. In a shard there is none: then its lease is
        taken back, and the reason to refuse the update is returned."""
        if self._shape.has_arrived(lease.id) or self._shape.held_up() is not None:
            # It is where it should be; or is sent again once another formation holds.
            return None
        way = self._shape.way(worker.node)
        if way and way == self._shape.lent_by(lease.id):
            self._shape.again(lease)
            return None
        if not way and self._shape.kind == "shard":
            fate = f"was taken back: {worker.node} {self._shape.hindrance(worker.node) or 'has no way to send it'}"
            self._course.ledger.release(lease, fate=fate)
            self._shape.forget(lease.id)
            self._machine.record("lease-returned", f"lease {lease.id} {fate}")
            return f"lease {lease.id} {fate}"
        self._shape.lend(lease.id, way)
        self._send_again(lease)
        return None

    # Lending and sums --------------------------------------------------------------------------------------

    def may_start(self, worker: Member) -> bool:
        """Whether a worker may be lent a lease for training now. If not, it rests, and is told a reason of its own."""
        hindrance: str | None = None
        # The members of a sub-leader begin together again, once their updates are in a version.
        if self.pace.may_start(
            contributed_to=worker.contributed_to, version=self._course.version
        ) and not self._shape.awaits_sum(worker.node):
            hindrance = self._shape.hindrance(worker.node)
            if hindrance is None:
                return True
        self._crew.rest(worker)
        if hindrance is not None:
            self._crew.tell(worker, hindrance)
        return False

    def pass_on(self, worker: Member) -> None:
        """In a tree, send one model to the worker's sub-leader for all of its members."""
        passed = self._shape.pass_on(worker.node, self.version_held_by)
        if passed is None:
            return
        to, message = passed
        self.bytes_down += bytes_of(message.tensors)
        self._machine.send(to, message)

    def version_held_by(self, node: str) -> int:
        """The version of this term that a worker holds; -1: none."""
        worker = self._crew.get(node)
        term, version = worker.holds if worker is not None else (0, -1)
        return version if term == self._term else -1

    def gather(self) -> bool:
        """Ask sub-leaders for the sums that are complete. True: one was asked."""
        return self._shape.now is not None and self._shape.gather(self._course.ledger.leases())

    # Another shape or pace ---------------------------------------------------------------------------------

    def reshape(self, *, parting: str | None) -> bool:
        """Let the next formation hold, once it can; set one up where one is wanted, or the present one is broken.

        True: another shape holds now, and leases may be lent by it. ``parting``: why the leader is to step down.
        """
        shape, shaping = self._shape, self._shaping
        if (late := shape.late(allowance_s=self._leases.clock.allowance_s())) is not None:
            shaping.on_failed([late])
            shape.mark_broken(f"no sum came from {late} in time")
        if parting is not None:
            # No formation is set up any more. But updates of open leases must come, or the job is never handed over.
            broken = shape.held_up()
            if broken is None:
                return False
            shape.star(f"the job gets another leader; {broken}")
            return self._change()
        if silent := shape.complaints():
            self._doubt(silent, f"{', '.join(silent)} did not answer those who sent their updates there")
        if (trouble := shape.trouble()) is not None:
            reason, through = trouble
            shaping.on_failed(through)
            self._machine.record("forming", f"given up: {reason}")
            shape.give_up_next()
        if shape.next is None and (wanted := self._wanted()) is not None and self._turn_to(wanted):
            return True
        if (broken := shape.held_up()) is not None and shape.next is None:
            shape.star(f"no other can be set up now: {broken}")
            return self._change()
        if shape.is_ready() and (broken is not None or self._may_change()):
            shape.hold()
            return self._change()
        return False

    def _turn_to(self, wanted: Wanted) -> bool:
        """A pace holds at once, a star too (True); a shape with sub-leaders is set up first."""
        if wanted.pace is not None and wanted.pace != self.pace_name:
            self.pace_name, self.pace = wanted.pace, PACES[wanted.pace](wanted.buffer)
            self._pulse.restart(wanted.pace)
            told = f"{wanted.pace}, {wanted.buffer} updates a version" if wanted.pace == "buffered" else wanted.pace
            self._machine.record("pace", f"{told}: {wanted.reason}")
        if wanted.shares:
            lease_s = self._leases.clock.typical_s
            self._shape.begin(wanted.kind, wanted.shares, reason=wanted.reason, lease_s=lease_s)
            return False
        self._shape.star(wanted.reason)
        return self._change()

    def _wanted(self) -> Wanted | None:
        shape, leaving = self._shape, self._crew.leaving
        if self._shaping.is_star:
            # A job may have thousands of workers: they are not listed at each tick for nothing.
            return None
        # A suspect worker would be waited for, and may never come.
        away = {*leaving, *self._crew.suspects}
        able = [worker for worker in self._crew.able() if worker.node not in away]
        if (broken := shape.held_up()) is not None and shape.now is not None:
            # Every worker waits for the next formation: it is not delayed.
            arranged = self._shaping.arrange(shape.now.kind, able)
            return replace(arranged, reason=f"{broken}; {arranged.reason}") if arranged is not None else None
        if self._course.version == 0 or self._crew.trusted < self._plan.workers_min:
            return None
        leading = shape.now.sub_leaders if shape.now is not None else []
        if any(node in leaving for node in leading) and shape.now is not None:
            return self._shaping.arrange(shape.now.kind, able)
        if self.pace_name == "sync" and not self._may_change():
            # A pace or a star that is chosen holds at once, and that is between two versions.
            return None
        return self._shaping.wanted(able, leading, shape.kind, self.pace_name)

    def _may_change(self) -> bool:
        """In step, shapes change between two versions. Where no worker waits for another, at any time."""
        ledger = self._course.ledger
        is_between = not ledger.outstanding and not ledger.merged
        return is_between or (self.pace_name != "sync" and self._shape.next_kind != "shard")

    def _change(self) -> bool:
        """Another shape holds: updates of leases that were lent by the one before go by this one."""
        ledger = self._course.ledger
        going, astray = self._shape.redeliver(ledger.leases(), lambda node: self._crew.get(node) is not None)
        for lease in going:
            self._send_again(lease)
        for lease in going:
            # Its worker delivers the update it has, and is lent nothing else meanwhile.
            if (worker := self._contributes_again(lease)) is not None and self._crew.is_idle(worker.node):
                self._crew.make_busy(worker, WorkerState.WORKING)
        fate = "was taken back: its worker is not part of how updates meet now"
        for lease in astray:
            ledger.release(lease, fate=fate)
            self._contributes_again(lease)
            self._machine.record("lease-returned", f"lease {lease.id} {fate}")
        self._crew.release()
        self._portions.on_changed()
        return True

    def _send_again(self, lease: Lease) -> None:
        """The sub-leaders of this lease's formation are gone. Its update goes by the present ones, or straight to the
        leader: in its turn, as any update that is offered."""
        if self._shape.lent_by(lease.id):
            if lease.deadline_s == math.inf:
                self._leases.extend(lease)
            self._shape.go(lease)
            return
        if self._leases.offer(lease):
            return
        worker = self._crew.get(lease.worker)
        if worker is not None and worker.state is WorkerState.DELIVERING:
            # It is made, and waits for its turn: that is not the worker's fault. One that is not made yet still ages.
            self._leases.hold(lease)

    def _contributes_again(self, lease: Lease) -> Member | None:
        """The update of this lease is in no sum any more: its worker may be lent the same version again."""
        worker = self._crew.get(lease.worker)
        if worker is not None:
            worker.contributed_to = min(worker.contributed_to, lease.version - 1)
        return worker
