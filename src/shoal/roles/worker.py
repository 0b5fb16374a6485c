"""The worker of one job: takes leases, has them trained, returns updates. Decides only; a driver acts.

It keeps no state that training needs (EDDL §4.4): whatever it loses, the leader leases out again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.roles.actions import (
    Action,
    CancelTimer,
    End,
    Evaluate,
    Interrupt,
    Prepare,
    Record,
    Send,
    SetTimer,
    Train,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    Prepared,
    PrepareFailed,
    Reassigned,
    Received,
    Started,
    StopRequested,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.wire.messages import (
    Evaluated,
    Failed,
    Finished,
    Go,
    JobSpec,
    Message,
    Offer,
    Ready,
    Refused,
    Update,
    Wait,
    Work,
    clip,
)

#: Waits between attempts to get a broken trainer going again.
RETRY_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

_DEADLINE = "lease-deadline"
_RETRY = "retry"


@dataclass(slots=True)
class _Held:
    """The lease in hand, and the update once it is made."""

    work: Work
    result: Update | Evaluated | None = None

    def is_of(self, message: Go | Refused) -> bool:
        """Lease numbers begin anew with each term: both must match."""
        return (self.work.term, self.work.lease) == (message.term, message.lease)


class Worker:
    def __init__(self, *, spec: JobSpec, leader: str, term: int) -> None:
        self._spec = spec
        self._leader = leader
        self._term = term
        self._connected = False
        self._prepared = False
        self._held: _Held | None = None
        #: (term, version) of the model the trainer holds.
        self._holds: tuple[int, int] = (0, -1)
        #: (term, number) of the last lease that came.
        self._newest: tuple[int, int] = (0, 0)
        self._failures = 0
        #: A timer will have it prepared again.
        self._retry_waits = False
        self.state = "preparing"
        self.reason = "fetching the task and its data"

    @property
    def leader(self) -> str:
        return self._leader

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Started():
                return [Prepare(spec=self._spec)]
            case Prepared():
                self._prepared = True
                self._holds = (0, -1)
                return self._ready()
            case PrepareFailed():
                return self._on_prepare_failed(event.reason)
            case Connected():
                return self._on_connected() if event.node == self._leader else []
            case Disconnected():
                if event.node != self._leader:
                    return []
                self._connected = False
                # A model may have been on its way into the trainer's memory: what lies there is no version.
                self._holds = (0, -1)
                return []
            case Reassigned():
                return self._on_reassigned(event)
            case Received():
                return self._on_message(event.message)
            case Trained():
                return self._on_trained(event)
            case EvaluationDone():
                return self._on_evaluated(event)
            case TrainerFailed():
                return self._on_trainer_failed(event)
            case TimerFired():
                return self._on_timer(event.name)
            case StopRequested():
                return [End(reason=event.reason)]
            case _:
                return []

    # Messages ------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> list[Action]:
        match message:
            case Work():
                return self._on_work(message)
            case Go():
                held = self._held
                if held and held.is_of(message) and isinstance(held.result, Update):
                    return self._send_result(held.result)
                return []
            case Wait():
                self.state, self.reason = "waiting", message.reason
                return []
            case Refused():
                return self._on_refused(message)
            case Finished():
                return [CancelTimer(name=_DEADLINE), End(reason=message.reason)]
            case _:
                return []

    def _on_work(self, work: Work) -> list[Action]:
        if work.term < self._term or not self._prepared:
            return []
        self._term = work.term
        self._held = _Held(work)
        self._newest = (work.term, work.lease)
        carries = bool(work.tensors)
        if not carries and self._holds != (work.term, work.version):
            # The leader thinks we hold this version. We say what we do hold, and are sent it.
            self._held = None
            return self._ready()
        self._holds = (work.term, work.version)
        self.state = "training" if work.kind == "train" else "evaluating"
        self.reason = f"version {work.version}, {len(work.batches)} batch(es) of epoch {work.epoch}"
        timer = SetTimer(name=_DEADLINE, after_s=work.deadline_s)
        if work.kind == "train":
            train = Train(lease=work.lease, epoch=work.epoch, batches=work.batches, tensors=work.tensors)
            return [timer, train]
        return [timer, Evaluate(lease=work.lease, chunks=work.batches, tensors=work.tensors)]

    def _on_refused(self, message: Refused) -> list[Action]:
        """The leader counts us as ready from here on, and speaks next: asking again would void the lease it sends.

        Unless it believes that we have a lease which never came. Messages come in order, so that one was lost with the
        session it was sent on, and only we know.
        """
        if self._held is not None and self._held.is_of(message) and self._held.result is not None:
            self._held = None
            self.state, self.reason = "waiting", f"the update was refused: {message.reason}"
        record = Record(kind="refused", reason=message.reason, job=self._spec.job)
        if message.holds and message.term == self._term and (message.term, message.holds) > self._newest:
            return [record, *self._ready()]
        return [record]

    # The trainer ---------------------------------------------------------------------------------

    def _on_trained(self, event: Trained) -> list[Action]:
        held = self._held
        if held is None or held.work.lease != event.lease:
            return []
        if not math.isfinite(event.loss_sum):
            return self._on_diverged(held, "training")
        update = Update(
            job=self._spec.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            loss_sum=event.loss_sum,
            train_s=event.seconds,
            tensors=event.tensors,
        )
        return self._on_made(held, update)

    def _on_evaluated(self, event: EvaluationDone) -> list[Action]:
        held = self._held
        if held is None or held.work.lease != event.lease:
            return []
        if not math.isfinite(event.loss_sum):
            return self._on_diverged(held, "evaluation")
        evaluated = Evaluated(
            job=self._spec.job,
            term=held.work.term,
            lease=event.lease,
            version=held.work.version,
            examples=event.examples,
            loss_sum=event.loss_sum,
            correct=event.correct,
        )
        return self._on_made(held, evaluated)

    def _on_made(self, held: _Held, result: Update | Evaluated) -> list[Action]:
        self._failures = 0
        held.result = result
        return [CancelTimer(name=_DEADLINE), *self._deliver(held)]

    def _on_diverged(self, held: _Held, what: str) -> list[Action]:
        """The device works and the trainer lives; the numbers are of no use to anyone."""
        self._held = None
        reason = f"{what} gave a loss that is not finite: try a lower learning rate"
        actions: list[Action] = [
            CancelTimer(name=_DEADLINE),
            Record(kind="diverged", reason=reason, job=self._spec.job),
        ]
        if self._connected:
            failed = Failed(job=self._spec.job, term=held.work.term, lease=held.work.lease, reason=reason)
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._ready()]

    def _deliver(self, held: _Held) -> list[Action]:
        """Send what was made: at once with a credit, else offer it. Silent while there is no session."""
        if held.work.term < self._term:
            self._held = None
            return self._ready()
        if not self._connected or held.result is None:
            self.state, self.reason = "waiting", "the leader is not reachable; the update is kept"
            return []
        if isinstance(held.result, Update) and not held.work.credit:
            self.state, self.reason = "waiting", "the update is ready; waiting for the leader to take it"
            size = sum(array.nbytes for array in held.result.tensors.values())
            offer = Offer(job=self._spec.job, term=held.work.term, lease=held.work.lease, size_bytes=size)
            return [Send(to=self._leader, message=offer)]
        return self._send_result(held.result)

    def _send_result(self, result: Update | Evaluated) -> list[Action]:
        """After this the leader speaks next: with work, a reason to wait, or a refusal."""
        self._held = None
        self.state, self.reason = "waiting", "the update was sent; waiting for the next version"
        return [Send(to=self._leader, message=result)]

    def _on_trainer_failed(self, event: TrainerFailed) -> list[Action]:
        self._prepared = False
        self._failures += 1
        actions: list[Action] = [
            CancelTimer(name=_DEADLINE),
            Record(kind="trainer-failed", reason=event.reason, job=self._spec.job),
        ]
        held, self._held = self._held, None
        if held is not None and held.work.lease == event.lease and self._connected:
            failed = Failed(job=self._spec.job, term=held.work.term, lease=held.work.lease, reason=clip(event.reason))
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._retry(event.reason)]

    def _on_prepare_failed(self, reason: str) -> list[Action]:
        self._failures += 1
        actions: list[Action] = [Record(kind="prepare-failed", reason=reason, job=self._spec.job)]
        if self._connected:
            # Lease 0 is nobody's: the leader counts the failure and shows the reason.
            failed = Failed(job=self._spec.job, term=self._term, lease=0, reason=clip(reason))
            actions.append(Send(to=self._leader, message=failed))
        return [*actions, *self._retry(reason)]

    def _retry(self, reason: str) -> list[Action]:
        wait_s = RETRY_S[min(self._failures - 1, len(RETRY_S) - 1)]
        self.state, self.reason = "failing", reason
        if wait_s == 0:
            return [Prepare(spec=self._spec)]
        self._retry_waits = True
        return [SetTimer(name=_RETRY, after_s=wait_s)]

    # Sessions and time -----------------------------------------------------------------------------

    def _on_connected(self) -> list[Action]:
        self._connected = True
        if self._retry_waits:
            # Most preparations fail for want of a connection: now that there is one, it need not wait any longer.
            self._retry_waits = False
            return [CancelTimer(name=_RETRY), Prepare(spec=self._spec)]
        return self._resume()

    def _resume(self) -> list[Action]:
        """A session (again): deliver what is made, say nothing while training, else ask for work."""
        if self._held is not None and self._held.result is not None:
            return self._deliver(self._held)
        if self._held is not None:
            return []
        return self._ready()

    def _ready(self) -> list[Action]:
        if not (self._connected and self._prepared) or self._held is not None:
            return []
        self.state, self.reason = "ready", "waiting for a lease"
        term, version = self._holds
        ready = Ready(job=self._spec.job, holds_term=term, holds_version=version)
        return [Send(to=self._leader, message=ready)]

    def _on_reassigned(self, event: Reassigned) -> list[Action]:
        if event.term < self._term:
            return []
        newer = event.term > self._term
        self._term, self._leader = event.term, event.leader
        if newer and self._held is not None and self._held.result is not None:
            self._held = None
        return self._resume()

    def _on_timer(self, name: str) -> list[Action]:
        if name == _RETRY:
            self._retry_waits = False
            return [Prepare(spec=self._spec)]
        held = self._held
        if name != _DEADLINE or held is None or held.result is not None:
            return []
        reason = f"no result within the lease's {held.work.deadline_s:.1f} s"
        return [Interrupt(lease=held.work.lease, reason=reason)]
