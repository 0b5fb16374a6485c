"""The worker of one job: takes leases, has them trained, returns updates. It decides; a driver acts.

A worker keeps no state that training needs (EDDL §4.4): the leader leases out again every batch that a worker loses.
With error feedback a worker keeps the part of its updates that it has not sent yet, as long as its process lives. If
that is lost, a part of the last few updates is lost with it, and training makes up for it
(``benchmarks.bytes_to_accuracy`` measures the cost). Under a robust plan it keeps a running sum of its updates in the
same way (``learning.device_momentum``). Under a private one it counts the updates that left (``participation``).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.learning.clipping import clipped
from shoal.learning.device_momentum import DeviceMomentum
from shoal.learning.metrics import logged_problem, problem_of_all
from shoal.roles.actions import CountExamples, End, Evaluate, Interrupt, Prepare, StageModel, Train
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    ExamplesCounted,
    LinkMeasured,
    NotParticipated,
    Participated,
    Prepared,
    PrepareFailed,
    Reassigned,
    Received,
    RosterChecked,
    SealKeyMade,
    Started,
    StopRequested,
    TimerFired,
    Trained,
    TrainerFailed,
    UpdateSealed,
)
from shoal.roles.worker.delivery import ASTRAY_TIMER, TAKEN_TIMER, Held, UpdateDelivery
from shoal.roles.worker.machine import WorkerMachine
from shoal.roles.worker.own_part import OwnPart
from shoal.roles.worker.participation import Participation
from shoal.roles.worker.routes import ROUTE_TIMER, Routes
from shoal.roles.worker.sealing import UNTOLD, DeviceSealing
from shoal.roles.worker.staging import Staging
from shoal.states import WorkerPhase
from shoal.wire.checks import flat
from shoal.wire.coded import Coded, cut, decode_changes
from shoal.wire.limits import TRACEBACK_MAX_CHARS
from shoal.wire.messages import (
    FIRST_HELD,
    Agree,
    Bind,
    DeviceState,
    Evaluated,
    Failed,
    Finished,
    Go,
    JobSpec,
    Message,
    ModelShard,
    Open,
    Ready,
    Route,
    SealRoster,
    ShardAck,
    TearDown,
    Tensors,
    Unbind,
    Update,
    UpdateRefused,
    Wait,
    Work,
    clip,
    version_named,
)

#: For how many updates a worker remembers the version, to know which of them a new leader lacks.
CODED_KEPT = 1000

#: Waits between attempts to start a broken trainer again.
RETRY_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

#: How long a worker waits at least for the values of a version, and for which part of the lease's time.
VALUES_LEAST_S = 3.0

#: As (term, version): the trainer holds no model.
NOTHING_HELD = (0, -1)

_DEADLINE = "lease-deadline"
_RETRY = "retry"
_VALUES = "values"
_ASK = "ask-again"


class Worker(WorkerMachine):
    def __init__(self, *, spec: JobSpec, leader: str, term: int) -> None:
        super().__init__(job=spec.job, leader=leader, term=term)
        self._spec = spec
        self._prepared = False
        self._held: Held | None = None
        #: (term, version) of the model that the trainer holds.
        self._holds = NOTHING_HELD
        #: (term, number) of the last lease that came.
        self._newest: tuple[int, int] = (0, 0)
        self._codec, self._down = Codec.parse(spec.plan.codec), Codec.parse(spec.plan.down)
        #: Whether the codec writes updates. Otherwise they leave as float32, or as sealed words.
        self._is_coded = self._codec.form != "dense" and spec.plan.believes.sealed is None
        #: How many values each tensor of the model has.
        self._sizes: tuple[int, ...] = ()
        self._parameters = 0
        #: The running sum of the device's updates, if the plan is robust.
        self._momentum: DeviceMomentum | None = None
        self._feedback: Feedback | None = None
        #: The term of the last coded updates, and the versions they were made against.
        self._coded: tuple[int, deque[int]] = (0, deque(maxlen=CODED_KEPT))
        #: (term, lease) of the last update that was made, and the residual before it, if there was one.
        self._made: tuple[tuple[int, int], np.ndarray | None] | None = None
        self._failures = 0
        #: Whether a timer will start the next preparation.
        self._retry_waits = False
        self._routes = Routes(self)
        is_sealed = spec.plan.believes.sealed is not None
        self._participation = Participation(self, spec.plan.privacy)
        is_counted = self._participation.is_counted
        self._delivery = UpdateDelivery(self, self._routes, is_sealed=is_sealed, is_counted=is_counted)
        self._staging = Staging()
        self._own = OwnPart(self)
        #: Leases in a row that the device declined because of its privacy account.
        self._declined = 0
        self._sealing = DeviceSealing(self, spec, self._participation, self._delivery)
        self._link = LinkMeasured()
        #: With local data: the state of the device when its examples were last counted.
        self._state: DeviceState | None = None

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self.act(Prepare(spec=self._spec))
            case Prepared():
                self._prepared = True
                self._own.is_there = event.has_own
                self._holds = FIRST_HELD if event.holds_first else NOTHING_HELD
                self._sizes, self._parameters = event.sizes, event.parameters
                self._state = event.state
                self._participation.restore(event.participations, epsilon_left=event.epsilon_left)
                self._ask_for_work()
            case LinkMeasured():
                self._link = event
            case PrepareFailed():
                self._on_prepare_failed(event)
            case Connected():
                self._on_connected(event.node)
            case Disconnected():
                self._on_disconnected(event.node)
            case Reassigned():
                self._on_reassigned(event)
            case Received():
                self._on_message(event.sender, event.message)
            case Trained() | EvaluationDone():
                self._on_result(event)
            case Participated():
                self._on_counted(event)
            case NotParticipated():
                self._on_not_counted(event)
            case ExamplesCounted():
                self._state = event.state
                self._ask_for_work()
            case TrainerFailed():
                self._on_trainer_failed(event)
            case SealKeyMade():
                self._sealing.on_key(event)
            case RosterChecked():
                self._sealing.on_checked(event, self._held)
            case UpdateSealed():
                if self._held is not None and self._held.work.lease == event.lease:
                    self._hold_back(self._held, event)
                    self._sealing.on_sealed(self._held, event)
            case TimerFired():
                self._on_timer(event.name)
            case StopRequested():
                self.act(End(reason=event.reason))
            case _:
                pass

    # Messages ------------------------------------------------------------------------------------

    def _on_message(self, sender: str, message: Message) -> None:
        match message:
            case Work():
                self._on_work(message)
            case Go():
                self._on_go(message)
            case Bind():
                if self._held is not None and self._held.is_of(message):
                    self._sealing.on_bind(self._held, message)
            case Unbind():
                self._on_unbind(message)
            case SealRoster():
                self._sealing.on_roster(message)
            case Agree():
                self._sealing.on_agree(message)
            case Open():
                self._sealing.on_open(message)
            case Route():
                self._routes.on_route(message)
            case ModelShard():
                self._on_model_shard(sender, message)
            case ShardAck():
                if self._held is not None:
                    self._delivery.on_shard_ack(self._held, sender, message)
            case TearDown():
                self._on_tear_down(message)
            case Wait():
                self._on_wait(message)
            case UpdateRefused():
                self._on_refused(message)
            case Finished():
                self._settle_own()
                self.cancel(_DEADLINE)
                self.act(End(reason=message.reason))
            case _:
                pass

    def _settle_own(self) -> None:
        """Note on a leader's message that it took the earlier update, which it did not refuse."""
        if self._held is None or self._held.is_reported:
            self._own.taken(self.term)

    def _on_wait(self, wait: Wait) -> None:
        self.become(WorkerPhase.WAITING, wait.reason)
        self._settle_own()
        if not wait.retry_after_s:
            return
        if self._held is not None and self._held.is_reported:
            # The leader is done with the update, or it would not lease again: its sum is merged or discarded.
            self._held = None
        self.timer(_ASK, wait.retry_after_s)

    def _on_work(self, work: Work) -> None:
        if work.term < self.term or not self._prepared:
            return
        self.term = work.term
        self._sealing.announce()
        if self._sealing.was_begun(work):
            self.record("seal.refused", f"lease {work.lease} was trained before", job=self.job)
            return
        self._settle_own()
        in_step = self._spec.plan.paces == ("sync",)
        self._own.on_work(work.term, began=work.began, durable=work.durable_version, in_step=in_step)
        self._drop_lost_residual(work)
        if (why := self._sealing.refusal(work) or self._participation.refusal(work)) is not None:
            self._decline(work, why)
            return
        self._declined = 0
        self._take_on(work)

    def _decline(self, work: Work, why: str) -> None:
        """Decline a lease that the device's account forbids: report the account and ask for other work. Asks ever less
        often if the leader repeats such leases."""
        if self._held is not None and not self._held.is_reported:
            self._unsend(self._held)
        self._held, self._newest = None, (work.term, work.lease)
        self.record("lease.declined", f"lease {work.lease} of version {work.version}: {why}", job=self.job)
        self.become(WorkerPhase.WAITING, why)
        wait_s = RETRY_S[min(self._declined, len(RETRY_S) - 1)]
        self._declined += 1
        if wait_s:
            self.timer(_ASK, wait_s)
        else:
            self._ask_for_work()

    def _drop_lost_residual(self, work: Work) -> None:
        """Drop the residual of updates that a new leader lacks: it resumes from an earlier version, and their batches
        are trained again."""
        term, versions = self._coded
        if work.term == term:
            return
        self._coded = (work.term, deque(maxlen=CODED_KEPT))
        lost = [version for version in versions if version >= work.began]
        if not lost or self._feedback is None:
            return
        if len(lost) == 1 and self._made is not None:
            self._take_back()
        else:
            self._feedback.reset()
            self._made = None
        told = f"the job goes on from version {work.began}, without {len(lost)} of our updates: their rest is dropped"
        self.record("residual.dropped", told, job=self.job)

    def _take_on(self, work: Work) -> None:
        if self._held is not None and not self._held.is_reported:
            self._unsend(self._held)
        # The message that names the group of a sealed update also names its formation.
        self._held = held = Held(work, formation=None if self._sealing.is_on else work.formation or None)
        self._newest = (work.term, work.lease)
        self._routes.in_use = work.formation or work.values_by or None
        if "model" in work.tensors or self._has(work.version):
            self._begin(held)
            return
        if work.tensors and self._has(work.base):
            self._begin_with_changes(held)
            return
        route = self._routes.get(work.values_by)
        if route is not None and not self._staging.is_spent(work.values_by, work.version, route):
            if self._staging.is_whole(work.values_by, work.version, route):
                self._begin(held, staged=True)
            else:
                self._await_values(held)
            return
        # The leader assumes that this worker holds the version. Ready names the one it holds, and the model follows.
        self._held = None
        self._ask_for_work()

    def _has(self, version: int) -> bool:
        """Whether the trainer holds this version. The first version is the same under every leader."""
        return self._holds == (self.term, version) or self._holds == FIRST_HELD == (0, version)

    def _begin_with_changes(self, held: Held) -> None:
        work = held.work
        try:
            changes = decode_changes(self._down, work.tensors, self._sizes, base=work.base, version=work.version)
        except PeerViolation as violation:
            self._held, self._holds = None, NOTHING_HELD
            self.record("model.invalid", f"changes of the leader: {violation.reason}", job=self.job)
            self._ask_for_work()
            return
        self._begin(held, changes=changes)

    def _await_values(self, held: Held) -> None:
        work = held.work
        held.lacks_values = True
        self.become(WorkerPhase.WAITING, f"values of version {work.version} are on their way")
        self.timer(_DEADLINE, work.deadline_s)
        self.timer(_VALUES, max(VALUES_LEAST_S, work.deadline_s / 4))
        self._on_values_lost()

    def _begin(self, held: Held, *, staged: bool = False, changes: tuple[np.ndarray | Sparse, ...] = ()) -> None:
        """Have a lease trained or evaluated."""
        work = held.work
        if held.lacks_values:
            # The deadline has run since the lease came.
            held.lacks_values = False
            self.cancel(_VALUES)
        else:
            self.timer(_DEADLINE, work.deadline_s)
        if staged:
            self._staging.spend()
        self._holds = (work.term, work.version)
        phase = WorkerPhase.TRAINING if work.kind == "train" else WorkerPhase.EVALUATING
        what = f"version {work.version}" if work.version >= 0 else f"mean at version {version_named(work.version)}"
        self.become(phase, f"{what}, {len(work.batches)} batch(es) of epoch {work.epoch}")
        # Changes that the trainer has applied already are not applied twice.
        model = work.tensors if "model" in work.tensors else {}
        if phase is WorkerPhase.EVALUATING:
            evaluate = Evaluate(
                lease=work.lease,
                chunks=work.batches,
                size=work.examples,
                tensors=model,
                changes=changes,
                staged=staged,
            )
            self.act(evaluate)
            return
        train = Train(
            lease=work.lease,
            epoch=work.epoch,
            batches=self._sealing.begin(work),
            rate=self._spec.plan.rate_at(work.version) if self._sealing.is_on else work.rate,
            version=work.version,
            examples=work.examples,
            deadline_s=work.deadline_s,
            tensors=model,
            changes=changes,
            staged=staged,
        )
        self.act(train)

    def _on_go(self, message: Go) -> None:
        held = self._held
        if held is None and (message.term, message.lease) >= self._newest and message.formation:
            # The update went to aggregators that are lost, and is not here any longer: another worker will train it.
            # A lease newer than any that this process got was lost with the process before it.
            self._own.refused(message.term, message.lease)
            self._ask_for_work()
        elif held is not None and held.is_of(message) and self._delivery.on_go(held, message):
            self._held = None

    def _on_refused(self, message: UpdateRefused) -> None:
        """Wait for the next lease: the leader counts this worker as ready, and asking again would void the lease it
        sends.

        But if the leader assumes that the worker has a lease which never came, ask. Messages come in order, so that
        lease was lost with its session, and only the worker can notice.
        """
        if self._held is not None and self._held.is_of(message) and self._held.result is not None:
            self._held = None
            self.become(WorkerPhase.WAITING, f"update rejected: {message.reason}")
        if message.is_copy:
            # The update counts, so its own part and its residual stay too.
            self._own.merged(message.term, message.lease)
        else:
            if self._made is not None and self._made[0] == (message.term, message.lease):
                self._take_back()
            self._own.refused(message.term, message.lease)
        self.record("update.rejected", message.reason, job=self.job)
        if message.holds and message.term == self.term and (message.term, message.holds) > self._newest:
            self._ask_for_work()

    def _on_unbind(self, message: Unbind) -> None:
        """Drop the current update, which no version will contain."""
        if self._held is None or not self._held.is_of(message) or self._held.result is None:
            return
        self._held = None
        if self._made is not None and self._made[0] == (message.term, message.lease):
            self._take_back()
        self._own.refused(message.term, message.lease)
        self.record("update.dropped", message.reason, job=self.job)
        self._ask_for_work()

    # Values from aggregators -----------------------------------------------------------------------

    def _on_model_shard(self, sender: str, values: ModelShard) -> None:
        """Stage a part of the next model, and begin the lease if it waited for this part only."""
        route = self._routes.get(values.formation)
        if route is None or values.term != route.term or not self._prepared:
            return
        hop = next((hop for hop in route.hops if hop.node == sender), None)
        if hop is None or (hop.start, hop.stop) != (values.start, values.stop):
            return
        try:
            stage = self._stage(values)
        except PeerViolation as violation:
            self.record("model.invalid", f"values of {sender}: {violation.reason}", job=self.job)
            return
        held = self._held
        if stage is None:
            # The model that they change is not here: the leader will be told which one is.
            self._staging.skip(values)
            if held is not None and held.work.version <= values.version:
                self._on_values_lost(for_good=True)
            return
        if not self._staging.add(values):
            return
        self.act(stage)
        if held is None or not held.lacks_values or held.work.values_by != values.formation:
            return
        if self._staging.is_whole(values.formation, held.work.version, route):
            self._begin(held, staged=True)
        elif self._staging.is_spent(values.formation, held.work.version, route):
            # In a tree whose groups do not wait, the leader leased a newer version to another worker of the group.
            self._on_values_lost(for_good=True)

    def _stage(self, values: ModelShard) -> StageModel | None:
        """Return the action that stages these values, or None if the model that they change is not here."""
        if "model" in values.tensors:
            flat("model", values.tensors, size=values.stop - values.start)
            return StageModel(start=values.start, tensors=values.tensors)
        on = self._staging.follows(values, self._holds)
        if on is None:
            return None
        sizes = cut(self._sizes, values.start, values.stop)[1]
        changes = decode_changes(self._down, values.tensors, sizes, base=values.base, version=values.version)
        return StageModel(start=values.start, changes=changes, anew=on == "held")

    def _on_values_lost(self, *, for_good: bool = False) -> None:
        """Report to the leader which model is here, so that it sends a complete one: an aggregator sends no values."""
        held = self._held
        if held is None or not held.lacks_values:
            return
        route = self._routes.get(held.work.values_by)
        if not for_good and route is not None:
            missing = [hop for hop in route.hops if not self._staging.has(hop.start)]
            if all(self._routes.reaches(hop.node) for hop in missing):
                return
        self._held = None
        self.cancel(_DEADLINE)
        self.cancel(_VALUES)
        self._ask_for_work()

    def _on_tear_down(self, message: TearDown) -> None:
        held = self._held
        self._routes.on_tear_down(message.formation)
        self._on_values_lost()
        if held is not None:
            self._delivery.on_tear_down(held)

    # The trainer ---------------------------------------------------------------------------------

    def _on_result(self, event: Trained | EvaluationDone) -> None:
        held = self._held
        if held is None or held.work.lease != event.lease or (held.work.kind == "train") != isinstance(event, Trained):
            return
        self.cancel(_DEADLINE)
        problem = _problem(event)
        if self._sealing.is_on and isinstance(event, Trained):
            if problem is not None:
                self.record("training.diverged", problem, job=self.job)
            event = self._sealing.note(event, has_diverged=problem is not None)
        elif problem is not None:
            self._on_diverged(held, problem)
            return
        self._failures = 0
        held.result = self._update(held, event) if isinstance(event, Trained) else self._evaluated(held, event)
        if held.work.term < self.term:
            # A newer leader leases its batches again.
            self._unsend(held)
            self._held = None
            self._ask_for_work()
        elif self._deliver(held):
            self._held = None

    def _deliver(self, held: Held) -> bool:
        """Send a result. An update of a private job is sent once it is counted. It is not counted while there is no
        leader to send it to, nor when it is offered to be sealed: then it is counted with its group."""
        counts = isinstance(held.result, Update) and self.is_connected and not self._sealing.is_on
        if counts and not self._participation.may_leave(held.work):
            return False
        return self._delivery.deliver(held)

    def _on_counted(self, event: Participated) -> None:
        self._participation.on_counted(event)
        held = self._held
        if held is None or (held.work.term, held.work.lease) != (event.term, event.lease):
            return
        if isinstance(held.result, Update):
            held.result = replace(held.result, state=self._participation.told(held.result.state))
            if self._sealing.is_on:
                self._sealing.on_counted(held, event)
            elif self._deliver(held):
                self._held = None

    def _on_not_counted(self, event: NotParticipated) -> None:
        """Drop an update that cannot be counted."""
        self._participation.on_not_counted()
        self.record("update.withheld", f"lease {event.lease}: {event.reason}", job=self.job)
        held = self._held
        if held is None or (held.work.term, held.work.lease) != (event.term, event.lease):
            return
        self._unsend(held)
        self._held = None
        self.become(WorkerPhase.FAILING, event.reason)
        if self.is_connected:
            reason = clip(event.reason)
            self.send(self.leader, Failed(job=self.job, term=event.term, lease=event.lease, reason=reason))
        self.timer(_ASK, RETRY_S[-1])

    def _update(self, held: Held, event: Trained) -> Update:
        tensors = self._carried_on(held.work, event.tensors)
        if self._is_coded:
            held.coded = self._code(held.work, tensors["delta"])
            tensors = held.coded.tensors()
        elif self._codec.feedback:
            # Which part of it is sent is known once it is sealed.
            tensors = {"delta": self._with_kept(held.work, tensors["delta"]).copy()}
        elif self._participation.is_kept:
            # Last, so that the bound covers everything that was added before.
            tensors = {"delta": self._participation.cut(tensors["delta"])}
        if self._spec.plan.is_cut_unseen:
            tensors = {"delta": clipped(tensors["delta"], clip=self._spec.plan.clip_update)}
        self._state = event.state
        self._own.trained(held.work.term, held.work.lease, held.work.version)
        update = Update(
            job=self.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            loss_sum=event.loss_sum,
            train_s=event.seconds,
            fresh=event.fresh,
            fresh_metrics=event.fresh_metrics,
            labels=event.labels,
            joules=event.joules,
            joules_measured=event.joules_measured,
            state=event.state,
            logged=event.logged,
            tensors=tensors,
        )
        return self._participation.bare(update, held.work)

    def _evaluated(self, held: Held, event: EvaluationDone) -> Evaluated:
        return Evaluated(
            job=self.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            metrics=event.metrics,
        )

    def _carried_on(self, work: Work, tensors: Tensors) -> Tensors:
        """Return the tensors with the device's momentum added, if the plan has one. The training does not see it."""
        plan = self._spec.plan
        if not plan.device_momentum:
            return tensors
        if self._momentum is None:
            self._momentum = DeviceMomentum(self._parameters, momentum=plan.device_momentum, gain=plan.device_gain)
        self._made = ((work.term, work.lease), None)
        return {"delta": self._momentum.add(tensors["delta"])}

    def _code(self, work: Work, delta: np.ndarray) -> Coded:
        """Return the part of an update that is sent. The feedback holds the rest back for the next update."""
        if not self._codec.feedback:
            return self._participation.code(self._codec, delta, self._sizes)
        total = self._with_kept(work, delta)
        coded = self._participation.code(self._codec, total, self._sizes)
        assert self._feedback is not None
        self._feedback.sent(coded.values)
        return coded

    def _with_kept(self, work: Work, delta: np.ndarray) -> np.ndarray:
        """Return an update plus the residual of earlier ones: all there is to send."""
        if self._feedback is None:
            self._feedback = Feedback(delta.size)
        self._made = ((work.term, work.lease), self._feedback.snapshot())
        self._coded[1].append(work.version)
        return self._feedback.add(delta)

    def _hold_back(self, held: Held, event: UpdateSealed) -> None:
        """Hold back the rest of an update that was sealed only at some indices. A value that was sealed is not held
        back, even if the group's bound clipped it: it would be in a second sum."""
        if self._feedback is None or event.kept is None or event.kept.places is None or held.result is None:
            return
        total = held.result.tensors["delta"] if isinstance(held.result, Update) else self._feedback.kept
        places = event.kept.places
        self._feedback.restore(total)
        self._feedback.sent(Sparse(total.size, places, total[places]))

    def _unsend(self, held: Held) -> None:
        """Note that an update that was made will not be sent."""
        self._own.lost()
        if held.result is not None and self._made is not None and self._made[0] == (held.work.term, held.work.lease):
            self._take_back()

    def _take_back(self) -> None:
        """Restore the residual before the last update, which is in no version: its batches will be trained again.
        Does nothing if it left sealed: this device cannot know whether a sum with it was opened."""
        if self._made is not None and self._made[0] == self._sealing.spent:
            self._made = None
            return
        if self._feedback is not None and self._made is not None and self._made[1] is not None:
            self._feedback.restore(self._made[1])
            if self._coded[1]:
                self._coded[1].pop()
        if self._momentum is not None and self._made is not None:
            self._momentum.take_back()
        self._made = None

    def _on_diverged(self, held: Held, reason: str) -> None:
        """Report a result that is not finite. The device and its trainer still work."""
        self._held = None
        self.record("training.diverged", reason, job=self.job)
        if self.is_connected:
            term, lease = held.work.term, held.work.lease
            self.send(self.leader, Failed(job=self.job, term=term, lease=lease, reason=reason, diverged=True))
        self._ask_for_work()

    def _on_trainer_failed(self, event: TrainerFailed) -> None:
        if not event.lease and (self._held is not None or not self._prepared):
            # Counting failed. What came meanwhile meets the same trainer, and reports for itself.
            return
        self._prepared = False
        # The model was lost with the trainer, and so were parts of the next one that were made from it.
        self._holds = NOTHING_HELD
        self._staging.spend()
        self._failures += 1
        self.cancel(_DEADLINE)
        if self._held is not None and not self._held.is_reported:
            # An update that is still here is lost with the trainer.
            self._unsend(self._held)
        self.record("trainer.failed", event.reason, job=self.job)
        held, self._held = self._held, None
        if held is not None and held.work.lease == event.lease and self.is_connected and not held.is_reported:
            # Texts of the task may reveal its examples: in a sealed job they stay in this device's journal.
            is_told = not self._sealing.is_on
            failed = Failed(
                job=self.job,
                term=held.work.term,
                lease=held.work.lease,
                reason=clip(event.reason) if is_told else UNTOLD,
                traceback=clip(event.traceback, TRACEBACK_MAX_CHARS) if is_told else "",
            )
            self.send(self.leader, failed)
        self._retry(event.reason)

    def _on_prepare_failed(self, event: PrepareFailed) -> None:
        self._failures += 1
        self.record("preparation.failed", event.reason, job=self.job)
        if self.is_connected:
            # No lease has number 0: the leader counts the failure and shows the reason.
            traceback = clip(event.traceback, TRACEBACK_MAX_CHARS)
            failed = Failed(job=self.job, term=self.term, lease=0, reason=clip(event.reason), traceback=traceback)
            self.send(self.leader, failed)
        self._retry(event.reason)

    def _retry(self, reason: str) -> None:
        wait_s = RETRY_S[min(self._failures - 1, len(RETRY_S) - 1)]
        self.become(WorkerPhase.FAILING, reason)
        if wait_s == 0:
            self.act(Prepare(spec=self._spec))
            return
        self._retry_waits = True
        self.timer(_RETRY, wait_s)

    # Sessions and time -----------------------------------------------------------------------------

    def _on_connected(self, node: str) -> None:
        self._routes.on_connected(node)
        if self._held is not None:
            self._delivery.on_connected(self._held, node)
        if node == self.leader:
            # The leader first gets the worker's result, then which routes are complete.
            about_routes = self.take_actions()
            self._on_leader_connected()
            self.act(*about_routes)

    def _on_leader_connected(self) -> None:
        self.is_connected = True
        self._sealing.announce()
        if self._retry_waits:
            # Most preparations fail for lack of a connection: there is one now, so do not wait any longer.
            self._retry_waits = False
            self.cancel(_RETRY)
            self.act(Prepare(spec=self._spec))
        else:
            self._resume()

    def _on_disconnected(self, node: str) -> None:
        self._routes.on_disconnected(node)
        if self._held is not None:
            self._delivery.on_disconnected(self._held, node)
        if node != self.leader:
            self._on_values_lost()
            self._routes.on_aggregator_lost()
            return
        self.is_connected = False
        self._sealing.on_disconnected()
        if self._held is None:
            self._own.in_doubt()
        if self._down.form == "dense":
            # A model may have been arriving in the trainer's memory, which may now hold half of it.
            self._holds = NOTHING_HELD

    def _resume(self) -> None:
        """Continue with a session (again): deliver a result, or ask for work unless the worker is training."""
        held = self._held
        if held is None:
            self._ask_for_work()
        elif held.result is not None and self._deliver(held):
            self._held = None

    def _ask_for_work(self) -> None:
        if not (self.is_connected and self._prepared) or self._held is not None:
            return
        self.become(WorkerPhase.READY, "waiting for a lease")
        # Messages may be lost while the leader is set up.
        self._sealing.announce(again=True)
        term, version = self._holds
        link = self._link
        ready = Ready(
            job=self.job,
            holds_term=term,
            holds_version=version,
            up_bytes_per_s=link.up_bytes_per_s,
            down_bytes_per_s=link.down_bytes_per_s,
            medium=link.medium,
            state=self._participation.told(self._state),
        )
        self.send(self.leader, ready)

    def _ask_again(self) -> None:
        """Ask for work after a wait. The device may have other examples of its own by now, and the leader goes by their
        number."""
        if self._spec.plan.data == "local" and self._prepared and self._held is None:
            self.act(CountExamples())
        else:
            self._ask_for_work()

    def _on_reassigned(self, event: Reassigned) -> None:
        if event.term < self.term:
            return
        is_newer = event.term > self.term
        self.term, self.leader = event.term, event.leader
        self._sealing.announce()
        if is_newer:
            self._routes.on_new_term()
            if self._held is not None and self._held.lacks_values:
                self._held = None
        if is_newer and self._held is not None and self._held.result is not None:
            if self._held.is_reported and self._codec.feedback:
                # It may be in a durable version: the version that the new leader begins with shows that.
                self._own.lost()
            else:
                self._unsend(self._held)
            self._held = None
        self._resume()

    def _on_timer(self, name: str) -> None:
        if name == _RETRY:
            self._retry_waits = False
            self.act(Prepare(spec=self._spec))
        elif name == _ASK:
            self._ask_again()
        elif name == _VALUES:
            self._on_values_lost(for_good=True)
        elif name == ROUTE_TIMER:
            self._routes.on_timer()
        held = self._held
        if held is None:
            return
        if name in (ROUTE_TIMER, ASTRAY_TIMER):
            self._delivery.on_astray(held)
        elif name == TAKEN_TIMER:
            self._delivery.on_taken_timer(held)
        elif name == _DEADLINE and held.result is None:
            reason = f"no result within the lease's {held.work.deadline_s:.1f} s"
            self.act(Interrupt(lease=held.work.lease, reason=reason))


def _problem(event: Trained | EvaluationDone) -> str | None:
    """Return why a result cannot be used, or None if it can."""
    if isinstance(event, Trained) and not math.isfinite(event.loss_sum):
        return "training gave a loss that is not finite: try a lower learning rate"
    logged = event.logged if isinstance(event, Trained) else ()
    if logged and (found := logged_problem(logged, examples=event.examples)) is not None:
        return f"training logged {found}"
    metrics = event.fresh_metrics if isinstance(event, Trained) else event.metrics
    found = problem_of_all(metrics) if metrics else None
    return None if found is None else f"evaluation gave {found}"
