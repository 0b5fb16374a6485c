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
from shoal.roles.actions import Action, End, Record, Send, SetTimer
from shoal.roles.course import Course
from shoal.roles.crew import AT_WORK, WAIT_EVERY_S, Crew, Member
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
from shoal.roles.online import NotNow, Online
from shoal.roles.portions import Portions
from shoal.roles.pulse import Pulse
from shoal.roles.shape import Shape, Summed
from shoal.roles.shaping import Shaping, Wanted
from shoal.roles.suspicion import Suspicion
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


class Leader:
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
        plan = spec.plan
        self._spec = spec
        self._layout = layout
        self._term = term
        self._manager = manager
        self._course = Course(spec, layout, model)
        self._exam: Exam | None = None
        #: ``auto`` begins in step.
        self._pace_now = "sync" if plan.pace == "auto" else plan.pace
        self._pace = PACES[self._pace_now](plan.buffer)
        self._pulse = Pulse(pace=self._pace_now)
        self._portions = Portions(work=plan.work)
        #: Where examples are the devices' own.
        self._online = Online(plan) if plan.data == "local" else None
        #: Why what the leader before knew of devices could not be taken over.
        self._unread = ""
        model_bytes = layout.size * 4
        self._codec, self._sizes = Codec.parse(plan.codec), sizes_of(layout)
        update_bytes = bytes_max(self._codec, self._sizes)
        self._admission = Admission(update_bytes=update_bytes, budget_bytes=upload_budget_bytes)
        self._clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=2 * model_bytes)
        self._exam_clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=model_bytes)

        self._crew = Crew()
        self._usual = Usual()
        self._suspicion = Suspicion()
        #: When an update was last returned.
        self._returned_s = -math.inf
        #: A version, and the norm of its model.
        self._norm: tuple[int, float] = (-1, 0.0)
        self._shape = Shape(spec=spec, term=term, layout=layout, course=self._course, norm_max=self._norm_max)
        down_bytes = bytes_expected(Codec.parse(plan.down), self._sizes)
        wire_bytes = (bytes_expected(self._codec, self._sizes) + down_bytes) / 2
        self._shaping = Shaping(plan, size=layout.size, wire_bytes=wire_bytes)
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

        self._phase = "waiting"
        self._reason = "no worker has connected yet"
        self._ending: tuple[str, str] | None = None
        self._bytes_up = 0
        self._bytes_down = 0

        self._durability = Durability()
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

    def _snapshot(self, now_s: float) -> tuple[Tensors, dict[str, Any]]:
        tensors: Tensors
        tensors, state = self._course.snapshot(now_s)
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

    def handle(self, event: Event, now_s: float) -> list[Action]:
        actions = self._handle(event, now_s)
        if self._leaving:
            actions = [*actions, *self._let_go()]
        if self._parting is not None and not isinstance(event, SaveFailed):
            actions = [*actions, *self._hand_over(now_s)]
        return actions

    def _handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Started():
                return self._on_started(now_s)
            case Received():
                return self._on_received(event, now_s)
            case PeerChanged():
                return self._on_peer(event, now_s)
            case TimerFired():
                stood_still = self._on_pause(event.late_s)
                going_on = self._on_late(now_s) if event.name == _LATE else self._on_tick(now_s)
                return [*stood_still, *going_on]
            case Saved():
                return self._on_saved(event.version, now_s)
            case SaveFailed():
                return self._on_save_failed(event, now_s)
            case StopRequested():
                return self._end("stopped", event.reason, now_s)
            case _:
                return []

    def awaits(self, sender: str, message: Update | Gathered) -> bool:
        """Whether the tensors of this message can be merged now: of a lease that is open and the sender's, or of a sum
        that this sub-leader was asked for. Otherwise nobody need hold them: the message is refused without."""
        if message.term != self._term:
            return False
        if isinstance(message, Gathered):
            return self._shape.awaits(sender, message.formation)
        return isinstance(self._course.ledger.find(message.lease, sender), Lease)

    def _on_started(self, now_s: float) -> list[Action]:
        self._course.start(now_s)
        self._durability.start(now_s)
        actions: list[Action] = [SetTimer(name=_TICK, after_s=TICK_S)]
        if self._durability.version < 0:
            first = f"{self._course.ledger.batches} batches an epoch, {self._layout.size:,} values, term {self._term}"
            actions.append(self._record("started", first))
            actions += self._save(now_s)
        else:
            ledger = self._course.ledger
            where = f"epoch {ledger.epoch + 1}, {ledger.applied} of {ledger.batches} batches applied"
            told = f"from durable version {self._course.version}, {where}, term {self._term}"
            actions.append(self._record("resumed", told))
            if self._unread:
                actions.append(self._record("profiles", f"devices are measured anew: {self._unread}"))
            if self._ending:
                actions += self._end(*self._ending, now_s)
            elif self._evaluation_due():
                self._begin_exam()
        return actions

    def _on_received(self, event: Received, now_s: float) -> list[Action]:
        message, sender = event.message, event.sender
        self._bytes_up += event.size_bytes
        worker = self._crew.get(sender)
        if worker is not None:
            worker.bytes_up += event.size_bytes
        if isinstance(message, Release):
            if sender == self._manager:
                self._leaving[message.node] = message.reason
            return []
        if isinstance(message, HandOver):
            if sender == self._manager and message.term == self._term:
                self._parting, self._version_least = message.reason, message.version_least
            return []
        if isinstance(message, Ready):
            return self._on_ready(sender, message, now_s)
        if isinstance(message, Formed | Routed | Spoilt | Gathered):
            return self._on_sub_leader(sender, message, now_s) if message.term == self._term else []
        if not isinstance(message, Made | Offer | Update | Evaluated | Failed):
            return []
        actions: list[Action] = []
        if worker is None:
            # It was thought lost, and is back with what it has.
            worker = self._crew.add(sender, now_s)
            self._shaping.changed(now_s)
            actions = self._shape.joined(sender)
        return [*actions, *self._on_result(worker, message, now_s)]

    def _on_result(
        self, worker: Member, message: Made | Offer | Update | Evaluated | Failed, now_s: float
    ) -> list[Action]:
        if message.term != self._term:
            if isinstance(message, Failed | Made):
                # What failed was not lent by us. Its worker says Ready once its trainer is back.
                return []
            reason = f"made under term {message.term}; this leader's term is {self._term}"
            return self._refuse(worker, message, reason, now_s)
        match message:
            case Update():
                return self._on_update(worker, message, now_s)
            case Made():
                return self._on_made(worker, message, now_s)
            case Offer():
                return self._on_offer(worker, message, now_s)
            case Evaluated():
                return self._on_evaluated(worker, message, now_s)
            case Failed():
                return self._on_failed(worker, message, now_s)

    # Workers come, wait and go -----------------------------------------------------------------------

    def _on_ready(self, node: str, message: Ready, now_s: float) -> list[Action]:
        worker = self._crew.get(node)
        actions: list[Action] = []
        if worker is None:
            worker = self._crew.add(node, now_s)
            actions.append(self._record("joined", f"{node} is ready to work"))
            self._shaping.changed(now_s)
        if self._phase in ("closing", "ended"):
            return [*actions, *self._tell(worker, "the job is over; its last version is being saved")]
        held = (message.holds_term, message.holds_version)
        worker.holds = (self._term, 0) if held == FIRST_HELD else held
        worker.up_bytes_per_s, worker.down_bytes_per_s = message.up_bytes_per_s, message.down_bytes_per_s
        worker.medium = message.medium
        worker.device = message.state
        self._shape.lacks_values(node)
        actions += self._shape.joined(node)
        self._portions.changed()
        actions += self._give_up(node, now_s, fate=f"was given up: {node} asked for new work")
        self._crew.make_idle(worker, now_s)
        return [*actions, *self._proceed(now_s, only=node)]

    def _on_peer(self, event: PeerChanged, now_s: float) -> list[Action]:
        if event.node == self._manager:
            return self._on_manager(event.state, now_s)
        worker = self._crew.get(event.node)
        if worker is None:
            return []
        if event.state is Liveness.SUSPECT:
            worker.reason = event.reason
            self._suspects.add(event.node)
            told = self._record("suspect", f"{event.node}: {event.reason}")
            if not self._shape.is_sub_leader(event.node):
                return [told]
            # Everyone waits for it. To do without it costs less than to find out whether it comes back.
            self._doubt([event.node], f"{event.node}, a sub-leader, is suspect: {event.reason}", now_s)
            return [told, *self._reshape(now_s)]
        if event.state is Liveness.ALIVE:
            # Nobody looks again at one who is left out: what it was told still holds.
            worker.reason = worker.told if worker.left_out else ""
            self._suspects.discard(event.node)
            # It may have been left out of what was set up meanwhile.
            return self._shape.joined(event.node)
        self._suspects.discard(event.node)
        self._crew.remove(event.node)
        actions: list[Action] = [self._record("lost", f"{event.node}: {event.reason}")]
        actions += self._gone(event.node, event.reason, now_s)
        actions += self._give_up(event.node, now_s, fate=f"was taken back: {event.node} was lost ({event.reason})")
        return [*actions, *self._reshape(now_s), *self._proceed(now_s)]

    def _on_manager(self, state: Liveness, now_s: float) -> list[Action]:
        """The manager is out of reach, or back: then what could not be kept there is offered at once."""
        if state is Liveness.LOST:
            self._durability.cut_off()
        is_due = state is Liveness.ALIVE and self._durability.is_behind and not self._durability.is_saving
        return self._save(now_s) if is_due and self._phase != "ended" else []

    def _gone(self, node: str, reason: str, now_s: float) -> list[Action]:
        self._shaping.changed(now_s)
        return self._shape.left(node, reason)

    def _give_up(self, node: str, now_s: float, *, fate: str) -> list[Action]:
        """Return everything a worker holds to the free batches, unless it is with the sub-leaders already."""
        actions: list[Action] = []
        for ledger in self._ledgers():
            for lease in ledger.held_by(node):
                if ledger is self._course.ledger and self._shape.has_arrived(lease.id):
                    continue
                ledger.release(lease, fate=fate)
                self._shape.forget(lease.id)
                actions += self._upload_over(lease.id, now_s)
                actions.append(self._record("lease-returned", f"lease {lease.id} {fate}"))
        return actions

    def _let_go(self) -> list[Action]:
        """Part with those the manager wants back, as soon as they hold nothing: no trained lease is lost."""
        free = [node for node in self._leaving if not any(ledger.held_by(node) for ledger in self._ledgers())]
        # One who leads in part goes once another formation holds, in which it does not.
        free = [node for node in free if not self._shape.is_sub_leader(node)]
        actions: list[Action] = []
        for node in free:
            reason = self._leaving.pop(node)
            if self._crew.get(node) is not None:
                self._crew.remove(node)
                actions += self._shape.left(node, reason)
            released = Released(job=self._spec.job, term=self._term, node=node)
            actions += [
                self._record("released", f"{node} {reason}"),
                # Also to one who never came: it may be fetching the task still.
                Send(to=node, message=Finished(job=self._spec.job, reason=clip(reason))),
                Send(to=self._manager, message=released),
            ]
        return actions

    def _ledgers(self) -> list[Ledger]:
        return [ledger for _, ledger in self._clocked_ledgers()]

    def _clocked_ledgers(self) -> list[tuple[LeaseClock, Ledger]]:
        training = (self._clock, self._course.ledger)
        return [training, (self._exam_clock, self._exam.ledger)] if self._exam else [training]

    def _enough(self) -> bool:
        return self._crew.trusted >= self._spec.plan.workers_min

    # Handing out work --------------------------------------------------------------------------------

    def _proceed(self, now_s: float, only: str | None = None) -> list[Action]:
        """Move on as far as things allow: a step if one is due, then leases to whoever is ready."""
        if self._phase in ("closing", "ended"):
            return []
        ledger = self._course.ledger
        if self._shape.now is not None and (sums := self._shape.gather(ledger.leases(), now_s)):
            return [*sums, *self._lend(now_s, only=only)]
        if self._pace.should_step(merged=ledger.merged, outstanding=ledger.outstanding):
            return self._step(now_s)
        actions = self._lend(now_s, only=only)
        if ledger.merged and not ledger.outstanding:
            # Whoever may work was asked and nothing is lent: the version is waiting for nobody.
            actions += self._step(now_s)
        return actions

    def _lend(self, now_s: float, only: str | None = None) -> list[Action]:
        """Leases to whoever is ready; to one worker where only its state changed."""
        one = self._crew.get(only) if only is not None else None
        if (held_up := self._held_up()) is not None:
            self._phase, self._reason = "waiting", held_up
            return self._tell(one, held_up) if one else []
        if not self._enough():
            here, least = self._crew.trusted, self._spec.plan.workers_min
            self._phase, self._reason = "waiting", f"{here} of at least {least} workers are here"
            return self._tell(one, self._reason) if one else []
        if self._phase == "waiting":
            # The one who just came completes the number: those who waited for it begin too.
            one = None
        self._phase, self._reason = ("evaluating" if self._exam else "training"), ""
        actions: list[Action] = []
        if self._exam is None and (why := self._cut_portions()) is not None:
            actions.append(self._record("shares", why))
            # Whoever had nothing left may have something now.
            self._crew.release()
            one = None
        if one is not None and not self._spec.plan.cohort:
            return self._lend_to(one, now_s) if self._crew.is_idle(one.node) else []
        # Where only some work for a version, whoever waits longest is before the one who just came.
        actions += [action for worker in self._crew.take_outcasts() for action in self._lend_to(worker, now_s)]
        ledger = self._lent_from()
        while ledger.has_free and not self._is_full() and (worker := self._crew.first_in_line()) is not None:
            # Whoever is looked at leaves the line: with a lease, or to rest.
            actions += self._lend_to(worker, now_s)
        return actions

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

    def _hand_over(self, now_s: float) -> list[Action]:
        """Step down once nothing is lent and everything is durable: the next leader begins where this one ends."""
        if self._phase in ("closing", "ended") or self._exam is not None or self._course.ledger.outstanding:
            return []
        if self._durability.is_behind or self._durability.version < self._number:
            return [] if self._durability.is_saving else self._save(now_s)
        self._phase = "ended"
        reason = f"handed over at version {self._number}"
        stepped = SteppedDown(job=self._spec.job, term=self._term, reason=reason)
        return [self._record("handed-over", reason), Send(to=self._manager, message=stepped), End(reason=reason)]

    def _lent_from(self) -> Ledger:
        return self._exam.ledger if self._exam else self._course.ledger

    def _lend_to(self, worker: Member, now_s: float) -> list[Action]:
        if worker.node in self._leaving:
            self._crew.rest(worker)
            return []
        if worker.left_out:
            return self._tell(worker, worker.why_left_out)
        if self._exam is not None:
            clock, ledger, count, kind = self._exam_clock, self._exam.ledger, 1, "evaluate"
        else:
            # Of a device's own examples a lease is one thing, whatever it has to do for it.
            count = self._spec.plan.lease_batches if self._online is None else 1
            clock, ledger, kind = self._clock, self._course.ledger, "train"
            if not self._pace.may_start(contributed_to=worker.contributed_to, version=self._course.version):
                self._crew.rest(worker)
                return []
            if self._shape.awaits_sum(worker.node):
                # Those of a sub-leader begin together again, once their updates are in a version.
                self._crew.rest(worker)
                return []
            if (hindrance := self._shape.hindrance(worker.node)) != "":
                self._crew.rest(worker)
                return self._tell(worker, hindrance)
        examples = 0
        if self._online is not None and kind == "train" and ledger.has_free:
            wanted = self._online.wants(worker, self._similarity(worker), now_s)
            if isinstance(wanted, NotNow):
                self._crew.park(worker)
                return self._tell(worker, wanted.reason, retry_after_s=wanted.retry_after_s)
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
            now_s=now_s,
            deadline_s=now_s + waits_s,
            latest_s=now_s + allowance_s + LEASE_GRACE_S,
        )
        if lease is None:
            if ledger.sharers:
                # Others have batches left, and this one is not looked at for them.
                self._crew.rest(worker)
            return []
        self._last_lease = lease.id
        if self._online is not None and kind == "train":
            self._online.lent(lease.id, examples)
        self._crew.make_busy(worker, "working" if kind == "train" else "evaluating", now_s)
        passed = self._pass_on(worker) if worker.holds != (self._term, self._course.version) else []
        work = self._work(worker, lease, kind=kind, deadline_s=allowance_s, examples=examples)
        return [*passed, Send(to=worker.node, message=work)]

    def _pass_on(self, worker: Member) -> list[Action]:
        """In a tree, one model goes to the sub-leader for all of its members."""
        passed = self._shape.pass_on(worker.node, self._held_by)
        if passed is None:
            return []
        to, message = passed
        self._bytes_down += bytes_of(message.tensors)
        return [Send(to=to, message=message)]

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

    def _tell(self, worker: Member, reason: str, *, retry_after_s: float = 0.0) -> list[Action]:
        """Say why there is no work, once a reason; each time, where it says when to ask again."""
        worker.state, worker.reason = "waiting", reason
        if worker.told == reason and not retry_after_s:
            return []
        worker.told = reason
        if retry_after_s:
            wait = Wait(job=self._spec.job, reason=clip(reason), retry_after_s=retry_after_s)
            return [Send(to=worker.node, message=wait)]
        return [Send(to=worker.node, message=_wait(self._spec.job, reason))]

    def _why_idle(self, now_s: float) -> str:
        if (held_up := self._held_up()) is not None:
            return held_up
        if not self._enough():
            return self._reason
        ledger = self._lent_from()
        names = self._holders(ledger, now_s)
        what = "the evaluation" if self._exam else f"version {self._course.version + 1}"
        if not ledger.has_free:
            what = "the evaluation" if self._exam else f"the end of epoch {self._course.ledger.epoch + 1}"
        return f"{what} waits for {names}" if names else f"{what} is next"

    def _holders(self, ledger: Ledger, now_s: float) -> str:
        """Who has the leases that others wait for. While they are many, that is looked up now and then."""
        lent = (self._exam is not None, self._course.version)
        many = ledger.outstanding > HOLDERS_MANY
        named_s, of, names = self._named
        if many and of == lent and now_s - named_s < WAIT_EVERY_S:
            return names
        holders = {lease.worker for lease in ledger.leases()}
        names = ", ".join(nsmallest(4, holders)) + (f" and {len(holders) - 4} more" if len(holders) > 4 else "")
        if many:
            self._named = (now_s, lent, names)
        return names

    # Updates come back -------------------------------------------------------------------------------

    def _on_update(self, worker: Member, update: Update, now_s: float) -> list[Action]:
        lease = self._course.ledger.find(update.lease, worker.node)
        if isinstance(lease, Refusal):
            return self._refuse(worker, update, lease.reason, now_s)
        if update.formation:
            return self._on_report(worker, update, lease, now_s)
        if (barred := self._shape.bars_whole(lease.id)) != "":
            return self._refuse(worker, update, barred, now_s)
        actions = self._upload_over(lease.id, now_s)
        try:
            delta = self._checked(update, lease)
            norm, steps = norm_of(delta), self._steps_of(update, lease)
            unusual = self._usual.judge(
                worker.node, norm, steps=steps, model_norm=self._model_norm(), devices=self._crew.trusted
            )
        except PeerViolation as violation:
            return [*actions, *self._spoilt(worker, update, lease, violation, now_s)]
        if unusual is not None and not unusual.is_early:
            spoilt = self._spoilt(worker, update, lease, BadValues(unusual.reason), now_s, is_unusual=True)
            return [*actions, *spoilt]
        if unusual is not None:
            # It may be honest: it trains the same again, and others are heard meanwhile.
            self._course.ledger.release(lease, fate=f"was put off: {unusual.reason}")
            self._shape.forget(lease.id)
            return [*actions, *self._refuse(worker, update, unusual.reason, now_s)]
        self._shape.lend(lease.id, 0)
        self._usual.accepted(norm, steps=steps)
        self._merged([worker.node])
        self._course.merge(lease, update, delta)
        if self._online is not None:
            self._online.merged(lease.id, update)
        self._delivered(worker, update, lease, now_s)
        return [*actions, *self._proceed(now_s, only=worker.node), *self._watch_the_last(now_s)]

    def _delivered(self, worker: Member, update: Update, lease: Lease, now_s: float) -> None:
        """A worker has done its part of a version."""
        workers, others = self._crew.trusted, self._course.ledger.outstanding
        self._pulse.merged(lease, train_s=update.train_s, now_s=now_s, workers=workers, others=others)
        if self._online is not None:
            self._online.took(worker, update)
        self._clock.returned(now_s - lease.issued_s)
        self._returned_s = now_s
        worker.durations_s.append(now_s - lease.issued_s)
        worker.stretch = 1.0
        worker.trainings_s.append(update.train_s)
        worker.batches += len(lease.batches)
        worker.is_failing = False
        worker.contributed_to = lease.version
        self._crew.make_idle(worker, now_s)

    # Updates meet elsewhere ----------------------------------------------------------------------------

    def _on_report(self, worker: Member, update: Update, lease: Lease, now_s: float) -> list[Action]:
        """An update is with the sub-leaders, every piece of it."""
        if self._shape.has_arrived(lease.id):
            if not self._crew.is_idle(worker.node):
                # It was thought lost in between. It waits for the sum like everyone.
                self._crew.make_idle(worker, now_s)
            return []
        if not self._shape.is_due(lease, update.formation):
            # They are no more. It goes by what holds now; or will, once that is set up.
            return [] if self._shape.held_up() else self._send_anew(lease, now_s)
        actions = self._upload_over(lease.id, now_s)
        try:
            if update.version != lease.version:
                raise PeerViolation(f"made against version {update.version}; lease {lease.id} was for {lease.version}")
            self._check_told(update, lease)
        except PeerViolation as violation:
            return [*actions, *self._spoilt(worker, update, lease, violation, now_s)]
        # The work is done, and the sub-leaders' time is not the worker's: it does not age.
        self._course.ledger.extend(lease, deadline_s=math.inf)
        actions += self._shape.reported(Report(lease, update, self._course.scale_of(lease, update)))
        self._delivered(worker, update, lease, now_s)
        return [*actions, *self._proceed(now_s, only=worker.node), *self._watch_the_last(now_s)]

    def _spoilt(
        self,
        worker: Member,
        update: Update,
        lease: Lease,
        violation: PeerViolation,
        now_s: float,
        *,
        is_unusual: bool = False,
    ) -> list[Action]:
        reason = violation.reason
        self._course.ledger.release(lease, fate=f"was refused: {reason}")
        self._shape.forget(lease.id)
        if isinstance(violation, BadValues) and (gone_back := self._on_bad(worker, lease, now_s)):
            # Where it is the model, no batch and no device is at fault.
            return [*gone_back, *self._refuse(worker, update, reason, now_s)]
        failures = self._count_failures(worker, lease, reason, now_s)
        return [*failures, *self._on_violation(worker, update, reason, now_s, is_unusual=is_unusual)]

    def _merged(self, nodes: Sequence[str]) -> None:
        """Updates of these workers are in the next version."""
        self._suspicion.merged(nodes)
        for node in nodes:
            if (worker := self._crew.get(node)) is not None:
                self._crew.merged(worker)

    def _on_sub_leader(self, sender: str, message: Formed | Routed | Spoilt | Gathered, now_s: float) -> list[Action]:
        match message:
            case Formed():
                actions = self._shape.formed(sender, message)
            case Routed():
                self._shape.routed(sender, message)
                self._portions.changed()
                worker = self._crew.get(sender)
                if worker is not None and self._crew.is_idle(sender):
                    # It may have been waiting for that.
                    self._crew.make_idle(worker, now_s)
                actions = self._proceed(now_s, only=sender) if worker is not None else []
            case Spoilt():
                actions = self._on_spoilt(sender, message, now_s)
            case Gathered():
                actions = self._on_gathered(sender, message, now_s)
        return [*actions, *self._reshape(now_s)]

    def _on_spoilt(self, sender: str, message: Spoilt, now_s: float) -> list[Action]:
        """A sub-leader was sent what is no piece. Whose it is, it says; that it is one of ours, we know."""
        worker, lease = self._crew.get(message.node), self._course.ledger.find(message.lease, message.node)
        if worker is None or isinstance(lease, Refusal) or self._shape.has_arrived(lease.id):
            return []
        if not self._shape.is_sub_leader(sender):
            return []
        update = Update(job=message.job, term=self._term, lease=lease.id, version=lease.version, examples=1)
        return self._spoilt(worker, update, lease, BadValues(f"{message.reason} (found by {sender})"), now_s)

    def _on_gathered(self, sender: str, message: Gathered, now_s: float) -> list[Action]:
        if (phantom := self._shape.without_its_piece(sender, message)) is not None:
            return self._on_phantom(sender, phantom, now_s)
        try:
            summed = self._shape.gathered(sender, message)
        except PeerViolation as violation:
            self._shaping.failed([sender], now_s)
            self._shape.breaks(f"{sender} sent {violation.reason}")
            return [self._record("sub-leader", f"{sender} sent {violation.reason}")]
        if self._shape.is_sub_leader(sender):
            # What went between devices is this job's traffic too.
            self._bytes_up += message.bytes_up
            self._bytes_down += message.bytes_down
        if summed is None:
            return []
        self._learn_usual(summed)
        self._merged([sender, *(report.lease.worker for report in summed.reports)])
        self._course.merge_sum(summed.reports, summed.mean, summed.weight, moved=summed.moved)
        if self._online is not None:
            for report in summed.reports:
                self._online.merged(report.lease.id, report.update)
        self._shaping.held()
        return self._proceed(now_s)

    def _on_phantom(self, sender: str, report: Report, now_s: float) -> list[Action]:
        """A worker said that everyone had its update, and one does not. Others' sums have it: they are made anew."""
        worker, lease = self._crew.get(report.lease.worker), self._course.ledger.get(report.lease.id)
        reason = f"{sender} has no piece of the update of {report.lease.worker}, which said that it was sent"
        self._shape.breaks(reason)
        if worker is None or lease is None:
            return [self._record("sub-leader", reason)]
        return self._spoilt(worker, report.update, lease, PeerViolation(reason), now_s)

    def _learn_usual(self, summed: Summed) -> None:
        """Of updates that met elsewhere the leader sees the mean: that of n is about √n times as short as they are."""
        weights = [report.update.examples for report in summed.reports]
        scale = sum(w * report.scale for w, report in zip(weights, summed.reports, strict=True)) / sum(weights)
        steps = median_high([self._steps_of(report.update, report.lease) for report in summed.reports])
        norm = norm_of(summed.mean) * math.sqrt(len(weights)) / scale
        self._usual.accepted(norm, steps=steps)

    def _reshape(self, now_s: float) -> list[Action]:
        """Let what is set up hold, once it can; set something up where that is wanted, or what holds is broken."""
        shape, shaping = self._shape, self._shaping
        if self._phase in ("closing", "ended"):
            return []
        actions: list[Action] = []
        late = shape.late(now_s, allowance_s=self._clock.allowance_s())
        if late:
            shaping.failed([late], now_s)
            shape.breaks(f"no sum came from {late} in time")
        if self._parting is not None:
            # Nothing is set up any more. But what is lent must come, or the job would never be handed over.
            broken = shape.held_up()
            return self._change(shape.star(f"the job gets another leader; {broken}"), now_s) if broken else []
        if silent := shape.complaints():
            self._doubt(silent, f"{', '.join(silent)} did not answer those who sent their updates there", now_s)
        trouble, through = shape.trouble(now_s)
        if trouble:
            shaping.failed(through, now_s)
            actions += [self._record("forming", f"given up: {trouble}"), *shape.give_up_next()]
        if shape.next is None and (wanted := self._wanted(now_s)) is not None:
            actions += self._turn_to(wanted, now_s)
        if shape.held_up() is not None and shape.next is None:
            actions += self._change(shape.star(f"no other can be set up now: {shape.held_up()}"), now_s)
        elif shape.is_ready(now_s) and (shape.held_up() is not None or self._may_change()):
            actions += self._change(shape.hold(now_s), now_s)
        return actions

    def _doubt(self, nodes: Sequence[str], reason: str, now_s: float) -> None:
        """These are no sub-leaders any more, for a while."""
        self._shaping.unfit(nodes, now_s)
        self._shape.breaks(reason)

    def _turn_to(self, wanted: Wanted, now_s: float) -> list[Action]:
        """A pace holds at once, a star too; what needs sub-leaders is set up first."""
        actions: list[Action] = []
        if wanted.pace and wanted.pace != self._pace_now:
            self._pace_now, self._pace = wanted.pace, PACES[wanted.pace](wanted.buffer)
            self._pulse = Pulse(pace=wanted.pace)
            told = f"{wanted.pace}, {wanted.buffer} updates a version" if wanted.pace == "buffered" else wanted.pace
            actions.append(self._record("pace", f"{told}: {wanted.reason}"))
        if wanted.shares:
            lease_s = self._clock.typical_s
            begun = self._shape.begin(wanted.kind, wanted.shares, reason=wanted.reason, now_s=now_s, lease_s=lease_s)
            return [*actions, *begun]
        return [*actions, *self._change(self._shape.star(wanted.reason), now_s)]

    def _wanted(self, now_s: float) -> Wanted | None:
        shape = self._shape
        if self._shaping.is_star:
            # Those who work for it may be thousands: they are not looked through at each tick for nothing.
            return None
        # One who is suspect would be waited for, and may never come.
        away = {*self._leaving, *self._suspects}
        able = [worker for worker in self._crew.able() if worker.node not in away]
        if (broken := shape.held_up()) is not None and shape.now is not None:
            # Everyone waits for it: nobody else does.
            arranged = self._shaping.arranged(shape.now.kind, able, now_s)
            return replace(arranged, reason=f"{broken}; {arranged.reason}") if arranged is not None else None
        if self._course.version == 0 or not self._enough():
            return None
        leading = shape.now.sub_leaders if shape.now is not None else []
        if any(node in self._leaving for node in leading) and shape.now is not None:
            return self._shaping.arranged(shape.now.kind, able, now_s)
        if self._pace_now == "sync" and not self._may_change():
            # A pace or a star that is chosen holds at once, and that is between two versions.
            return None
        return self._shaping.wanted(able, leading, shape.kind, self._pace_now, now_s)

    def _may_change(self) -> bool:
        """In step, shapes change between two versions. Where nobody waits for anybody, at any time."""
        ledger = self._course.ledger
        is_between = not ledger.outstanding and not ledger.merged
        return is_between or (self._pace_now != "sync" and self._shape.next_kind != "shard")

    def _change(self, said: list[Action], now_s: float) -> list[Action]:
        """Another shape holds: what was lent by the one before goes by this one."""
        ledger = self._course.ledger
        going, astray = self._shape.redeliver(ledger.leases(), lambda node: self._crew.get(node) is not None)
        actions = [*said, *(action for lease in going for action in self._send_anew(lease, now_s))]
        for lease in going:
            # It delivers what it has, and is lent nothing else meanwhile.
            if (worker := self._contributes_again(lease)) is not None and self._crew.is_idle(worker.node):
                self._crew.make_busy(worker, "working", now_s)
        fate = "was taken back: its worker is not part of how updates meet now"
        for lease in astray:
            ledger.release(lease, fate=fate)
            self._contributes_again(lease)
            actions.append(self._record("lease-returned", f"lease {lease.id} {fate}"))
        self._crew.release()
        self._portions.changed()
        return [*actions, *self._proceed(now_s)]

    def _send_anew(self, lease: Lease, now_s: float) -> list[Action]:
        """Its update went to sub-leaders that are no more. It goes by those that are, or straight here: in its turn, as
        any that is offered."""
        if self._shape.lent_by(lease.id):
            if lease.deadline_s == math.inf:
                self._course.ledger.extend(lease, deadline_s=now_s + self._clock.allowance_s() + LEASE_GRACE_S)
            return [self._shape.go(lease)]
        if self._admission.offer(lease.id):
            return [self._admitted(lease, now_s)]
        worker = self._crew.get(lease.worker)
        if worker is not None and worker.state == "delivering":
            # It is made, and waits for its turn: that is not the worker's fault. One that is not made yet still ages.
            self._course.ledger.extend(lease, deadline_s=math.inf)
        return []

    def _contributes_again(self, lease: Lease) -> Member | None:
        """Its update is in no sum any more: whose it was may be lent the same version again."""
        worker = self._crew.get(lease.worker)
        if worker is not None:
            worker.contributed_to = min(worker.contributed_to, lease.version - 1)
        return worker

    def _watch_the_last(self, now_s: float) -> list[Action]:
        """Those who are done wait for a lease that runs out before the next tick: it is not waited for any longer."""
        left_s = self._course.ledger.next_deadline_s - now_s
        return [SetTimer(name=_LATE, after_s=max(LATE_LEAST_S, left_s))] if left_s < TICK_S else []

    def _on_late(self, now_s: float) -> list[Action]:
        if self._phase in ("closing", "ended"):
            return []
        expired = self._expire(now_s)
        going_on = self._proceed(now_s) if expired else []
        return [*expired, *going_on, *self._watch_the_last(now_s)]

    def _on_pause(self, late_s: float) -> list[Action]:
        """This leader stood still: what came meanwhile is heard before any lease runs out."""
        if late_s < PAUSE_LEAST_S:
            return []
        for ledger in self._ledgers():
            ledger.put_off(late_s + TICK_S)
        told = f"this leader stood still for {late_s:.1f} s: every lease has as much longer"
        return [self._record("paused", told)] if late_s >= PAUSE_TOLD_S else []

    def _wait_together(self, now_s: float) -> None:
        """One lease that is late is given to others. Where nobody returns anything, it may be that nobody can: then
        leases that are late wait on, for a while. A device that is alone is waited for too: who else should do it?"""
        late = self._course.ledger.late(now_s)
        holders = {lease.worker for lease in self._course.ledger.leases()} if late else set()
        for lease in late:
            worker = self._crew.get(lease.worker)
            if worker is None:
                continue
            own_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=lease.latest_s - lease.issued_s)
            is_alone = self._crew.trusted == 1
            is_quiet = len(holders) > 1 and self._returned_s < lease.issued_s + own_s / 2
            until_s = min(lease.latest_s, lease.issued_s + max(SHORTEST_S, TOGETHER_TIMES * own_s))
            if (is_alone or is_quiet) and now_s < until_s:
                self._course.ledger.extend(lease, deadline_s=min(until_s, now_s + max(own_s / 2, LATE_LEAST_S)))

    def _expire(self, now_s: float) -> list[Action]:
        self._wait_together(now_s)
        actions: list[Action] = []
        for clock, ledger in self._clocked_ledgers():
            for lease in ledger.expire(now_s):
                clock.expired()
                actions += self._on_expired(lease, now_s)
        return actions

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

    def _on_offer(self, worker: Member, offer: Offer, now_s: float) -> list[Action]:
        lease = self._course.ledger.find(offer.lease, worker.node)
        if isinstance(lease, Refusal):
            return self._refuse(worker, offer, lease.reason, now_s)
        if self._shape.lent_by(lease.id):
            return self._on_undelivered(worker, offer, lease, now_s)
        if self._admission.holds(lease.id):
            # Its first Go was lost with a session. Its time to upload runs since then.
            return [self._go(lease)]
        if self._admission.offer(lease.id):
            return [self._admitted(lease, now_s)]
        # The work is done and waits for its turn: that is not the worker's fault, so it does not age.
        self._course.ledger.extend(lease, deadline_s=math.inf)
        worker.state, worker.reason = "waiting", f"{self._admission.waiting} updates wait to be taken"
        return []

    def _on_made(self, worker: Member, made: Made, now_s: float) -> list[Action]:
        """Its update is on the way to the sub-leaders. Should that take long, it is not the worker who is late."""
        lease = self._course.ledger.find(made.lease, worker.node)
        if isinstance(lease, Lease) and self._shape.lent_by(lease.id) and lease.deadline_s < math.inf:
            worker.state, worker.reason = "delivering", "the update is on its way to the sub-leaders"
            self._course.ledger.extend(lease, deadline_s=now_s + self._clock.allowance_s() + LEASE_GRACE_S)
        return []

    def _on_undelivered(self, worker: Member, offer: Offer, lease: Lease, now_s: float) -> list[Action]:
        """An update cannot go to its sub-leaders: it goes another way. In a shard there is none: it is lent anew."""
        if self._shape.has_arrived(lease.id) or self._shape.held_up():
            # It is where it should be; or is sent anew once another formation holds.
            return []
        way = self._shape.way(worker.node)
        if way and way == self._shape.lent_by(lease.id):
            return self._shape.again(lease)
        if not way and self._shape.kind == "shard":
            fate = f"was taken back: {worker.node} {self._shape.hindrance(worker.node) or 'has no way to send it'}"
            self._course.ledger.release(lease, fate=fate)
            self._shape.forget(lease.id)
            told = self._record("lease-returned", f"lease {lease.id} {fate}")
            return [told, *self._refuse(worker, offer, f"lease {lease.id} {fate}", now_s)]
        self._shape.lend(lease.id, way)
        return self._send_anew(lease, now_s)

    def _admitted(self, lease: Lease, now_s: float) -> Send:
        self._course.ledger.extend(lease, deadline_s=now_s + self._clock.allowance_s() + LEASE_GRACE_S)
        return self._go(lease)

    def _go(self, lease: Lease) -> Send:
        return Send(to=lease.worker, message=Go(job=self._spec.job, term=self._term, lease=lease.id))

    def _upload_over(self, lease_id: int, now_s: float) -> list[Action]:
        """Whatever became of this upload, its place is free: the next in line may send."""
        following = self._admission.done(lease_id)
        while following is not None:
            lease = self._course.ledger.get(following)
            if lease is not None:
                return [self._admitted(lease, now_s)]
            following = self._admission.done(following)
        return []

    def _refuse(self, worker: Member, what: Offer | Update | Evaluated, reason: str, now_s: float) -> list[Action]:
        """Say why an update was not merged. A worker left without a lease by it is ready again.

        The refusal carries the term of what is refused: lease numbers begin anew with each term.
        """
        self._refused += 1
        held = [lease.id for ledger in self._ledgers() for lease in ledger.held_by(worker.node)]
        refused = Refused(
            job=self._spec.job, term=what.term, lease=what.lease, reason=clip(reason), holds=held[0] if held else 0
        )
        actions: list[Action] = [
            self._record("refused", f"update of {worker.node}: {reason}"),
            Send(to=worker.node, message=refused),
        ]
        if held:
            return actions
        if self._phase in ("closing", "ended"):
            return actions
        worker.holds = (0, -1)
        self._crew.make_idle(worker, now_s)
        return [*actions, *self._proceed(now_s, only=worker.node)]

    def _on_violation(
        self, worker: Member, what: Update | Evaluated, reason: str, now_s: float, *, is_unusual: bool = False
    ) -> list[Action]:
        self._crew.offended(worker, reason, is_unusual=is_unusual)
        actions: list[Action] = []
        if not self._crew.trusted:
            # Everyone diverges, or the one who is here lies: waiting would mend neither.
            if is_unusual and self._ending is None and self._suspicion.has_contributors:
                return [*self._go_back([worker.node], now_s), *self._refuse(worker, what, reason, now_s)]
            every = f"no worker is left that may train: {worker.node} was refused {worker.violations} times"
            actions += self._end(*(self._ending or ("failed", f"{every}, last for {reason}")), now_s)
        return [*actions, *self._refuse(worker, what, reason, now_s)]

    # The model is suspected ----------------------------------------------------------------------------

    def _on_bad(self, worker: Member, lease: Lease, now_s: float) -> list[Action]:
        """One bad result is its device's fault: then there is nothing to do here. When those of most devices are, it is
        the model's: it goes back to the version that was found good last, and who contributed since is set aside."""
        self._suspicion.bad(worker.node, lease.batches)
        if self._phase in ("closing", "ended"):
            return []
        # One that was left out for its results alone is a witness still.
        here = [node for node in self._suspicion.accused if self._crew.get(node) is not None]
        witnesses = self._suspicion.witnesses(sorted({*here, *(member.node for member in self._crew.able())}))
        return self._go_back(witnesses, now_s) if witnesses else []

    def _go_back(self, witnesses: Sequence[str], now_s: float) -> list[Action]:
        course, before = self._course, self._course.version
        culprits = self._suspicion.take_contributors()
        seen = f"{_named(witnesses)} get values that are not finite or far from what is usual"
        if not culprits:
            what = f"version {before}, which nobody moved since it was found good"
            return self._end("failed", f"the model is suspected: {seen} from {what}: try a lower learning rate", now_s)
        actions: list[Action] = []
        for ledger in self._ledgers():
            for lease in ledger.leases():
                self._admission.done(lease.id)
                self._shape.forget(lease.id)
                told = f"lease {lease.id} was taken back: the model is suspected"
                actions.append(self._record("lease-returned", told))
        good = course.good_version
        self._exam = None
        self._batch_failures.clear()
        course.go_back()
        self._durability.went_back(good)
        self._shape.breaks(f"the model went back to version {good}")
        told = f"version {course.version} is version {good} again, the last that was found good: {seen}"
        out = f"set aside: it contributed to the model after version {good}, and by version {before} it was broken"
        for node in culprits:
            self._crew.set_aside(node, out)
        actions.append(self._record("went-back", f"{told}; set aside, since they contributed: {_named(culprits)}"))
        for node in self._crew.nodes():
            worker = self._crew.get(node)
            if worker is not None and not self._crew.is_idle(node) and worker.state in AT_WORK:
                # What it is at is of no use. It says so, or is ready; until then nothing is awaited of it.
                worker.now("late", now_s, reason="its lease was taken back: the model is suspected")
        self._crew.release()
        self._portions.changed()
        if not self._crew.trusted:
            none = f"the model is suspected: {seen}. It went back to version {good}, and no worker is left that did not"
            return [*actions, *self._end("failed", f"{none} contribute since ({_named(culprits)}). {NEXT}", now_s)]
        return [*actions, *self._save(now_s), *self._reshape(now_s), *self._proceed(now_s)]

    def _on_failed(self, worker: Member, failed: Failed, now_s: float) -> list[Action]:
        worker.failures += 1
        actions: list[Action] = [self._record("failed", f"{worker.node}: {failed.reason}", failed.traceback)]
        if failed.lease == 0:
            self._crew.make_busy(worker, "failing", now_s, reason=failed.reason)
        for clock, ledger in self._clocked_ledgers():
            lease = ledger.find(failed.lease, worker.node)
            if isinstance(lease, Lease):
                if self._shape.has_arrived(lease.id):
                    continue
                if now_s >= lease.deadline_s - LEASE_GRACE_S:
                    clock.expired()
                self._crew.make_busy(worker, "failing", now_s, reason=failed.reason)
                ledger.release(lease, fate=f"failed on {worker.node}: {failed.reason}")
                self._shape.forget(lease.id)
                actions += self._upload_over(lease.id, now_s)
                if failed.diverged and (gone_back := self._on_bad(worker, lease, now_s)):
                    return [*actions, *gone_back]
                actions += self._count_failures(worker, lease, failed.reason, now_s)
        return [*actions, *self._proceed(now_s)]

    def _count_failures(self, worker: Member, lease: Lease, reason: str, now_s: float) -> list[Action]:
        for batch in lease.batches:
            self._batch_failures.setdefault(batch, Counter())[worker.node] += 1
        worker.is_failing = True
        worst = max(lease.batches, key=lambda batch: self._batch_failures[batch].total())
        times = self._batch_failures[worst].total()
        if times < BATCH_FAILURES_MAX:
            return []
        if len(self._batch_failures[worst]) == 1 and self._crew.any_healthy():
            return []
        if self._ending is not None:
            # Time was over and only the last evaluation was missing: it ends without.
            return self._end(*self._ending, now_s)
        what = f"batch {worst} of epoch {lease.epoch + 1} failed {times} times, last on {worker.node}: {reason}"
        return self._end("failed", what, now_s)

    # The model moves -----------------------------------------------------------------------------------

    def _step(self, now_s: float) -> list[Action]:
        self._advance(now_s)
        if self._course.ledger.finished:
            return [*self._reshape(now_s), *self._epoch_over(now_s)]
        actions = [*self._reshape(now_s), *self._lend(now_s)]
        return [*actions, *self._save_if_due(now_s)]

    def _advance(self, now_s: float) -> None:
        self._durability.applied(self._course.advance(now_s))
        round_s = self._pulse.stepped(workers=self._crew.trusted, now_s=now_s)
        if round_s is not None:
            self._shaping.round(round_s, self._shape.kind)
        self._crew.release()

    def _epoch_over(self, now_s: float) -> list[Action]:
        self._course.ledger.next_epoch()
        self._batch_failures.clear()
        done, batches = self._course.ledger.epoch, self._course.ledger.batches
        told = f"epoch {done}: {batches} batches applied once each, version {self._course.version}"
        actions: list[Action] = [self._record("epoch", told)]
        if self._evaluation_due():
            self._begin_exam()
            return [*actions, *self._save(now_s), *self._lend(now_s)]
        return [*actions, *self._judged_before(now_s), *self._decide(now_s)]

    def _judged_before(self, now_s: float) -> list[Action]:
        """Where examples are the devices' own and none is held out: how it did on what was new, before that was trained
        on (test, then train)."""
        if self._online is None or self._spec.test.examples:
            return []
        seconds, epoch = self._course.elapsed_s(now_s), self._course.ledger.epoch
        view = self._online.view(version=self._course.version, epoch=epoch, seconds=seconds)
        if view is None:
            return []
        self._judged(view)
        told = f"{view.accuracy:.2%} of {view.examples} new examples right before they were trained on"
        return [self._record("evaluated", f"epoch {epoch}: {told}, loss {view.loss:.4f}")]

    def _judged(self, view: EvaluationView) -> None:
        self._course.evaluated(view)
        self._durability.evaluated(view)
        if self._suspicion.is_sound(view):
            self._course.found_good()
            self._suspicion.found_good()

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

    def _on_evaluated(self, worker: Member, result: Evaluated, now_s: float) -> list[Action]:
        if self._exam is None:
            return self._refuse(worker, result, f"lease {result.lease} is not of a running evaluation", now_s)
        lease = self._exam.ledger.find(result.lease, worker.node)
        if isinstance(lease, Refusal):
            return self._refuse(worker, result, lease.reason, now_s)
        problem = self._exam.problem(result, lease)
        if problem:
            self._exam.ledger.release(lease, fate=f"was refused: {problem}")
            return self._on_violation(worker, result, problem, now_s)
        self._exam.add(result, lease)
        self._exam_clock.returned(now_s - lease.issued_s)
        worker.is_failing = False
        self._crew.make_idle(worker, now_s)
        if not self._exam.finished:
            return self._proceed(now_s, only=worker.node)
        view = self._exam.view(seconds=self._course.elapsed_s(now_s))
        self._exam = None
        self._batch_failures.clear()
        self._judged(view)
        told = f"{view.accuracy:.2%} right, loss {view.loss:.4f} on {view.examples} held-out examples"
        record = self._record("evaluated", f"version {view.version} after epoch {view.epoch}: {told}")
        return [record, *self._decide(now_s)]

    def _decide(self, now_s: float) -> list[Action]:
        """Between two epochs: go on, or is it done?"""
        until = self._spec.plan.until
        latest = self._course.latest if self._course.is_evaluated else None
        if self._ending is not None:
            return self._end(*self._ending, now_s)
        if until.accuracy is not None and latest is not None and latest.accuracy >= until.accuracy:
            return self._end("finished", f"reached {latest.accuracy:.2%}, the goal was {until.accuracy:.2%}", now_s)
        if until.epochs is not None and self._course.ledger.epoch >= until.epochs:
            return self._end("finished", f"all {until.epochs} epochs are done", now_s)
        return [*self._save(now_s), *self._lend(now_s)]

    # Time ------------------------------------------------------------------------------------------------

    def _on_tick(self, now_s: float) -> list[Action]:
        actions: list[Action] = [SetTimer(name=_TICK, after_s=TICK_S)]
        if self._phase == "ended":
            return []
        actions += self._expire(now_s)
        if self._phase == "closing":
            if self._durability.may_retry(now_s):
                actions += self._save(now_s)
            return [*actions, self._report(now_s)]
        actions += self._reshape(now_s)
        actions += self._proceed(now_s)
        if (verdict := self._pulse.look()) is not None:
            actions.append(self._record("saturation", verdict))
        actions += self._explain_waits(now_s)
        actions += self._out_of_time(now_s)
        return [*actions, *self._save_if_due(now_s), self._report(now_s)]

    def _on_expired(self, lease: Lease, now_s: float) -> list[Action]:
        worker = self._crew.get(lease.worker)
        waited_s = now_s - lease.issued_s
        if worker is not None:
            worker.state = "late"
            worker.stretch = min(2 * worker.stretch, STRETCH_MAX)
            worker.reason = f"no update for lease {lease.id} in {waited_s:.1f} s; its batches went to others"
        reason = f"lease {lease.id} of {lease.worker} after {waited_s:.1f} s"
        self._shape.forget(lease.id)
        return [self._record("expired", reason), *self._upload_over(lease.id, now_s)]

    def _explain_waits(self, now_s: float) -> list[Action]:
        """Show what is waited for as it stands now; say it to each worker once, and then seldom: it changes often."""
        bored, untold = self._crew.bored(now_s), self._crew.take_untold(now_s)
        if not bored and not untold:
            return []
        reason, ledger = self._why_idle(now_s), self._lent_from()
        for worker in bored:
            worker.state, worker.reason = "waiting", self._portions.why_idle(worker.node, ledger, reason)
        told = ((worker, self._portions.why_idle(worker.node, ledger, reason)) for worker in untold)
        return [action for worker, why in told for action in self._tell(worker, why)]

    def _out_of_time(self, now_s: float) -> list[Action]:
        limit_s = self._spec.plan.until.seconds
        if self._ending is not None:
            # The last evaluation runs. It does not wait for workers who may never come.
            return [] if self._enough() else self._end(*self._ending, now_s)
        if limit_s is None or self._course.elapsed_s(now_s) < limit_s:
            return []
        self._ending = ("finished", f"the time limit of {limit_s:g} s is over")
        if self._course.is_evaluated or not self._spec.test.examples or self._course.version == 0 or not self._enough():
            return self._end(*self._ending, now_s)
        actions: list[Action] = [self._record("ending", self._ending[1])]
        if self._exam is None:
            for lease in self._course.ledger.leases():
                self._course.ledger.release(lease, fate="was taken back: the job's time is over")
                self._shape.forget(lease.id)
                self._admission.done(lease.id)
            if self._course.ledger.merged:
                # What is merged belongs to the last version; later it would change the model under the evaluation.
                self._advance(now_s)
            if self._course.ledger.finished:
                return [*actions, *self._epoch_over(now_s)]
            self._begin_exam()
        return [*actions, *self._lend(now_s)]

    # Durable, then said ------------------------------------------------------------------------------------

    def _save(self, now_s: float) -> list[Action]:
        return self._durability.save(self._number, lambda: self._snapshot(now_s), now_s)

    @property
    def _number(self) -> int:
        """The version's number as it is saved. The last of a leader may have a higher one than its own: another leader
        used the numbers in between, on its side of a cut. Not before the round is over: leases name versions."""
        is_over = self._parting is not None and self._exam is None and not self._course.ledger.outstanding
        is_last = self._phase in ("closing", "ended") or is_over
        return max(self._course.version, self._version_least) if is_last else self._course.version

    def _save_if_due(self, now_s: float) -> list[Action]:
        every_s = self._spec.plan.checkpoint_every_s
        if self._durability.at_risk >= AT_RISK_MAX and not self._durability.is_saving:
            # Everyone waits for this one.
            every_s = min(every_s, AT_RISK_SAVE_S)
        return self._save(now_s) if self._durability.due(now_s, every_s=every_s) else []

    def _on_saved(self, version: int, now_s: float) -> list[Action]:
        self._course.went_back = tuple(pair for pair in self._course.went_back if pair[1] > version)
        if self._durability.saved(version):
            return self._save(now_s)
        if self._phase == "closing" and not self._durability.is_saving:
            return self._over(now_s)
        return []

    def _on_save_failed(self, event: SaveFailed, now_s: float) -> list[Action]:
        if not self._durability.failed(now_s, event.reason):
            # It is tried again and again while the manager is away: one line says so.
            return []
        return [self._record("save-failed", f"version {event.version}: {event.reason}; trying again")]

    def _end(self, state: str, reason: str, now_s: float) -> list[Action]:
        """Decide that the job is over. It is said once the last version is durable."""
        if self._phase in ("closing", "ended"):
            return []
        reason = clip(reason)
        self._ending = (state, reason)
        self._phase, self._reason = "closing", reason
        self._course.stop(now_s)
        self._exam = None
        actions: list[Action] = [self._record("ending", f"{state}: {reason}")]
        if self._pace.takes_the_rest(merged=self._course.ledger.merged):
            self._advance(now_s)
        return [*actions, *self._save(now_s)]

    def _over(self, now_s: float) -> list[Action]:
        self._phase = "ended"
        finished = Finished(job=self._spec.job, reason=clip(self._reason))
        told: list[Action] = [Send(to=node, message=finished) for node in self._crew.nodes()]
        return [*told, self._report(now_s), End(reason=self._reason)]

    # What people see ---------------------------------------------------------------------------------------

    def _record(self, kind: str, reason: str, traceback: str = "") -> Record:
        self._pulse.noted(kind)
        self._portions.noted(kind)
        return Record(kind=kind, reason=clip(reason), job=self._spec.job, traceback=traceback)

    def _report(self, now_s: float) -> Send:
        return Send(to=self._manager, message=self.progress(now_s))

    def progress(self, now_s: float) -> Progress:
        """How the job stands."""
        latest = self._course.latest
        state = self._ending[0] if self._phase == "ended" and self._ending else self._phase
        rounds_per_s, examples_per_s = self._course.rates(now_s)
        unsaved, of_term = self._durability.unsaved, self._durability.of_term
        return Progress(
            job=self._spec.job,
            term=self._term,
            state=state,
            reason=clip(self._reason),
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
            seconds=self._course.elapsed_s(now_s),
            refused=self._refused,
            workers=self._crew.views(typical_s=self._clock.typical_s, now_s=now_s),
            staleness=self._course.lateness.typical,
            staleness_max=self._course.lateness.worst,
            saturation=self._pulse.verdict,
            saturation_reason=self._pulse.reason,
            saturated_at=self._pulse.saturated_at,
            round_s=self._pulse.round_s,
            sync_s=self._pulse.sync_s,
            shape=self._shape.notation,
            shape_reason=clip(self._shape.reason),
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
