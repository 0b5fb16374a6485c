"""The leader of one job: holds the model, lends batches, merges updates, decides. A driver acts.

It never needs torch: models are flat vectors, evaluation is leased to workers like any batch. What it decides,
and why, is in its actions; what it has promised is durable before anyone hears of it (``Save`` -> ``Saved``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from statistics import median_high
from typing import Any

import numpy as np

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.errors import BadValues, PeerViolation
from shoal.learning.layout import Layout
from shoal.learning.pace import PACES
from shoal.learning.usual import Usual
from shoal.roles.actions import End
from shoal.roles.course import Course
from shoal.roles.crew import WAIT_EVERY_S, Crew, Member
from shoal.roles.durability import Durability
from shoal.roles.events import (
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
from shoal.roles.exam import Exam
from shoal.roles.formation import Report
from shoal.roles.machine import Machine
from shoal.roles.online import NotNow, Online
from shoal.roles.portions import Portions
from shoal.roles.pulse import Pulse
from shoal.roles.shape import Shape, Summed
from shoal.roles.shaping import Shaping, Wanted
from shoal.roles.suspicion import Suspicion
from shoal.states import LeaderPhase, WorkerState
from shoal.wire.checks import check_told
from shoal.wire.coded import bytes_expected, bytes_max, bytes_of, decode, norm_of, sizes_of
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import (
    FIRST_HELD,
    NO_TENSORS,
    Evaluated,
    EvaluationView,
    Failed,
    Finished,
    Formed,
    Gathered,
    Go,
    HandOver,
    JobSpec,
    Made,
    Offer,
    Progress,
    Ready,
    Refused,
    Release,
    Released,
    Routed,
    Spoilt,
    SteppedDown,
    Tensors,
    Update,
    Wait,
    Work,
    clip,
)
from shoal.workload.admission import Admission
from shoal.workload.deadlines import SHORTEST_S, STRETCH_MAX, TOGETHER_TIMES, LeaseClock, wait_s
from shoal.workload.ledger import Lease, Ledger, Refusal

TICK_S = 0.5

#: A timer shorter than this may not move the clock at all, and would be set again for ever.
LATE_LEAST_S = 0.001

#: A timer that fires so much later than it was due was held up: leases are given as much longer, and it is told of from
#: this on.
PAUSE_LEAST_S = 0.1
PAUSE_TOLD_S = 1.0

#: Beyond what the worker itself is given: its last word must have time to arrive.
LEASE_GRACE_S = 2.0

#: A batch that failed this often, and not on one broken device among good ones, fails the job: its code or data is
#: broken, not the devices.
BATCH_FAILURES_MAX = 4

#: More leases than this are not read through each time someone is told who has them.
HOLDERS_MANY = 200

#: Batches of history that a leader cut off from its manager goes on for before it waits: what is not durable may be
#: for nothing, and its history is held in memory.
AT_RISK_MAX = 100_000

#: How soon it is saved then, and how often that is tried, whatever the plan says.
AT_RISK_SAVE_S = 1.0

#: Nodes that a reason names.
NAMED_MAX = 8

#: What a person can do about a model that broke.
NEXT = "Look at what they sent in `shoal jobs show`, take out who is not to be trusted, or try a lower learning rate"

_TICK = "tick"
_LATE = "late"


class Leader(Machine):
    def __init__(
        self,
        *,
        spec: JobSpec,
        layout: Layout,
        model: np.ndarray,
        term: int,
        manager: str,
        upload_budget_bytes: int = UPLOAD_BUDGET_BYTES,
    ) -> None:
        super().__init__()
        plan = spec.plan
        self._spec = spec
        self._layout = layout
        self._term = term
        self._manager = manager
        self._course = Course(self, spec, layout, model)
        self._exam: Exam | None = None
        #: ``auto`` begins in step.
        self._pace_now = "sync" if plan.pace == "auto" else plan.pace
        self._pace = PACES[self._pace_now](plan.buffer)
        self._pulse = Pulse(self, pace=self._pace_now)
        self._portions = Portions(work=plan.work)
        #: Where examples are the devices' own.
        self._online = Online(self, plan) if plan.data == "local" else None
        #: Why what the leader before knew of devices could not be taken over.
        self._unread: str | None = None
        model_bytes = layout.size * 4
        self._codec, self._sizes = Codec.parse(plan.codec), sizes_of(layout)
        update_bytes = bytes_max(self._codec, self._sizes)
        self._admission = Admission(update_bytes=update_bytes, budget_bytes=upload_budget_bytes)
        self._clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=2 * model_bytes)
        self._exam_clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=model_bytes)

        self._crew = Crew(self)
        self._usual = Usual()
        self._suspicion = Suspicion()
        #: When an update was last returned.
        self._returned_s = -math.inf
        #: A version, and the norm of its model.
        self._norm: tuple[int, float] = (-1, 0.0)
        self._shape = Shape(self, spec=spec, term=term, layout=layout, course=self._course, norm_max=self._norm_max)
        down_bytes = bytes_expected(Codec.parse(plan.down), self._sizes)
        wire_bytes = (bytes_expected(self._codec, self._sizes) + down_bytes) / 2
        self._shaping = Shaping(self, plan, size=layout.size, wire_bytes=wire_bytes)
        #: Why it is to finish its round and step down; None: it is not.
        self._parting: str | None = None
        #: The version it hands over has at least this number.
        self._version_least = 0
        #: Workers who are silent, or whose session broke.
        self._suspects: set[str] = set()
        #: Whom the manager wants back, and why. They get no lease more.
        self._leaving: dict[str, str] = {}
        self._last_lease = 0
        #: Batch -> on which workers its leases failed, and how often.
        self._batch_failures: dict[int, Counter[str]] = {}
        self._refused = 0
        #: When the many holders of leases were last looked up, in an evaluation or not, at which version; their names.
        self._named: tuple[float, tuple[bool, int], str] = (0.0, (False, -1), "")

        self._phase: LeaderPhase = LeaderPhase.WAITING
        self._reason: str | None = "no worker has connected yet"
        self._ending: tuple[str, str] | None = None
        self._bytes_up = 0
        self._bytes_down = 0

        self._durability = Durability(self)
        #: The version it went on from.
        self._began = 0

    # State that survives -----------------------------------------------------------------------------

    def restore(self, *, tensors: Tensors, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. Its ledger matches its model: both were one file."""
        self._course.restore(tensors=tensors, state=state)
        self._durability.version = self._began = self._course.version
        ending = state["ending"]
        self._ending = (ending[0], ending[1]) if ending else None
        self._usual = Usual.restored(state.get("usual"))
        if self._online is not None:
            self._unread = self._online.restore(tensors)

    def _snapshot(self) -> tuple[Tensors, dict[str, Any]]:
        tensors: Tensors
        tensors, state = self._course.snapshot()
        ending = list(self._ending) if self._ending else None
        if self._online is not None:
            tensors = {**tensors, **self._online.snapshot()}
        state |= {"job": self._spec.job, "term": self._term, "ending": ending, "version": self._number}
        return tensors, {**state, "usual": self._usual.snapshot()}

    @property
    def version(self) -> int:
        return self._course.version

    @property
    def term(self) -> int:
        return self._term

    @property
    def job(self) -> str:
        return self._spec.job

    @property
    def shape(self) -> str:
        """How updates meet now."""
        return self._shape.notation

    @property
    def sub_leaders(self) -> tuple[str, ...]:
        """Who leads in part now."""
        return tuple(self._shape.now.sub_leaders) if self._shape.now is not None else ()

    @property
    def update_max_bytes(self) -> int:
        """The most that the tensors of an update may take."""
        return bytes_max(self._codec, self._sizes)

    @property
    def sum_max_bytes(self) -> int:
        """The most that a sub-leader's sum may take, with how its part moved by it."""
        down = Codec.parse(self._spec.plan.down)
        return self.model.nbytes + (bytes_max(down, self._sizes) if down.form != "dense" else 0)

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._course.ledger.epoch

    @property
    def model(self) -> np.ndarray:
        return self._course.model

    # Events ------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        self._dispatch(event)
        if self._leaving:
            self._let_go()
        if self._parting is not None and not isinstance(event, SaveFailed):
            self._hand_over()

    def _dispatch(self, event: Event) -> None:
        match event:
            case Started():
                self._on_started()
            case Received():
                self._on_received(event)
            case PeerChanged():
                self._on_peer(event)
            case TimerFired():
                self._on_pause(event.late_s)
                if event.name == _LATE:
                    self._on_late()
                else:
                    self._on_tick()
            case Saved():
                self._on_saved(event.version)
            case SaveFailed():
                self._on_save_failed(event)
            case StopRequested():
                self._end("stopped", event.reason)
            case _:
                return

    def awaits(self, sender: str, message: Update | Gathered) -> bool:
        """Whether the tensors of this message can be merged now: of a lease that is open and the sender's, or of a sum
        that this sub-leader was asked for. Otherwise nobody need hold them: the message is refused without."""
        if message.term != self._term:
            return False
        if isinstance(message, Gathered):
            return self._shape.awaits(sender, message.formation)
        return isinstance(self._course.ledger.find(message.lease, sender), Lease)

    def _on_started(self) -> None:
        self._course.start()
        self._durability.start()
        self.timer(_TICK, TICK_S)
        if self._durability.version < 0:
            first = f"{self._course.ledger.batches} batches an epoch, {self._layout.size:,} values, term {self._term}"
            self.record("started", first)
            self._save()
        else:
            ledger = self._course.ledger
            where = f"epoch {ledger.epoch + 1}, {ledger.applied} of {ledger.batches} batches applied"
            told = f"from durable version {self._course.version}, {where}, term {self._term}"
            self.record("resumed", told)
            if self._unread:
                self.record("profiles", f"devices are measured anew: {self._unread}")
            if self._ending:
                self._end(*self._ending)
            elif self._evaluation_due():
                self._begin_exam()

    def _on_received(self, event: Received) -> None:
        message, sender = event.message, event.sender
        self._bytes_up += event.size_bytes
        worker = self._crew.get(sender)
        if worker is not None:
            worker.bytes_up += event.size_bytes
        if isinstance(message, Release):
            if sender == self._manager:
                self._leaving[message.node] = message.reason
            return
        if isinstance(message, HandOver):
            if sender == self._manager and message.term == self._term:
                self._parting, self._version_least = message.reason, message.version_least
            return
        if isinstance(message, Ready):
            self._on_ready(sender, message)
            return
        if isinstance(message, Formed | Routed | Spoilt | Gathered):
            if message.term == self._term:
                self._on_sub_leader(sender, message)
            return
        if not isinstance(message, Made | Offer | Update | Evaluated | Failed):
            return
        if worker is None:
            # It was thought lost, and is back with what it has.
            worker = self._crew.add(sender)
            self._shaping.on_workers_changed()
            self._shape.on_joined(sender)
        self._on_result(worker, message)

    def _on_result(self, worker: Member, message: Made | Offer | Update | Evaluated | Failed) -> None:
        if message.term != self._term:
            if isinstance(message, Failed | Made):
                # What failed was not lent by us. Its worker says Ready once its trainer is back.
                return
            reason = f"made under term {message.term}; this leader's term is {self._term}"
            self._refuse(worker, message, reason)
            return
        match message:
            case Update():
                self._on_update(worker, message)
            case Made():
                self._on_made(worker, message)
            case Offer():
                self._on_offer(worker, message)
            case Evaluated():
                self._on_evaluated(worker, message)
            case Failed():
                self._on_failed(worker, message)

    # Workers come, wait and go -----------------------------------------------------------------------

    def _on_ready(self, node: str, message: Ready) -> None:
        worker = self._crew.get(node)
        if worker is None:
            worker = self._crew.add(node)
            self.record("joined", f"{node} is ready to work")
            self._shaping.on_workers_changed()
        if self._phase.is_over:
            self._tell(worker, "the job is over; its last version is being saved")
            return
        held = (message.holds_term, message.holds_version)
        worker.holds = (self._term, 0) if held == FIRST_HELD else held
        worker.up_bytes_per_s, worker.down_bytes_per_s = message.up_bytes_per_s, message.down_bytes_per_s
        worker.medium = message.medium
        worker.device = message.state
        self._shape.on_values_missing(node)
        self._shape.on_joined(node)
        self._portions.on_changed()
        self._give_up(node, fate=f"was given up: {node} asked for new work")
        self._crew.make_idle(worker)
        self._proceed(only=node)

    def _on_peer(self, event: PeerChanged) -> None:
        if event.node == self._manager:
            self._on_manager(event.state)
            return
        worker = self._crew.get(event.node)
        if worker is None:
            return
        if event.state is Liveness.SUSPECT:
            worker.reason = event.reason
            self._suspects.add(event.node)
            self.record("suspect", f"{event.node}: {event.reason}")
            if not self._shape.is_sub_leader(event.node):
                return
            # Everyone waits for it. To do without it costs less than to find out whether it comes back.
            self._doubt([event.node], f"{event.node}, a sub-leader, is suspect: {event.reason}")
            self._reshape()
            return
        if event.state is Liveness.ALIVE:
            # Nobody looks again at one who is left out: what it was told still holds.
            worker.reason = worker.told if worker.left_out else None
            self._suspects.discard(event.node)
            # It may have been left out of what was set up meanwhile.
            self._shape.on_joined(event.node)
            return
        self._suspects.discard(event.node)
        self._crew.remove(event.node)
        self.record("lost", f"{event.node}: {event.reason}")
        self._gone(event.node, event.reason)
        self._give_up(event.node, fate=f"was taken back: {event.node} was lost ({event.reason})")
        self._reshape()
        self._proceed()

    def _on_manager(self, state: Liveness) -> None:
        """The manager is out of reach, or back: then what could not be kept there is offered at once."""
        if state is Liveness.LOST:
            self._durability.on_manager_lost()
        is_due = state is Liveness.ALIVE and self._durability.is_behind and not self._durability.is_saving
        if is_due and self._phase is not LeaderPhase.ENDED:
            self._save()

    def _gone(self, node: str, reason: str) -> None:
        self._shaping.on_workers_changed()
        self._shape.on_left(node, reason)

    def _give_up(self, node: str, *, fate: str) -> None:
        """Return everything a worker holds to the free batches, unless it is with the sub-leaders already."""
        for ledger in self._ledgers():
            for lease in ledger.held_by(node):
                if ledger is self._course.ledger and self._shape.has_arrived(lease.id):
                    continue
                ledger.release(lease, fate=fate)
                self._shape.forget(lease.id)
                self._upload_over(lease.id)
                self.record("lease-returned", f"lease {lease.id} {fate}")

    def _let_go(self) -> None:
        """Part with those the manager wants back, as soon as they hold nothing: no trained lease is lost."""
        free = [node for node in self._leaving if not any(ledger.held_by(node) for ledger in self._ledgers())]
        # One who leads in part goes once another formation holds, in which it does not.
        free = [node for node in free if not self._shape.is_sub_leader(node)]
        for node in free:
            reason = self._leaving.pop(node)
            if self._crew.get(node) is not None:
                self._crew.remove(node)
                self._shape.on_left(node, reason)
            released = Released(job=self._spec.job, term=self._term, node=node)
            self.record("released", f"{node} {reason}")
            self.send(node, Finished(job=self._spec.job, reason=clip(reason)))
            self.send(self._manager, released)

    def _ledgers(self) -> list[Ledger]:
        return [ledger for _, ledger in self._clocked_ledgers()]

    def _clocked_ledgers(self) -> list[tuple[LeaseClock, Ledger]]:
        training = (self._clock, self._course.ledger)
        return [training, (self._exam_clock, self._exam.ledger)] if self._exam else [training]

    def _enough(self) -> bool:
        return self._crew.trusted >= self._spec.plan.workers_min

    # Handing out work --------------------------------------------------------------------------------

    def _proceed(self, only: str | None = None) -> None:
        """Move on as far as things allow: a step if one is due, then leases to whoever is ready."""
        if self._phase.is_over:
            return
        ledger = self._course.ledger
        if self._shape.now is not None and self._shape.gather(ledger.leases()):
            self._lend(only=only)
            return
        if self._pace.should_step(merged=ledger.merged, outstanding=ledger.outstanding):
            self._step()
            return
        self._lend(only=only)
        if ledger.merged and not ledger.outstanding:
            # Whoever may work was asked and nothing is lent: the version is waiting for nobody.
            self._step()

    def _lend(self, only: str | None = None) -> None:
        """Leases to whoever is ready; to one worker where only its state changed."""
        one = self._crew.get(only) if only is not None else None
        if (held_up := self._held_up()) is not None:
            self._phase, self._reason = LeaderPhase.WAITING, held_up
            if one:
                self._tell(one, held_up)
            return
        if not self._enough():
            here, least = self._crew.trusted, self._spec.plan.workers_min
            self._phase, self._reason = LeaderPhase.WAITING, f"{here} of at least {least} workers are here"
            if one:
                self._tell(one, self._reason)
            return
        if self._phase is LeaderPhase.WAITING:
            # The one who just came completes the number: those who waited for it begin too.
            one = None
        self._phase, self._reason = (LeaderPhase.EVALUATING if self._exam else LeaderPhase.TRAINING), None
        if self._exam is None and (why := self._cut_portions()) is not None:
            self.record("shares", why)
            # Whoever had nothing left may have something now.
            self._crew.release()
            one = None
        if one is not None and not self._spec.plan.cohort:
            if self._crew.is_idle(one.node):
                self._lend_to(one)
            return
        # Where only some work for a version, whoever waits longest is before the one who just came.
        for worker in self._crew.take_outcasts():
            self._lend_to(worker)
        ledger = self._lent_from()
        while ledger.has_free and not self._is_full() and (first := self._crew.first_in_line()) is not None:
            # The first worker leaves the line: with a lease, or to rest.
            self._lend_to(first)

    def _is_full(self) -> bool:
        """As many as make a version are at it. Others stay in line, for the next or for the place of one who fails."""
        ledger = self._course.ledger
        return self._exam is None and 0 < self._spec.plan.cohort <= ledger.outstanding + ledger.merged

    def _cut_portions(self) -> str | None:
        """One who takes no part in how updates meet would keep its portion for ever."""
        shape = self._shape
        return self._portions.cut(self._course.ledger, self._crew, may_work=lambda node: not shape.is_left_out(node))

    def _held_up(self) -> str | None:
        """Why nothing is lent although there are workers; None: it is."""
        if self._parting is not None and self._exam is None:
            return f"the job gets another leader: {self._parting}"
        if self._durability.at_risk >= AT_RISK_MAX:
            return f"{self._durability.at_risk} batches are not durable yet: work goes on when they are"
        return self._shape.held_up() if self._exam is None else None

    def _hand_over(self) -> None:
        """Step down once nothing is lent and everything is durable: the next leader begins where this one ends."""
        if self._phase.is_over or self._exam is not None or self._course.ledger.outstanding:
            return
        if self._durability.is_behind or self._durability.version < self._number:
            if not self._durability.is_saving:
                self._save()
            return
        self._phase = LeaderPhase.ENDED
        reason = f"handed over at version {self._number}"
        stepped = SteppedDown(job=self._spec.job, term=self._term, reason=reason)
        self.record("handed-over", reason)
        self.send(self._manager, stepped)
        self.act(End(reason=reason))

    def _lent_from(self) -> Ledger:
        return self._exam.ledger if self._exam else self._course.ledger

    def _lend_to(self, worker: Member) -> None:
        if worker.node in self._leaving:
            self._crew.rest(worker)
            return
        if worker.left_out:
            self._tell(worker, worker.why_left_out)
            return
        if self._exam is not None:
            clock, ledger, count, kind = self._exam_clock, self._exam.ledger, 1, "evaluate"
        else:
            # Of a device's own examples a lease is one thing, whatever it has to do for it.
            count = self._spec.plan.lease_batches if self._online is None else 1
            clock, ledger, kind = self._clock, self._course.ledger, "train"
            if not self._pace.may_start(contributed_to=worker.contributed_to, version=self._course.version):
                self._crew.rest(worker)
                return
            if self._shape.awaits_sum(worker.node):
                # Those of a sub-leader begin together again, once their updates are in a version.
                self._crew.rest(worker)
                return
            if (hindrance := self._shape.hindrance(worker.node)) is not None:
                self._crew.rest(worker)
                self._tell(worker, hindrance)
                return
        examples = 0
        if self._online is not None and kind == "train" and ledger.has_free:
            wanted = self._online.wants(worker, self._similarity(worker))
            if isinstance(wanted, NotNow):
                self._crew.park(worker)
                self._tell(worker, wanted.reason, retry_after_s=wanted.retry_after_s)
                return
            examples, _ = wanted
        allowance_s = clock.allowance_s()
        # What a worker is given and how long others wait for it are two things: late, it loses its lease and no more.
        waits_s = allowance_s + LEASE_GRACE_S
        if kind == "train" and self._pace_now == "sync":
            # Where nobody waits for it, it may take its time: one that is late now and then is not given up.
            waits_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=waits_s)
        lease = ledger.lease(
            self._last_lease + 1,
            worker.node,
            version=self._course.version,
            count=count,
            now_s=self.now_s,
            deadline_s=self.now_s + waits_s,
            latest_s=self.now_s + allowance_s + LEASE_GRACE_S,
        )
        if lease is None:
            if ledger.sharers:
                # Others have batches left, and this one is not looked at for them.
                self._crew.rest(worker)
            return
        self._last_lease = lease.id
        if self._online is not None and kind == "train":
            self._online.on_lent(lease.id, examples)
        self._crew.make_busy(worker, WorkerState.WORKING if kind == "train" else WorkerState.EVALUATING)
        if worker.holds != (self._term, self._course.version):
            self._pass_on(worker)
        work = self._work(worker, lease, kind=kind, deadline_s=allowance_s, examples=examples)
        self.send(worker.node, work)

    def _pass_on(self, worker: Member) -> None:
        """In a tree, one model goes to the sub-leader for all of its members."""
        passed = self._shape.pass_on(worker.node, self._held_by)
        if passed is None:
            return
        to, message = passed
        self._bytes_down += bytes_of(message.tensors)
        self.send(to, message)

    def _held_by(self, node: str) -> int:
        """The version of this term that a worker holds; -1: none."""
        worker = self._crew.get(node)
        term, version = worker.holds if worker is not None else (0, -1)
        return version if term == self._term else -1

    def _similarity(self, worker: Member) -> float | None:
        return self._course.similarity(self._online.labels_of(worker.node)) if self._online is not None else None

    def _work(self, worker: Member, lease: Lease, *, kind: str, deadline_s: float, examples: int) -> Work:
        """The lease rides on the message that brings the new model (EDDL §4.2), unless sub-leaders bring that."""
        here = (self._term, self._course.version)
        values_by = self._shape.values_by(worker.node)
        base, tensors = -1, NO_TENSORS
        if worker.holds != here and not values_by:
            base, tensors = self._course.brings(self._held_by(worker.node))
        worker.holds = here
        sent = bytes_of(tensors)
        worker.bytes_down += sent
        self._bytes_down += sent
        formation = self._shape.way(worker.node) if kind == "train" else 0
        if kind == "train":
            self._shape.lend(lease.id, formation)
        return Work(
            job=self._spec.job,
            term=self._term,
            lease=lease.id,
            kind=kind,
            version=lease.version,
            durable_version=max(0, self._durability.version),
            epoch=lease.epoch,
            batches=lease.batches,
            deadline_s=deadline_s,
            # Its pieces go to sub-leaders: there is nothing of it for which room is to be kept here.
            credit=kind == "train"
            and (formation != 0 or self._admission.in_advance(lease.id, workers=len(self._crew))),
            formation=formation,
            values_by=values_by,
            base=base,
            examples=examples,
            began=self._began,
            tensors=tensors,
        )

    def _tell(self, worker: Member, reason: str, *, retry_after_s: float = 0.0) -> None:
        """Say why there is no work, once a reason; each time, where it says when to ask again."""
        worker.state, worker.reason = WorkerState.WAITING, reason
        if worker.told == reason and not retry_after_s:
            return
        worker.told = reason
        if retry_after_s:
            wait = Wait(job=self._spec.job, reason=clip(reason), retry_after_s=retry_after_s)
            self.send(worker.node, wait)
            return
        self.send(worker.node, _wait(self._spec.job, reason))

    def _why_idle(self) -> str:
        if (held_up := self._held_up()) is not None:
            return held_up
        if not self._enough():
            return self._reason or ""
        ledger = self._lent_from()
        names = self._holders(ledger)
        what = "the evaluation" if self._exam else f"version {self._course.version + 1}"
        if not ledger.has_free:
            what = "the evaluation" if self._exam else f"the end of epoch {self._course.ledger.epoch + 1}"
        return f"{what} waits for {names}" if names else f"{what} is next"

    def _holders(self, ledger: Ledger) -> str:
        """Who has the leases that others wait for. While they are many, that is looked up now and then."""
        lent = (self._exam is not None, self._course.version)
        many = ledger.outstanding > HOLDERS_MANY
        named_s, of, names = self._named
        if many and of == lent and self.now_s - named_s < WAIT_EVERY_S:
            return names
        holders = {lease.worker for lease in ledger.leases()}
        names = ", ".join(nsmallest(4, holders)) + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
        if many:
            self._named = (self.now_s, lent, names)
        return names

    # Updates come back -------------------------------------------------------------------------------

    def _on_update(self, worker: Member, update: Update) -> None:
        lease = self._course.ledger.find(update.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, update, lease.reason)
            return
        if update.formation:
            self._on_report(worker, update, lease)
            return
        if (barred := self._shape.bars_whole(lease.id)) is not None:
            self._refuse(worker, update, barred)
            return
        self._upload_over(lease.id)
        try:
            delta = self._checked(update, lease)
            norm, steps = norm_of(delta), self._steps_of(update, lease)
            unusual = self._usual.judge(
                worker.node, norm, steps=steps, model_norm=self._model_norm(), devices=self._crew.trusted
            )
        except PeerViolation as violation:
            self._spoilt(worker, update, lease, violation)
            return
        if unusual is not None and not unusual.is_early:
            self._spoilt(worker, update, lease, BadValues(unusual.reason), is_unusual=True)
            return
        if unusual is not None:
            # It may be honest: it trains the same again, and others are heard meanwhile.
            self._course.ledger.release(lease, fate=f"was put off: {unusual.reason}")
            self._shape.forget(lease.id)
            self._refuse(worker, update, unusual.reason)
            return
        self._shape.lend(lease.id, 0)
        self._usual.accepted(norm, steps=steps)
        self._merged([worker.node])
        self._course.merge(lease, update, delta)
        if self._online is not None:
            self._online.on_merged(lease.id, update)
        self._delivered(worker, update, lease)
        self._proceed(only=worker.node)
        self._watch_the_last()

    def _delivered(self, worker: Member, update: Update, lease: Lease) -> None:
        """A worker has done its part of a version."""
        workers, others = self._crew.trusted, self._course.ledger.outstanding
        self._pulse.on_merged(lease, train_s=update.train_s, workers=workers, others=others)
        if self._online is not None:
            self._online.on_delivered(worker, update)
        self._clock.returned(self.now_s - lease.issued_s)
        self._returned_s = self.now_s
        worker.durations_s.append(self.now_s - lease.issued_s)
        worker.stretch = 1.0
        worker.trainings_s.append(update.train_s)
        worker.batches += len(lease.batches)
        worker.is_failing = False
        worker.contributed_to = lease.version
        self._crew.make_idle(worker)

    # Updates meet elsewhere ----------------------------------------------------------------------------

    def _on_report(self, worker: Member, update: Update, lease: Lease) -> None:
        """An update is with the sub-leaders, every piece of it."""
        if self._shape.has_arrived(lease.id):
            if not self._crew.is_idle(worker.node):
                # It was thought lost in between. It waits for the sum like everyone.
                self._crew.make_idle(worker)
            return
        if not self._shape.is_due(lease, update.formation):
            # They are no more. It goes by what holds now; or will, once that is set up.
            if not self._shape.held_up():
                self._send_anew(lease)
            return
        self._upload_over(lease.id)
        try:
            if update.version != lease.version:
                raise PeerViolation(f"made against version {update.version}; lease {lease.id} was for {lease.version}")
            self._check_told(update, lease)
        except PeerViolation as violation:
            self._spoilt(worker, update, lease, violation)
            return
        # The work is done, and the sub-leaders' time is not the worker's: it does not age.
        self._course.ledger.extend(lease, deadline_s=math.inf)
        self._shape.on_report(Report(lease, update, self._course.scale_of(lease, update)))
        self._delivered(worker, update, lease)
        self._proceed(only=worker.node)
        self._watch_the_last()

    def _spoilt(
        self,
        worker: Member,
        update: Update,
        lease: Lease,
        violation: PeerViolation,
        *,
        is_unusual: bool = False,
    ) -> None:
        reason = violation.reason
        self._course.ledger.release(lease, fate=f"was refused: {reason}")
        self._shape.forget(lease.id)
        if isinstance(violation, BadValues) and self._on_bad(worker, lease):
            # Where it is the model, no batch and no device is at fault.
            self._refuse(worker, update, reason)
            return
        self._count_failures(worker, lease, reason)
        self._on_violation(worker, update, reason, is_unusual=is_unusual)

    def _merged(self, nodes: Sequence[str]) -> None:
        """Updates of these workers are in the next version."""
        self._suspicion.on_merged(nodes)
        for node in nodes:
            if (worker := self._crew.get(node)) is not None:
                self._crew.on_merged(worker)

    def _on_sub_leader(self, sender: str, message: Formed | Routed | Spoilt | Gathered) -> None:
        match message:
            case Formed():
                self._shape.on_formed(sender, message)
            case Routed():
                self._shape.on_routed(sender, message)
                self._portions.on_changed()
                worker = self._crew.get(sender)
                if worker is not None and self._crew.is_idle(sender):
                    # It may have been waiting for that.
                    self._crew.make_idle(worker)
                if worker is not None:
                    self._proceed(only=sender)
            case Spoilt():
                self._on_spoilt(sender, message)
            case Gathered():
                self._on_gathered(sender, message)
        self._reshape()

    def _on_spoilt(self, sender: str, message: Spoilt) -> None:
        """A sub-leader was sent what is no piece. Whose it is, it says; that it is one of ours, we know."""
        worker, lease = self._crew.get(message.node), self._course.ledger.find(message.lease, message.node)
        if worker is None or isinstance(lease, Refusal) or self._shape.has_arrived(lease.id):
            return
        if not self._shape.is_sub_leader(sender):
            return
        update = Update(job=message.job, term=self._term, lease=lease.id, version=lease.version, examples=1)
        self._spoilt(worker, update, lease, BadValues(f"{message.reason} (found by {sender})"))

    def _on_gathered(self, sender: str, message: Gathered) -> None:
        if (phantom := self._shape.without_its_piece(sender, message)) is not None:
            self._on_phantom(sender, phantom)
            return
        try:
            summed = self._shape.on_gathered(sender, message)
        except PeerViolation as violation:
            self._shaping.on_failed([sender])
            self._shape.mark_broken(f"{sender} sent {violation.reason}")
            self.record("sub-leader", f"{sender} sent {violation.reason}")
            return
        if self._shape.is_sub_leader(sender):
            # What went between devices is this job's traffic too.
            self._bytes_up += message.bytes_up
            self._bytes_down += message.bytes_down
        if summed is None:
            return
        self._learn_usual(summed)
        self._merged([sender, *(report.lease.worker for report in summed.reports)])
        self._course.merge_sum(summed.reports, summed.mean, summed.weight, moved=summed.moved)
        if self._online is not None:
            for report in summed.reports:
                self._online.on_merged(report.lease.id, report.update)
        self._shaping.on_sum_merged()
        self._proceed()

    def _on_phantom(self, sender: str, report: Report) -> None:
        """A worker said that everyone had its update, and one does not. Others' sums have it: they are made anew."""
        worker, lease = self._crew.get(report.lease.worker), self._course.ledger.get(report.lease.id)
        reason = f"{sender} has no piece of the update of {report.lease.worker}, which said that it was sent"
        self._shape.mark_broken(reason)
        if worker is None or lease is None:
            self.record("sub-leader", reason)
            return
        self._spoilt(worker, report.update, lease, PeerViolation(reason))

    def _learn_usual(self, summed: Summed) -> None:
        """Of updates that met elsewhere the leader sees the mean: that of n is about √n times as short as they are."""
        weights = [report.update.examples for report in summed.reports]
        scale = sum(w * report.scale for w, report in zip(weights, summed.reports, strict=True)) / sum(weights)
        steps = median_high([self._steps_of(report.update, report.lease) for report in summed.reports])
        norm = norm_of(summed.mean) * math.sqrt(len(weights)) / scale
        self._usual.accepted(norm, steps=steps)

    def _reshape(self) -> None:
        """Let what is set up hold, once it can; set something up where that is wanted, or what holds is broken."""
        shape, shaping = self._shape, self._shaping
        if self._phase.is_over:
            return
        late = shape.late(allowance_s=self._clock.allowance_s())
        if late is not None:
            shaping.on_failed([late])
            shape.mark_broken(f"no sum came from {late} in time")
        if self._parting is not None:
            # Nothing is set up any more. But what is lent must come, or the job would never be handed over.
            broken = shape.held_up()
            if broken:
                shape.star(f"the job gets another leader; {broken}")
                self._change()
            return
        if silent := shape.complaints():
            self._doubt(silent, f"{', '.join(silent)} did not answer those who sent their updates there")
        if (trouble := shape.trouble()) is not None:
            reason, through = trouble
            shaping.on_failed(through)
            self.record("forming", f"given up: {reason}")
            shape.give_up_next()
        if shape.next is None and (wanted := self._wanted()) is not None:
            self._turn_to(wanted)
        if shape.held_up() is not None and shape.next is None:
            shape.star(f"no other can be set up now: {shape.held_up()}")
            self._change()
        elif shape.is_ready() and (shape.held_up() is not None or self._may_change()):
            shape.hold()
            self._change()

    def _doubt(self, nodes: Sequence[str], reason: str) -> None:
        """These are no sub-leaders any more, for a while."""
        self._shaping.exclude(nodes)
        self._shape.mark_broken(reason)

    def _turn_to(self, wanted: Wanted) -> None:
        """A pace holds at once, a star too; what needs sub-leaders is set up first."""
        if wanted.pace is not None and wanted.pace != self._pace_now:
            self._pace_now, self._pace = wanted.pace, PACES[wanted.pace](wanted.buffer)
            self._pulse = Pulse(self, pace=wanted.pace)
            told = f"{wanted.pace}, {wanted.buffer} updates a version" if wanted.pace == "buffered" else wanted.pace
            self.record("pace", f"{told}: {wanted.reason}")
        if wanted.shares:
            lease_s = self._clock.typical_s
            self._shape.begin(wanted.kind, wanted.shares, reason=wanted.reason, lease_s=lease_s)
            return
        self._shape.star(wanted.reason)
        self._change()

    def _wanted(self) -> Wanted | None:
        shape = self._shape
        if self._shaping.is_star:
            # Those who work for it may be thousands: they are not looked through at each tick for nothing.
            return None
        # One who is suspect would be waited for, and may never come.
        away = {*self._leaving, *self._suspects}
        able = [worker for worker in self._crew.able() if worker.node not in away]
        if (broken := shape.held_up()) is not None and shape.now is not None:
            # Everyone waits for it: nobody else does.
            arranged = self._shaping.arrange(shape.now.kind, able)
            return replace(arranged, reason=f"{broken}; {arranged.reason}") if arranged is not None else None
        if self._course.version == 0 or not self._enough():
            return None
        leading = shape.now.sub_leaders if shape.now is not None else []
        if any(node in self._leaving for node in leading) and shape.now is not None:
            return self._shaping.arrange(shape.now.kind, able)
        if self._pace_now == "sync" and not self._may_change():
            # A pace or a star that is chosen holds at once, and that is between two versions.
            return None
        return self._shaping.wanted(able, leading, shape.kind, self._pace_now)

    def _may_change(self) -> bool:
        """In step, shapes change between two versions. Where nobody waits for anybody, at any time."""
        ledger = self._course.ledger
        is_between = not ledger.outstanding and not ledger.merged
        return is_between or (self._pace_now != "sync" and self._shape.next_kind != "shard")

    def _change(self) -> None:
        """Another shape holds: what was lent by the one before goes by this one."""
        ledger = self._course.ledger
        going, astray = self._shape.redeliver(ledger.leases(), lambda node: self._crew.get(node) is not None)
        for lease in going:
            self._send_anew(lease)
        for lease in going:
            # It delivers what it has, and is lent nothing else meanwhile.
            if (worker := self._contributes_again(lease)) is not None and self._crew.is_idle(worker.node):
                self._crew.make_busy(worker, WorkerState.WORKING)
        fate = "was taken back: its worker is not part of how updates meet now"
        for lease in astray:
            ledger.release(lease, fate=fate)
            self._contributes_again(lease)
            self.record("lease-returned", f"lease {lease.id} {fate}")
        self._crew.release()
        self._portions.on_changed()
        self._proceed()

    def _send_anew(self, lease: Lease) -> None:
        """Its update went to sub-leaders that are no more. It goes by those that are, or straight here: in its turn, as
        any that is offered."""
        if self._shape.lent_by(lease.id):
            if lease.deadline_s == math.inf:
                self._course.ledger.extend(lease, deadline_s=self.now_s + self._clock.allowance_s() + LEASE_GRACE_S)
            self._shape.go(lease)
            return
        if self._admission.offer(lease.id):
            self._admitted(lease)
            return
        worker = self._crew.get(lease.worker)
        if worker is not None and worker.state is WorkerState.DELIVERING:
            # It is made, and waits for its turn: that is not the worker's fault. One that is not made yet still ages.
            self._course.ledger.extend(lease, deadline_s=math.inf)

    def _contributes_again(self, lease: Lease) -> Member | None:
        """Its update is in no sum any more: whose it was may be lent the same version again."""
        worker = self._crew.get(lease.worker)
        if worker is not None:
            worker.contributed_to = min(worker.contributed_to, lease.version - 1)
        return worker

    def _watch_the_last(self) -> None:
        """Those who are done wait for a lease that runs out before the next tick: it is not waited for any longer."""
        left_s = self._course.ledger.next_deadline_s - self.now_s
        if left_s < TICK_S:
            self.timer(_LATE, max(LATE_LEAST_S, left_s))

    def _on_late(self) -> None:
        if self._phase.is_over:
            return
        if self._expire():
            self._proceed()
        self._watch_the_last()

    def _on_pause(self, late_s: float) -> None:
        """This leader stood still: what came meanwhile is heard before any lease runs out."""
        if late_s < PAUSE_LEAST_S:
            return
        for ledger in self._ledgers():
            ledger.put_off(late_s + TICK_S)
        told = f"this leader stood still for {late_s:.1f} s: every lease has as much longer"
        if late_s >= PAUSE_TOLD_S:
            self.record("paused", told)

    def _wait_together(self) -> None:
        """One lease that is late is given to others. Where nobody returns anything, it may be that nobody can: then
        leases that are late wait on, for a while. A device that is alone is waited for too: who else should do it?"""
        late = self._course.ledger.late(self.now_s)
        holders = {lease.worker for lease in self._course.ledger.leases()} if late else set()
        for lease in late:
            worker = self._crew.get(lease.worker)
            if worker is None:
                continue
            own_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=lease.latest_s - lease.issued_s)
            is_alone = self._crew.trusted == 1
            is_quiet = len(holders) > 1 and self._returned_s < lease.issued_s + own_s / 2
            until_s = min(lease.latest_s, lease.issued_s + max(SHORTEST_S, TOGETHER_TIMES * own_s))
            if (is_alone or is_quiet) and self.now_s < until_s:
                self._course.ledger.extend(lease, deadline_s=min(until_s, self.now_s + max(own_s / 2, LATE_LEAST_S)))

    def _expire(self) -> bool:
        """Take back the leases that are overdue. True: there was one."""
        self._wait_together()
        is_any = False
        for clock, ledger in self._clocked_ledgers():
            for lease in ledger.expire(self.now_s):
                clock.expired()
                self._on_expired(lease)
                is_any = True
        return is_any

    def _checked(self, update: Update, lease: Lease) -> np.ndarray | Sparse:
        if update.version != lease.version:
            raise PeerViolation(f"made against version {update.version}; lease {lease.id} was for {lease.version}")
        self._check_told(update, lease)
        return decode(self._codec, update.tensors, self._sizes)

    def _steps_of(self, update: Update, lease: Lease) -> int:
        """How many steps of training an update is made of, as far as its worker did what it was lent."""
        if self._online is None:
            return len(lease.batches)
        return math.ceil(update.examples / self._spec.plan.batch_size)

    def _model_norm(self) -> float:
        if self._norm[0] != self._course.version:
            self._norm = (self._course.version, norm_of(self._course.model))
        return self._norm[1]

    def _norm_max(self) -> float:
        """What sub-leaders may take; 0: nothing is known of what is usual."""
        limit = self._usual.limit(model_norm=self._model_norm())
        return limit if limit < math.inf else 0.0

    def _check_told(self, update: Update, lease: Lease) -> None:
        if self._online is None:
            check_told(update, examples_max=self._course.examples_in(lease))
            return
        examples_max = self._online.examples_max(lease.id)
        check_told(update, examples_max=examples_max)
        self._online.check(update, examples_max=examples_max)

    def _on_offer(self, worker: Member, offer: Offer) -> None:
        lease = self._course.ledger.find(offer.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, offer, lease.reason)
            return
        if self._shape.lent_by(lease.id):
            self._on_undelivered(worker, offer, lease)
            return
        if self._admission.holds(lease.id):
            # Its first Go was lost with a session. Its time to upload runs since then.
            self._go(lease)
            return
        if self._admission.offer(lease.id):
            self._admitted(lease)
            return
        # The work is done and waits for its turn: that is not the worker's fault, so it does not age.
        self._course.ledger.extend(lease, deadline_s=math.inf)
        worker.state, worker.reason = WorkerState.WAITING, f"{self._admission.waiting} updates wait to be taken"

    def _on_made(self, worker: Member, made: Made) -> None:
        """Its update is on the way to the sub-leaders. Should that take long, it is not the worker who is late."""
        lease = self._course.ledger.find(made.lease, worker.node)
        if isinstance(lease, Lease) and self._shape.lent_by(lease.id) and lease.deadline_s < math.inf:
            worker.state, worker.reason = WorkerState.DELIVERING, "the update is on its way to the sub-leaders"
            self._course.ledger.extend(lease, deadline_s=self.now_s + self._clock.allowance_s() + LEASE_GRACE_S)

    def _on_undelivered(self, worker: Member, offer: Offer, lease: Lease) -> None:
        """An update cannot go to its sub-leaders: it goes another way. In a shard there is none: it is lent anew."""
        if self._shape.has_arrived(lease.id) or self._shape.held_up():
            # It is where it should be; or is sent anew once another formation holds.
            return
        way = self._shape.way(worker.node)
        if way and way == self._shape.lent_by(lease.id):
            self._shape.again(lease)
            return
        if not way and self._shape.kind == "shard":
            fate = f"was taken back: {worker.node} {self._shape.hindrance(worker.node) or 'has no way to send it'}"
            self._course.ledger.release(lease, fate=fate)
            self._shape.forget(lease.id)
            self.record("lease-returned", f"lease {lease.id} {fate}")
            self._refuse(worker, offer, f"lease {lease.id} {fate}")
            return
        self._shape.lend(lease.id, way)
        self._send_anew(lease)

    def _admitted(self, lease: Lease) -> None:
        self._course.ledger.extend(lease, deadline_s=self.now_s + self._clock.allowance_s() + LEASE_GRACE_S)
        self._go(lease)

    def _go(self, lease: Lease) -> None:
        self.send(lease.worker, Go(job=self._spec.job, term=self._term, lease=lease.id))

    def _upload_over(self, lease_id: int) -> None:
        """Whatever became of this upload, its place is free: the next in line may send."""
        following = self._admission.done(lease_id)
        while following is not None:
            lease = self._course.ledger.get(following)
            if lease is not None:
                self._admitted(lease)
                return
            following = self._admission.done(following)

    def _refuse(self, worker: Member, what: Offer | Update | Evaluated, reason: str) -> None:
        """Say why an update was not merged. A worker left without a lease by it is ready again.

        The refusal carries the term of what is refused: lease numbers begin anew with each term.
        """
        self._refused += 1
        held = [lease.id for ledger in self._ledgers() for lease in ledger.held_by(worker.node)]
        refused = Refused(
            job=self._spec.job, term=what.term, lease=what.lease, reason=clip(reason), holds=held[0] if held else 0
        )
        self.record("refused", f"update of {worker.node}: {reason}")
        self.send(worker.node, refused)
        if held:
            return
        if self._phase.is_over:
            return
        worker.holds = (0, -1)
        self._crew.make_idle(worker)
        self._proceed(only=worker.node)

    def _on_violation(self, worker: Member, what: Update | Evaluated, reason: str, *, is_unusual: bool = False) -> None:
        self._crew.on_violation(worker, reason, is_unusual=is_unusual)
        if not self._crew.trusted:
            # Everyone diverges, or the one who is here lies: waiting would mend neither.
            if is_unusual and self._ending is None and self._suspicion.has_contributors:
                self._go_back([worker.node])
                self._refuse(worker, what, reason)
                return
            every = f"no worker is left that may train: {worker.node} was refused {worker.violations} times"
            self._end(*(self._ending or ("failed", f"{every}, last for {reason}")))
        self._refuse(worker, what, reason)

    # The model is suspected ----------------------------------------------------------------------------

    def _on_bad(self, worker: Member, lease: Lease) -> bool:
        """One bad result is its device's fault: then there is nothing to do here. When those of most devices are, it is
        the model's: it goes back to the version that was found good last, and who contributed since is set aside."""
        self._suspicion.on_bad(worker.node, lease.batches)
        if self._phase.is_over:
            return False
        # One that was left out for its results alone is a witness still.
        here = [node for node in self._suspicion.accused if self._crew.get(node) is not None]
        witnesses = self._suspicion.witnesses(sorted({*here, *(member.node for member in self._crew.able())}))
        if witnesses:
            self._go_back(witnesses)
        return bool(witnesses)

    def _go_back(self, witnesses: Sequence[str]) -> None:
        course, before = self._course, self._course.version
        culprits = self._suspicion.take_contributors()
        seen = f"{_named(witnesses)} get values that are not finite or far from what is usual"
        if not culprits:
            what = f"version {before}, which nobody moved since it was found good"
            self._end("failed", f"the model is suspected: {seen} from {what}: try a lower learning rate")
            return
        for ledger in self._ledgers():
            for lease in ledger.leases():
                self._admission.done(lease.id)
                self._shape.forget(lease.id)
                told = f"lease {lease.id} was taken back: the model is suspected"
                self.record("lease-returned", told)
        good = course.good_version
        self._exam = None
        self._batch_failures.clear()
        course.go_back()
        self._durability.on_went_back(good)
        self._shape.mark_broken(f"the model went back to version {good}")
        told = f"version {course.version} is version {good} again, the last that was found good: {seen}"
        out = f"set aside: it contributed to the model after version {good}, and by version {before} it was broken"
        for node in culprits:
            self._crew.set_aside(node, out)
        self.record("went-back", f"{told}; set aside, since they contributed: {_named(culprits)}")
        for node in self._crew.nodes():
            worker = self._crew.get(node)
            if worker is not None and not self._crew.is_idle(node) and worker.state.may_hold_lease:
                # What it is at is of no use. It says so, or is ready; until then nothing is awaited of it.
                self._crew.set_state(
                    worker, WorkerState.LATE, reason="its lease was taken back: the model is suspected"
                )
        self._crew.release()
        self._portions.on_changed()
        if not self._crew.trusted:
            none = f"the model is suspected: {seen}. It went back to version {good}, and no worker is left that did not"
            self._end("failed", f"{none} contribute since ({_named(culprits)}). {NEXT}")
            return
        self._save()
        self._reshape()
        self._proceed()

    def _on_failed(self, worker: Member, failed: Failed) -> None:
        worker.failures += 1
        self.record("failed", f"{worker.node}: {failed.reason}", traceback=failed.traceback)
        if failed.lease == 0:
            self._crew.make_busy(worker, WorkerState.FAILING, reason=failed.reason)
        for clock, ledger in self._clocked_ledgers():
            lease = ledger.find(failed.lease, worker.node)
            if isinstance(lease, Lease):
                if self._shape.has_arrived(lease.id):
                    continue
                if self.now_s >= lease.deadline_s - LEASE_GRACE_S:
                    clock.expired()
                self._crew.make_busy(worker, WorkerState.FAILING, reason=failed.reason)
                ledger.release(lease, fate=f"failed on {worker.node}: {failed.reason}")
                self._shape.forget(lease.id)
                self._upload_over(lease.id)
                if failed.diverged and self._on_bad(worker, lease):
                    return
                self._count_failures(worker, lease, failed.reason)
        self._proceed()

    def _count_failures(self, worker: Member, lease: Lease, reason: str) -> None:
        for batch in lease.batches:
            self._batch_failures.setdefault(batch, Counter())[worker.node] += 1
        worker.is_failing = True
        worst = max(lease.batches, key=lambda batch: self._batch_failures[batch].total())
        times = self._batch_failures[worst].total()
        if times < BATCH_FAILURES_MAX:
            return
        if len(self._batch_failures[worst]) == 1 and self._crew.any_healthy():
            return
        if self._ending is not None:
            # Time was over and only the last evaluation was missing: it ends without.
            self._end(*self._ending)
            return
        what = f"batch {worst} of epoch {lease.epoch + 1} failed {times} times, last on {worker.node}: {reason}"
        self._end("failed", what)

    # The model moves -----------------------------------------------------------------------------------

    def _step(self) -> None:
        self._advance()
        if self._course.ledger.finished:
            self._reshape()
            self._epoch_over()
            return
        self._reshape()
        self._lend()
        self._save_if_due()

    def _advance(self) -> None:
        self._durability.on_applied(self._course.advance())
        round_s = self._pulse.on_version(workers=self._crew.trusted)
        if round_s is not None:
            self._shaping.on_round(round_s, self._shape.kind)
        self._crew.release()

    def _epoch_over(self) -> None:
        self._course.ledger.next_epoch()
        self._batch_failures.clear()
        done, batches = self._course.ledger.epoch, self._course.ledger.batches
        told = f"epoch {done}: {batches} batches applied once each, version {self._course.version}"
        self.record("epoch", told)
        if self._evaluation_due():
            self._begin_exam()
            self._save()
            self._lend()
            return
        self._judged_before()
        self._decide()

    def _judged_before(self) -> None:
        """Where examples are the devices' own and none is held out: how it did on what was new, before that was trained
        on (test, then train)."""
        if self._online is None or self._spec.test.examples:
            return
        seconds, epoch = self._course.elapsed_s, self._course.ledger.epoch
        view = self._online.view(version=self._course.version, epoch=epoch, seconds=seconds)
        if view is None:
            return
        self._judged(view)
        told = f"{view.accuracy:.2%} of {view.examples} new examples right before they were trained on"
        self.record("evaluated", f"epoch {epoch}: {told}, loss {view.loss:.4f}")

    def _judged(self, view: EvaluationView) -> None:
        self._course.on_evaluated(view)
        self._durability.on_evaluated(view)
        if self._suspicion.is_sound(view):
            self._course.on_found_good()
            self._suspicion.on_found_good()

    def _evaluation_due(self) -> bool:
        """At the end of an epoch whose turn it is, or the last, unless this version was evaluated already."""
        done, plan = self._course.ledger.epoch, self._spec.plan
        at_boundary = self._course.ledger.applied == 0 and done > 0
        is_last = done == plan.until.epochs or self._ending is not None
        due = done % plan.evaluate_every_epochs == 0 or is_last
        return at_boundary and due and not self._course.is_evaluated and self._spec.test.examples > 0

    def _begin_exam(self) -> None:
        self._batch_failures.clear()
        self._exam = Exam(
            version=self._course.version, epoch=self._course.ledger.epoch, examples=self._spec.test.examples
        )
        self._crew.release()

    def _on_evaluated(self, worker: Member, result: Evaluated) -> None:
        if self._exam is None:
            self._refuse(worker, result, f"lease {result.lease} is not of a running evaluation")
            return
        lease = self._exam.ledger.find(result.lease, worker.node)
        if isinstance(lease, Refusal):
            self._refuse(worker, result, lease.reason)
            return
        problem = self._exam.problem(result, lease)
        if problem is not None:
            self._exam.ledger.release(lease, fate=f"was refused: {problem}")
            self._on_violation(worker, result, problem)
            return
        self._exam.add(result, lease)
        self._exam_clock.returned(self.now_s - lease.issued_s)
        worker.is_failing = False
        self._crew.make_idle(worker)
        if not self._exam.finished:
            self._proceed(only=worker.node)
            return
        view = self._exam.view(seconds=self._course.elapsed_s)
        self._exam = None
        self._batch_failures.clear()
        self._judged(view)
        told = f"{view.accuracy:.2%} right, loss {view.loss:.4f} on {view.examples} held-out examples"
        self.record("evaluated", f"version {view.version} after epoch {view.epoch}: {told}")
        self._decide()

    def _decide(self) -> None:
        """Between two epochs: go on, or is it done?"""
        until = self._spec.plan.until
        latest = self._course.latest if self._course.is_evaluated else None
        if self._ending is not None:
            self._end(*self._ending)
            return
        if until.accuracy is not None and latest is not None and latest.accuracy >= until.accuracy:
            self._end("finished", f"reached {latest.accuracy:.2%}, the goal was {until.accuracy:.2%}")
            return
        if until.epochs is not None and self._course.ledger.epoch >= until.epochs:
            self._end("finished", f"all {until.epochs} epochs are done")
            return
        self._save()
        self._lend()

    # Time ------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if self._phase is LeaderPhase.ENDED:
            return
        self.timer(_TICK, TICK_S)
        self._expire()
        if self._phase is LeaderPhase.CLOSING:
            if self._durability.may_retry():
                self._save()
            self._report()
            return
        self._reshape()
        self._proceed()
        if (verdict := self._pulse.look()) is not None:
            self.record("saturation", verdict)
        self._explain_waits()
        self._out_of_time()
        self._save_if_due()
        self._report()

    def _on_expired(self, lease: Lease) -> None:
        worker = self._crew.get(lease.worker)
        waited_s = self.now_s - lease.issued_s
        if worker is not None:
            worker.state = WorkerState.LATE
            worker.stretch = min(2 * worker.stretch, STRETCH_MAX)
            worker.reason = f"no update for lease {lease.id} in {waited_s:.1f} s; its batches went to others"
        reason = f"lease {lease.id} of {lease.worker} after {waited_s:.1f} s"
        self._shape.forget(lease.id)
        self.record("expired", reason)
        self._upload_over(lease.id)

    def _explain_waits(self) -> None:
        """Show what is waited for as it stands now; say it to each worker once, and then seldom: it changes often."""
        bored, untold = self._crew.bored(), self._crew.take_untold()
        if not bored and not untold:
            return
        reason, ledger = self._why_idle(), self._lent_from()
        for worker in bored:
            worker.state, worker.reason = WorkerState.WAITING, self._portions.why_idle(worker.node, ledger, reason)
        told = ((worker, self._portions.why_idle(worker.node, ledger, reason)) for worker in untold)
        for worker, why in told:
            self._tell(worker, why)

    def _out_of_time(self) -> None:
        limit_s = self._spec.plan.until.seconds
        if self._ending is not None:
            # The last evaluation runs. It does not wait for workers who may never come.
            if not self._enough():
                self._end(*self._ending)
            return
        if limit_s is None or self._course.elapsed_s < limit_s:
            return
        self._ending = ("finished", f"the time limit of {limit_s:g} s is over")
        if self._course.is_evaluated or not self._spec.test.examples or self._course.version == 0 or not self._enough():
            self._end(*self._ending)
            return
        self.record("ending", self._ending[1])
        if self._exam is None:
            for lease in self._course.ledger.leases():
                self._course.ledger.release(lease, fate="was taken back: the job's time is over")
                self._shape.forget(lease.id)
                self._admission.done(lease.id)
            if self._course.ledger.merged:
                # What is merged belongs to the last version; later it would change the model under the evaluation.
                self._advance()
            if self._course.ledger.finished:
                self._epoch_over()
                return
            self._begin_exam()
        self._lend()

    # Durable, then said ------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._durability.save(self._number, self._snapshot)

    @property
    def _number(self) -> int:
        """The version's number as it is saved. The last of a leader may have a higher one than its own: another leader
        used the numbers in between, on its side of a cut. Not before the round is over: leases name versions."""
        is_over = self._parting is not None and self._exam is None and not self._course.ledger.outstanding
        is_last = self._phase.is_over or is_over
        return max(self._course.version, self._version_least) if is_last else self._course.version

    def _save_if_due(self) -> None:
        every_s = self._spec.plan.checkpoint_every_s
        if self._durability.at_risk >= AT_RISK_MAX and not self._durability.is_saving:
            # Everyone waits for this one.
            every_s = min(every_s, AT_RISK_SAVE_S)
        if self._durability.due(every_s=every_s):
            self._save()

    def _on_saved(self, version: int) -> None:
        self._course.went_back = tuple(pair for pair in self._course.went_back if pair[1] > version)
        if self._durability.on_saved(version):
            self._save()
            return
        if self._phase is LeaderPhase.CLOSING and not self._durability.is_saving:
            self._over()

    def _on_save_failed(self, event: SaveFailed) -> None:
        if not self._durability.on_failed(event.reason):
            # It is tried again and again while the manager is away: one line says so.
            return
        self.record("save-failed", f"version {event.version}: {event.reason}; trying again")

    def _end(self, state: str, reason: str) -> None:
        """Decide that the job is over. It is said once the last version is durable."""
        if self._phase.is_over:
            return
        reason = clip(reason)
        self._ending = (state, reason)
        self._phase, self._reason = LeaderPhase.CLOSING, reason
        self._course.stop()
        self._exam = None
        self.record("ending", f"{state}: {reason}")
        if self._pace.takes_the_rest(merged=self._course.ledger.merged):
            self._advance()
        self._save()

    def _over(self) -> None:
        assert self._ending is not None
        self._phase, (_, reason) = LeaderPhase.ENDED, self._ending
        finished = Finished(job=self._spec.job, reason=reason)
        for node in self._crew.nodes():
            self.send(node, finished)
        self._report()
        self.act(End(reason=reason))

    # What people see ---------------------------------------------------------------------------------------

    def record(self, kind: str, reason: str, *, job: str = "", traceback: str = "") -> None:
        """Every record is of this leader's job. Round statistics and fixed shares go by its kind."""
        self._pulse.on_record(kind)
        self._portions.on_record(kind)
        super().record(kind, clip(reason), job=job or self._spec.job, traceback=traceback)

    def _report(self) -> None:
        self.send(self._manager, self.progress())

    def progress(self) -> Progress:
        """How the job stands."""
        latest = self._course.latest
        state = self._ending[0] if self._phase is LeaderPhase.ENDED and self._ending else self._phase.value
        rounds_per_s, examples_per_s = self._course.rates()
        unsaved, of_term = self._durability.unsaved, self._durability.of_term
        return Progress(
            job=self._spec.job,
            term=self._term,
            state=state,
            reason=clip(self._reason or ""),
            version=self._number,
            durable_version=max(0, self._durability.version),
            epoch=self._course.ledger.epoch,
            batches_applied=self._course.ledger.applied,
            batches_total=self._course.ledger.batches,
            accuracy=latest.accuracy if latest else None,
            loss=latest.loss if latest else None,
            train_loss=self._course.train_loss,
            rounds_per_s=rounds_per_s,
            examples_per_s=examples_per_s,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            seconds=self._course.elapsed_s,
            refused=self._refused,
            workers=self._crew.views(typical_s=self._clock.typical_s),
            staleness=self._course.lateness.typical,
            staleness_max=self._course.lateness.worst,
            saturation=self._pulse.verdict,
            saturation_reason=self._pulse.reason,
            saturated_at=self._pulse.saturated_at,
            round_s=self._pulse.round_s,
            sync_s=self._pulse.sync_s,
            shape=self._shape.notation,
            shape_reason=clip(self._shape.reason or ""),
            pace=self._pace_now,
            predicted_s=self._shaping.predicted_s,
            alternatives=self._shaping.views,
            unsaved_batches=unsaved.batches,
            unsaved_workers=unsaved.workers,
            term_batches=of_term.batches,
            term_workers=of_term.workers,
        )


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:NAMED_MAX]) + (f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else "")


@lru_cache(maxsize=4)
def _wait(job: str, reason: str) -> Wait:
    """The same word to many workers is one message."""
    return Wait(job=job, reason=clip(reason))
