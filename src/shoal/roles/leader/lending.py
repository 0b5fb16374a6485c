"""Leases for workers: who gets one now, the ``Work`` that brings it, or why a worker waits. A part of the leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.learning.algorithm import WaitingDevice
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.gathering import Gathering
from shoal.roles.leader.leases import LEASE_GRACE_S, Leases
from shoal.roles.leader.local_data import NotNow
from shoal.roles.leader.participants import Participants
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.states import WorkerState
from shoal.wire.coded import bytes_of
from shoal.wire.messages import NO_TENSORS, Failed, Finished, Released, Tensors, Update, Work, clip, mean_number


class Lending:
    def __init__(
        self,
        machine: Machine,
        shared: Shared,
        *,
        leases: Leases,
        aggregation: AggregationController,
        gathering: Gathering,
    ) -> None:
        self._machine = machine
        self._spec, self._term = shared.spec, shared.term
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._evaluations = shared.evaluations
        self._durability = shared.durability
        self._shares = shared.shares
        self._online = shared.online
        self._is_local = shared.spec.plan.data == "local"
        self._leases = leases
        self._aggregation, self._gathering = aggregation, gathering
        #: The most leases of one version, if workers wait for each other; 0 means any number.
        self.lent_most = shared.spec.plan.lent_most
        privacy = shared.spec.plan.privacy
        #: Where the plan is private.
        self._participants = Participants(privacy, term=shared.term) if privacy is not None else None
        #: The version that this leader began from.
        self.began = 0
        self.bytes_down = 0
        #: Workers that were let go because they could not prepare the job, and have not come again.
        self._spared: dict[str, Released] = {}

    @property
    def is_full(self) -> bool:
        """Return whether enough workers for a version train for it. Others wait: for the next, or if one fails."""
        if not self.lent_most or self._evaluations.now is not None:
            return False
        ledger = self._training.ledger
        return self.lent_most <= ledger.outstanding + ledger.merged

    def held_up(self, *, parting: str | None) -> str | None:
        """Return why nothing is leased although there are workers, or None if leases go out."""
        is_training = self._evaluations.now is None
        if parting is not None and is_training:
            return f"the job gets another leader: {parting}"
        if (at_risk := self._durability.held_up()) is not None:
            return at_risk
        if is_training and (closed := self._gathering.held_up()) is not None:
            return closed
        return self._formations.held_up() if is_training else None

    def lend_to_line(self) -> None:
        """Lease to all that wait, as far as there is work. Where only some work for a version, the worker that waits
        longest comes before the one that just came."""
        for worker in self._workers.take_outcasts():
            self.lend_to(worker)
        while self._has_work() and (turn := self._next_turn()):
            for worker in turn:
                if not self._has_work():
                    break
                # Each leaves the line: with a lease, or to rest.
                self.lend_to(worker)

    def _has_work(self) -> bool:
        return self._leases.ledger.has_free and not self.is_full

    def _next_turn(self) -> list[WorkerRecord]:
        """Return who gets the next leases: the worker that waits longest, or as many as a version lacks, drawn."""
        plan, ledger = self._spec.plan, self._training.ledger
        asked = self._training.asked
        chooser = asked if asked is not None and asked.chooses else None
        if not (plan.sampling or chooser) or self._evaluations.now is not None:
            first = self._workers.first_in_line()
            return [] if first is None else [first]
        lacking = self.lent_most - ledger.outstanding - ledger.merged
        if chooser is not None:
            waiting = {worker.node: worker for worker in self._workers.in_line}
            candidates = [_candidate(worker) for worker in waiting.values()]
            chosen = chooser.chosen(candidates, lacking, seed=plan.seed, version=self._training.version)
            return [waiting[node] for node in chosen if node in waiting]
        return self._workers.draw(lacking, seed=plan.seed, version=self._training.version, share_of=self._share_of)

    def _share_of(self, worker: WorkerRecord) -> float:
        """Return the weight of a worker in the draw."""
        if self._spec.plan.sampling != "by_examples":
            return 1.0
        return float(worker.device.examples) if worker.device is not None else 0.0

    def cut_shares(self) -> str | None:
        """Divide the batches among the workers again if that is due. Return why, or None if it was not."""
        return self._shares.cut(self._training.ledger, self._workers, is_left_out=self._has_no_use)

    def _has_no_use(self, node: str) -> bool:
        """Whether a worker could not train a share: nothing of it would go anywhere, it has no examples, or it is about
        to leave and only sums up for others until then."""
        worker = self._workers.get(node)
        is_empty = self._online is not None and worker is not None and self._online.why_empty(worker) is not None
        return is_empty or node in self._workers.leaving or self._formations.is_left_out(node)

    def lend_to(self, worker: WorkerRecord) -> None:
        """Lease the next batches to a worker, unless something speaks against it."""
        if worker.node in self._workers.leaving:
            self._workers.rest(worker)
            return
        if worker.left_out:
            self._workers.tell(worker, worker.why_left_out)
            return
        is_training = self._evaluations.now is None
        if is_training and self._participants is not None:
            why = self._participants.why_not(worker, version=self._training.version)
            if why is not None:
                self._workers.rest(worker)
                self._workers.tell(worker, why)
                return
        if is_training and not self._aggregation.may_start(worker):
            return
        ledger, examples = self._leases.ledger, 0
        if self._online is not None and is_training and ledger.has_free:
            similarity = self._training.similarity(self._online.labels_of(worker.node))
            wanted = self._online.wants(worker, similarity)
            if isinstance(wanted, NotNow):
                self._shares.on_idle(worker.node, ledger)
                self._workers.park(worker)
                self._workers.tell(worker, wanted.reason, retry_after_s=wanted.retry_after_s)
                return
            examples, _ = wanted
        in_step = self._aggregation.pace_name == "sync"
        lent = self._leases.lend(worker, in_step=in_step, examples=examples)
        if lent is None:
            if ledger.sharers:
                # Others have batches left, and this worker is not looked at for them.
                self._workers.rest(worker)
                if self._online is not None and worker.node not in ledger.sharers:
                    # It had no examples when the epoch was divided.
                    self._shares.on_changed()
            return
        lease, deadline_s = lent
        if self._online is not None and is_training:
            if not self._is_local:
                examples = self._training.examples_in(lease)
            self._online.on_lent(lease.id, examples)
        self._workers.make_busy(worker, WorkerState.WORKING if is_training else WorkerState.EVALUATING)
        if worker.holds != (self._term, self._training.version) and self._evaluations.mean is None:
            self._aggregation.pass_on(worker)
        self._machine.send(worker.node, self._work(worker, lease, deadline_s=deadline_s, examples=examples))

    def _work(self, worker: WorkerRecord, lease: Lease, *, deadline_s: float, examples: int) -> Work:
        """The lease rides on the message that brings the new model (EDDL §4.2), unless aggregators bring that."""
        is_training, mean = self._evaluations.now is None, self._evaluations.mean
        # Shared examples are named by the batches.
        own_examples = examples if self._is_local else 0
        version = self._training.version if mean is None else mean_number(self._training.version)
        here = (self._term, version)
        # No aggregator has the mean.
        values_by = self._formations.relay.values_by(worker.node) if mean is None else 0
        base = -1
        tensors: Tensors = NO_TENSORS
        if worker.holds != here and mean is not None:
            tensors = {"model": mean}
        elif worker.holds != here and not values_by:
            base, tensors = self._training.brings(self._aggregation.version_held_by(worker.node))
        worker.holds = here
        sent = bytes_of(tensors)
        worker.bytes_down += sent
        self.bytes_down += sent
        formation, credit = self._gathering.route(worker.node, lease) if is_training else (0, False)
        return Work(
            job=self._spec.job,
            term=self._term,
            lease=lease.id,
            kind="train" if is_training else "evaluate",
            version=lease.version if mean is None else version,
            durable_version=max(0, self._durability.version),
            epoch=lease.epoch,
            batches=lease.batches,
            deadline_s=deadline_s,
            credit=credit,
            formation=formation,
            values_by=values_by,
            base=base,
            examples=self._evaluations.now.size if self._evaluations.now is not None else own_examples,
            began=self.began,
            rate=self._spec.plan.rate_at(lease.version) if is_training else 0.0,
            tensors=tensors,
        )

    def count_participation(self, worker: WorkerRecord, update: Update) -> None:
        """An update came, whatever becomes of it: in a private job that is a participation."""
        if self._participants is not None:
            worker.device = update.state or worker.device
            if worker.device is not None:
                self._participants.note_account(worker.device)
            self._participants.on_came(worker.node, version=self._training.version)

    def on_failed(self, worker: WorkerRecord, failed: Failed) -> Lease | None:
        """Take back the lease that a worker could not do, and return it, or None if the worker had no such lease."""
        for clock, ledger in self._leases.clocked_ledgers():
            lease = ledger.find(failed.lease, worker.node)
            if not isinstance(lease, Lease) or self._leases.has_arrived(lease.id):
                continue
            if self._machine.now_s >= lease.deadline_s - LEASE_GRACE_S:
                clock.expired()
                if self._online is not None:
                    # It had no time left.
                    self._online.on_late(worker, lease)
            ledger.release(lease, fate=f"failed on {worker.node}: {failed.reason}")
            self._formations.forget(lease.id)
            self._leases.end_upload(lease.id)
            return lease
        return None

    def on_summed(self, nodes: Sequence[str]) -> None:
        """Updates of these devices are in the next version. An aggregator may have had them for some versions: how far
        apart a device takes part is by the versions that have noise for it."""
        if self._participants is not None:
            for node in nodes:
                self._participants.on_came(node, version=self._training.version)

    def over(self) -> str | None:
        """Return why no device of a private job will ever be leased anything more, or None if one may be. Versions for
        which none of the devices may take part are passed over."""
        if self._participants is None or self._evaluations.now is not None or self._training.ledger.finished:
            # An epoch that is over is closed first, with what is waived of it.
            return None
        while not self._training.has_no_noise_left and self._is_nobodys_turn(self._participants):
            self._training.stand_still()
            self._workers.release()
            self._machine.record(
                "version.skipped", f"version {self._training.version:,}: no device may take part in it"
            )
        if self._training.has_no_noise_left:
            return f"the plan's noise is for {self._training.noised} versions under one leader, and they are made"
        ledger, able = self._training.ledger, self._heard()
        least = self._spec.plan.opened_least
        # Too few updates for a group would wait for ever.
        is_at_work = ledger.outstanding > 0 and not self._gathering.has_only_offers()
        if is_at_work or ledger.merged or not self._participants.are_spent(able, least=least):
            return None
        if least > 1:
            return f"the accounts of too many of the {len(able)} devices here are spent: a sum is of {least} or more"
        return f"each of the {len(able)} devices here has taken part as often as its account allows"

    def _is_nobodys_turn(self, participants: Participants) -> bool:
        """Every device here came too lately, and one of them may come again: its version has to come."""
        ledger, able, version = self._training.ledger, self._heard(), self._training.version
        if not able or ledger.outstanding or ledger.merged or participants.are_spent(able):
            return False
        return all(participants.why_not(worker, version=version) is not None for worker in able)

    def _heard(self) -> list[WorkerRecord]:
        """Devices that may take part: they told this leader of their account, and are not to leave. One that said
        nothing of it, or let a lease pass and sent nothing since, may have another job, and is not waited for."""
        able = [each for each in self._workers.able() if each.node not in self._workers.leaving]
        return [each for each in able if each.device is not None and each.state is not WorkerState.LATE]

    def spent(self) -> dict[str, Any]:
        """Return what devices of a private job have spent, by the fields of ``Progress``."""
        if self._participants is None:
            return {}
        return self._participants.figures(self._workers.able(), versions=self._training.noised)

    def snapshot(self) -> dict[str, Any]:
        return {} if self._participants is None else {"spent": self._participants.snapshot()}

    def restore(self, spent: object) -> None:
        if self._participants is not None:
            self._participants.restore(spent)

    def let_go(self, manager: str) -> None:
        """Part with workers that the manager wants back, as soon as they hold nothing: no trained lease is lost."""
        free = [node for node in self._workers.leaving if not self._leases.held_by(node)]
        # An aggregator goes once another formation holds, in which it is none.
        free = [node for node in free if not self._formations.is_aggregator(node)]
        for node in free:
            reason = self._workers.leaving.pop(node)
            if self._workers.find(node) is not None:
                self._workers.remove(node)
                self._formations.on_left(node, reason)
            self._machine.record("device.released", f"{node} {reason}")
            # Also to a node that never came: it may be fetching the task still.
            self._machine.send(node, Finished(job=self._spec.job, reason=clip(reason)))
            failure, by_task = self._workers.unprepared.pop(node, ("", False))
            job, term = self._spec.job, self._term
            told = Released(job=job, term=term, node=node, failure=clip(failure), by_task=by_task)
            self._machine.send(manager, told)
            if failure:
                self._spared[node] = told

    def tell_again(self, manager: str) -> None:
        """The manager is back: it may have missed which workers were let go although it did not ask for them."""
        self._spared = {node: told for node, told in self._spared.items() if self._workers.get(node) is None}
        for told in self._spared.values():
            self._machine.send(manager, told)

    def explain_waits(self, held_up: str | None) -> None:
        """Show why workers wait; tell each of them once, and then seldom: the reason changes often.

        ``held_up`` is why no worker gets a lease, or None if some do.
        """
        bored, untold = self._workers.bored(), self._workers.take_untold()
        if not bored and not untold:
            return
        reason, ledger = held_up or self._awaited(), self._leases.ledger
        for worker in bored:
            worker.state, worker.reason = WorkerState.WAITING, self._shares.why_idle(worker.node, ledger, reason)
        for worker in untold:
            self._workers.tell(worker, self._shares.why_idle(worker.node, ledger, reason))

    def _awaited(self) -> str:
        """Name what comes next, and the workers that it waits for."""
        names, epoch = self._leases.holders(), self._training.ledger.epoch + 1
        what = f"version {self._training.version + 1}" if self._leases.ledger.has_free else f"the end of epoch {epoch}"
        if self._evaluations.now is not None:
            what = "the evaluation"
        return f"{what} waits for {names}" if names else f"{what} is next"


def _candidate(worker: WorkerRecord) -> WaitingDevice:
    """Describe a worker that waits to an algorithm."""
    lease_s = worker.durations_s[-1] if worker.durations_s else None
    return WaitingDevice(
        node=worker.node, examples=worker.device.examples if worker.device is not None else None, lease_s=lease_s
    )
