"""What follows from an update that counts: for the model, for its worker, and for what the leader has learned.

A part of the leader. An update counts twice over. When it is *delivered*, its worker has done its part and is free
again. When it is *merged*, it is in the next version; if aggregators sum it, that is later, or never.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.roles.leader.gathering.gathering import CheckedUpdate, Delivered, Summed
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.lending import Lending
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.round_stats import RoundStats


class Contributions:
    def __init__(self, shared: Shared, *, leases: Leases, lending: Lending, stats: RoundStats) -> None:
        self._training, self._workers, self._online = shared.training, shared.workers, shared.online
        self._evaluations, self._suspicion, self._checks = shared.evaluations, shared.suspicion, shared.checks
        self._leases, self._lending, self._stats = leases, lending, stats

    def deliver(self, done: CheckedUpdate | Delivered) -> None:
        """Count the work of a worker, which is free again."""
        worker, update, lease = done.worker, done.update, done.lease
        workers, others = self._workers.trusted, self._training.ledger.outstanding
        self._stats.on_merged(lease, train_s=update.train_s, workers=workers, others=others)
        if self._online is not None:
            self._online.learn(worker, update)
        self._leases.on_delivered(worker, lease, examples=update.examples)
        worker.trainings_s.append(update.train_s)
        self._evaluations.on_trained(examples=update.examples, train_s=update.train_s)
        worker.batches += len(lease.batches)
        worker.is_failing = False
        worker.contributed_to = lease.version
        self._workers.make_idle(worker)

    def merge(self, checked: CheckedUpdate) -> None:
        """Merge one update by itself, and count the work of its worker."""
        self._note_merged([checked.worker.node])
        self._training.merge(checked.lease, checked.update, checked.delta)
        if self._online is not None:
            self._online.count_merged(checked.lease.id, checked.update)
        self.deliver(checked)

    def merge_sum(self, summed: Summed) -> None:
        """Merge updates that were summed elsewhere, as one."""
        for report in summed.reports if summed.is_news else ():
            if (worker := self._workers.get(report.lease.worker)) is not None:
                self.deliver(Delivered(worker, report.update, report.lease))
        self._checks.on_sum(summed)
        nodes = [report.lease.worker for report in summed.reports]
        self._note_merged([*summed.by, *nodes])
        self._lending.on_summed(nodes)
        self._training.merge_sum(summed.reports, summed.mean, summed.weight, moved=summed.moved, verdict=summed.verdict)
        if self._online is not None:
            for report in summed.reports:
                self._online.count_merged(report.lease.id, report.update)

    def _note_merged(self, nodes: Sequence[str]) -> None:
        """Updates of these workers, or sums of these aggregators, are in the next version."""
        self._suspicion.on_merged(nodes)
        for node in nodes:
            if (worker := self._workers.get(node)) is not None:
                self._workers.on_merged(worker)
