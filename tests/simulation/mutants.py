"""Deliberate bugs in the protocol, to show that the checks can fail. Each is a mistake someone could make, held for as
long as its context lasts; none knows how it will be caught.

A mutant puts a wrong variant in the place of one part's code. Those that a story shows, and no seed, are listed apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np

from dst.managers import remembered as sim_remembered
from dst.managers.remembered import SimRemembered
from dst.managers.several import SeveralManagers
from dst.managers.shared_store import SharedDisk, SharedStore, SimSeats, SimTenure
from shoal.compress.sparse import Sparse
from shoal.learning.algorithm import AlgorithmState
from shoal.learning.algorithm_call import AlgorithmAnswer
from shoal.learning.outer import OuterState
from shoal.learning.pace import Buffered, Sync
from shoal.learning.parameter_staleness import ParameterStaleness
from shoal.learning.partial import Partial
from shoal.learning.staleness import SIMILAR, Lateness, damping
from shoal.roles.actions import Action, Answer, End, Save, Send, Store
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import (
    EvaluationDone,
    Liveness,
    PeerChanged,
    Received,
    Stored,
    StoreFailed,
    Trained,
    TrainerFailed,
)
from shoal.roles.leader.changes import Changes
from shoal.roles.leader.checkpointing import Durability, Snapshot
from shoal.roles.leader.evaluation import Evaluation, Evaluations
from shoal.roles.leader.gathering.controller import AggregationController
from shoal.roles.leader.gathering.formation import AggregatorShare, Formation
from shoal.roles.leader.gathering.formations import Formations
from shoal.roles.leader.gathering.model_relay import ModelRelay
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.lending import Lending
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.leader.update_checks import UpdateChecks
from shoal.roles.leader.weighing import UpdateRows
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.roles.manager import cluster_state, seat_watch
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, LeadershipStage, NodeRecord
from shoal.roles.manager.failover import Failover
from shoal.roles.manager.manager import Manager
from shoal.roles.manager.moving import Moving
from shoal.roles.manager.other_managers import OtherManagers
from shoal.roles.manager.reconciliation import Reconciliation
from shoal.roles.manager.referrals import Referrals
from shoal.roles.manager.reunion import HistoryVerdict, Side, together
from shoal.roles.manager.seat_watch import Seat, SeatWatch
from shoal.roles.manager.staffing import Staffing
from shoal.roles.node.device_router import DeviceRouter
from shoal.roles.node.failure_detector import FailureDetector
from shoal.roles.node.host_router import Delivery, HostRouter, _Led
from shoal.roles.worker.delivery import Held, UpdateDelivery
from shoal.roles.worker.participation import Participation
from shoal.roles.worker.staging import Staging
from shoal.roles.worker.worker import Worker
from shoal.scheduling.admission import Admission
from shoal.scheduling.check_in import CheckIns
from shoal.scheduling.deadlines import LeaseClock
from shoal.scheduling.ledger import APPLIED, FREE, LEASED, Applied, Lease, Ledger
from shoal.scheduling.placement import Candidate
from shoal.sim.disk import Disk, Write
from shoal.states import JobState, LeaderPhase
from shoal.wire.coded import decode
from shoal.wire.messages import (
    Assign,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Dismiss,
    Go,
    HandOver,
    Hello,
    JobSpec,
    LeaderUnreachable,
    Message,
    ModelShard,
    Progress,
    Ready,
    Reduce,
    ReduceResult,
    Revoke,
    Route,
    SetUpAggregator,
    SteppedDown,
    Submit,
    TearDown,
    Tensors,
    Update,
    UpdateRefused,
    UpdateShard,
    Work,
)

Patched = AbstractContextManager[object]
Mutant = Callable[[], Patched]


@contextmanager
def _decided(machine: Machine) -> Iterator[list[Action]]:
    """The actions that a machine decides in this block, which may be changed before they are added to the others."""
    before, machine._actions = machine._actions, []
    yield machine._actions
    machine._actions = [*before, *machine._actions]


# Updates -------------------------------------------------------------------------------------------------


def duplicate_update_applied() -> Patched:
    """An update that comes twice within a round is summed twice: it is refused only after that."""
    on_update = Leader._on_update

    def sum_first(self: Leader, worker: WorkerRecord, update: Update) -> None:
        for lease in self._training.ledger._merged:
            if (lease.id, lease.worker) == (update.lease, worker.node):
                delta, _ = self._checks.checked(update, lease)
                self._training._partial.add(delta, weight=float(update.examples))
        on_update(self, worker, update)

    return patch.object(Leader, "_on_update", sum_first)


def step_without_waiting() -> Patched:
    """The model moves while leases are out, and what comes late is merged into a later version."""

    def should_step(self: Sync, *, merged: int, outstanding: int) -> bool:
        return merged > 0

    return patch.object(Sync, "should_step", should_step)


@contextmanager
def stale_term_merged() -> Iterator[None]:
    """An update made for an earlier leader is merged under the lease that has its number now."""
    on_received = Leader._on_received

    def without_terms(self: Leader, event: Received) -> None:
        if isinstance(event.message, Update):
            event = replace(event, message=replace(event.message, term=self._term))
        on_received(self, event)

    def without_version(self: UpdateChecks, update: Update, lease: Lease) -> np.ndarray | Sparse:
        return decode(self._codec, update.tensors, self._sizes)

    with patch.object(Leader, "_on_received", without_terms), patch.object(UpdateChecks, "checked", without_version):
        yield


def expired_lease_merged() -> Patched:
    """A lease that was taken back is still found, so that its late update is merged too."""

    def release(self: Ledger, lease: Lease, *, fate: str) -> None:
        for batch in lease.batches:
            self._move(batch, LEASED, FREE)
            self._returned.append(batch)
        self._returned.sort()

    return patch.object(Ledger, "release", release)


def every_update_weighs_the_same() -> Patched:
    """The examples of a lease are not counted: short leases pull as hard as full ones."""
    add = Partial.add

    def add_one(self: Partial, update: np.ndarray, *, weight: float, scale: float = 1.0) -> None:
        add(self, update, weight=100.0, scale=scale)

    return patch.object(Partial, "add", add_one)


def round_not_cleared() -> Patched:
    """What was merged into one version is merged into the next as well."""

    def clear(self: Partial) -> None:
        pass

    return patch.object(Partial, "clear", clear)


# Pace ----------------------------------------------------------------------------------------------------


def staleness_not_applied() -> Patched:
    """A late update counts as much as a fresh one, whatever the plan says."""

    def weight(self: Lateness, rule: str, staleness: int, *, similarity: float = 1.0) -> float:
        return 1.0

    return patch.object(Lateness, "weight", weight)


def staleness_applied_twice() -> Patched:
    """A late update is scaled where it is merged, and once more where it is summed."""
    add = Partial.add

    def add_again(self: Partial, update: np.ndarray, *, weight: float, scale: float = 1.0) -> None:
        add(self, update, weight=weight, scale=scale * scale)

    return patch.object(Partial, "add", add_again)


def divided_by_damped_weights() -> Patched:
    """The mean is of the damped weights: a late update that is alone in its version is not damped at all."""
    add = Partial.add

    def add_damped(self: Partial, update: np.ndarray, *, weight: float, scale: float = 1.0) -> None:
        add(self, update, weight=weight * scale)

    return patch.object(Partial, "add", add_damped)


def late_is_late() -> Patched:
    """Whatever was made against an older version counts as one version late."""
    merge = TrainingState.merge

    def merge_as_late(self: TrainingState, lease: Lease, update: Update, delta: np.ndarray) -> None:
        late = min(self.version - lease.version, 1)
        merge(self, replace(lease, version=self.version - late), update, delta)

    return patch.object(TrainingState, "merge", merge_as_late)


def lateness_outlives_its_leader() -> Patched:
    """Where stragglers begin is remembered by the process: the next leader starts from what another one saw."""
    recent: deque[int] = deque(maxlen=1000)
    init = Lateness.__init__

    def with_the_old(self: Lateness, **settings: Any) -> None:
        init(self, **settings)
        self._recent = recent

    return patch.object(Lateness, "__init__", with_the_old)


def stragglers_count_for_nothing() -> Patched:
    """Λ is taken of the whole staleness, as FLeet prints it, and not of at most the threshold."""
    weight = Lateness.weight

    def not_clamped(self: Lateness, rule: str, staleness: int, *, similarity: float = 1.0) -> float:
        if rule not in ("exponential", SIMILAR) or self.threshold is None:
            return weight(self, rule, staleness, similarity=similarity)
        return math.exp(-damping(self.threshold) * staleness)

    return patch.object(Lateness, "weight", not_clamped)


def tail_begins_at_its_end() -> Patched:
    """The threshold of staleness is the latest update that came: then nobody is a straggler."""

    def at_its_end(self: Lateness) -> float | None:
        return float(self.worst) if len(self._recent) >= 50 else None

    return patch.object(Lateness, "threshold", property(at_its_end))


def one_update_too_many() -> Patched:
    """The buffer is emptied only when it overflows: K + 1 updates make a version."""

    def should_step(self: Buffered, *, merged: int, outstanding: int) -> bool:
        return merged > self.size

    return patch.object(Buffered, "should_step", should_step)


def buffer_waits_at_the_end() -> Patched:
    """Nobody sees that no other update can come: the last of an epoch stay in the buffer."""

    def proceed(self: Leader, only: str | None = None) -> None:
        ledger = self._training.ledger
        if self._phase.is_over:
            return
        if self._aggregation.pace.should_step(merged=ledger.merged, outstanding=ledger.outstanding):
            self._step()
        else:
            self._lend(only=only)

    return patch.object(Leader, "_proceed", proceed)


def buffer_lost_at_hand_over() -> Patched:
    """A leader that is to step down begins nothing new, not even a version of what it has."""
    proceed = Leader._proceed

    def unless_parting(self: Leader, only: str | None = None) -> None:
        ledger = self._training.ledger
        if self._parting is None or self._evaluations.now is not None:
            proceed(self, only)
        elif self._aggregation.pace.should_step(merged=ledger.merged, outstanding=ledger.outstanding):
            self._step()
        else:
            self._lend(only=only)

    return patch.object(Leader, "_proceed", unless_parting)


def emptied_after_every_update() -> Patched:
    """A worker that has brought its update is not lent the next before it is looked whether anyone else is out."""

    def should_step(self: Buffered, *, merged: int, outstanding: int) -> bool:
        return merged >= self.size or (merged > 0 and outstanding <= 1)

    return patch.object(Buffered, "should_step", should_step)


# Leases --------------------------------------------------------------------------------------------------


def lease_never_expires() -> Patched:
    """Nobody looks at deadlines: a lease whose worker forgot it is waited for without end."""

    def expire(self: Ledger, now_s: float) -> list[Lease]:
        return []

    return patch.object(Ledger, "expire", expire)


def lease_without_end() -> Patched:
    """Leases have no deadline that anyone lives to see, for the worker no more than for the leader."""

    def allowance_s(self: LeaseClock) -> float:
        return 1e9

    return patch.object(LeaseClock, "allowance_s", allowance_s)


def expired_batches_lost() -> Patched:
    """A lease that ends without an update does not give its batches back."""

    def release(self: Ledger, lease: Lease, *, fate: str) -> None:
        self._end(lease, fate)

    return patch.object(Ledger, "release", release)


def lost_worker_keeps_its_leases() -> Patched:
    """The leases of a lost worker are not returned: everyone waits until they expire."""
    on_peer = Leader._on_peer

    def keep_leases(self: Leader, event: PeerChanged) -> None:
        with patch.object(self._leases, "give_up", lambda node, fate: None):
            on_peer(self, event)

    return patch.object(Leader, "_on_peer", keep_leases)


def epoch_closed_early() -> Patched:
    """An epoch counts as finished while one batch is missing."""
    finished = property(lambda self: self._applied_count >= self.batches - 1 and self._applied_count > 0)
    return patch.object(Ledger, "finished", finished)


def unlimited_uploads() -> Patched:
    """Whoever offers an update may send it: memory has no bound."""

    def offer(self: Admission, lease: int) -> bool:
        self._held.add(lease)
        return True

    return patch.object(Admission, "offer", offer)


def credit_for_everyone() -> Patched:
    """Leases allow an upload in advance, however many workers there are."""

    def in_advance(self: Admission, lease: int, *, workers: int) -> bool:
        return True

    return patch.object(Admission, "in_advance", in_advance)


def credit_not_counted() -> Patched:
    """Few workers are allowed to upload in advance, and those who come later find all places free."""

    def in_advance(self: Admission, lease: int, *, workers: int) -> bool:
        return workers <= self.capacity

    return patch.object(Admission, "in_advance", in_advance)


def upload_place_not_freed() -> Patched:
    """An upload that ended keeps its place: those who wait are never let in."""

    def done(self: Admission, lease: int) -> int | None:
        self._queue.pop(lease, None)
        return None

    return patch.object(Admission, "done", done)


# What survives a crash -----------------------------------------------------------------------------------


def told_before_durable() -> Patched:
    """A version is called durable when its save begins."""
    save = Durability.save

    def save_and_tell(self: Durability, version: int, snapshot: Snapshot) -> None:
        self.version = version
        save(self, version, snapshot)

    return patch.object(Durability, "save", save_and_tell)


def failed_save_called_durable() -> Patched:
    """A save that failed counts as one that came through."""

    def failed(self: Durability, reason: str) -> bool:
        assert self._saving is not None
        self.on_saved(self._saving)
        return True

    return patch.object(Durability, "on_failed", failed)


def history_lost_with_a_failed_save() -> Patched:
    """What a save was to make durable is dropped when it fails."""
    failed = Durability.on_failed

    def failed_and_forgotten(self: Durability, reason: str) -> bool:
        del self._applied[: self._in_flight[0]]
        return failed(self, reason)

    return patch.object(Durability, "on_failed", failed_and_forgotten)


def history_lost_during_a_save() -> Patched:
    """What was applied while a save ran is dropped when it ends."""
    saved = Durability.on_saved

    def saved_everything(self: Durability, version: int) -> bool:
        again = saved(self, version)
        self._applied.clear()
        return again

    return patch.object(Durability, "on_saved", saved_everything)


def two_saves_at_once() -> Patched:
    """A save begins while another runs, and both carry the same history."""
    save = Durability.save

    def save_anyway(self: Durability, version: int, snapshot: Snapshot) -> None:
        self._saving = None
        save(self, version, snapshot)

    return patch.object(Durability, "save", save_anyway)


def merged_saved_as_applied() -> Patched:
    """A snapshot counts batches that are merged, though no version holds them yet."""
    snapshot = Ledger.snapshot

    def snapshot_of_merged(self: Ledger) -> dict[str, Any]:
        state = bytes(self._state)
        for lease in self._merged:
            for batch in lease.batches:
                self._state[batch] = APPLIED
        taken = snapshot(self)
        self._state = bytearray(state)
        return taken

    return patch.object(Ledger, "snapshot", snapshot_of_merged)


def ledger_not_restored() -> Patched:
    """A successor takes the model and begins the epoch anew."""
    restore = TrainingState.restore

    def restore_model(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self.ledger = Ledger(batches=self.ledger.batches, epoch=self.ledger.epoch)

    return patch.object(TrainingState, "restore", restore_model)


def model_not_restored() -> Patched:
    """A successor takes the ledger and goes on from the first model."""
    restore = TrainingState.restore

    def restore_ledger(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        model = self.model
        restore(self, tensors=tensors, state=state)
        self.model = model

    return patch.object(TrainingState, "restore", restore_ledger)


def momentum_not_restored() -> Patched:
    """A successor begins with a velocity of nothing."""
    restore = TrainingState.restore

    def restore_at_rest(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self.velocity = np.zeros_like(self.velocity)

    return patch.object(TrainingState, "restore", restore_at_rest)


def restored_batches_lent_again() -> Patched:
    """A restored ledger counts from the first batch, whatever was applied."""

    def skip(self: Ledger) -> None:
        pass

    return patch.object(Ledger, "_skip_applied", skip)


def model_changed_under_a_save() -> Patched:
    """The next version is written into the array that is being saved."""
    advance = TrainingState.advance

    def advance_in_place(self: TrainingState, *answer: Any) -> list[Applied]:
        before = self.model
        rows = advance(self, *answer)
        if self.version > 1:
            # The first model is the job's and not ours to write to.
            before.flags.writeable = True
            before[:] = self.model
            self.model = before
        self.model.flags.writeable = True
        return rows

    return patch.object(TrainingState, "advance", advance_in_place)


# The end of a job ----------------------------------------------------------------------------------------


def finished_before_durable() -> Patched:
    """Everyone is told that a job is over when its last save begins."""
    end = Leader._end

    def end_at_once(self: Leader, state: str, reason: str) -> None:
        is_first = not self._phase.is_over
        end(self, state, reason)
        if is_first:
            self._over()

    return patch.object(Leader, "_end", end_at_once)


def ending_forgotten() -> Patched:
    """A successor does not know that the job was about to end, and trains on."""
    restore = Leader.restore

    def restore_unending(self: Leader, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state={**state, "ending": None})

    return patch.object(Leader, "restore", restore_unending)


def ended_job_led_again() -> Patched:
    """A manager that starts gives every job a leader, ended or not."""
    started = Failover.on_started

    def start_all(self: Failover) -> None:
        for record in self._cluster.jobs.values():
            record.state = JobState.QUEUED
        started(self)

    return patch.object(Failover, "on_started", start_all)


def workers_not_dismissed() -> Patched:
    """The workers of a job that is over keep their place in it."""
    on_progress = Manager._on_progress

    def keep_workers(self: Manager, sender: str, progress: Progress) -> None:
        with patch.object(self._cluster, "members", lambda job: []):
            on_progress(self, sender, progress)

    return patch.object(Manager, "_on_progress", keep_workers)


def gives_up_at_the_first_failure() -> Patched:
    """A job fails when one lease does."""
    return patch("shoal.roles.leader.suspicion.BATCH_FAILURES_MAX", 1)


# The manager ---------------------------------------------------------------------------------------------


def term_not_raised() -> Patched:
    """A leader that is appointed again speaks under the term of the one before."""
    appoint = Appointments.appoint

    def appoint_in_term(self: Appointments, record: JobRecord) -> None:
        record.term = max(0, record.term - 1)
        appoint(self, record)

    return patch.object(Appointments, "appoint", appoint_in_term)


def job_not_kept() -> Patched:
    """A job is accepted and not written down."""
    on_submit = Manager._on_submit

    def accept(self: Manager, question: int, submit: Submit) -> None:
        with _decided(self) as actions:
            on_submit(self, question, submit)
            actions[:] = [action for action in actions if getattr(action, "spec", None) is None]

    return patch.object(Manager, "_on_submit", accept)


def accepted_before_kept() -> Patched:
    """A job is accepted first and written down after that."""
    on_submit = Manager._on_submit

    def answer_first(self: Manager, question: int, submit: Submit) -> None:
        with _decided(self) as actions:
            on_submit(self, question, submit)
            actions.sort(key=lambda action: not isinstance(action, Answer))

    return patch.object(Manager, "_on_submit", answer_first)


def term_kept_after_it_is_used() -> Patched:
    """A leader is appointed first, and its term written down after that."""
    appoint = Appointments.appoint

    def appoint_first(self: Appointments, record: JobRecord) -> None:
        with _decided(self._machine) as actions:
            appoint(self, record)
            actions.sort(key=lambda action: not isinstance(action, Send))

    return patch.object(Appointments, "appoint", appoint_first)


def lost_node_keeps_its_place() -> Patched:
    """A node that was lost still counts as one of its job's workers."""
    on_peer = Manager._on_peer

    def keep_place(self: Manager, event: PeerChanged) -> None:
        place = self._cluster.place

        def keep_or_place(node: NodeRecord, job: str | None) -> None:
            if job is not None:
                place(node, job)

        with patch.object(self._cluster, "place", keep_or_place):
            on_peer(self, event)

    return patch.object(Manager, "_on_peer", keep_place)


def back_without_its_job() -> Patched:
    """A node whose session is back is not told again what it works for, and where that is led."""
    assign = Staffing.assign

    def assign_new_ones(self: Staffing, node: NodeRecord, record: JobRecord, reason: str) -> None:
        if not reason.startswith("back"):
            assign(self, node, record, reason)

    return patch.object(Staffing, "assign", assign_new_ones)


def left_where_it_was() -> Patched:
    """A node that was given up and is back is not told to leave the job it worked for."""

    def stay(self: Manager, node: NodeRecord) -> None:
        pass

    return patch.object(Manager, "_dismiss_elsewhere", stay)


def silence_is_borne() -> Patched:
    """Nobody is lost, however long it is silent."""

    def check(self: FailureDetector, now_s: float) -> list[Any]:
        return []

    return patch.object(FailureDetector, "check", check)


# Leaders on devices, and who follows them ------------------------------------------------------------------


def no_fence_on_versions() -> Patched:
    """A version is kept for whoever sends it, also under a term that is over."""

    def keep_any(self: Failover, sender: str, checkpoint: Checkpoint) -> None:
        record = self._cluster.jobs.get(checkpoint.job)
        if record is None or record.storing is not None:
            return
        record.storing, record.storing_number = checkpoint.version, checkpoint.number
        self._machine.act(Store(checkpoint=checkpoint))

    return patch.object(Failover, "on_checkpoint", keep_any)


def kept_before_durable() -> Patched:
    """A leader elsewhere hears that its version is kept when the write begins."""
    on_checkpoint = Failover.on_checkpoint

    def answer_at_once(self: Failover, sender: str, message: Checkpoint) -> None:
        with _decided(self._machine) as actions:
            on_checkpoint(self, sender, message)
            if any(isinstance(action, Store) for action in actions):
                kept = CheckpointKept(
                    job=message.job, term=message.term, version=message.version, number=message.number
                )
                actions.append(Send(to=sender, message=kept))

    return patch.object(Failover, "on_checkpoint", answer_at_once)


def failed_write_called_kept() -> Patched:
    """A leader elsewhere hears that its version is kept when the write failed."""
    on_stored = Failover.on_stored

    def stored_anyway(self: Failover, event: Stored | StoreFailed) -> None:
        on_stored(self, Stored(job=event.job, term=event.term, version=event.version))

    return patch.object(Failover, "on_stored", stored_anyway)


def appointed_while_a_version_is_written() -> Patched:
    """The next leader is appointed although a version of the last one is being written."""

    def fill_all(self: Failover) -> None:
        for record in [record for record in self._cluster.open_jobs() if record.stage is LeadershipStage.VACANT]:
            self._appointments.appoint(record)

    return patch.object(Failover, "fill", fill_all)


def any_term_speaks_for_its_job() -> Patched:
    """The manager asks whether a node leads a job, and not under which term it speaks."""

    def of(self: ClusterState, sender: str, message: Message) -> JobRecord | None:
        record = self.jobs.get(str(getattr(message, "job", "")))
        return record if record is not None and record.is_open and sender == record.leader else None

    return patch.object(ClusterState, "job_of", of)


def last_word_said_once() -> Patched:
    """A leader's last word is not repeated when the session it was said on broke."""

    def say_once(self: HostRouter, word: Progress | SteppedDown) -> None:
        say_last(self, word)
        self._last_words.pop(word.job, None)

    say_last = HostRouter._say_last
    return patch.object(HostRouter, "_say_last", say_once)


def save_waits_for_a_lost_session() -> Patched:
    """A version that was on its way when the session broke is waited for without end."""

    def out_of_touch(self: HostRouter, *, reason: str) -> list[Delivery]:
        self._in_touch = False
        return []

    return patch.object(HostRouter, "on_manager_lost", out_of_touch)


def handed_over_before_durable() -> Patched:
    """A leader that is to hand over steps down when its last save begins."""

    def step_down(self: Leader) -> None:
        if self._phase.is_over or self._evaluations.now is not None or self._training.ledger.outstanding:
            return
        if not self._durability.is_saving:
            self._save()
        self._phase = LeaderPhase.ENDED
        self.send(self._manager, SteppedDown(job=self._spec.job, term=self._term, reason="handed over"))
        self.act(End(reason="handed over"))

    return patch.object(Leader, "_hand_over", step_down)


def handed_over_with_leases_out() -> Patched:
    """A leader that is to hand over does not wait for those who train."""
    hand_over = Leader._hand_over

    def without_waiting(self: Leader) -> None:
        with patch.object(Ledger, "outstanding", 0):
            hand_over(self)

    return patch.object(Leader, "_hand_over", without_waiting)


def missed_leader_never_replaced() -> Patched:
    """A manager that started anew waits for the leader it remembers, and waits."""
    on_timer = Failover.on_timer

    def never(self: Failover, name: str) -> None:
        if name != "missed":
            on_timer(self, name)

    return patch.object(Failover, "on_timer", never)


def missed_leader_replaced_at_once() -> Patched:
    """A manager that started anew appoints another leader although the last one leads on."""

    def vacate_all(self: Failover) -> None:
        for record in self._cluster.open_jobs():
            record.leader = None

    return patch.object(Failover, "on_started", vacate_all)


def lost_leader_kept() -> Patched:
    """A leader that was lost is waited for."""

    def wait(self: Failover, node: str, reason: str, *, is_certain: bool = False) -> None:
        pass

    return patch.object(Failover, "on_lost", wait)


def history_counted_twice() -> Patched:
    """History that came once more with a later save is written down once more."""

    new_in = Disk._new_in

    def all_of(self: Disk, write: Write) -> tuple[Save, tuple[Applied, ...], tuple[Applied, ...]]:
        save, _, _ = new_in(self, write)
        return replace(save, applied=write.save.applied), (), ()

    return patch.object(Disk, "_new_in", all_of)


def stepping_down_is_not_heard() -> Patched:
    """A leader whose term is over is told so, and leads on."""

    def lead_on(self: HostRouter, message: Message) -> None:
        pass

    return patch.object(HostRouter, "_on_step_down", lead_on)


def worker_stays_with_its_leader() -> Patched:
    """A device that works for a job takes no notice of where it is led now."""
    on_assigned = DeviceRouter._on_assigned

    def stay(self: DeviceRouter, assign: Assign) -> None:
        before = self._assigned.get(assign.job)
        if before is None or before.leader == assign.leader:
            on_assigned(self, assign)

    return patch.object(DeviceRouter, "_on_assigned", stay)


def hand_over_ignored() -> Patched:
    """A leader that is asked to hand over goes on."""
    on_received = Leader._on_received

    def go_on(self: Leader, event: Received) -> None:
        if not isinstance(event.message, HandOver):
            on_received(self, event)

    return patch.object(Leader, "_on_received", go_on)


def bar_ignored() -> Patched:
    """A leader elsewhere keeps a worker that the manager gave up."""

    def keep(self: HostRouter, message: Revoke) -> None:
        pass

    return patch.object(HostRouter, "_on_revoke", keep)


def old_work_done() -> Patched:
    """A worker does what a leader lends whose term is over."""
    on_work = Worker._on_work

    def take(self: Worker, work: Work, **told: Any) -> None:
        self.term = min(self.term, work.term)
        on_work(self, work, **told)

    return patch.object(Worker, "_on_work", take)


def same_version_taken_for_another() -> Patched:
    """That a version is kept is also believed of a save that was given up with a session, and asked for once more with
    more in it."""

    def of_that_version(self: _Led, answer: CheckpointKept | CheckpointRefused) -> bool:
        return (answer.term, answer.version) == (self.assign.term, self.saving)

    return patch.object(_Led, "is_saving", of_that_version)


def complaint_not_heard() -> Patched:
    """A worker that cannot reach a leader which is gone is not told that its job is over."""
    on_leader_unreachable = Failover.on_leader_unreachable

    def listen(self: Failover, sender: str, message: LeaderUnreachable) -> None:
        record, node = self._cluster.jobs.get(message.job), self._cluster.nodes.get(sender)
        if record is None or not record.is_open or (node is not None and node.job != message.job):
            return
        on_leader_unreachable(self, sender, message)

    return patch.object(Failover, "on_leader_unreachable", listen)


# Workers -------------------------------------------------------------------------------------------------


def worker_trusts_its_model() -> Patched:
    """A worker trains on whatever model it holds, without a look at the version."""
    on_work = Worker._on_work

    def take(self: Worker, work: Work, **told: Any) -> None:
        self._holds = (work.term, work.version)
        on_work(self, work, **told)

    return patch.object(Worker, "_on_work", take)


def leader_trusts_in_models() -> Patched:
    """A leader that sent one model believes that its worker has every later one."""
    work = Lending._work

    def without_model(self: Lending, worker: WorkerRecord, lease: Lease, **told: Any) -> Work:
        if worker.holds[0] == self._term:
            worker.holds = (self._term, self._training.version)
        return work(self, worker, lease, **told)

    return patch.object(Lending, "_work", without_model)


def result_of_another_lease() -> Patched:
    """A worker whose lease was replaced sends what it trained for the old one under the new."""
    on_result = Worker._on_result

    def take_any(self: Worker, event: Trained | EvaluationDone) -> None:
        if isinstance(event, Trained) and self._held is not None:
            event = replace(event, lease=self._held.work.lease)
        on_result(self, event)

    return patch.object(Worker, "_on_result", take_any)


def refused_update_sent_again() -> Patched:
    """A worker keeps an update that was refused and sends it under its next lease."""
    send, on_work, on_refused = Worker.send, Worker._on_work, Worker._on_refused
    sent: WeakKeyDictionary[Worker, Update] = WeakKeyDictionary()
    refused: WeakKeyDictionary[Worker, Update] = WeakKeyDictionary()

    def send_and_keep(self: Worker, to: str, message: Any) -> None:
        if isinstance(message, Update) and not message.formation:
            sent[self] = message
        send(self, to, message)

    def keep_refused(self: Worker, message: UpdateRefused) -> None:
        last = sent.get(self)
        if last is not None and last.lease == message.lease:
            refused[self] = last
        on_refused(self, message)

    def work_or_resend(self: Worker, work: Work, **told: Any) -> None:
        kept = refused.pop(self, None)
        if kept is None or work.kind != "train":
            on_work(self, work, **told)
        else:
            send(self, self.leader, replace(kept, term=work.term, lease=work.lease, version=work.version))

    return patch.multiple(Worker, send=send_and_keep, _on_refused=keep_refused, _on_work=work_or_resend)


def refusal_ignored() -> Patched:
    """A worker takes no notice of a refusal and keeps its update."""

    def ignore(self: Worker, message: UpdateRefused) -> None:
        pass

    return patch.object(Worker, "_on_refused", ignore)


def silent_after_reconnecting() -> Patched:
    """A worker that has nothing to deliver says nothing when its session is back."""
    resume = Worker._resume

    def resume_with_a_result(self: Worker) -> None:
        if self._held is not None:
            resume(self)

    return patch.object(Worker, "_resume", resume_with_a_result)


def update_dropped_without_a_word() -> Patched:
    """A worker without a session drops its update, and still believes that it has a lease."""
    deliver = UpdateDelivery.deliver

    def deliver_or_drop(self: UpdateDelivery, held: Held) -> bool:
        if not self._worker.is_connected:
            held.result = None
            return False
        return deliver(self, held)

    return patch.object(UpdateDelivery, "deliver", deliver_or_drop)


# Evaluations ---------------------------------------------------------------------------------------------


def evaluations_mixed() -> Patched:
    """An evaluation begins with what the one before counted."""
    begin = Evaluations.begin
    last: WeakKeyDictionary[Evaluations, Evaluation] = WeakKeyDictionary()

    def begin_with_old(self: Evaluations) -> None:
        begin(self)
        assert self.now is not None
        old = last.get(self)
        if old is not None:
            self.now._counted, self.now._sums = old._counted, old._sums
        last[self] = self.now

    return patch.object(Evaluations, "begin", begin_with_old)


def evaluation_closed_early() -> Patched:
    """An evaluation is over when its first part is in."""
    return patch.object(Evaluation, "finished", property(lambda self: self.ledger.applied > 0))


def evaluation_forgotten() -> Patched:
    """No version is ever evaluated."""

    def never(self: Evaluations, *, is_ending: bool) -> bool:
        return False

    return patch.object(Evaluations, "is_due", never)


def evaluation_lost_with_a_failed_save() -> Patched:
    """An evaluation that a save was to make durable is dropped when it fails."""
    failed = Durability.on_failed

    def failed_and_forgotten(self: Durability, reason: str) -> bool:
        self._evaluations.clear()
        return failed(self, reason)

    return patch.object(Durability, "on_failed", failed_and_forgotten)


def last_epoch_left_out() -> Patched:
    """A job ends one epoch before its last."""
    decide = Leader._decide

    def decide_early(self: Leader) -> None:
        if self._training.ledger.epoch + 1 == self._spec.plan.until.epochs:
            self._end("finished", f"{self._spec.plan.until.epochs} of {self._spec.plan.until.epochs} epochs")
        else:
            decide(self)

    return patch.object(Leader, "_decide", decide_early)


def time_limit_ignored() -> Patched:
    """A job does not end when its time is over."""

    def never(self: Leader) -> None:
        pass

    return patch.object(Leader, "_out_of_time", never)


# Formations ----------------------------------------------------------------------------------------------


def piece_counted_twice() -> Patched:
    """An aggregator adds a piece to its sum when it comes, and again when it is counted."""
    on_piece = Aggregator._on_shard

    def add_at_once(self: Aggregator, member: str, piece: UpdateShard) -> None:
        if piece.lease not in self._tray and piece.lease not in self._counted:
            self._partial.add(piece.tensors["delta"], weight=1.0)
        on_piece(self, member, piece)

    return patch.object(Aggregator, "_on_shard", add_at_once)


def all_that_came_is_summed_up() -> Patched:
    """An aggregator sums up whatever it has, also what the leader does not know of yet."""
    on_reduce = Aggregator._on_reduce

    def count_all(self: Aggregator, count: Reduce) -> None:
        if count.last:
            more = tuple(lease for lease in self._tray if lease not in count.leases)
            ones = tuple(100.0 for _ in more)
            count = replace(
                count,
                leases=(*count.leases, *more),
                weights=(*count.weights, *ones),
                scales=(*count.scales, *(1.0 for _ in more)),
            )
        on_reduce(self, count)

    return patch.object(Aggregator, "_on_reduce", count_all)


def late_copy_kept_for_the_newer() -> Patched:
    """An aggregator keeps whichever piece of a member came last."""
    on_piece = Aggregator._on_shard

    def forget_newest(self: Aggregator, member: str, piece: UpdateShard) -> None:
        newest = self._newest.get(member, 0)
        if piece.lease < newest:
            self._tray.pop(newest, None)
            self._newest[member] = 0
        on_piece(self, member, piece)

    return patch.object(Aggregator, "_on_shard", forget_newest)


def sum_not_cleared() -> Patched:
    """An aggregator begins the next sum with what the last one was made of."""
    gather = Aggregator._reduce

    def gather_and_keep(self: Aggregator, count: Reduce) -> None:
        with patch.object(Partial, "clear", lambda self: None):
            gather(self, count)

    return patch.object(Aggregator, "_reduce", gather_and_keep)


def share_without_momentum() -> Patched:
    """An aggregator of a shard takes the step of its part as if there were no momentum."""
    init = Aggregator.__init__

    def at_rest(self: Aggregator, form: SetUpAggregator, **known: Any) -> None:
        init(self, replace(form, momentum=0.0), **known)

    return patch.object(Aggregator, "__init__", at_rest)


def share_begins_at_rest() -> Patched:
    """An aggregator of a shard does not look at the velocity that it is given."""

    def part_of(form: SetUpAggregator) -> tuple[np.ndarray, OuterState, np.ndarray | None]:
        residual = np.array(form.tensors["residual"]) if "residual" in form.tensors else None
        return np.array(form.tensors["model"]), OuterState.zeros(form.outer_rule, form.parameters), residual

    return patch("shoal.roles.aggregator.aggregator._part_of", part_of)


def buffers_have_momentum() -> Patched:
    """An aggregator of a shard takes running means for parameters."""
    form = Formations._form

    def all_parameters(
        self: Formations, formation: Formation, share: AggregatorShare, *, with_part: bool = False
    ) -> SetUpAggregator:
        told = form(self, formation, share, with_part=with_part)
        size = share.stop - share.start
        tensors = dict(told.tensors)
        if tensors:
            tensors["velocity"] = np.resize(np.append(tensors["velocity"], 0).astype(np.float32), size)
        return replace(told, parameters=size, tensors=tensors)

    return patch.object(Formations, "_form", all_parameters)


def reported_before_all_have_taken() -> Patched:
    """A worker reports its update when the first aggregator has its piece."""
    may_report = UpdateDelivery._may_report

    def report_early(self: UpdateDelivery, held: Held) -> bool:
        route = self._routes.get(held.formation)
        if route is None or not held.taken:
            return False
        return may_report(self, replace(held, taken={hop.node for hop in route.hops}))

    return patch.object(UpdateDelivery, "_may_report", report_early)


def taken_by_those_before() -> Patched:
    """A worker that sends its update by another formation believes that whoever had a piece of it still has it."""
    on_go = Worker._on_go

    def go_on(self: Worker, message: Go) -> None:
        held = self._held
        if held is not None and held.is_of(message):
            held.work = replace(held.work, formation=message.formation)
            held.formation = message.formation or None
        on_go(self, message)

    return patch.object(Worker, "_on_go", go_on)


def half_a_model_will_do() -> Patched:
    """A worker trains as soon as one part of the next version is there."""

    def is_whole(self: Staging, formation: int, version: int, route: Route) -> bool:
        return self._of == (route.term, formation, version) and bool(self._parts)

    return patch.object(Staging, "is_whole", is_whole)


def staged_values_taken_twice() -> Patched:
    """A worker believes that what its trainer took is still there."""

    def keep(self: Staging) -> None:
        pass

    return patch.object(Staging, "spend", keep)


def any_values_will_do() -> Patched:
    """A worker takes values of whichever version for those of its lease."""
    on_values = Worker._on_model_shard

    def of_its_lease(self: Worker, sender: str, values: ModelShard) -> None:
        held = self._held
        if held is not None and held.lacks_values and values.version < held.work.version:
            values = replace(values, version=held.work.version, tensors=values.tensors)
        on_values(self, sender, values)

    return patch.object(Worker, "_on_model_shard", of_its_lease)


def any_sum_will_do() -> Patched:
    """A leader does not look at which leases a sum is of."""
    gathered = Formations.on_reduce_result

    def as_asked(self: Formations, sender: str, message: ReduceResult) -> Any:
        now = self.now if self.now is not None and not self.now.broken else None
        share = now.share_led_by(sender) if now is not None else None
        if now is not None and share is not None and share.asked is not None:
            weight = sum(now.arrived[lease].update.examples for lease in share.asked)
            message = replace(message, leases=share.asked, weight=float(weight), tensors=message.tensors)
        return gathered(self, sender, message)

    return patch.object(Formations, "on_reduce_result", as_asked)


def one_part_for_all() -> Patched:
    """A leader takes a version of a shard for whole when the first part of its mean has come."""
    gathered = Formations.on_reduce_result

    def first_will_do(self: Formations, sender: str, message: ReduceResult) -> Any:
        now = self.now
        share = now.share_led_by(sender) if now is not None else None
        if now is not None and share is not None and share.asked is not None and now.kind == "shard":
            for other in now.shares:
                nothing = np.zeros(other.stop - other.start, dtype=np.float32)
                now.sums.setdefault(other.node, (nothing, nothing))
        return gathered(self, sender, message)

    return patch.object(Formations, "on_reduce_result", first_will_do)


def lost_aggregator_lent_by() -> Patched:
    """A leader lends by a formation whose aggregator is lost."""
    on_left = Formations.on_left

    def go_on(self: Formations, node: str, reason: str) -> None:
        on_left(self, node, reason)
        if self.now is not None:
            self.now.broken = None

    return patch.object(Formations, "on_left", go_on)


def lent_while_summed_up() -> Patched:
    """A leader lends a lease of a version whose shares are being summed up."""

    def hindrance(self: Formations, node: str) -> str | None:
        return None

    return patch.object(Formations, "hindrance", hindrance)


def summed_up_and_given_up() -> Patched:
    """The lease of a worker that is lost is lent anew, although its update is with the aggregators."""
    give_up = Leases.give_up

    def give_all_up(self: Leases, node: str, *, fate: str) -> None:
        with patch.object(Formations, "has_arrived", lambda self, lease: False):
            give_up(self, node, fate=fate)

    return patch.object(Leases, "give_up", give_all_up)


def late_is_not_late_in_a_tree() -> Patched:
    """A leader has aggregators count every update as if it were fresh."""
    count = Formations._count

    def as_fresh(self: Formations, reports: Any, *, last: bool = False) -> Reduce:
        told = count(self, reports, last=last)
        return replace(told, scales=tuple(1.0 for _ in told.leases))

    return patch.object(Formations, "_count", as_fresh)


def straight_into_a_shard() -> Patched:
    """An update that cannot go to every share of a model is merged by the leader alone."""
    redeliver = Formations.redeliver

    def all_of_them(self: Formations, leases: Any, is_here: Any) -> Any:
        going, astray = redeliver(self, leases, is_here)
        return [*going, *(lease for lease in astray if is_here(lease.worker))], [
            lease for lease in astray if not is_here(lease.worker)
        ]

    def none(self: Formations, node: str) -> str | None:
        now = self.now
        summing = now is not None and any(share.asked is not None for share in now.shares)
        return "it is being summed up" if summing else None

    return patch.multiple(Formations, redeliver=all_of_them, hindrance=none)


def all_send_anew_at_once() -> Patched:
    """When a formation breaks, everyone sends its update to the leader, whatever room there is."""

    def send_again(self: AggregationController, lease: Lease) -> None:
        self._formations.go(lease)

    return patch.object(AggregationController, "_send_again", send_again)


def hand_over_waits_for_a_lost_sum() -> Patched:
    """A leader that is to hand over takes no notice of what becomes of its aggregators."""
    reshape = Leader._reshape

    def unless_parting(self: Leader) -> None:
        if self._parting is None:
            reshape(self)

    return patch.object(Leader, "_reshape", unless_parting)


def sum_waited_for_without_end() -> Patched:
    """A leader waits for a sum for as long as it takes."""

    def late(self: Formations, *, allowance_s: float) -> str | None:
        return None

    return patch.object(Formations, "late", late)


def disband_not_heard() -> Patched:
    """A node goes on summing up for a formation that is over."""
    on_leader_message = HostRouter.on_leader_message

    def go_on(self: HostRouter, leader: str, message: Message) -> list[Delivery]:
        return [] if isinstance(message, TearDown) else on_leader_message(self, leader, message)

    return patch.object(HostRouter, "on_leader_message", go_on)


def update_kept_for_ever() -> Patched:
    """A worker whose aggregators are no more keeps its update until someone asks for it."""

    def never(self: UpdateDelivery, held: Held) -> None:
        pass

    return patch.object(UpdateDelivery, "on_tear_down", never)


def values_given_once_more() -> Patched:
    """A leader believes that a worker which asks for a model still has what aggregators gave it."""

    def has_them(self: ModelRelay, node: str) -> None:
        pass

    return patch.object(ModelRelay, "on_missing", has_them)


def _named(*mutants: Mutant) -> dict[str, Mutant]:
    return {mutant.__name__: mutant for mutant in mutants}


def lease_of_the_last_process_forgotten() -> Patched:
    """A worker does not answer word of a lease that was lost with the process before it."""
    on_go = Worker._on_go

    def silent(self: Worker, message: Go) -> None:
        if (message.term, message.lease) <= self._newest:
            on_go(self, message)

    return patch.object(Worker, "_on_go", silent)


#: Those that only show where updates meet in aggregators.
OF_FORMATIONS: dict[str, Mutant] = _named(
    lease_of_the_last_process_forgotten,
    piece_counted_twice,
    all_that_came_is_summed_up,
    sum_not_cleared,
    share_without_momentum,
    share_begins_at_rest,
    buffers_have_momentum,
    reported_before_all_have_taken,
    taken_by_those_before,
    half_a_model_will_do,
    any_values_will_do,
    any_sum_will_do,
    one_part_for_all,
    lost_aggregator_lent_by,
    lent_while_summed_up,
    late_is_not_late_in_a_tree,
    straight_into_a_shard,
    all_send_anew_at_once,
    hand_over_waits_for_a_lost_sum,
    disband_not_heard,
    values_given_once_more,
)

#: Those that the checks catch, the quickest to find first.
# What crosses the wire ---------------------------------------------------------------------------------------


def not_sent_is_lost() -> Patched:
    """What a version was to move by and did not, since it was not sent, is forgotten."""
    sent_of = TrainingState._sent_of

    def forgetful(self: TrainingState, residual: np.ndarray, change: np.ndarray) -> np.ndarray | Sparse:
        sent = sent_of(self, residual, change)
        self.residual = np.zeros_like(change)
        return sent

    return patch.object(TrainingState, "_sent_of", forgetful)


def not_sent_is_not_restored() -> Patched:
    """A new leader begins with nothing left to send."""
    restore = TrainingState.restore

    def forgetful(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        if self.residual is not None:
            self.residual = np.zeros_like(self.residual)

    return patch.object(TrainingState, "restore", forgetful)


def changes_made_to_anything() -> Patched:
    """A worker makes changes to whatever it holds."""
    return patch.object(Worker, "_has", lambda self, version: version >= 0)


def changes_kept_over_a_gap() -> Patched:
    """Changes of before a shard are taken to lead to what comes after it."""

    def add(self: Changes, version: int, array: np.ndarray) -> None:
        self._newest = version
        self._arrays.append(array)

    return patch.multiple(Changes, add=add, clear=lambda self: None)


def change_left_out() -> Patched:
    """Of several changes the first is not told."""
    since = Changes.since

    def short(self: Changes, base: int, version: int) -> Tensors | None:
        told = since(self, base, version)
        if told is None or len(told) < 2:
            return told
        first, second, *_ = told
        return {**told, first: told[second]}

    return patch.object(Changes, "since", short)


def part_made_of_the_wrong_one() -> Patched:
    """A part's changes are made to what is staged, whatever they are of."""

    def follows(self: Staging, values: ModelShard, holds: tuple[int, int]) -> str:
        return "staged"

    return patch.object(Staging, "follows", follows)


def part_begins_without_its_residual() -> Patched:
    """A shard begins as if all had been sent."""
    form = Formations._form

    def forgetful(
        self: Formations, formation: Formation, share: AggregatorShare, *, with_part: bool = False
    ) -> SetUpAggregator:
        told = form(self, formation, share, with_part=with_part)
        tensors = dict(told.tensors)
        if "residual" in tensors:
            tensors["residual"] = np.zeros_like(tensors["residual"])
        return replace(told, tensors=tensors)

    return patch.object(Formations, "_form", forgetful)


def moves_are_not_counted() -> Patched:
    """With staleness counted for each parameter, none ever moved."""
    return patch.object(ParameterStaleness, "note", lambda self, places: setattr(self, "_version", self._version + 1))


# Beyond a cut ----------------------------------------------------------------------------------------------


def what_was_made_beyond_a_cut_is_discarded() -> Patched:
    """A leader that led on out of reach is told to step down, whatever it made."""

    def never(*, older: Side, newer: Side) -> HistoryVerdict:
        return HistoryVerdict(keeps_older=False, reason="its term is over")

    return patch("shoal.roles.manager.reconciliation.judge", never)


def leader_fenced_by_a_manager_that_reaches_nobody() -> Patched:
    """A manager that was cut off appoints itself, and what the old leader made since is refused."""

    def appoint(self: Reconciliation, record: JobRecord, reason: str) -> None:
        self._appointments.vacate(record, reason)

    def refuse(self: Reconciliation, sender: str, progress: Progress) -> bool:
        self._appointments.fence(sender, progress)
        return True

    return patch.multiple(Reconciliation, on_silent=appoint, on_progress_of_old_term=refuse)


def older_leader_always_believed() -> Patched:
    """A leader that was away takes the job back, however few workers it had."""

    def always(*, older: Side, newer: Side) -> HistoryVerdict:
        return HistoryVerdict(keeps_older=bool(older.batches), reason="it led before")

    return patch("shoal.roles.manager.reconciliation.judge", always)


def first_word_after_a_cut_decides() -> Patched:
    """What a leader said before the cut, and comes only now, is taken for what it made since."""
    on_progress_of_old_term = Reconciliation.on_progress_of_old_term

    def at_once(self: Reconciliation, sender: str, progress: Progress) -> bool:
        with _decided(self._machine) as actions:
            on_progress_of_old_term(self, sender, progress)
            self.on_claims_heard(progress.job)
            return bool(actions)

    return patch.object(Reconciliation, "on_progress_of_old_term", at_once)


def history_of_both_sides_kept() -> Patched:
    """The history of the side that was given up stays beside the one that was adopted."""
    new_in = Disk._new_in

    def beside(self: Disk, write: Write) -> tuple[Save, tuple[Applied, ...], tuple[Applied, ...]]:
        save, again, _ = new_in(self, write)
        return save, again, ()

    return patch.object(Disk, "_new_in", beside)


def numbers_of_the_other_side_used_again() -> Patched:
    """A history is adopted under the numbers of versions that another leader made."""
    return patch.object(Leader, "_number", property(lambda self: self._training.version))


def weighed_before_the_hand_over() -> Patched:
    """What a leader makes while it hands over is not weighed against the history that is adopted instead."""
    adopt = Reconciliation.adopt

    def unseen(self: Reconciliation, record: JobRecord, node: str, term: int) -> None:
        record.heir_claim = None
        adopt(self, record, node, term)

    return patch.object(Reconciliation, "adopt", unseen)


def judged_without_the_newest_leader() -> Patched:
    """The history of an older leader is adopted while the newest one, out of reach, may have made more."""
    return patch.object(Reconciliation, "_is_silent", lambda self, record: False)


def workers_counted_by_one_term() -> Patched:
    """Of several newer leaders the one with the most workers counts, and not the workers of all of them."""

    def largest(sides: Iterable[Side]) -> Side:
        return replace(together(replace(side, names=frozenset()) for side in sides), names=frozenset())

    return patch.object(cluster_state, "together", largest)


def away_for_ever() -> Patched:
    """A leader that fell silent with its workers is waited for, though they are back and it is not."""
    return patch.object(Reconciliation, "_await", lambda self, record: None)


def parts_outlive_their_trainer() -> Patched:
    """Parts of the next model that were made of one that went with its trainer still count."""
    on_failed = Worker._on_trainer_failed

    def keep(self: Worker, event: TrainerFailed) -> None:
        staging = self._staging
        parts, spent = dict(staging._parts), staging._spent
        on_failed(self, event)
        staging._parts, staging._spent = parts, spent

    return patch.object(Worker, "_on_trainer_failed", keep)


def plenty_beside_want() -> Patched:
    """A job below its least number of workers waits, while another has more than it needs."""
    return patch.object(Staffing, "call_back", lambda self, led: None)


OF_CUTS: dict[str, Mutant] = _named(
    weighed_before_the_hand_over,
    judged_without_the_newest_leader,
    workers_counted_by_one_term,
    what_was_made_beyond_a_cut_is_discarded,
    leader_fenced_by_a_manager_that_reaches_nobody,
    older_leader_always_believed,
    first_word_after_a_cut_decides,
    history_of_both_sides_kept,
    away_for_ever,
)

OF_CODECS: dict[str, Mutant] = _named(
    not_sent_is_lost,
    not_sent_is_not_restored,
    changes_made_to_anything,
    change_left_out,
    part_made_of_the_wrong_one,
    moves_are_not_counted,
)

MUTANTS: dict[str, Mutant] = _named(
    told_before_durable,
    finished_before_durable,
    job_not_kept,
    step_without_waiting,
    merged_saved_as_applied,
    every_update_weighs_the_same,
    round_not_cleared,
    expired_lease_merged,
    epoch_closed_early,
    term_not_raised,
    ledger_not_restored,
    model_not_restored,
    restored_batches_lent_again,
    expired_batches_lost,
    lease_without_end,
    credit_for_everyone,
    unlimited_uploads,
    credit_not_counted,
    upload_place_not_freed,
    silent_after_reconnecting,
    leader_trusts_in_models,
    failed_save_called_durable,
    history_lost_with_a_failed_save,
    gives_up_at_the_first_failure,
    workers_not_dismissed,
    left_where_it_was,
    refused_update_sent_again,
    history_lost_during_a_save,
    result_of_another_lease,
    momentum_not_restored,
    duplicate_update_applied,
    back_without_its_job,
    ended_job_led_again,
    accepted_before_kept,
    term_kept_after_it_is_used,
    lost_worker_keeps_its_leases,
    evaluations_mixed,
    evaluation_closed_early,
    evaluation_forgotten,
    last_epoch_left_out,
    lease_never_expires,
    model_changed_under_a_save,
    stale_term_merged,
    ending_forgotten,
    evaluation_lost_with_a_failed_save,
    lost_node_keeps_its_place,
    time_limit_ignored,
    no_fence_on_versions,
    kept_before_durable,
    failed_write_called_kept,
    appointed_while_a_version_is_written,
    last_word_said_once,
    save_waits_for_a_lost_session,
    handed_over_before_durable,
    handed_over_with_leases_out,
    missed_leader_never_replaced,
    missed_leader_replaced_at_once,
    lost_leader_kept,
    history_counted_twice,
    stepping_down_is_not_heard,
    worker_stays_with_its_leader,
    complaint_not_heard,
    update_dropped_without_a_word,
    staleness_not_applied,
    staleness_applied_twice,
    divided_by_damped_weights,
    late_is_late,
    lateness_outlives_its_leader,
    stragglers_count_for_nothing,
    tail_begins_at_its_end,
    one_update_too_many,
    buffer_waits_at_the_end,
    buffer_lost_at_hand_over,
    emptied_after_every_update,
)
MUTANTS |= OF_FORMATIONS | OF_CODECS | OF_CUTS

# Devices that check in -----------------------------------------------------------------------------------


def sent_away_with_work() -> Patched:
    """A device that was just given a job is told that there is none."""
    come_s = Manager._come_s

    def forgets_its_job(self: Manager, node: NodeRecord) -> float:
        job, node.job = node.job, None
        try:
            return come_s(self, node)
        finally:
            node.job = job

    return patch.object(Manager, "_come_s", forgets_its_job)


def told_to_come_never() -> Patched:
    """The longest time there is, in place of the one that was asked for."""
    return patch.object(CheckIns, "appoint", lambda self, **_: self._most_s)


def check_in_not_answered() -> Patched:
    """A device that comes when it was told to is taken for one that is still there."""
    on_hello = Manager._on_hello

    def only_newcomers(self: Manager, sender: str, hello: Hello) -> None:
        node = self._nodes.get(sender)
        if node is None or node.sent_s is None:
            on_hello(self, sender, hello)

    return patch.object(Manager, "_on_hello", only_newcomers)


def dormant_given_work() -> Patched:
    """A device that was sent away counts as free."""

    def is_known(self: NodeRecord) -> bool:
        is_here = self.state in (Liveness.ALIVE, Liveness.DORMANT)
        return is_here and self.held is None and not self.is_resting

    return patch.object(NodeRecord, "is_available", property(is_known))


OF_CHECK_INS: dict[str, Mutant] = _named(
    sent_away_with_work,
    told_to_come_never,
    check_in_not_answered,
    dormant_given_work,
)

# Managers that share a store ---------------------------------------------------------------------------


def deposed_manager_writes() -> Patched:
    """A manager whose seat was ended proves it all the same."""
    prove = SimSeats.prove
    return patch.object(SimSeats, "prove", lambda self, tenure: prove(self, tenure) or True)


def version_kept_without_the_seat() -> Patched:
    """A version becomes durable without a proof of the seat; records need one."""
    return patch.object(SharedDisk, "_finish", Disk._finish)


def record_kept_without_the_seat() -> Patched:
    """A job's record is written without a proof; versions need one."""

    def keeps(self: SharedDisk, record: JobRecord, done: Callable[[], object]) -> None:
        if not self.takes_writes:
            self.kernel.after(0.5, keeps, self, record, done)
            return
        self._may_write(record.spec.job)
        self._kept(record)
        self.kernel.after(self.sync_s / 2, done)

    return patch.object(SharedDisk, "_try_to_keep", keeps)


def seat_ended_without_silence() -> Patched:
    """A manager waits for nobody to fall silent."""
    return patch.object(SeatWatch, "silent", lambda self, seats, now_s: list(seats))


def seat_ended_as_it_is() -> Patched:
    """A manager ends the seat that there is, not the one that it watched."""
    end = SimSeats.end

    def ends(self: SimSeats, silent: Seat, tenure: SimTenure) -> bool:
        return end(self, next((seat for seat in self.look() if seat.holder == silent.holder), silent), tenure)

    return patch.object(SimSeats, "end", ends)


@contextmanager
def silence_counted_while_unproven() -> Iterator[None]:
    """A manager counts the silence of others though the store takes no proof of its own seat."""
    with patch.object(SeatWatch, "blind", lambda self: None), patch.object(seat_watch, "PROOFS_LEAST", 0):
        yield


def silence_counted_while_slow() -> Patched:
    """A manager counts the silence of others while a proof of its own seat takes as long."""
    return patch.object(seat_watch, "PROOFS_LEAST", 0)


def job_taken_from_the_living() -> Patched:
    """A manager takes a job over although the one that has it is alive."""

    def open_jobs(self: SharedStore) -> dict[str, str]:
        return {job: "" for job, record in self.truth.jobs.items() if record.is_open}

    return patch.object(SharedStore, "orphans", open_jobs)


def job_of_another_written() -> Patched:
    """A manager that has a seat writes any job."""

    may_write = SharedDisk._may_write

    def may(self: SharedDisk, job: str) -> bool:
        return may_write(self, job) or (self.takes_writes and self._store.seats.prove(self._tenure))

    return patch.object(SharedDisk, "_may_write", may)


def jobs_of_others_taken_for_over() -> Patched:
    """A manager takes a job that it does not have for one that has ended."""
    return patch.object(OtherManagers, "on_seen", lambda self, event, *, own: None)


def own_job_taken_for_another_managers() -> Patched:
    """A manager believes a look at the store that is older than its takeover of a job."""
    on_seen = OtherManagers.on_seen
    return patch.object(OtherManagers, "on_seen", lambda self, event, *, own: on_seen(self, event, own=()))


def leader_lost_by_an_older_session() -> Patched:
    """A leader that is waited for is replaced because a session that it had before the takeover ended."""

    def gives_up(self: Failover, node: str, reason: str, *, is_certain: bool = False) -> None:
        give_up = self._appointments.vacate if is_certain else self._reconciliation.on_silent
        for record in self._cluster.led_by(node):
            give_up(record, f"{node} was lost: {reason}")

    return patch.object(Failover, "on_lost", gives_up)


def appointed_node_not_sent_on() -> Patched:
    """A node that was appointed by a manager that died asks another one for its version, and hears nothing."""
    return patch.object(Referrals, "on_ask_checkpoint", lambda self, sender, ask: None)


def leader_sent_to_another_manager() -> Patched:
    """A device that leads a job, or is about to, is sent to the jobs of others."""

    def sends(self: Referrals, *, may_grow: bool) -> None:
        for endpoint, _ in self._others.lacking(self._machine.now_s, may_grow=may_grow):
            for node in [each for each in self._cluster.nodes.values() if each.is_free]:
                node.sent_s = self._machine.now_s
                self._machine.send(node.node, Dismiss(job="", reason="another manager has work", endpoint=endpoint))

    return patch.object(Referrals, "send_free", sends)


def devices_kept_from_others() -> Patched:
    """A manager without work keeps its devices, whatever the jobs of others lack."""
    return patch.object(Referrals, "send_free", lambda self, *, may_grow: None)


def record_taken_for_kept() -> Patched:
    """The store is away, and the manager goes on as if it had written."""
    try_to_keep = SharedDisk._try_to_keep

    def goes_on(self: SharedDisk, record: JobRecord, done: Callable[[], object]) -> None:
        if not self.takes_writes:
            done()
        else:
            try_to_keep(self, record, done)

    return patch.object(SharedDisk, "_try_to_keep", goes_on)


def version_taken_for_kept() -> Patched:
    """A save that the store did not take is called done."""
    finish = SharedDisk._finish

    def lies(self: SharedDisk, write: Write, done: Callable[[bool], object]) -> None:
        finish(self, write, lambda is_durable: done(True))

    return patch.object(SharedDisk, "_finish", lies)


def past_not_noticed() -> Patched:
    """A manager counts on in a store that went back, and goes on as if nothing were lost."""

    def proves(self: SimSeats, tenure: SimTenure) -> bool:
        seat = self._seats.get(tenure.holder)
        if seat is None:
            return False
        self._seats[tenure.holder] = seat._replace(beats=seat.beats + 1)
        return True

    return patch.object(SimSeats, "prove", proves)


def terms_do_not_jump() -> Patched:
    """A store that went back is mended, and its terms go on from where they were."""
    return patch.object(sim_remembered, "jumped_term", lambda term, remembered, *, is_first: term)


def endings_forgotten() -> Patched:
    """A manager does not remember which jobs have ended."""
    on_kept = SimRemembered.on_kept

    def forgets(self: SimRemembered, record: JobRecord) -> None:
        on_kept(self, record)
        self.ended.clear()

    return patch.object(SimRemembered, "on_kept", forgets)


def submissions_forgotten() -> Patched:
    """A manager does not remember the jobs that it was given."""

    def forgets(self: SimRemembered, record: JobRecord) -> None:
        if not record.is_open:
            self.ended[record.spec.job] = record

    return patch.object(SimRemembered, "on_kept", forgets)


def others_do_not_start_over() -> Patched:
    """The first to find that the store went back has terms jump, and other managers go on with those that they know."""
    return patch.object(SimSeats, "rewind", lambda self, holders: None)


def jobs_taken_before_others_counted() -> Patched:
    """A manager that starts takes jobs at once, before another can find that the store went back."""
    return patch.object(SeatWatch, "may_take", property(lambda self: True))


def drained_manager_takes_jobs() -> Patched:
    """A drained manager takes jobs of managers that ended, is given some, and keeps those that it has."""
    return patch.object(SimSeats, "is_drained", lambda self, holder: False)


@contextmanager
def given_job_keeps_its_term() -> Iterator[None]:
    """The manager that was given a job leads it under the term that its last leader had."""
    adopt_given, stored_job = SeveralManagers._adopt_given, SharedDisk.stored_job

    def older(self: SharedDisk, job: str) -> JobRecord:
        record = stored_job(self, job)
        record.term -= record.leader == "home"
        return record

    def adopts(self: SeveralManagers, *told: Any) -> None:
        with patch.object(SharedDisk, "stored_job", older):
            adopt_given(self, *told)

    with patch.object(SeveralManagers, "_adopt_given", adopts):
        yield


def devices_kept_from_their_job() -> Patched:
    """The devices of a job that was given away are not sent after it."""
    return patch.object(Moving, "_send", lambda self, names, job, *, to, reason: None)


OF_STORES: dict[str, Mutant] = _named(
    drained_manager_takes_jobs,
    given_job_keeps_its_term,
    devices_kept_from_their_job,
    deposed_manager_writes,
    version_kept_without_the_seat,
    record_kept_without_the_seat,
    seat_ended_without_silence,
    seat_ended_as_it_is,
    silence_counted_while_unproven,
    silence_counted_while_slow,
    job_taken_from_the_living,
    job_of_another_written,
    jobs_of_others_taken_for_over,
    appointed_node_not_sent_on,
    leader_sent_to_another_manager,
    devices_kept_from_others,
    record_taken_for_kept,
    version_taken_for_kept,
    past_not_noticed,
    terms_do_not_jump,
    submissions_forgotten,
    others_do_not_start_over,
)

# Hubs ----------------------------------------------------------------------------------------------------


def hub_taken_for_a_worker() -> Patched:
    """A leader lends to a hub as to any node that says it is ready."""

    on_received = Leader._on_received

    def as_worker(self: Leader, event: Received) -> None:
        if isinstance(event.message, Ready):
            event = replace(event, message=replace(event.message, is_hub=False))
        on_received(self, event)

    return patch.object(Leader, "_on_received", as_worker)


def hub_given_a_workers_place() -> Patched:
    """The manager assigns a hub as a worker."""
    return patch.object(NodeRecord, "role", property(lambda self: "worker"))


def hubs_count_as_workers() -> Patched:
    """A leader begins with fewer workers than the plan says, since hubs are there."""

    def enough(self: Leader) -> bool:
        return self._workers.trusted + len(self._workers.hubs()) >= self._workers_least

    return patch.object(Leader, "_enough", enough)


def hubs_fill_a_job() -> Patched:
    """The manager counts hubs among the workers of a job, and gives it fewer workers than it needs."""

    def count(self: ClusterState, job: str) -> int:
        return len(self.members(job))

    return patch.object(ClusterState, "count", count)


def dead_hub_lent_by() -> Patched:
    """A leader does not hear that a hub is gone, and lends by its formation."""

    on_peer = Leader._on_peer

    def deaf(self: Leader, event: PeerChanged) -> None:
        worker = self._workers.find(event.node)
        if worker is None or not worker.is_hub:
            on_peer(self, event)

    return patch.object(Leader, "_on_peer", deaf)


@contextmanager
def dead_hub_waited_for() -> Iterator[None]:
    """No formation over hubs is ever given up: updates that a dead hub had are waited for."""
    mark, left = Formations.mark_broken, Formations.on_left

    def over_hubs(self: Formations) -> bool:
        return self.now is not None and any(share.is_hub for share in self.now.shares)

    def unmarked(self: Formations, reason: str) -> None:
        if not over_hubs(self):
            mark(self, reason)

    def stays(self: Formations, node: str, reason: str) -> None:
        if not (over_hubs(self) and self.now is not None and self.now.share_led_by(node) is not None):
            left(self, node, reason)

    with patch.object(Formations, "mark_broken", unmarked), patch.object(Formations, "on_left", stays):
        yield


def hub_left_behind() -> Patched:
    """A leader tells only its workers that the job is over, and the manager dismisses only them."""

    def of_workers(self: ClusterState, job: str) -> list[str]:
        return self.workers(job)

    return patch.object(ClusterState, "members", of_workers)


OF_HUBS: dict[str, Mutant] = _named(
    hub_taken_for_a_worker,
    hub_given_a_workers_place,
    hubs_count_as_workers,
    hubs_fill_a_job,
    dead_hub_lent_by,
    dead_hub_waited_for,
    hub_left_behind,
)

_MANAGER, _NODE, _WORKER, _LEADER = (f"unit/roles/{role}" for role in ("manager", "node", "worker", "leader"))
_FORMATIONS = f"{_LEADER}/gathering/test_formations.py"

#: Those that no seed of 500 shows, or one or two by luck, and the story that shows each. Most are a second line of
#: defence, or need an order of events that seeds seldom have.
CAUGHT_BY_A_STORY: dict[str, tuple[Mutant, str]] = {
    mutant.__name__: (mutant, f"tests/{story}")
    for mutant, story in (
        # Silence counts only while a manager's own seat is proven, so takeovers in seeds are too late for these two.
        (
            own_job_taken_for_another_managers,
            f"{_MANAGER}/test_other_managers.py::test_a_look_at_the_store_from_before_the_takeover_is_not_believed",
        ),
        (
            leader_lost_by_an_older_session,
            f"{_MANAGER}/test_other_managers.py::test_a_leader_that_this_manager_knew_as_another_process_is_waited_for",
        ),
        # They show when a store goes back while a manager is cut off or frozen, which decision 70 leaves open.
        (endings_forgotten, "unit/test_sim_remembered.py::test_a_manager_remembers_the_jobs_that_it_saw_end"),
        (
            jobs_taken_before_others_counted,
            f"{_MANAGER}/test_seat_watch.py::test_no_job_is_taken_before_every_other_manager_was_seen_to_count",
        ),
        # A lease ends by its deadline anyway, and a worker that is gone asks for no other.
        (silence_is_borne, f"{_NODE}/test_failure_detector.py::test_silence_makes_suspect_then_lost"),
        # The leader keeps book of who holds what, and a worker reports it when it is back.
        (worker_trusts_its_model, f"{_WORKER}/test_worker.py::test_a_version_it_does_not_hold_is_asked_for"),
        # The work that follows a refusal replaces what was kept.
        (refusal_ignored, f"{_WORKER}/test_worker_codec.py::test_a_refused_update_leaves_what_was_kept_before_it"),
        # A node forgets its old term before it is given a new one, and sends nothing under it.
        (
            any_term_speaks_for_its_job,
            f"{_MANAGER}/test_manager.py::test_only_the_leader_of_this_term_tells_how_a_job_stands",
        ),
        # A device gets messages only of its leader.
        (old_work_done, f"{_WORKER}/test_worker.py::test_an_older_term_is_ignored"),
        # The manager does not wait for ever: it replaces the leader, as if it were lost.
        (hand_over_ignored, f"{_LEADER}/test_leader.py::test_a_round_is_finished_made_durable_and_then_handed_over"),
        # The leader misses the worker itself, and until then the work is good.
        (bar_ignored, f"{_NODE}/test_host_router.py::test_one_who_is_barred_is_shut_out_and_what_it_holds_returns"),
        # A session must break while a slow disk is at the version before the last, and be back before it is done.
        (
            same_version_taken_for_another,
            f"{_NODE}/test_host_router.py::test_answers_of_another_term_version_or_save_are_not_for_this_one",
        ),
        # A session must break after the training, and a second lease of the same version follow.
        (staged_values_taken_twice, f"{_FORMATIONS}::test_staged_values_are_there_for_one_training"),
        # A worker sends the next piece once the last was taken, so a copy must overtake a round.
        (
            late_copy_kept_for_the_newer,
            f"{_FORMATIONS}::test_a_late_copy_of_an_older_piece_does_not_take_the_place_of_the_newer",
        ),
        # A lease that is taken back out of a sum ends its formation, and all that it had is sent anew.
        (
            summed_up_and_given_up,
            f"{_LEADER}/test_leader_formations.py::test_what_has_arrived_counts_although_its_worker_is_gone",
        ),
        # Workers report an aggregator that does not answer; the leader does without it, before its sum is late.
        (
            sum_waited_for_without_end,
            f"{_LEADER}/test_leader_formations.py::test_a_hand_over_during_which_a_sum_does_not_come",
        ),
        # The others go on, and a worker that gets no lease shows only where it is one of few.
        (update_kept_for_ever, f"{_FORMATIONS}::test_an_update_whose_formation_is_over_is_not_kept_for_ever"),
        # A worker lacks two versions, the first made by a shard: a star must lend it work again.
        (
            changes_kept_over_a_gap,
            f"{_LEADER}/test_changes.py::test_where_a_version_is_missing_nothing_before_it_is_of_use",
        ),
        # The leader keeps the account: what a shard does not know of is sent once it is over.
        (
            part_begins_without_its_residual,
            f"{_LEADER}/test_leader_formations.py::test_a_shard_begins_with_what_was_held_back",
        ),
        # A trainer must fail between two versions of a shard whose parts are changes.
        (
            parts_outlive_their_trainer,
            f"{_WORKER}/test_worker_codec.py::test_parts_made_of_a_model_that_was_lost_with_its_trainer_do_not_count",
        ),
        # A checkpoint says where its history begins: the second save replaces what the first one added.
        (two_saves_at_once, f"{_LEADER}/test_checkpointing.py::test_one_save_at_a_time_and_the_wish_is_remembered"),
        # Both sides of a cut must train, and the one that is kept have made fewer versions.
        (
            numbers_of_the_other_side_used_again,
            f"{_LEADER}/test_leader.py::test_a_leader_that_parts_uses_no_number_of_the_other_side",
        ),
        # One of two jobs must lose its workers to the other for good.
        (plenty_beside_want, "simulation/test_fuzz.py::test_a_job_below_its_least_number_is_helped_out_by_another"),
    )
}


# Where two features meet ----------------------------------------------------------------------------------


def tab_leads() -> Patched:
    """Browsers and leaders on devices: a tab counts as a node that may lead."""
    return patch.object(NodeRecord, "can_lead", property(lambda self: self.is_available))


def tab_given_any_job() -> Patched:
    """Browsers and every plan that asks more of a worker: an engine is all that counts."""

    def suits(self: NodeRecord, spec: JobSpec) -> bool:
        return bool(self.facts.torch or (self.facts.onnx and spec.graphs))

    return patch.object(NodeRecord, "suits", suits)


def tab_given_a_job_led_elsewhere() -> Patched:
    """Browsers and leaders on devices: a tab is given a job whose leader it cannot dial."""

    def suits(self: Staffing, node: NodeRecord, record: JobRecord) -> bool:
        return node.suits(record.spec)

    return patch.object(Staffing, "_suits", suits)


def tab_sent_to_another_manager() -> Patched:
    """Browsers and two managers: a tab is sent to the jobs of another manager."""

    def any_free(self: ClusterState, now_s: float) -> NodeRecord | None:
        return self._take_free(lambda node: not node.stays and node.goes_s <= now_s)

    return patch.object(ClusterState, "take_for_others", any_free)


def hub_sent_away() -> Patched:
    """Hubs and check-ins: a hub without a job is told to come again later, as a device would be."""
    come_s = Manager._come_s

    def any_node(self: Manager, node: NodeRecord) -> float:
        stays, node.stays = node.stays, node.stays and not node.facts.is_hub
        try:
            return come_s(self, node)
        finally:
            node.stays = stays

    return patch.object(Manager, "_come_s", any_node)


def participations_read_twice() -> Patched:
    """Private jobs and check-ins: a device that comes again adds what its disk says to what it remembers."""
    restore = Participation.restore

    def adds(self: Participation, taken: tuple[tuple[int, int], ...], *, epsilon_left: float = math.inf) -> None:
        restore(self, (*taken, *taken[-1:]), epsilon_left=epsilon_left)

    return patch.object(Participation, "restore", adds)


def participations_begin_again() -> Patched:
    """Private jobs and check-ins: a device that was let go and comes again has taken part in nothing."""
    restore = Participation.restore

    def forgets(self: Participation, taken: tuple[tuple[int, int], ...], *, epsilon_left: float = math.inf) -> None:
        restore(self, (), epsilon_left=epsilon_left)

    return patch.object(Participation, "restore", forgets)


@contextmanager
def word_of_a_dead_term_summed() -> Iterator[None]:
    """Sealed sums and takeovers: words that were sealed for an earlier leader count for the group that has their number
    now."""
    on_received = Leader._on_received

    def without_terms(self: Leader, event: Received) -> None:
        if isinstance(event.message, Update) and event.message.group:
            event = replace(event, message=replace(event.message, term=self._term))
        on_received(self, event)

    with patch.object(Leader, "_on_received", without_terms):
        yield


def helper_leads() -> Patched:
    """Helpers and leaders on devices: the node that opens a job's sums may lead the job."""
    candidates = Appointments._candidates

    def with_the_helper(self: Appointments, record: JobRecord) -> list[Candidate]:
        helper, record.helper = record.helper, None
        try:
            return candidates(self, record)
        finally:
            record.helper = helper

    return patch.object(Appointments, "_candidates", with_the_helper)


def helper_fills_a_job() -> Patched:
    """Helpers and trees or cohorts: the manager counts a helper among the workers of its job."""

    def count(self: ClusterState, job: str) -> int:
        return len(self.workers(job))

    return patch.object(ClusterState, "count", count)


def helper_kept_by_another_manager() -> Patched:
    """Helpers and two managers: a helper that started again and came to the other manager stays there."""
    return patch.object(Referrals, "send_helpers", lambda self: None)


@contextmanager
def newest_state_after_a_takeover() -> Iterator[None]:
    """Algorithms and takeovers: whoever leads next goes on with the newest state that the algorithm ever had, not with
    that of its history."""
    advance, restore = TrainingState.advance, TrainingState.restore
    newest: dict[str, AlgorithmState] = {}

    def remembered(self: TrainingState, answer: AlgorithmAnswer | None = None) -> list[Applied]:
        rows = advance(self, answer)
        if self.asked is not None:
            newest[self._spec.job] = self.asked.state
        return rows

    def with_the_newest(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        if self.asked is not None and self._spec.job in newest:
            self.asked.restore(newest[self._spec.job])

    with patch.object(TrainingState, "advance", remembered), patch.object(TrainingState, "restore", with_the_newest):
        yield


@contextmanager
def merged_again_after_a_check_in() -> Iterator[None]:
    """Algorithms and check-ins: the last update of a device that comes again is merged once more."""
    add, on_ready = UpdateRows.add, Leader._on_ready
    last: WeakKeyDictionary[UpdateRows, dict[str, tuple[Any, float, float]]] = WeakKeyDictionary()

    def noted(self: UpdateRows, node: str, update: Any, *, weight: float, scale: float) -> None:
        last.setdefault(self, {})[node] = (update, weight, scale)
        add(self, node, update, weight=weight, scale=scale)

    def merged_again(self: Leader, node: str, message: Ready) -> None:
        asked = self._training.asked
        if asked is not None and asked.rows is not None and node in last.get(asked.rows, {}):
            update, weight, scale = last[asked.rows].pop(node)
            add(asked.rows, node, update, weight=weight, scale=scale)
        on_ready(self, node, message)

    with patch.object(UpdateRows, "add", noted), patch.object(Leader, "_on_ready", merged_again):
        yield


OF_CROSSINGS: dict[str, Mutant] = _named(
    newest_state_after_a_takeover,
    merged_again_after_a_check_in,
    helper_kept_by_another_manager,
    helper_leads,
    helper_fills_a_job,
    tab_leads,
    tab_given_any_job,
    tab_given_a_job_led_elsewhere,
    tab_sent_to_another_manager,
    hub_sent_away,
    participations_read_twice,
    participations_begin_again,
    word_of_a_dead_term_summed,
)
