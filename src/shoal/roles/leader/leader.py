"""The leader of one job: holds the model, leases batches, merges updates, decides. A driver acts.

It never needs torch: models are flat vectors, evaluation is leased to workers like any batch. Its actions say what it
decides, and why; a version is durable before the leader tells anyone of it (``Save`` -> ``Saved``).

The leader keeps the order of things: which check comes first, what follows from what. Its parts know the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.errors import BadValues
from shoal.learning.algorithm_call import AlgorithmAnswer, Question
from shoal.learning.layout import Layout
from shoal.roles.actions import End
from shoal.roles.events import (
    AlgorithmAnswered,
    AlgorithmFailed,
    Event,
    Liveness,
    PeerChanged,
    Received,
    Saved,
    SaveFailed,
    Started,
    StopRequested,
    TimerFired,
)
from shoal.roles.leader.attendance import Attendance
from shoal.roles.leader.contributions import Contributions
from shoal.roles.leader.ending import Ending
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.gathering import (
    BadUpdate,
    CheckedUpdate,
    Declined,
    Delivered,
    Hopeless,
    Outcome,
    Progressed,
    Summed,
    Underway,
)
from shoal.roles.leader.gathering.policy import TopologyPolicy
from shoal.roles.leader.gathering.private_sum import Normals, no_chance
from shoal.roles.leader.gathering.sealing import gathering_of
from shoal.roles.leader.leases import LATE, TICK_S, Leases
from shoal.roles.leader.lending import Lending
from shoal.roles.leader.memory import IN_MEMORY, Memory
from shoal.roles.leader.parts import shared_parts
from shoal.roles.leader.report import Standing, progress_of
from shoal.roles.leader.rollback import Rollback
from shoal.roles.leader.round_stats import RoundStats
from shoal.roles.leader.suspicion import BatchFailures
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.admission import Admission
from shoal.scheduling.ledger import Lease, Refusal
from shoal.states import LeaderPhase
from shoal.wire import messages as m
from shoal.wire.coded import bytes_expected, sizes_of
from shoal.wire.limits import UPLOAD_BUDGET_BYTES

_TICK = "tick"


class Leader(Machine):
    def __init__(
        self,
        *,
        spec: m.JobSpec,
        layout: Layout,
        model: np.ndarray,
        term: int,
        manager: str,
        upload_budget_bytes: int = UPLOAD_BUDGET_BYTES,
        memory: Memory = IN_MEMORY,
        normals: Normals = no_chance,
    ) -> None:
        super().__init__()
        plan = spec.plan
        self._spec = spec
        self._layout = layout
        self._term = term
        self._manager = manager
        self._workers_least = plan.workers_least
        self._phase: LeaderPhase = LeaderPhase.WAITING
        self._reason: str | None = "no worker has connected yet"
        #: Why it has to finish its round and step down, or None.
        self._parting: str | None = None
        #: The version it hands over has at least this number.
        self._version_least = 0
        #: Why the profiles of devices in a checkpoint could not be read.
        self._unread: str | None = None
        self._refused = self._bytes_up = 0

        self._shared = shared = shared_parts(
            self, spec, term=term, layout=layout, model=model, memory=memory, normals=normals
        )
        self._training, self._checks, self._online = shared.training, shared.checks, shared.online
        self._workers, self._formations, self._evaluations = shared.workers, shared.formations, shared.evaluations
        self._durability, self._suspicion = shared.durability, shared.suspicion
        self._ending = Ending(self, plan.until, self._training)
        self._batch_failures = BatchFailures()
        admission = Admission(update_bytes=self.update_max_bytes, budget_bytes=upload_budget_bytes)
        self._leases = Leases(self, shared, admission=admission, model_bytes=layout.size * 4)
        sizes = sizes_of(layout)
        up_bytes, down_bytes = (bytes_expected(Codec.parse(codec), sizes) for codec in (plan.codec, plan.down))
        self._policy = TopologyPolicy(self, plan, size=layout.size, wire_bytes=(up_bytes + down_bytes) / 2)
        self._stats = RoundStats(self, pace=plan.paces[0])
        self._aggregation = AggregationController(
            self, shared, policy=self._policy, leases=self._leases, stats=self._stats
        )
        self._gathering = gathering_of(self, shared, leases=self._leases, aggregation=self._aggregation)
        self._lending = Lending(
            self, shared, leases=self._leases, aggregation=self._aggregation, gathering=self._gathering
        )
        self._contributions = Contributions(shared, leases=self._leases, lending=self._lending, stats=self._stats)
        self._attendance = Attendance(
            self, shared, leases=self._leases, aggregation=self._aggregation, policy=self._policy
        )
        self._rollback = Rollback(self, shared, leases=self._leases, failures=self._batch_failures)

    # State that survives -----------------------------------------------------------------------------

    def restore(self, *, tensors: m.Tensors, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. Its ledger matches its model: both were one file."""
        self._training.restore(tensors=tensors, state=state)
        self._durability.version = self._lending.began = self._training.version
        self._ending.restore(state["ending"])
        self._checks.restore(state.get("usual"))
        self._lending.restore(state.get("spent"))
        if self._online is not None:
            self._unread = self._online.restore(tensors)

    def _snapshot(self) -> tuple[m.Tensors, dict[str, Any]]:
        tensors: m.Tensors
        tensors, state = self._training.snapshot()
        if self._online is not None:
            tensors = {**tensors, **self._online.snapshot()}
        state |= {"job": self._spec.job, "term": self._term, "ending": self._ending.snapshot(), "version": self._number}
        return tensors, {**state, "usual": self._checks.snapshot(), **self._lending.snapshot()}

    @property
    def version(self) -> int:
        return self._training.version

    @property
    def term(self) -> int:
        return self._term

    @property
    def job(self) -> str:
        return self._spec.job

    @property
    def topology(self) -> str:
        """Return where updates are summed now, such as ``tree 1-2-8``."""
        return self._formations.notation

    @property
    def aggregators(self) -> tuple[str, ...]:
        """The nodes that sum up updates now."""
        return tuple(self._formations.now.aggregators) if self._formations.now is not None else ()

    @property
    def update_max_bytes(self) -> int:
        """The most bytes that the tensors of an update may take."""
        return self._checks.update_max_bytes

    @property
    def sum_max_bytes(self) -> int:
        """The most bytes that an aggregator's sum may take, with how its part moved by it; or its products before."""
        return max(self.model.nbytes + self._checks.moved_max_bytes, self._checks.products_max_bytes)

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._training.ledger.epoch

    @property
    def model(self) -> np.ndarray:
        return self._training.model

    # Events ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self._on_started()
            case Received():
                self._on_received(event)
            case PeerChanged():
                self._on_peer(event)
            case TimerFired():
                self._leases.on_pause(event.late_s)
                if event.name == LATE:
                    self._on_late()
                else:
                    self._on_tick()
            case Saved():
                self._on_saved(event.version)
            case SaveFailed():
                # It is tried again and again while the manager is away: a reason is recorded once.
                if self._durability.on_failed(event.reason):
                    self.record("save.failed", f"version {event.version}: {event.reason}; trying again")
            case AlgorithmAnswered() | AlgorithmFailed():
                self._on_algorithm(event)
            case StopRequested():
                self._end("failed" if event.is_failure else "stopped", event.reason)
            case _:
                pass
        if self._workers.leaving:
            self._lending.let_go(self._manager)
        if self._parting is not None and not isinstance(event, SaveFailed):
            self._hand_over()

    def awaits(self, sender: str, message: m.Update | m.ReduceResult | m.MaskSum) -> bool:
        """Whether the tensors of this message can be merged now: of an open lease of the sender, or of a sum that this
        aggregator or helper was asked for. Otherwise no driver need hold them: the message is refused without."""
        if message.term != self._term:
            return False
        if isinstance(message, m.ReduceResult | m.MaskSum):
            return self._gathering.awaits(sender, message)
        lease = self._training.ledger.get(message.lease)
        return lease is not None and lease.worker == sender

    def _on_started(self) -> None:
        self._training.start()
        self._durability.start()
        self.timer(_TICK, TICK_S)
        if self._durability.version < 0:
            first = f"{self._layout.size:,} parameters, {self._training.ledger.batches:,} batches per epoch"
            self.record("job.started", first)
            self._save()
        else:
            ledger = self._training.ledger
            where = f"epoch {ledger.epoch + 1}, {ledger.applied} of {ledger.batches} batches applied"
            self.record("job.resumed", f"from saved version {self._training.version:,}, {where}, term {self._term}")
            if self._unread is not None:
                self.record("profiles.reset", f"devices are measured again: {self._unread}")
            if self._ending.decided:
                self._end(*self._ending.decided)
            elif self._evaluations.is_due(is_ending=False):
                self._begin_evaluation()

    def _on_received(self, event: Received) -> None:
        message, sender = event.message, event.sender
        self._bytes_up += event.size_bytes
        if (worker := self._workers.find(sender)) is not None:
            worker.bytes_up += event.size_bytes
        if sender == self._gathering.helper:
            self._gathering.on_helper(message)
            self._proceed()
            return
        match message:
            case m.Release():
                if sender == self._manager:
                    self._workers.leaving[message.node] = message.reason
                    self._shared.shares.on_changed()
                    self._gathering.on_gone(message.node, message.reason)
            case m.HandOver():
                if sender == self._manager and message.term == self._term:
                    self._parting, self._version_least = message.reason, message.version_least
            case m.Ready():
                if worker is not None and worker.is_hub != message.is_hub:
                    reason = f"it is a {'hub' if message.is_hub else 'worker'} now"
                    self._on_peer(PeerChanged(node=sender, state=Liveness.LOST, reason=reason))
                self._on_ready(sender, message)
            case m.AggregatorReady() | m.Routed() | m.BadShard() | m.ReduceResult():
                if message.term == self._term:
                    self._follow(self._gathering.on_aggregator(sender, message))
                    self._reshape()
            case m.SealKey() | m.SealRefused() | m.Agreed() | m.Opened():
                if message.term == self._term:
                    self._follow(self._gathering.on_member(sender, message))
            case m.UpdateReady() | m.Offer() | m.Update() | m.Evaluated() | m.Failed():
                if worker is None:
                    worker = self._attendance.came_back(sender)
                if not worker.is_hub:
                    self._take_result(worker, message)

    def _take_result(
        self, worker: WorkerRecord, message: m.UpdateReady | m.Offer | m.Update | m.Evaluated | m.Failed
    ) -> None:
        if message.term != self._term:
            if isinstance(message, m.Failed | m.UpdateReady):
                # Another leader made that lease. The worker is ready once its trainer is back.
                return
            reason = f"made under term {message.term}; this leader's term is {self._term}"
            self._refuse(worker, message, reason)
            return
        match message:
            case m.Update():
                self._on_update(worker, message)
            case m.UpdateReady():
                self._aggregation.on_update_ready(worker, message)
            case m.Offer():
                self._on_offer(worker, message)
            case m.Evaluated():
                self._on_evaluated(worker, message)
            case m.Failed():
                self._on_failed(worker, message)

    # Workers come, wait and go -----------------------------------------------------------------------

    def _on_ready(self, node: str, message: m.Ready) -> None:
        worker = self._attendance.on_ready(node, message)
        if worker.is_hub:
            return
        if self._phase.is_over:
            self._workers.tell(worker, "the job is over; its last version is being saved")
            return
        self._attendance.begin(worker, message)
        self._proceed(only=node)

    def _on_peer(self, event: PeerChanged) -> None:
        if event.node == self._manager:
            self._on_manager(event.state)
            return
        is_lost = event.state is Liveness.LOST
        if is_lost:
            self._gathering.on_gone(event.node, event.reason)
        if (worker := self._workers.find(event.node)) is None:
            return
        is_broken = self._attendance.on_peer(worker, event)
        # Formations choose among hubs: one that comes or goes may change the shape.
        if is_broken or worker.is_hub:
            self._reshape()
        if is_lost or worker.is_hub:
            self._proceed()

    def _on_manager(self, state: Liveness) -> None:
        """The manager is out of reach, or back: then what could not be kept there is offered at once."""
        if state is Liveness.LOST:
            self._durability.on_manager_lost()
        elif state is Liveness.ALIVE:
            self._lending.tell_again(self._manager)
        is_due = state is Liveness.ALIVE and self._durability.is_behind and not self._durability.is_saving
        if is_due and self._phase is not LeaderPhase.ENDED:
            self._save()

    def _enough(self) -> bool:
        return self._workers.trusted >= self._workers_least

    # Handing out work --------------------------------------------------------------------------------

    def _proceed(self, only: str | None = None) -> None:
        """Move on as far as things allow: a step if one is due, then leases to the workers that are ready."""
        if self._phase.is_over or self._is_asking:
            return
        ledger = self._training.ledger
        match self._gathering.gather(is_last=self._parting is not None):
            case Summed() as summed:
                self._follow(summed)
                return
            case Hopeless(reason):
                self._end("failed", reason)
                return
            case Underway(is_closed):
                if not is_closed:
                    self._lend(only=only)
                return
        merged = self._training.voices(able=self._workers.trusted)
        if self._aggregation.pace.should_step(merged=merged, outstanding=ledger.outstanding):
            self._step()
            return
        self._lend(only=only)
        if ledger.merged and not ledger.outstanding and not self._is_asking:
            # Every worker that may work was asked and no lease is out: the version waits for no update.
            self._step()

    def _lend(self, only: str | None = None) -> None:
        """Lease to every worker that is ready; to one worker if only its state changed."""
        one = self._workers.get(only) if only is not None else None
        held_up = self._held_up()
        if held_up is None and not self._enough():
            held_up = f"{self._workers.trusted} of {self._workers_least} required devices connected"
        if held_up is not None:
            self._phase, self._reason = LeaderPhase.WAITING, held_up
            if one is not None:
                self._workers.tell(one, held_up)
            return
        if (over := self._lending.over()) is not None:
            self._end("finished", over)
            return
        if self._phase is LeaderPhase.WAITING:
            # The worker that just came completes the number: those that waited for it begin too.
            one = None
        is_training = self._evaluations.now is None
        self._phase, self._reason = (LeaderPhase.TRAINING if is_training else LeaderPhase.EVALUATING), None
        if is_training and (why := self._lending.cut_shares()) is not None:
            self.record("shares.divided", why)
            # A worker that had nothing left may have something now.
            self._workers.release()
            one = None
        if one is not None and not self._lending.lent_most:
            if self._workers.is_idle(one.node):
                self._lending.lend_to(one)
            return
        self._lending.lend_to_line()

    def _held_up(self) -> str | None:
        return self._lending.held_up(parting=self._parting)

    def _hand_over(self) -> None:
        """Step down once no lease is out and everything is durable: the next leader begins where this one ends."""
        is_busy = self._evaluations.now is not None or self._training.ledger.outstanding or self._is_asking
        if self._phase.is_over or is_busy:
            return
        if self._durability.is_behind or self._durability.version < self._number:
            if not self._durability.is_saving:
                self._save()
            return
        # The manager weighs what was made under this term by the last report of it.
        self.send(self._manager, self.progress())
        self._phase = LeaderPhase.ENDED
        reason = f"handed over at version {self._number}"
        self.record("leader.resigned", f"at version {self._number:,}")
        self.send(self._manager, m.SteppedDown(job=self._spec.job, term=self._term, reason=reason))
        self.act(End(reason=reason))

    # Updates come back -------------------------------------------------------------------------------

    def _on_update(self, worker: WorkerRecord, update: m.Update) -> None:
        self._lending.count_participation(worker, update)
        lease = self._training.ledger.find(update.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, update, lease.reason, is_copy=lease.is_copy)
        else:
            self._follow(self._gathering.on_update(worker, update, lease))

    def _on_offer(self, worker: WorkerRecord, offer: m.Offer) -> None:
        lease = self._training.ledger.find(offer.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, offer, lease.reason)
        else:
            self._follow(self._gathering.on_offer(worker, offer, lease))

    def _follow(self, outcome: Outcome) -> None:
        """Do what follows from a message about updates."""
        match outcome:
            case CheckedUpdate(worker=worker):
                self._contributions.merge(outcome)
                self._proceed(only=worker.node)
                self._leases.watch_the_last()
            case Delivered(worker=worker):
                self._contributions.deliver(outcome)
                self._proceed(only=worker.node)
                self._leases.watch_the_last()
            case Summed():
                self._contributions.merge_sum(outcome)
                self._proceed()
            case BadUpdate():
                self._on_bad_update(outcome)
            case Declined(worker, what, reason):
                self._refuse(worker, what, reason)
            case Progressed(node):
                self._proceed(only=node)

    def _reshape(self) -> None:
        """Change where updates are summed, if that is due."""
        if not self._phase.is_over and self._aggregation.reshape(parting=self._parting):
            self._proceed()

    def _on_bad_update(self, bad: BadUpdate) -> None:
        worker, update, lease, reason = bad.worker, bad.update, bad.lease, bad.violation.reason
        self._training.ledger.release(lease, fate=f"was refused: {reason}")
        self._formations.forget(lease.id)
        if isinstance(bad.violation, BadValues) and self._on_bad(worker, lease):
            # Where it is the model, no batch and no device is at fault.
            self._refuse(worker, update, reason)
            return
        self._count_failure(worker, lease, reason)
        self._count_violation(worker, update, reason, is_unusual=bad.is_unusual)

    def _refuse(
        self, worker: WorkerRecord, what: m.Offer | m.Update | m.Evaluated, reason: str, *, is_copy: bool = False
    ) -> None:
        """Say why an update was not merged, by the term of that update: lease numbers begin again with each. A worker
        left without a lease by it is ready again."""
        self._refused += 1
        held = self._leases.held_by(worker.node)
        refused = m.UpdateRefused(
            job=self._spec.job,
            term=what.term,
            lease=what.lease,
            reason=m.clip(reason),
            holds=held[0].id if held else 0,
            is_copy=is_copy,
        )
        self.record("update.rejected", f"{worker.node}: {reason}")
        self.send(worker.node, refused)
        if held or self._phase.is_over:
            return
        worker.holds = (0, -1)
        self._workers.make_idle(worker)
        self._proceed(only=worker.node)

    def _count_violation(
        self, worker: WorkerRecord, what: m.Update | m.Evaluated, reason: str, *, is_unusual: bool = False
    ) -> None:
        self._workers.on_violation(worker, reason, is_unusual=is_unusual)
        if not self._workers.trusted:
            # Every worker diverges, or the only one lies: waiting would mend neither.
            if is_unusual and self._ending.decided is None and self._suspicion.has_contributors:
                self._go_back([worker.node])
            else:
                every = f"no worker is left that may train: {worker.node} was refused {worker.violations} times"
                self._end(*self._ending.or_failed(f"{every}, last for {reason}"))
        self._refuse(worker, what, reason)

    def _on_bad(self, worker: WorkerRecord, lease: Lease) -> bool:
        """A result is bad. Return whether most are, so that the model went back; if not, its device is at fault."""
        self._suspicion.on_bad(worker.node, lease.batches)
        if self._phase.is_over:
            return False
        if witnesses := self._rollback.witnesses():
            self._go_back(witnesses)
        return bool(witnesses)

    def _go_back(self, witnesses: Sequence[str]) -> None:
        if (fatal := self._rollback.go_back(witnesses)) is not None:
            self._end("failed", fatal)
            return
        self._save()
        self._reshape()
        self._proceed()

    def _on_failed(self, worker: WorkerRecord, failed: m.Failed) -> None:
        worker.failures += 1
        kind = "lease.failed" if failed.lease else "preparation.failed"
        self.record(kind, f"{worker.node}: {failed.reason}", traceback=failed.traceback)
        if failed.lease == 0:
            self._workers.on_preparation_failed(worker, failed)
        if (lease := self._lending.on_failed(worker, failed)) is not None:
            self._workers.on_lease_failed(worker, failed)
            if failed.diverged and self._on_bad(worker, lease):
                return
            self._count_failure(worker, lease, failed.reason)
        self._proceed()

    def _count_failure(self, worker: WorkerRecord, lease: Lease, reason: str) -> None:
        if (fatal := self._batch_failures.on_failed(worker, lease, reason, self._workers)) is not None:
            # If time was over and only the last evaluation was missing, the job ends without it.
            self._end(*self._ending.or_failed(fatal))

    # The model moves -----------------------------------------------------------------------------------

    def _step(self) -> None:
        self._advance(self._on_stepped)

    def _on_stepped(self) -> None:
        self._gathering.waive_rest()
        if self._training.ledger.finished:
            self._reshape()
            self._on_epoch_over()
            return
        self._reshape()
        self._lend()
        self._save_if_due()

    def _advance(self, then: Callable[[], None]) -> None:
        """Make the next version of what was merged, and go on; if the job has an algorithm, once it has answered."""
        if self._training.has_no_noise_left:
            # Nothing is said without noise: what was merged since is in no version.
            then()
        elif (question := self._training.question()) is None:
            self._on_advanced()
            then()
        elif (asked := self._training.asked) is not None and not asked.has_failed:

            def go_on(_: Question, answer: AlgorithmAnswer) -> None:
                self._on_advanced(answer)
                then()

            asked.ask(question, go_on)

    @property
    def _is_asking(self) -> bool:
        return self._training.asked is not None and self._training.asked.is_waiting

    def _on_algorithm(self, event: AlgorithmAnswered | AlgorithmFailed) -> None:
        """Go on with the answer of the job's algorithm, or end the job, which cannot go on without."""
        asked = self._training.asked
        if asked is None or not asked.awaits(event.number):
            return
        problem = asked.on_answered(event.answer) if isinstance(event, AlgorithmAnswered) else event.reason
        if problem is None:
            self._proceed()
            return
        asked.on_failed()
        self.record("algorithm.failed", problem, traceback=getattr(event, "traceback", ""))
        self._end(*self._ending.or_failed(problem))

    def _on_advanced(self, answer: AlgorithmAnswer | None = None) -> None:
        self._durability.on_applied(self._training.advance(answer))
        if (round_s := self._stats.on_version(workers=self._workers.trusted)) is not None:
            self._policy.on_round(round_s, self._formations.kind)
        self._workers.release()

    def _on_epoch_over(self) -> None:
        ledger = self._training.ledger
        batches = ledger.batches - ledger.waived
        ledger.next_epoch()
        self._batch_failures.clear()
        self.record("epoch.done", f"epoch {ledger.epoch}: {batches:,} batches, version {self._training.version:,}")
        if self._evaluations.is_due(is_ending=self._ending.decided is not None):
            self._begin_evaluation()
            self._save()
            self._lend()
            return
        self._evaluations.judge_by_new_examples()
        self._decide()

    def _begin_evaluation(self) -> None:
        self._batch_failures.clear()
        self._evaluations.begin()
        self._workers.release()

    def _on_evaluated(self, worker: WorkerRecord, result: m.Evaluated) -> None:
        lease = self._evaluations.find(result.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, result, lease.reason)
            return
        if (problem := self._evaluations.on_evaluated(result, lease)) is not None:
            self._count_violation(worker, result, problem)
            return
        self._leases.on_evaluated(lease)
        worker.is_failing = False
        self._workers.make_idle(worker)
        if not self._evaluations.conclude():
            self._proceed(only=worker.node)
            return
        self._batch_failures.clear()
        self._decide()

    def _decide(self) -> None:
        """Between two epochs: go on, or is it done?"""
        if (ending := self._ending.after_epoch()) is not None:
            self._end(*ending)
            return
        self._save()
        self._lend()

    # Time ------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if self._phase is LeaderPhase.ENDED:
            return
        self.timer(_TICK, TICK_S)
        self._leases.expire()
        if self._phase is LeaderPhase.CLOSING:
            if self._durability.may_retry():
                self._save()
            self.send(self._manager, self.progress())
            return
        self._reshape()
        self._proceed()
        if (verdict := self._stats.look()) is not None:
            self.record("saturation.estimated", verdict)
        self._lending.explain_waits(self._held_up() or (None if self._enough() else self._reason))
        self._out_of_time()
        self._save_if_due()
        self.send(self._manager, self.progress())

    def _on_late(self) -> None:
        if self._phase.is_over:
            return
        if self._leases.expire():
            self._proceed()
        self._leases.watch_the_last()

    def _out_of_time(self) -> None:
        if self._is_asking:
            return
        if self._ending.decided is not None:
            # The last evaluation runs. It does not wait for workers that may never come.
            if not self._enough():
                self._end(*self._ending.decided)
            return
        if (ending := self._ending.by_time()) is None:
            return
        has_nothing_new = self._training.is_evaluated or self._training.version == 0
        if has_nothing_new or not self._spec.test.examples or not self._enough():
            self._end(*ending)
            return
        self.record("end.decided", ending[1])
        if self._evaluations.now is None:
            self._gathering.let_go("the job's time is over")
            self._leases.take_back_training(fate="was taken back: the job's time is over")
            if self._training.ledger.merged:
                # Merged updates belong to the last version; later they would change the model under the evaluation.
                self._advance(self._evaluate_at_last)
            else:
                self._evaluate_at_last()
            return
        self._lend()

    def _evaluate_at_last(self) -> None:
        """Time is over: evaluate the last version."""
        if self._training.ledger.finished:
            self._on_epoch_over()
            return
        self._begin_evaluation()
        self._lend()

    # Durable, then said ------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._durability.save(self._number, self._snapshot)

    @property
    def _number(self) -> int:
        """The version's number as it is saved. The last of a leader may have a higher one than its own: another leader
        used the numbers in between, on its side of a cut. Not before the round is over: leases name versions."""
        is_over = self._parting is not None and self._evaluations.now is None and not self._training.ledger.outstanding
        is_last = self._phase.is_over or is_over
        return max(self._training.version, self._version_least) if is_last else self._training.version

    def _save_if_due(self) -> None:
        if self._durability.due(every_s=self._spec.plan.checkpoint_every_s):
            self._save()

    def _on_saved(self, version: int) -> None:
        self._training.went_back = tuple(pair for pair in self._training.went_back if pair[1] > version)
        if self._durability.on_saved(version):
            self._save()
        elif self._phase is LeaderPhase.CLOSING and not self._durability.is_saving:
            self._over()

    def _end(self, state: str, reason: str) -> None:
        """Decide that the job is over. It is said once the last version is durable."""
        if self._phase.is_over:
            return
        reason = m.clip(reason)
        self._ending.decided = (state, reason)
        self._phase, self._reason = LeaderPhase.CLOSING, reason
        self._training.stop()
        self._evaluations.cancel()
        self.record("end.decided", f"{state}: {reason}")
        if self._aggregation.pace.takes_the_rest(merged=self._training.ledger.merged):
            self._advance(self._save)
        else:
            self._save()

    def _over(self) -> None:
        assert self._ending.decided is not None
        self._phase, (_, reason) = LeaderPhase.ENDED, self._ending.decided
        finished = m.Finished(job=self._spec.job, reason=reason)
        for node in (*self._workers.nodes(), *(hub.node for hub in self._workers.hubs())):
            self.send(node, finished)
        self.send(self._manager, self.progress())
        self.act(End(reason=reason))

    # What people see ---------------------------------------------------------------------------------------

    def record(self, kind: str, reason: str, *, job: str = "", traceback: str = "") -> None:
        """Every record is of this leader's job. Round statistics and fixed shares go by its kind."""
        self._stats.on_record(kind)
        self._shared.shares.on_record(kind)
        super().record(kind, m.clip(reason), job=job or self._spec.job, traceback=traceback)

    def progress(self) -> m.Progress:
        """Report how the job stands."""
        ending = self._ending.decided if self._phase is LeaderPhase.ENDED else None
        standing = Standing(
            state=ending[0] if ending else self._phase.value,
            reason=self._reason or self._workers.trouble(),
            version=self._number,
            refused=self._refused,
            bytes_up=self._bytes_up + self._aggregation.bytes_up,
            bytes_down=self._lending.bytes_down + self._aggregation.bytes_down,
            pace=self._aggregation.pace_name,
            typical_s=self._leases.clock.typical_s,
            spent=self._lending.spent(),
        )
        return progress_of(self._shared, standing, stats=self._stats, policy=self._policy)
