"""The leader's side of aggregation: it drives the shape step by step. A part of the leader.

It listens to aggregators, asks them for sums, and changes the shape and the pace when the policy wants another or the
present formation is broken. It sends by the machine. It merges nothing and leases nothing: it returns what the leader
has to do (an ``Outcome``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from shoal.errors import BadValues, PeerViolation
from shoal.learning.pace import PACES
from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.gathering.gathering import AggregatorMessage, BadUpdate, Outcome, Progressed, Summed
from shoal.roles.leader.gathering.policy import TopologyPolicy, Wanted
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.round_stats import RoundStats
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease, Refusal
from shoal.states import WorkerState
from shoal.wire.coded import bytes_of
from shoal.wire.messages import AggregatorReady, BadShard, ReduceResult, Routed, Update, UpdateReady


class AggregationController:
    def __init__(
        self, machine: Machine, shared: Shared, *, policy: TopologyPolicy, leases: Leases, stats: RoundStats
    ) -> None:
        self._machine = machine
        self._plan = shared.spec.plan
        self._term = shared.term
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._shares = shared.shares
        self._policy = policy
        self._leases = leases
        self._stats = stats
        #: ``auto`` begins in step.
        self.pace_name = self._plan.paces[0]
        self.pace = PACES[self.pace_name](self._plan.buffer)
        #: Bytes between devices as their aggregators counted them, and of models that aggregators relayed.
        self.bytes_up = 0
        self.bytes_down = 0

    # Workers come and go ------------------------------------------------------------------------------------------

    def on_worker_lost(self, node: str, reason: str) -> None:
        self._policy.on_workers_changed()
        self._formations.on_left(node, reason)

    def on_suspect(self, node: str, reason: str) -> bool:
        """A worker is suspect. Return whether it is an aggregator, and the present formation is broken by that.

        Every worker waits for an aggregator. To do without it costs less than to find out whether it comes back.
        """
        if not self._formations.is_aggregator(node):
            return False
        self._doubt([node], f"{node}, an aggregator, is suspect: {reason}")
        return True

    def on_ready(self, node: str) -> None:
        """A worker asks for work: it has no values that aggregators gave out."""
        self._formations.relay.on_missing(node)
        self._formations.on_joined(node)

    def _doubt(self, nodes: Sequence[str], reason: str) -> None:
        """Use these nodes as aggregators no longer, for a while."""
        self._policy.exclude(nodes)
        self._formations.mark_broken(reason)

    # Messages of workers and aggregators -------------------------------------------------------------------

    def on_message(self, sender: str, message: AggregatorMessage) -> Outcome:
        match message:
            case AggregatorReady():
                self._formations.on_aggregator_ready(sender, message)
                return None
            case Routed():
                return self._on_routed(sender, message)
            case BadShard():
                return self._on_bad_shard(sender, message)
            case ReduceResult():
                return self._on_reduce_result(sender, message)

    def _on_bad_sum(self, sender: str, problem: str) -> None:
        self._policy.on_failed([sender])
        self._formations.mark_broken(f"{sender}: {problem}")
        self._machine.record("sum.rejected", f"{sender}: {problem}")

    def _on_routed(self, sender: str, message: Routed) -> Progressed | None:
        self._formations.on_routed(sender, message)
        self._shares.on_changed()
        worker = self._workers.get(sender)
        if worker is not None and self._workers.is_idle(sender):
            # It may have been waiting for its route.
            self._workers.make_idle(worker)
        return Progressed(sender) if worker is not None else None

    def _on_bad_shard(self, sender: str, message: BadShard) -> BadUpdate | None:
        """An aggregator got a shard that it cannot use. It names the worker; the leader knows whose lease it is."""
        worker, lease = self._workers.get(message.node), self._training.ledger.find(message.lease, message.node)
        if worker is None or isinstance(lease, Refusal) or self._leases.has_arrived(lease.id):
            return None
        if not self._formations.is_aggregator(sender):
            return None
        update = Update(job=message.job, term=self._term, lease=lease.id, version=lease.version, examples=1)
        return BadUpdate(worker, update, lease, BadValues(f"{message.reason} (found by {sender})"))

    def _on_reduce_result(self, sender: str, message: ReduceResult) -> Summed | BadUpdate | Progressed | None:
        if (phantom := self._formations.without_its_shard(sender, message)) is not None:
            return self._on_phantom(sender, phantom)
        try:
            summed = self._formations.on_reduce_result(sender, message)
        except PeerViolation as violation:
            self._on_bad_sum(sender, violation.reason)
            return None
        if self._formations.is_aggregator(sender):
            # Bytes between devices are this job's traffic too.
            self.bytes_up += message.bytes_up
            self.bytes_down += message.bytes_down
        if summed is not None:
            self._policy.on_sum_merged()
        if message.weighed:
            # A sum may have waited only for these distances.
            return Progressed(sender) if self._workers.find(sender) is not None else None
        return replace(summed, by=(sender,)) if summed is not None else None

    def count_sealed_sum(self, sender: str, message: ReduceResult, problem: str | None) -> None:
        """Count the bytes of what should be a sum of sealed words; ``problem`` says why it is not."""
        if problem is not None:
            self._on_bad_sum(sender, problem)
        elif self._formations.is_aggregator(sender):
            self.bytes_up += message.bytes_up
            self.bytes_down += message.bytes_down
            self._policy.on_sum_merged()

    def _on_phantom(self, sender: str, report: ArrivedUpdate) -> BadUpdate | None:
        """A worker said that every aggregator had its update, one has none. Other sums contain it: they are void."""
        worker, lease = self._workers.get(report.lease.worker), self._training.ledger.get(report.lease.id)
        reason = f"{sender} has no piece of the update of {report.lease.worker}, which said that it was sent"
        self._formations.mark_broken(reason)
        if worker is None or lease is None:
            self._machine.record("sum.rejected", reason)
            return None
        return BadUpdate(worker, report.update, lease, PeerViolation(reason))

    def expects_report(self, worker: WorkerRecord, update: Update, lease: Lease) -> bool:
        """Whether a worker's report, that aggregators have its update, is of the present formation and new."""
        if self._formations.has_arrived(lease.id):
            if not self._workers.is_idle(worker.node):
                # It was thought lost in between. It waits for the sum like everyone.
                self._workers.make_idle(worker)
            return False
        if self._formations.is_due(lease, update.formation):
            return True
        # That formation is over. The update goes by the present one; or by the next, once that is set up.
        if self._formations.held_up() is None:
            self._send_again(lease)
        return False

    def hold_report(self, update: Update, lease: Lease) -> None:
        """Hold a checked update for the next sum: the aggregators have every piece of it."""
        # The work is done, and the aggregators' time is not the worker's: the lease does not age.
        self._leases.hold(lease)
        self._formations.note_arrival(ArrivedUpdate(lease, update, self._training.scale_of(lease, update)))

    def on_update_ready(self, worker: WorkerRecord, made: UpdateReady) -> None:
        """An update is on its way to the aggregators. If that takes long, the worker is not late."""
        lease = self._training.ledger.find(made.lease, worker.node)
        if isinstance(lease, Lease) and self._formations.lent_by(lease.id) and lease.deadline_s < math.inf:
            worker.state, worker.reason = WorkerState.DELIVERING, "the update is on its way to the aggregators"
            self._leases.extend(lease)

    def on_undelivered(self, worker: WorkerRecord, lease: Lease) -> str | None:
        """An update cannot go to its aggregators: it goes another way. In a shard there is none: then its lease is
        taken back, and the reason to refuse the update is returned."""
        if self._formations.has_arrived(lease.id) or self._formations.held_up() is not None:
            # It is where it should be; or is sent again once another formation holds.
            return None
        way = self._formations.way(worker.node)
        if way and way == self._formations.lent_by(lease.id):
            self._formations.again(lease)
            return None
        if not way and self._formations.is_closed:
            fate = f"was taken back: {worker.node} {self._formations.hindrance(worker.node) or 'has no way to send it'}"
            self._training.ledger.release(lease, fate=fate)
            self._formations.forget(lease.id)
            self._machine.record("lease.returned", f"lease {lease.id} {fate}")
            return f"lease {lease.id} {fate}"
        self._formations.lend(lease.id, way)
        self._send_again(lease)
        return None

    # Lending and sums --------------------------------------------------------------------------------------

    def may_start(self, worker: WorkerRecord) -> bool:
        """Return whether a worker may get a lease for training now. If not, it rests, and is told why."""
        hindrance: str | None = None
        # The members of an aggregator begin together again, once their updates are in a version.
        if self.pace.may_start(
            contributed_to=worker.contributed_to, version=self._training.version
        ) and not self._formations.awaits_sum(worker.node):
            hindrance = self._formations.hindrance(worker.node)
            if hindrance is None:
                return True
        self._workers.rest(worker)
        if hindrance is not None:
            self._workers.tell(worker, hindrance)
        return False

    def pass_on(self, worker: WorkerRecord) -> None:
        """Where aggregators give out what the leader made, send them one model for all of their members."""
        now, relay = self._formations.now, self._formations.relay
        whole = relay.pass_on(now, worker.node, self.version_held_by)
        for to, message in [whole] if whole is not None else relay.pass_parts(now, worker.node):
            self.bytes_down += bytes_of(message.tensors)
            self._machine.send(to, message)

    def version_held_by(self, node: str) -> int:
        """Return the version of this term that a worker holds, or -1 if it holds none."""
        worker = self._workers.get(node)
        term, version = worker.holds if worker is not None else (0, -1)
        return version if term == self._term else -1

    def gather(self) -> bool:
        """Ask aggregators for the sums that are complete. Return whether one was asked."""
        return self._formations.now is not None and self._formations.gather(self._training.ledger.leases())

    # Another shape or pace ---------------------------------------------------------------------------------

    def reshape(self, *, parting: str | None) -> bool:
        """Let the next formation hold, once it can; set one up where one is wanted, or the present one is broken.

        Return whether another shape holds now, so that leases may go by it. ``parting`` is why the leader has to step
        down, or None.
        """
        formations, policy = self._formations, self._policy
        if (late := formations.late(allowance_s=self._leases.clock.allowance_s())) is not None:
            policy.on_failed([late])
            formations.mark_broken(f"no sum came from {late} in time")
        if parting is not None:
            # No formation is set up any more. But updates of open leases must come, or the job is never handed over.
            broken = formations.held_up()
            if broken is None or formations.keeps_words:
                return False
            formations.star(f"the job gets another leader; {broken}")
            return self._change()
        if silent := formations.complaints():
            self._doubt(silent, f"{', '.join(silent)} did not answer the workers that sent updates there")
        if (trouble := formations.trouble()) is not None:
            reason, through = trouble
            policy.on_failed(through)
            self._machine.record("topology.abandoned", reason)
            formations.give_up_next()
        if formations.next is None and (wanted := self._wanted()) is not None and self._turn_to(wanted):
            return True
        if formations.keeps_words:
            # Words of a sealed sum are with aggregators, and would be gone with the shape.
            return False
        if (broken := formations.held_up()) is not None and formations.next is None:
            formations.star(f"no other can be set up now: {broken}")
            return self._change()
        if formations.is_ready() and (broken is not None or self._may_change()):
            formations.hold()
            return self._change()
        return False

    def _turn_to(self, wanted: Wanted) -> bool:
        """A pace holds at once, a star too (True); a shape with aggregators is set up first."""
        if wanted.pace is not None and wanted.pace != self.pace_name:
            self.pace_name, self.pace = wanted.pace, PACES[wanted.pace](wanted.buffer)
            self._stats.restart(wanted.pace)
            told = f"{wanted.pace}, {wanted.buffer} updates a version" if wanted.pace == "buffered" else wanted.pace
            self._machine.record("pace.changed", f"{told}: {wanted.reason}")
        if wanted.shares:
            lease_s = self._leases.clock.typical_s
            self._formations.begin(wanted.kind, wanted.shares, reason=wanted.reason, lease_s=lease_s)
            return False
        self._formations.star(wanted.reason)
        return self._change()

    def _wanted(self) -> Wanted | None:
        formations, leaving = self._formations, self._workers.leaving
        if self._policy.is_star:
            # A job may have thousands of workers: they are not listed at each tick for nothing.
            return None
        # A suspect worker would be waited for, and may never come.
        away = {*leaving, *self._workers.suspects}
        able = [worker for worker in self._workers.able() if worker.node not in away]
        hubs = [hub for hub in self._workers.hubs() if not hub.left_out and hub.node not in away]
        if (broken := formations.held_up()) is not None and formations.now is not None:
            # Every worker waits for the next formation: it is not delayed.
            arranged = self._policy.arrange(formations.now.kind, able, hubs)
            return replace(arranged, reason=f"{broken}; {arranged.reason}") if arranged is not None else None
        if self._training.version == 0 or self._workers.trusted < self._plan.workers_least:
            return None
        leading = formations.now.aggregators if formations.now is not None else []
        if any(node in leaving for node in leading) and formations.now is not None:
            return self._policy.arrange(formations.now.kind, able, hubs)
        if self.pace_name == "sync" and not self._may_change():
            # A pace or a star that is chosen holds at once, and that is between two versions.
            return None
        return self._policy.wanted(able, leading, formations.kind, self.pace_name, hubs)

    def _may_change(self) -> bool:
        """In step, shapes change between two versions. Where no worker waits for another, at any time."""
        ledger = self._training.ledger
        is_between = not ledger.outstanding and not ledger.merged
        return is_between or (self.pace_name != "sync" and self._formations.next_kind != "shard")

    def _change(self) -> bool:
        """Another shape holds: updates of leases that began under the one before take their way by this one."""
        ledger = self._training.ledger
        going, astray = self._formations.redeliver(ledger.leases(), lambda node: self._workers.get(node) is not None)
        for lease in going:
            self._send_again(lease)
        for lease in going:
            # Its worker delivers the update it has, and gets no other lease meanwhile.
            if (worker := self._contributes_again(lease)) is not None and self._workers.is_idle(worker.node):
                self._workers.make_busy(worker, WorkerState.WORKING)
        fate = "was taken back: its worker is not part of how updates meet now"
        for lease in astray:
            ledger.release(lease, fate=fate)
            self._contributes_again(lease)
            self._machine.record("lease.returned", f"lease {lease.id} {fate}")
        self._workers.release()
        self._shares.on_changed()
        return True

    def _send_again(self, lease: Lease) -> None:
        """The aggregators of this lease's formation are gone. Its update goes by the present ones, or straight to the
        leader: in its turn, as any update that is offered."""
        if self._formations.lent_by(lease.id):
            if lease.deadline_s == math.inf:
                self._leases.extend(lease)
            self._formations.go(lease)
            return
        if self._leases.offer(lease):
            return
        worker = self._workers.get(lease.worker)
        if worker is not None and worker.state is WorkerState.DELIVERING:
            # It is made, and waits for its turn: that is not the worker's fault. One that is not made yet still ages.
            self._leases.hold(lease)

    def _contributes_again(self, lease: Lease) -> WorkerRecord | None:
        """The update of this lease is in no sum any more: its worker may train the same version again."""
        worker = self._workers.get(lease.worker)
        if worker is not None:
            worker.contributed_to = min(worker.contributed_to, lease.version - 1)
        return worker
