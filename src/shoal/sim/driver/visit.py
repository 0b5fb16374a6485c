"""A device of a cohort while it is awake: sends what the deployed agent and worker send when nothing has to be decided.

A visit says hello, sends heartbeats, trains leases and returns them, and goes to sleep or leaves. It handles only this
ordinary course. For anything else (a refusal, a broken session, a lease that it cannot finish, an unknown message) its
cohort makes it a full device. ``Past`` gives that device the visit's state.

It has its own link, as in ``network``. The manager's link is one queue that the visits of a cohort share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from shoal.errors import ShoalError
from shoal.roles.actions import Evaluate, Train
from shoal.roles.events import EvaluationDone, Trained, TrainerFailed
from shoal.roles.node.device_router import GOODBYE_TIMEOUT_S
from shoal.roles.node.dial_state import WELCOME_TIMEOUT_S
from shoal.roles.node.failure_detector import longer_after_s
from shoal.sim.devices import Device
from shoal.sim.driver.agent import Past
from shoal.sim.driver.connection import Connection
from shoal.sim.driver.leases import compute_job, device_state, learned_of, result_of
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.role_server import SimRoleServer
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.sim.jobs import EXAMPLES_HELD, LearningResult, SimulatedJob
from shoal.sim.kernel import Kernel
from shoal.sim.network import SMALL_BYTES, WINDOW, AccessLink, pieces_of
from shoal.sim.process import Process
from shoal.sim.rng import Stream
from shoal.sim.wire_size import WireSizer
from shoal.wire.coded import bytes_of
from shoal.wire.messages import (
    Assign,
    Dismiss,
    Evaluated,
    Facts,
    Finished,
    Go,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Lane,
    Leave,
    Message,
    Offer,
    Ready,
    Update,
    Wait,
    Welcome,
    Work,
)

#: The interval of heartbeats from the opening of a session until it is welcome.
FIRST_BEAT_S = 1.0

#: Messages that end a worker's part in a job.
_ENDS = (Finished, Dismiss)

#: How long the other side takes to notice that a session was cut.
NOTICED_S = 0.001


@lru_cache(maxsize=4096)
def _beat(seq: int, is_idle: bool, is_same: bool) -> Heartbeat:
    """Return a heartbeat, cached: every device counts its own from one."""
    return Heartbeat(seq=seq, is_idle=is_idle, is_same=is_same)


class HomeLink:
    """The manager's link as one queue each way, which the messages of all visits pass one after the other."""

    __slots__ = ("_down_free_s", "_up_free_s", "line", "received_bytes", "sent_bytes")

    def __init__(self, line: AccessLink) -> None:
        self.line = line
        self._up_free_s = self._down_free_s = 0.0
        self.sent_bytes = self.received_bytes = 0

    def sends(self, size_bytes: int, now_s: float) -> tuple[float, float]:
        """Return when these bytes begin to leave, and when all of them have left."""
        begin_s = max(now_s, self._up_free_s)
        self._up_free_s = end_s = self.line.up.finish_s(size_bytes, begin_s)
        return begin_s, end_s

    def takes(self, size_bytes: int, now_s: float) -> float:
        """Return when all of these bytes have arrived, if they have left their sender by now."""
        self._down_free_s = end_s = self.line.down.finish_s(size_bytes, max(now_s, self._down_free_s))
        return end_s


class VisitOwner(Protocol):
    """The interface of a cohort to its visits."""

    kernel: Kernel
    sizer: WireSizer
    home_link: HomeLink

    def job(self, name: str) -> SimulatedJob: ...

    def becomes_full(self, visit: Visit, *, reason: str) -> Connection | None:
        """Make a visit a full device. Returns its session, or None if the device must dial."""
        ...

    def has_fetched(self, row: int, job: str) -> bool: ...

    def fetched(self, visit: Visit, job: str) -> None:
        """Note that a visit has fetched a job's code and data."""
        ...

    def seen(self, row: int, job: str) -> int:
        """Return how many of its own examples a device has trained on."""
        ...

    def has_seen(self, visit: Visit, job: str, examples: int) -> None:
        """Note that a visit has trained on this many of its own examples."""
        ...

    def carried_late(self, visit: Visit, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Count a message that was on its way when the visit became a full device, and has arrived."""
        ...

    def sleeps(self, visit: Visit, come_s: float) -> None:
        """Note that a visit was told when to come again, and that its session ended."""
        ...

    def gone(self, visit: Visit) -> None:
        """Note that a visit said goodbye and its process ended."""
        ...


@dataclass(frozen=True, slots=True)
class Heir:
    """The worker of a full device that was a visit: the trainer's lease of that time ends as it would have."""

    process: Process
    host: Host
    worker_driver: SimWorkerDriver
    generation: int
    #: The trainer's lease.
    work: Work | None

    def prepared(self) -> None:
        self.process.now(self.worker_driver.was_prepared, self.host, self.generation)

    def done(self, work: Work, answer: Trained | EvaluationDone | TrainerFailed) -> None:
        if work is self.work:
            self.process.now(self.worker_driver.was_done, self.host, self.generation, answer)


@dataclass(slots=True)
class VisitJob:
    """The job that a visit works for."""

    assign: Assign
    simulated: SimulatedJob
    is_prepared: bool = False
    #: (term, version) of the model that its trainer holds.
    holds: tuple[int, int] = (0, -1)
    model: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    work: Work | None = None
    #: When that lease came.
    work_s: float = 0.0
    #: The answer that its trainer will give, or has given, and what makes it if the lease is trained when it is due.
    answer: Trained | EvaluationDone | None = None
    due: Callable[[], Trained] | None = None
    is_trained: bool = False
    #: The update that waits for the leader's credit.
    offered: Update | None = None
    #: When its trainer is free.
    free_s: float = 0.0
    #: The worker of the full device that it became.
    heir: Heir | None = None


class Visit:
    __slots__ = (
        "_is_open",
        "_is_over",
        "_jitter_s",
        "_last_s",
        "_latency_s",
        "_line",
        "_owner",
        "_unanswered_s",
        "answered",
        "beat_due_s",
        "bytes_down",
        "bytes_up",
        "called",
        "come_s",
        "device",
        "every_s",
        "incarnation",
        "is_leaving",
        "is_paced",
        "job",
        "node",
        "opened_s",
        "row",
        "seen_s",
        "seq",
        "stream",
        "successor",
        "told_idle",
        "welcome",
    )

    def __init__(
        self,
        owner: VisitOwner,
        row: int,
        *,
        node: str,
        incarnation: str,
        device: Device,
        stream: Stream,
        called: SimRoleServer,
    ) -> None:
        self._owner = owner
        self.row = row
        self.node = node
        self.incarnation = incarnation
        self.device = device
        # Copied from its link and the manager's, because every message reads them.
        line, home_line = device.build.line, owner.home_link.line
        self._line = line
        self._latency_s, self._jitter_s = line.latency_s + home_line.latency_s, line.jitter_s + home_line.jitter_s
        #: Randomness for the delays of its messages.
        self.stream = stream
        #: The manager's node.
        self.called = called
        #: The session of the full device that it became.
        self.successor: Connection | None = None
        self._is_open = self._is_over = False
        #: Nothing arrives before these: the latest arrivals foreseen, by lane, up and down.
        self._last_s = [0.0, 0.0, 0.0, 0.0]
        self.opened_s = 0.0
        self.welcome: Welcome | None = None
        self.come_s = 0.0
        self.is_leaving = False
        self.job: VisitJob | None = None
        # Heartbeats, as ``roles.node.dial_state`` counts them.
        self.seq = self.answered = 0
        self.every_s = FIRST_BEAT_S
        self.beat_due_s = 0.0
        self.is_paced = False
        self.seen_s = 0.0
        self.told_idle: bool | None = None
        self._unanswered_s = 0.0
        self.bytes_up = self.bytes_down = 0

    @property
    def is_working(self) -> bool:
        """Whether it has a lease that it has not returned."""
        return self.job is not None and self.job.work is not None and not self.job.is_trained

    @property
    def is_open(self) -> bool:
        return self._is_open if self.successor is None else self.successor.is_open

    # The session -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin the session after the handshake."""
        owner, called = self._owner, self.called
        if self._is_over:
            return
        if not called.process.alive:
            owner.becomes_full(self, reason="nobody listens there")
            return
        now_s = self.opened_s = owner.kernel.now_s
        self._is_open = True
        called.process.now(called.opened, self)
        if not self._is_open:
            return
        memory_mb = self.device.build.memory_mb
        self.say(Hello(node=self.node, incarnation=self.incarnation, facts=_facts(self.node, memory_mb)))
        self._beat_at(now_s + FIRST_BEAT_S)

    def say(self, message: Message) -> None:
        """Send to the manager's node."""
        owner = self._owner
        kernel, home = owner.kernel, owner.home_link
        message, size_bytes = owner.sizer.pack(message)
        left_s = self._line.up.finish_s(size_bytes, kernel.now_s)
        if size_bytes > SMALL_BYTES:
            kernel.at(left_s, self._off_its_link, message, size_bytes)
            return
        self._arrives(home.line.down.finish_s(size_bytes, left_s), message, size_bytes)

    def _off_its_link(self, message: Message, size_bytes: int) -> None:
        owner = self._owner
        self._arrives(owner.home_link.takes(size_bytes, owner.kernel.now_s), message, size_bytes)

    def _arrives(self, through_s: float, message: Message, size_bytes: int) -> None:
        at = 0 if message.rule.lane is Lane.CONTROL else 1
        when_s = self._last_s[at] = max(self._last_s[at], through_s + self._delay_s())
        self._owner.kernel.at(when_s, self._reach, message, size_bytes)

    def _delay_s(self) -> float:
        return self._latency_s + self._jitter_s * self.stream.random() if self._jitter_s else self._latency_s

    def _reach(self, message: Message, size_bytes: int) -> None:
        """Deliver a message at the manager's node."""
        if not self.is_open:
            return
        process = self.called.process
        if process.alive:
            self._owner.home_link.received_bytes += size_bytes
            if self.successor is None:
                self.bytes_up += size_bytes
            else:
                self._owner.carried_late(self, up_bytes=size_bytes)
            process.now(self.called.received, self, message, size_bytes)
        elif process.machine.is_on:
            self.cut("the connection was reset by the other side")

    def down(self, message: Message, left: Callable[[], object] | None = None) -> None:
        if self.successor is not None:
            self.successor.down(message, left)
            return
        owner = self._owner
        kernel = owner.kernel
        message, size_bytes = owner.sizer.pack(message)
        if size_bytes > SMALL_BYTES:
            through_s, left_s = self._brought(size_bytes)
        else:
            left_s = owner.home_link.line.up.finish_s(size_bytes, kernel.now_s)
            through_s = self._line.down.finish_s(size_bytes, left_s)
        if left is not None:
            kernel.at(left_s, left)
        at = 2 if message.rule.lane is Lane.CONTROL else 3
        when_s = self._last_s[at] = max(self._last_s[at], through_s + self._delay_s())
        kernel.at(when_s, self._hear, message, size_bytes)

    def _brought(self, size_bytes: int) -> tuple[float, float]:
        """Return when bytes that the manager's node sends now have all arrived, and when they have all left. A chunk
        passes this link while the next one passes the manager's, and only a window of them is on its way."""
        owner, line = self._owner, self._line
        pieces = pieces_of(size_bytes)
        begin_s, end_s = owner.home_link.sends(size_bytes, owner.kernel.now_s)
        first_s = begin_s + (end_s - begin_s) / pieces
        through_s = max(line.down.finish_s(size_bytes, first_s), line.down.finish_s(size_bytes / pieces, end_s))
        if pieces > WINDOW:
            end_s = max(end_s, line.down.finish_s(size_bytes * (pieces - WINDOW) / pieces, first_s))
        return through_s, end_s

    def cut(self, reason: str) -> None:
        """Break the session. Both ends notice, if they live."""
        if self.successor is not None:
            self.successor.cut(reason)
        elif self._is_open:
            self._is_open = False
            self.called.process.later(NOTICED_S, self.called.closed, self, reason)
            self._owner.kernel.after(NOTICED_S, self._closed, reason)

    def silence(self, process: Process) -> None:
        """Do nothing: a device that loses its power is already a full one, and has another session."""

    def end(self) -> None:
        """End this visit. The device continues as a row or a full device, over another session or none."""
        self._is_open, self._is_over = False, True

    def _closed(self, reason: str) -> None:
        if self.successor is not None:
            return
        if self.is_leaving:
            self._owner.gone(self)
        elif self.come_s:
            self._owner.sleeps(self, self.come_s)
        else:
            self._owner.becomes_full(self, reason=reason)

    # Heartbeats ------------------------------------------------------------------------------------------

    def _beat_at(self, when_s: float) -> None:
        self.beat_due_s = when_s
        self._owner.kernel.at(when_s, self._beats, when_s)

    def _beats(self, due_s: float) -> None:
        if self.successor is not None or not self._is_open or due_s != self.beat_due_s:
            return
        now_s = self._owner.kernel.now_s
        if self.welcome is None:
            if now_s - self.opened_s < WELCOME_TIMEOUT_S:
                self._beat_at(now_s + FIRST_BEAT_S)
            else:
                self._owner.becomes_full(self, reason="it is not welcome")
            return
        self._unanswered_s += self.every_s
        lost_after_s = longer_after_s(
            self.welcome.lost_after_s, heartbeat_s=self.welcome.heartbeat_s, every_s=self.every_s
        )
        if self._unanswered_s > lost_after_s:
            self._owner.becomes_full(self, reason="the manager does not answer")
            return
        self.seq += 1
        is_idle = self.job is None
        is_same = self.is_paced and self.told_idle == is_idle
        self.told_idle = is_idle
        self.say(_beat(self.seq, is_idle, is_same))
        self._beat_at(now_s + self.every_s)

    def _on_seen(self, seen: HeartbeatSeen) -> None:
        if seen.seq >= self.seq:
            self._unanswered_s = 0.0
        self.answered = max(self.answered, seen.seq)
        self.is_paced = self.is_paced or seen.next_s > 0
        before_s, self.seen_s = self.every_s, seen.next_s
        if self.welcome is not None:
            self.every_s = seen.next_s or self.welcome.heartbeat_s
            if self.every_s < before_s:
                self._beat_at(self._owner.kernel.now_s)

    # Incoming messages -----------------------------------------------------------------------------------

    def _hear(self, message: Message, size_bytes: int) -> None:
        if self.successor is None:
            if self._is_open:
                self._on_message(message, size_bytes)
        elif self.successor.is_open:
            self._owner.home_link.sent_bytes += size_bytes
            self._owner.carried_late(self, down_bytes=size_bytes)
            process = self.successor.caller.process
            process.now(self.successor.caller.received, self.successor, message, size_bytes)

    def _on_message(self, message: Message, size_bytes: int) -> None:
        self.bytes_down += size_bytes
        self._owner.home_link.sent_bytes += size_bytes
        job = self.job
        if isinstance(message, HeartbeatSeen):
            self._on_seen(message)
        elif isinstance(message, Work) and self._takes(message):
            self._on_work(message)
        elif isinstance(message, Welcome):
            self._on_welcome(message)
        elif isinstance(message, Assign) and job is None and self._is_ordinary(message):
            self._on_assign(message)
        elif isinstance(message, Assign) and job is not None and _is_repeated(job, message):
            pass
        elif isinstance(message, Go) and job is not None and _is_awaited(job, message):
            offered, job.offered = job.offered, None
            assert offered is not None
            self.say(offered)
        elif isinstance(message, _ENDS) and job is not None and message.job == job.assign.job:
            # The work of its trainer is not needed any more.
            self.end_trainer()
            self.job = None
        elif isinstance(message, _ENDS) and job is None and message.job:
            pass
        elif not (isinstance(message, Wait) and job is not None and not message.retry_after_s):
            self._is_beyond(message, size_bytes)

    def _is_beyond(self, message: Message, size_bytes: int) -> None:
        """Pass a message that needs a decision to a full device."""
        connection = self._owner.becomes_full(self, reason=f"it hears {type(message).__name__}")
        if connection is not None:
            connection.caller.process.now(connection.caller.received, connection, message, size_bytes)

    def _on_welcome(self, welcome: Welcome) -> None:
        is_first, self.welcome = self.welcome is None, welcome
        self.every_s = welcome.heartbeat_s
        if welcome.come_s and self.job is None:
            self.come_s = welcome.come_s
            self.say(Leave(reason="there is no work", come_s=welcome.come_s))
        elif is_first:
            self._ask()

    def _is_ordinary(self, assign: Assign) -> bool:
        fits = self.device.can_hold(self._owner.job(assign.job).model.nbytes)
        return fits and assign.role == "worker" and assign.leader == self.called.process.node

    # Its job ---------------------------------------------------------------------------------------------

    def _on_assign(self, assign: Assign) -> None:
        job = self.job = VisitJob(assign, self._owner.job(assign.job))
        fetch_bytes = 0 if self._owner.has_fetched(self.row, assign.job) else job.simulated.fetch_bytes
        if fetch_bytes:
            through_s, _ = self._brought(fetch_bytes)
            self._owner.kernel.at(through_s + self._delay_s(), self._fetched, job, fetch_bytes)
        else:
            self._fetched(job, 0)

    def _fetched(self, job: VisitJob, size_bytes: int) -> None:
        self._owner.home_link.sent_bytes += size_bytes
        if self.successor is None:
            self.bytes_down += size_bytes
        else:
            self._owner.carried_late(self, down_bytes=size_bytes)
        self._owner.fetched(self, job.assign.job)
        self._owner.kernel.after(job.simulated.start_s, self._prepared, job)

    def _prepared(self, job: VisitJob) -> None:
        job.is_prepared = True
        job.free_s = self._owner.kernel.now_s
        if job.heir is not None:
            job.heir.prepared()
        elif self.job is job:
            local, name = job.simulated.local, job.assign.job
            if local is not None:
                local.begin(self.node, seen=self._owner.seen(self.row, name))
            self._ask()

    def end_trainer(self) -> None:
        local = self.job.simulated.local if self.job is not None else None
        if local is not None:
            local.end(self.node)

    def _ask(self) -> None:
        job = self.job
        if job is not None and job.is_prepared and self.welcome is not None and self._is_open and job.work is None:
            term, version = job.holds
            local = job.simulated.local
            held = local.held(self.node) if local is not None else EXAMPLES_HELD
            state = device_state(job.simulated, self.device.build, held)
            self.say(Ready(job=job.assign.job, holds_term=term, holds_version=version, state=state))

    def _takes(self, work: Work) -> bool:
        """Whether this is a lease that it can train and return without a decision."""
        job = self.job
        if job is None or not job.is_prepared or work.job != job.assign.job or work.term != job.assign.term:
            return False
        is_free = job.work is None or (job.is_trained and job.offered is None)
        has_model = "model" in work.tensors or job.holds == (work.term, work.version)
        return is_free and has_model and not work.formation and not work.values_by

    def _on_work(self, work: Work) -> None:
        job, now_s = self.job, self._owner.kernel.now_s
        assert job is not None
        action = action_of(work)
        begin_s = max(now_s, job.free_s)
        before = self.device.copy()
        seen = self._owner.seen(self.row, job.assign.job)
        seconds = self.device.seconds_for(compute_job(job.simulated, action, node=self.node, seen=seen), begin_s)
        end_s = begin_s + seconds
        if self.device.is_empty(end_s):
            # Its battery does not last. The full device decides what to do.
            self.device = before
            self._is_beyond(work, 0)
            return
        model = work.tensors.get("model", job.model)
        try:
            job.answer, job.due = self._answers(job.simulated, action, model, seconds)
        except ShoalError:
            # The task's code failed.
            self.device = before
            self._is_beyond(work, 0)
            return
        job.model = model
        job.work, job.work_s, job.holds, job.free_s = work, now_s, (work.term, work.version), end_s
        job.is_trained = False
        self._owner.kernel.at(end_s, self._trained, job, work)
        if end_s > now_s + work.deadline_s:
            self._owner.kernel.at(now_s + work.deadline_s, self._overdue, job, work)

    def _answers(
        self, simulated: SimulatedJob, action: Train | Evaluate, model: np.ndarray, seconds: float
    ) -> tuple[Trained | EvaluationDone | None, Callable[[], Trained] | None]:
        """Return a lease's answer, or what makes it once it is due."""
        spec, local = simulated.spec, simulated.local
        if isinstance(action, Evaluate) or spec.plan.data != "local":
            return result_of(simulated, action, model, seconds), None
        build = self.device.build

        def told(learned: LearningResult) -> Trained:
            return learned_of(simulated, action, learned, seconds=seconds, build=build)

        if local is None:
            return told(simulated.training.learn(spec, model, self.node, action)), None
        promised = local.promise(model, self.node, action)
        if promised is None:
            return told(local.learn_own(model, self.node, action, None)), None
        return None, lambda: told(promised())

    def _overdue(self, job: VisitJob, work: Work) -> None:
        if self.successor is None and self.job is job and job.work is work and self._is_open:
            self._owner.becomes_full(self, reason="its lease is overdue")

    def _trained(self, job: VisitJob, work: Work) -> None:
        if job.heir is None and (self.job is not job or job.work is not work or not self._is_open):
            return
        answer = _due(job, work)
        if isinstance(answer, TrainerFailed) and job.heir is None:
            self._owner.becomes_full(self, reason="its lease failed")
        if job.heir is not None:
            job.heir.done(work, answer)
            return
        if isinstance(answer, TrainerFailed):
            return
        job.answer, job.is_trained = answer, True
        if isinstance(answer, Trained) and job.simulated.local is not None:
            self._owner.has_seen(self, job.assign.job, job.simulated.local.held(self.node))
        if isinstance(answer, EvaluationDone):
            self.say(_evaluated(work, answer))
            return
        update = _update(work, answer)
        if work.credit:
            self.say(update)
        else:
            job.offered = update
            size_bytes = bytes_of(update.tensors)
            self.say(Offer(job=work.job, term=work.term, lease=work.lease, size_bytes=size_bytes))

    # What a full device has to know ------------------------------------------------------------------------

    def past(self) -> Past:
        job, now_s = self.job, self._owner.kernel.now_s
        heard = [*([job.assign] if job is not None else []), *([self.welcome] if self.welcome is not None else [])]
        seen = HeartbeatSeen(seq=self.answered, next_s=self.seen_s) if self.answered or self.seen_s else None
        work = job.work if job is not None else None
        told = None
        if job is not None and work is not None:
            # Its deadline has run since the lease came.
            left_s = max(work.deadline_s - (now_s - job.work_s), 0.001)
            told = replace(work, deadline_s=left_s, tensors={"model": job.model})
        return Past(
            open_s=now_s - self.opened_s,
            heard=tuple(heard),
            beat_in_s=max(0.0, self.beat_due_s - now_s),
            beats=self.seq,
            seen=seen,
            is_prepared=job is not None and job.is_prepared,
            work=told,
            action=action_of(told) if told is not None else None,
            free_s=job.free_s if job is not None else 0.0,
            answer=job.answer if job is not None and job.is_trained else None,
        )

    # It goes ---------------------------------------------------------------------------------------------

    def leave(self, reason: str) -> None:
        """Say goodbye, and end once it is answered or a moment later."""
        self.is_leaving = True
        if not self._is_open:
            # A visit whose session was just cut ends when it notices that.
            if not self.opened_s:
                self._owner.gone(self)
            return
        self.say(Leave(reason=reason))
        self._owner.kernel.after(GOODBYE_TIMEOUT_S, self._gone_unheard)

    def _gone_unheard(self) -> None:
        if self._is_open and self.successor is None:
            self.cut("the process on the other side ended")


def _due(job: VisitJob, work: Work) -> Trained | EvaluationDone | TrainerFailed:
    """Return the answer to a lease whose time has come. A task's code may have failed."""
    if job.answer is not None:
        return job.answer
    assert job.due is not None
    try:
        return job.due()
    except ShoalError as error:
        return TrainerFailed(lease=work.lease, reason=str(error))


def _is_repeated(job: VisitJob, assign: Assign) -> bool:
    """Whether this repeats the job of a device that is back and still prepares for it: then it need not answer."""
    same = (assign.job, assign.role, assign.term, assign.leader, assign.leader_endpoint)
    known = job.assign
    is_same = same == (known.job, known.role, known.term, known.leader, known.leader_endpoint)
    return is_same and not job.is_prepared


def _is_awaited(job: VisitJob, go: Go) -> bool:
    offered = job.offered
    return offered is not None and (offered.term, offered.lease) == (go.term, go.lease) and not go.formation


def _facts(node: str, memory_mb: int) -> Facts:
    return Facts(host=node, torch="2", cpus=1, memory_mb=memory_mb)


def action_of(work: Work) -> Train | Evaluate:
    if work.kind == "evaluate":
        return Evaluate(lease=work.lease, chunks=work.batches, size=work.examples, tensors=work.tensors)
    return Train(
        lease=work.lease,
        epoch=work.epoch,
        batches=work.batches,
        rate=work.rate,
        version=work.version,
        examples=work.examples,
        deadline_s=work.deadline_s,
        tensors=work.tensors,
    )


def _update(work: Work, answer: Trained) -> Update:
    return Update(
        job=work.job,
        term=work.term,
        lease=work.lease,
        version=work.version,
        examples=answer.examples,
        loss_sum=answer.loss_sum,
        train_s=answer.seconds,
        fresh=answer.fresh,
        fresh_metrics=answer.fresh_metrics,
        labels=answer.labels,
        joules=answer.joules,
        state=answer.state,
        logged=answer.logged,
        tensors=answer.tensors,
    )


def _evaluated(work: Work, answer: EvaluationDone) -> Evaluated:
    return Evaluated(
        job=work.job,
        term=work.term,
        lease=work.lease,
        version=work.version,
        examples=answer.examples,
        metrics=answer.metrics,
    )
