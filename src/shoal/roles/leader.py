"""The leader of one job: holds the model, lends batches, merges updates, decides. A driver acts.

It never needs torch: models are flat vectors, evaluation is leased to workers like any batch. What it decides,
and why, is in its actions; what it has promised is durable before anyone hears of it (``Save`` -> ``Saved``).
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from heapq import nsmallest
from typing import Any

import numpy as np

from shoal.errors import PeerViolation
from shoal.learning.layout import Layout
from shoal.learning.pace import PACES
from shoal.roles.actions import Action, End, Record, Send, SetTimer
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
from shoal.wire.checks import dense_update
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import (
    Evaluated,
    Failed,
    Finished,
    Go,
    HandOver,
    JobSpec,
    Offer,
    Progress,
    Ready,
    Refused,
    Release,
    Released,
    SteppedDown,
    Tensors,
    Update,
    Wait,
    Work,
    clip,
)
from shoal.workload.admission import Admission
from shoal.workload.deadlines import STRETCH_MAX, LeaseClock, wait_s
from shoal.workload.ledger import Lease, Ledger, Refusal

TICK_S = 0.5

#: A timer shorter than this may not move the clock at all, and would be set again for ever.
LATE_LEAST_S = 0.001

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
        self._pace = PACES[plan.pace](plan.buffer)
        model_bytes = layout.size * 4
        self._admission = Admission(update_bytes=model_bytes, budget_bytes=upload_budget_bytes)
        self._clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=2 * model_bytes)
        self._exam_clock = LeaseClock(fixed_s=plan.lease_s, transfer_bytes=model_bytes)

        self._crew = Crew()
        #: Why it is to finish its round and step down; None: it is not.
        self._parting: str | None = None
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

    # State that survives -----------------------------------------------------------------------------

    def restore(self, *, tensors: Tensors, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. Its ledger matches its model: both were one file."""
        self._course.restore(tensors=tensors, state=state)
        self._durability.version = self._course.version
        ending = state["ending"]
        self._ending = (ending[0], ending[1]) if ending else None

    def _snapshot(self, now_s: float) -> tuple[Tensors, dict[str, Any]]:
        tensors, state = self._course.snapshot(now_s)
        ending = list(self._ending) if self._ending else None
        return tensors, {**state, "job": self._spec.job, "term": self._term, "ending": ending}

    @property
    def version(self) -> int:
        return self._course.version

    @property
    def term(self) -> int:
        return self._term

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
            case TimerFired() if event.name == _LATE:
                return self._on_late(now_s)
            case TimerFired():
                return self._on_tick(now_s)
            case Saved():
                return self._on_saved(event.version, now_s)
            case SaveFailed():
                return self._on_save_failed(event, now_s)
            case StopRequested():
                return self._end("stopped", event.reason, now_s)
            case _:
                return []

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
                self._parting = message.reason
            return []
        if isinstance(message, Ready):
            return self._on_ready(sender, message, now_s)
        if not isinstance(message, Offer | Update | Evaluated | Failed):
            return []
        if worker is None:
            worker = self._crew.add(sender, now_s)
        if message.term != self._term:
            if isinstance(message, Failed):
                # What failed was not lent by us. Its worker says Ready once its trainer is back.
                return []
            reason = f"made under term {message.term}; this leader's term is {self._term}"
            return self._refuse(worker, message, reason, now_s)
        match message:
            case Update():
                return self._on_update(worker, message, now_s)
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
        if self._phase in ("closing", "ended"):
            return [*actions, *self._tell(worker, "the job is over; its last version is being saved")]
        worker.holds = (message.holds_term, message.holds_version)
        actions += self._give_up(node, now_s, fate=f"was given up: {node} asked for new work")
        self._crew.make_idle(worker, now_s)
        return [*actions, *self._proceed(now_s, only=node)]

    def _on_peer(self, event: PeerChanged, now_s: float) -> list[Action]:
        worker = self._crew.get(event.node)
        if worker is None:
            return []
        if event.state is Liveness.SUSPECT:
            worker.reason = event.reason
            return [self._record("suspect", f"{event.node}: {event.reason}")]
        if event.state is Liveness.ALIVE:
            # Nobody looks again at one who is left out: what it was told still holds.
            worker.reason = worker.told if worker.left_out else ""
            return []
        self._crew.remove(event.node)
        actions: list[Action] = [self._record("lost", f"{event.node}: {event.reason}")]
        actions += self._give_up(event.node, now_s, fate=f"was taken back: {event.node} was lost ({event.reason})")
        return [*actions, *self._proceed(now_s)]

    def _give_up(self, node: str, now_s: float, *, fate: str) -> list[Action]:
        """Return everything a worker holds to the free batches."""
        actions: list[Action] = []
        for ledger in self._ledgers():
            for lease in ledger.held_by(node):
                ledger.release(lease, fate=fate)
                actions += self._upload_over(lease.id, now_s)
                actions.append(self._record("lease-returned", f"lease {lease.id} {fate}"))
        return actions

    def _let_go(self) -> list[Action]:
        """Part with those the manager wants back, as soon as they hold nothing: no trained lease is lost."""
        free = [node for node in self._leaving if not any(ledger.held_by(node) for ledger in self._ledgers())]
        actions: list[Action] = []
        for node in free:
            reason = self._leaving.pop(node)
            if self._crew.get(node) is not None:
                self._crew.remove(node)
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
        if one is not None:
            return self._lend_to(one, now_s) if self._crew.is_idle(one.node) else []
        actions = [action for worker in self._crew.take_outcasts() for action in self._lend_to(worker, now_s)]
        ledger = self._lent_from()
        while ledger.has_free and (worker := self._crew.first_in_line()) is not None:
            # Whoever is looked at leaves the line: with a lease, or to rest.
            actions += self._lend_to(worker, now_s)
        return actions

    def _held_up(self) -> str | None:
        """Why nothing is lent although there are workers; None: it is."""
        if self._parting is not None and self._exam is None:
            return f"the job gets another leader: {self._parting}"
        if self._durability.at_risk >= AT_RISK_MAX:
            return f"{self._durability.at_risk} batches are not durable yet: work goes on when they are"
        return None

    def _hand_over(self, now_s: float) -> list[Action]:
        """Step down once nothing is lent and everything is durable: the next leader begins where this one ends."""
        if self._phase in ("closing", "ended") or self._exam is not None or self._course.ledger.outstanding:
            return []
        if self._durability.is_behind or self._durability.version < self._course.version:
            return [] if self._durability.is_saving else self._save(now_s)
        self._phase = "ended"
        reason = f"handed over at version {self._course.version}"
        stepped = SteppedDown(job=self._spec.job, term=self._term, reason=reason)
        return [self._record("handed-over", reason), Send(to=self._manager, message=stepped), End(reason=reason)]

    def _lent_from(self) -> Ledger:
        return self._exam.ledger if self._exam else self._course.ledger

    def _lend_to(self, worker: Member, now_s: float) -> list[Action]:
        if worker.node in self._leaving:
            self._crew.rest(worker)
            return []
        if worker.left_out:
            return self._tell(worker, f"left out after {worker.violations} refused updates: {worker.offence}")
        if self._exam is not None:
            clock, ledger, count, kind = self._exam_clock, self._exam.ledger, 1, "evaluate"
        else:
            clock, ledger, count, kind = self._clock, self._course.ledger, self._spec.plan.lease_batches, "train"
            if not self._pace.may_start(contributed_to=worker.contributed_to, version=self._course.version):
                self._crew.rest(worker)
                return []
        allowance_s = clock.allowance_s()
        # What a worker is given and how long others wait for it are two things: late, it loses its lease and no more.
        waits_s = allowance_s + LEASE_GRACE_S
        if kind == "train":
            waits_s = wait_s(worker.durations_s, stretch=worker.stretch, longest_s=waits_s)
        lease = ledger.lease(
            self._last_lease + 1,
            worker.node,
            version=self._course.version,
            count=count,
            now_s=now_s,
            deadline_s=now_s + waits_s,
        )
        if lease is None:
            return []
        self._last_lease = lease.id
        self._crew.make_busy(worker, "working" if kind == "train" else "evaluating", now_s)
        return [Send(to=worker.node, message=self._work(worker, lease, kind=kind, deadline_s=allowance_s))]

    def _work(self, worker: Member, lease: Lease, *, kind: str, deadline_s: float) -> Work:
        """The lease rides on the message that brings the new model (EDDL §4.2)."""
        here = (self._term, self._course.version)
        tensors: Tensors = {} if worker.holds == here else {"model": self._course.model}
        worker.holds = here
        sent = self._course.model.nbytes if tensors else 0
        worker.bytes_down += sent
        self._bytes_down += sent
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
            credit=kind == "train" and self._admission.in_advance(lease.id, workers=len(self._crew)),
            tensors=tensors,
        )

    def _tell(self, worker: Member, reason: str) -> list[Action]:
        """Say why there is no work, once a reason."""
        worker.state, worker.reason = "waiting", reason
        if worker.told == reason:
            return []
        worker.told = reason
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
        actions = self._upload_over(lease.id, now_s)
        try:
            delta = self._checked(update, lease)
        except PeerViolation as violation:
            self._course.ledger.release(lease, fate=f"was refused: {violation.reason}")
            actions += self._count_failures(worker, lease, violation.reason, now_s)
            return [*actions, *self._on_violation(worker, update, violation.reason, now_s)]
        self._course.merge(lease, update, delta)
        self._clock.returned(now_s - lease.issued_s)
        worker.durations_s.append(now_s - lease.issued_s)
        worker.stretch = 1.0
        worker.trainings_s.append(update.train_s)
        worker.batches += len(lease.batches)
        worker.is_failing = False
        worker.contributed_to = lease.version
        self._crew.make_idle(worker, now_s)
        return [*actions, *self._proceed(now_s, only=worker.node), *self._watch_the_last(now_s)]

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

    def _expire(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for clock, ledger in self._clocked_ledgers():
            for lease in ledger.expire(now_s):
                clock.expired()
                actions += self._on_expired(lease, now_s)
        return actions

    def _checked(self, update: Update, lease: Lease) -> np.ndarray:
        if update.version != lease.version:
            raise PeerViolation(f"made against version {update.version}; lease {lease.id} was for {lease.version}")
        return dense_update(update, size=self._layout.size, examples_max=self._course.examples_in(lease))

    def _on_offer(self, worker: Member, offer: Offer, now_s: float) -> list[Action]:
        lease = self._course.ledger.find(offer.lease, worker.node)
        if isinstance(lease, Refusal):
            return self._refuse(worker, offer, lease.reason, now_s)
        if self._admission.holds(lease.id):
            # Its first Go was lost with a session. Its time to upload runs since then.
            return [self._go(lease)]
        if self._admission.offer(lease.id):
            return [self._admitted(lease, now_s)]
        # The work is done and waits for its turn: that is not the worker's fault, so it does not age.
        self._course.ledger.extend(lease, deadline_s=math.inf)
        worker.state, worker.reason = "waiting", f"{self._admission.waiting} updates wait to be taken"
        return []

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

    def _on_violation(self, worker: Member, what: Update | Evaluated, reason: str, now_s: float) -> list[Action]:
        self._crew.offended(worker, reason)
        actions: list[Action] = []
        if not self._crew.trusted:
            # Everyone diverges, or the one who is here lies: waiting would mend neither.
            every = f"no worker is left that may train: {worker.node} was refused {worker.violations} times"
            actions += self._end(*(self._ending or ("failed", f"{every}, last for {reason}")), now_s)
        return [*actions, *self._refuse(worker, what, reason, now_s)]

    def _on_failed(self, worker: Member, failed: Failed, now_s: float) -> list[Action]:
        worker.failures += 1
        actions: list[Action] = [self._record("failed", f"{worker.node}: {failed.reason}")]
        if failed.lease == 0:
            self._crew.make_busy(worker, "failing", now_s, reason=failed.reason)
        for clock, ledger in self._clocked_ledgers():
            lease = ledger.find(failed.lease, worker.node)
            if isinstance(lease, Lease):
                if now_s >= lease.deadline_s - LEASE_GRACE_S:
                    clock.expired()
                self._crew.make_busy(worker, "failing", now_s, reason=failed.reason)
                ledger.release(lease, fate=f"failed on {worker.node}: {failed.reason}")
                actions += self._upload_over(lease.id, now_s)
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
            return self._epoch_over(now_s)
        actions = self._lend(now_s)
        return [*actions, *self._save_if_due(now_s)]

    def _advance(self, now_s: float) -> None:
        self._durability.applied(self._course.advance(now_s))
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
        return [*actions, *self._decide(now_s)]

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
        self._course.evaluated(view)
        self._durability.evaluated(view)
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
            if not self._durability.is_saving:
                actions += self._save(now_s)
            return [*actions, self._report(now_s)]
        actions += self._proceed(now_s)
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
        return [self._record("expired", reason), *self._upload_over(lease.id, now_s)]

    def _explain_waits(self, now_s: float) -> list[Action]:
        """Show what is waited for as it stands now; say it to each worker once, and then seldom: it changes often."""
        bored, untold = self._crew.bored(now_s), self._crew.take_untold(now_s)
        if not bored and not untold:
            return []
        reason = self._why_idle(now_s)
        for worker in bored:
            worker.state, worker.reason = "waiting", reason
        return [action for worker in untold for action in self._tell(worker, reason)]

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
        return self._durability.save(self._course.version, lambda: self._snapshot(now_s), now_s)

    def _save_if_due(self, now_s: float) -> list[Action]:
        every_s = self._spec.plan.checkpoint_every_s
        if self._durability.at_risk >= AT_RISK_MAX and not self._durability.is_saving:
            # Everyone waits for this one.
            every_s = min(every_s, AT_RISK_SAVE_S)
        return self._save(now_s) if self._durability.due(now_s, every_s=every_s) else []

    def _on_saved(self, version: int, now_s: float) -> list[Action]:
        if self._durability.saved(version):
            return self._save(now_s)
        if self._phase == "closing" and not self._durability.is_saving:
            return self._over(now_s)
        return []

    def _on_save_failed(self, event: SaveFailed, now_s: float) -> list[Action]:
        self._durability.failed(now_s)
        return [self._record("save-failed", f"version {event.version}: {event.reason}; trying again")]

    def _end(self, state: str, reason: str, now_s: float) -> list[Action]:
        """Decide that the job is over. It is said once the last version is durable."""
        if self._phase in ("closing", "ended"):
            return []
        reason = clip(reason)
        self._ending = (state, reason)
        self._phase, self._reason = "closing", reason
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

    def _record(self, kind: str, reason: str) -> Record:
        return Record(kind=kind, reason=clip(reason), job=self._spec.job)

    def _report(self, now_s: float) -> Send:
        return Send(to=self._manager, message=self.progress(now_s))

    def progress(self, now_s: float) -> Progress:
        """How the job stands."""
        latest = self._course.latest
        state = self._ending[0] if self._phase == "ended" and self._ending else self._phase
        rounds_per_s, examples_per_s = self._course.rates(now_s)
        return Progress(
            job=self._spec.job,
            term=self._term,
            state=state,
            reason=clip(self._reason),
            version=self._course.version,
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
        )


@lru_cache(maxsize=4)
def _wait(job: str, reason: str) -> Wait:
    """The same word to many workers is one message."""
    return Wait(job=job, reason=clip(reason))
