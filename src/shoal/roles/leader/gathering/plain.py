"""Updates that the leader may see: whole ones come to it, parts of others to aggregators, whose sums come to it."""

from __future__ import annotations

from shoal.errors import BadValues, PeerViolation
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.gathering import (
    AggregatorMessage,
    BadUpdate,
    CheckedUpdate,
    Declined,
    Delivered,
    MemberMessage,
    Outcome,
    Underway,
)
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WorkerRecord
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import MaskSum, Message, Offer, ReduceResult, Update


class PlainGathering:
    def __init__(self, shared: Shared, *, leases: Leases, aggregation: AggregationController) -> None:
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._checks = shared.checks
        self._leases = leases
        self._aggregation = aggregation

    # A node that opens sums: none is needed --------------------------------------------------------------

    @property
    def helper(self) -> str | None:
        return None

    def on_helper(self, message: Message) -> None:
        """Do nothing: there is no such node."""

    def on_gone(self, node: str, reason: str) -> None:
        """Do nothing: the formations hear of it as a worker that left."""

    def on_member(self, sender: str, message: MemberMessage) -> Outcome:
        """Ignore what only members of sealed sums say."""
        return None

    def held_up(self) -> str | None:
        return None

    def has_only_offers(self) -> bool:
        return False

    def let_go(self, reason: str) -> None:
        """Do nothing: no update waits for others."""

    def waive_rest(self) -> None:
        """Do nothing: a sum may be of one update."""

    # Where an update goes ----------------------------------------------------------------------------------

    def route(self, node: str, lease: Lease) -> tuple[int, bool]:
        formation = self._formations.way(node)
        self._formations.lend(lease.id, formation)
        # Pieces go to aggregators: the leader need not keep room for them.
        return formation, formation != 0 or self._leases.has_credit(lease)

    def on_offer(self, worker: WorkerRecord, offer: Offer, lease: Lease) -> Outcome:
        if not self._formations.lent_by(lease.id):
            self._leases.on_offer(worker, lease)
        elif (reason := self._aggregation.on_undelivered(worker, lease)) is not None:
            return Declined(worker, offer, reason)
        return None

    # Updates -----------------------------------------------------------------------------------------------

    def on_update(self, worker: WorkerRecord, update: Update, lease: Lease) -> Outcome:
        if update.formation:
            return self._take_report(worker, update, lease)
        if (barred := self._formations.bars_whole(lease.id)) is not None:
            return Declined(worker, update, barred)
        self._leases.end_upload(lease.id)
        try:
            delta, norm = self._checks.checked(update, lease)
        except PeerViolation as violation:
            return BadUpdate(worker, update, lease, violation)
        unusual = self._checks.judge(worker.node, update, lease, norm, devices=self._workers.trusted)
        if unusual is not None and not unusual.is_early:
            return BadUpdate(worker, update, lease, BadValues(unusual.reason), is_unusual=True)
        if unusual is not None:
            # It may be honest: its worker trains the same batches again, and others may contribute meanwhile.
            self._training.ledger.release(lease, fate=f"was put off: {unusual.reason}")
            self._formations.forget(lease.id)
            return Declined(worker, update, unusual.reason)
        self._formations.lend(lease.id, 0)
        self._checks.learn_length(update, lease, norm)
        return CheckedUpdate(worker, update, lease, delta)

    def _take_report(self, worker: WorkerRecord, update: Update, lease: Lease) -> Outcome:
        """The aggregators have every piece of an update."""
        if not self._aggregation.expects_report(worker, update, lease):
            return None
        self._leases.end_upload(lease.id)
        try:
            self._checks.check_report(update, lease)
        except PeerViolation as violation:
            return BadUpdate(worker, update, lease, violation)
        self._aggregation.hold_report(update, lease)
        return Delivered(worker, update, lease)

    # Sums --------------------------------------------------------------------------------------------------

    def on_aggregator(self, sender: str, message: AggregatorMessage) -> Outcome:
        return self._aggregation.on_message(sender, message)

    def awaits(self, sender: str, message: ReduceResult | MaskSum) -> bool:
        return isinstance(message, ReduceResult) and self._formations.awaits(sender, message)

    def gather(self, *, is_last: bool) -> Underway | None:
        return Underway(is_closed=False) if self._aggregation.gather() else None
