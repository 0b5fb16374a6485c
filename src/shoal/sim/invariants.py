"""Invariants that are checked from the outside on every step of a simulation, by events, actions and the disk.

The checks do not read the state of roles and share none of their code, so that a bug cannot hide in both. They assume
honest devices: accusing a worker of breaking the contract is a violation too.
"""

from __future__ import annotations

import itertools
import math
import re

from shoal.roles.actions import Answer, End, Keep, Record, Save, Send, Store
from shoal.roles.events import Liveness, PeerChanged, Received, Saved, TimerFired
from shoal.scheduling.ledger import Applied
from shoal.sim.observe import Mark, Step
from shoal.sim.seen_job import SeenJob, SeenLeader, SeenLease
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import (
    Assign,
    BadShard,
    Bind,
    CheckpointKept,
    Done,
    Evaluated,
    Failed,
    Finished,
    Go,
    HandOver,
    Hello,
    JobSpec,
    Offer,
    Progress,
    Ready,
    ReduceResult,
    StepDown,
    SteppedDown,
    Update,
    UpdateReady,
    UpdateRefused,
    Wait,
    Welcome,
    Work,
    version_named,
)

#: How often a batch fails before its job does.
FAILURES_TO_FAIL = 4

#: How much longer than a lease's time a leader waits, including the interval of its checks.
GRACE_S = 3.0
#: How much longer it waits each time that it stood still: it first handles the messages that came meanwhile.
PAUSE_GRACE_S = 1.0

#: Within this time after the last fault a job has a leader: some seconds to notice that the last one is lost, and half
#: a minute for each node that is appointed and does not answer.
LED_WITHIN_S = 120.0

#: Within this time a leader that leads on reports to a manager that restarted, which does not replace it before.
HEARD_AFTER_S = 3.0

#: The latest time at which a device is told to come again in the seeds: the longest interval, with ten devices.
COMES_WITHIN_S = 30.0

#: The greatest age of a leader's last report.
TOLD_WITHIN_S = 5.0

#: A node is lost after eight seconds of silence. No leader gives leases to a node that has been gone for longer.
LONG_GONE_S = 40.0

ENDED = ("finished", "failed", "stopped")
_LEASE = re.compile(r"lease (\d+) ")
_TERM = re.compile(r"term (\d+): ")
_LED_ON = re.compile(r"led on under term (\d+) ")


def _term_ended(record: Record) -> int | None:
    """Return the term that a manager ends by this event, or None if it is about something else."""
    found = _TERM.match(record.reason) if record.kind == "term.ended" else None
    return int(found[1]) if found is not None else None


def _adopted(record: Record) -> int | None:
    """Return the term whose history a manager adopts by this event, or None if it is about something else."""
    found = _LED_ON.search(record.reason) if record.kind == "history.adopted" else None
    return int(found[1]) if found is not None else None


def _is_of_nothing(event: object) -> bool:
    """Whether this is an empty sum, by which an aggregator reports that it does not have the state of its part."""
    return isinstance(event, Received) and isinstance(event.message, ReduceResult) and not event.message.leases


def _is_let_go(step: Step, node: str) -> bool:
    """Whether the manager takes a worker back, by telling it that the job is over for it."""
    records = (action for action in step.actions if isinstance(action, Record))
    return any(each.kind == "device.released" and each.reason.startswith(f"{node} ") for each in records)


def _is_refused(step: Step, lease: int) -> bool:
    """Whether the leader refuses the update of this lease in this step: no version waits for it or will contain it."""
    sent = (action.message for action in step.actions if isinstance(action, Send))
    return any(isinstance(message, UpdateRefused) and message.lease == lease for message in sent)


class Violation(AssertionError):
    """An invariant does not hold."""


class Invariants:
    """An observer that raises at the first step that breaks one. The cluster has one manager."""

    #: The names of managers.
    _labels: tuple[str, ...] = ("home",)

    def __init__(
        self,
        jobs: dict[str, tuple[JobSpec, int]],
        *,
        budget_bytes: int = UPLOAD_BUDGET_BYTES,
        is_honest: bool = True,
        comes_within_s: float = COMES_WITHIN_S,
    ) -> None:
        #: Job -> its spec and the bytes of its model.
        self._courses = {name: SeenJob(spec, size_bytes) for name, (spec, size_bytes) in jobs.items()}
        self._budget_bytes = budget_bytes
        #: Whether no device sends anything that may be refused, so that none may be excluded.
        self._is_honest = is_honest
        self._comes_within_s = comes_within_s
        #: The time of the step or mark that is being checked.
        self._at_s = 0.0
        #: When the manager last began.
        self._began_s = 0.0
        #: Node -> since when no process of it runs.
        self._down_s: dict[str, float] = {}
        #: Manager and node -> when it was last told that there is no work, and when it hung up, as the manager saw it.
        self._sent_s: dict[tuple[str, str], float] = {}
        self._dormant_s: dict[tuple[str, str], float] = {}
        #: Jobs that were reported to operators as accepted.
        self._accepted: set[str] = set()

    # What roles did ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        self._at_s = step.at_s
        if step.role == "leader":
            self._leader(step)
        elif step.role == "manager":
            self._manager(step)

    def _manager(self, step: Step) -> None:
        if self._is_deposed(step.node):
            # It has not noticed: its decisions wait for a write that will fail, or are fenced by terms.
            return
        kept: set[tuple[str, int]] = set()
        match step.event:
            case Received(message=Progress() as progress):
                self._reported(step, step.event.sender, progress)
            case Received(message=Hello() as hello):
                for leads in hello.leads:
                    if self._has_job(step.node, leads.job):
                        self._courses[leads.job].heard_s = step.at_s
            case PeerChanged(state=Liveness.SUSPECT | Liveness.LOST):
                for job, course in self._courses.items():
                    if course.led.get(course.led_term) == step.event.node and self._has_job(step.node, job):
                        course.broke_s = step.at_s
            case _:
                pass
        for action in step.actions:
            if isinstance(action, Keep):
                kept.add((action.job, action.term))
            elif isinstance(action, Record) and (ended := _term_ended(action)) is not None:
                self._courses[action.job].term_over = ended
            elif isinstance(action, Record) and action.kind == "history.adopted":
                self._history_adopted(self._courses[action.job])
            elif isinstance(action, Store):
                sent = action.checkpoint
                self._courses[sent.job].taken_s[sent.term, sent.version] = step.at_s
            elif isinstance(action, Answer) and isinstance(action.message, Done):
                job = action.message.job
                # An operator may ask for more than running it.
                known = bool(self._courses[job].state) or any(name == job for name, _ in kept)
                self._hold(known, f"{job} was accepted before it was written down")
            elif isinstance(action, Send) and isinstance(action.message, Assign):
                self._assigned(action.to, action.message, kept)
            elif isinstance(action, Send) and isinstance(action.message, CheckpointKept):
                self._acknowledged(action.message)
            elif isinstance(action, Send) and isinstance(action.message, HandOver):
                over = action.message
                course = self._courses[over.job]
                if over.term < course.kept_term:
                    self._adopted(course, step, over)
                    course.adopting, course.least = over.term, over.version_least
                    course.deposed = course.led_term
            elif isinstance(action, Send) and isinstance(action.message, StepDown):
                self._given_up(step, action.to, action.message)
        self._checked_in(step)

    def _reported(self, step: Step, node: str, progress: Progress) -> None:
        course = self._courses[progress.job]
        tenure = course.tenures.get(node)
        is_over = tenure is not None and tenure.term == progress.term < course.kept_term
        if tenure is not None and is_over and tenure.claimed_s < self._began_s:
            tenure.claimed_s = step.at_s
        if progress.term < course.kept_term:
            course.claimed[progress.term] = progress.unsaved_workers
        elif progress.term > max(course.told_after, course.term_over) and progress.term_batches:
            names = {view.node for view in progress.workers if view.batches}
            course.told[progress.term] = course.told.get(progress.term, set()) | names
            # A worker whose batches are in no version yet cannot lose any.
            course.told_workers[progress.term] = progress.term_workers

    def _read(self, course: SeenJob) -> None:
        """Reset a job's state when a manager starts, which has only what is durable."""
        course.told.clear()
        for term, node in course.trained_by.values():
            if term > course.told_after:
                course.told.setdefault(term, set()).add(node)
        course.told_workers = {term: len(names) for term, names in course.told.items()}

    def _adopted(self, course: SeenJob, step: Step, over: HandOver) -> None:
        """Check that no history is adopted if more workers would lose theirs."""
        later = [term for term in course.told if term > over.term]
        names = set[str]().union(*(course.told[term] for term in later))
        lost = min(len(names), sum(course.told_workers[term] for term in later))
        kept = course.claimed.get(over.term, 0)
        told = f"{over.job}, newer terms: what {lost} workers trained was thrown away for what {kept} did"
        self._hold(lost <= kept, told)
        course.told.clear()
        course.told_after = course.kept_term

    def _checked_in(self, step: Step) -> None:
        """Check that a device that says hello is answered, and that one that is sent away holds no lease and is told to
        come again, soon enough to be missed if it does not."""
        welcomes = {
            action.to: action.message
            for action in step.actions
            if isinstance(action, Send) and isinstance(action.message, Welcome)
        }
        if isinstance(step.event, Received) and isinstance(step.event.message, Hello):
            served = {action.to for action in step.actions if isinstance(action, Send)}
            self._hold(step.event.sender in served, f"{step.event.sender} checked in and was not served")
        assigned = {
            action.to
            for action in step.actions
            if isinstance(action, Send) and isinstance(action.message, Assign) and action.message.role == "worker"
        }
        for node, welcome in welcomes.items():
            if not welcome.come_s:
                continue
            self._hold(node not in assigned, f"{node} was given work and sent away")
            self._hold(0 < welcome.come_s <= self._comes_within_s, f"{node} was told to come again too late")
            self._sent_s[step.node, node] = step.at_s
        for node in sorted(assigned):
            self._hold((step.node, node) not in self._dormant_s, f"{node} is dormant and was given work")
        if isinstance(step.event, PeerChanged):
            self._heard_of(step, step.event)

    def _heard_of(self, step: Step, change: PeerChanged) -> None:
        """Check that a device is dormant once for each time that it was sent away. A slow store may delay the answer to
        its hello until it has left and come back, and it obeys that answer."""
        key = step.node, change.node
        if change.state is not Liveness.DORMANT:
            self._dormant_s.pop(key, None)
            return
        self._dormant_s[key] = step.at_s
        self._hold(self._sent_s.pop(key, None) is not None, f"{change.node} is dormant, and nobody sent it away")

    def _assigned(self, to: str, assign: Assign, kept: set[tuple[str, int]]) -> None:
        course, job, term = self._courses[assign.job], assign.job, assign.term
        self._hold(
            (job, term) in kept or term <= course.kept_term, f"term {term} of {job} was used before it was written down"
        )
        self._hold(course.state not in ENDED, f"{to} was given a role in {job}, which is {course.state}")

    def _acknowledged(self, kept: CheckpointKept) -> None:
        """Check that a version is durable if a leader elsewhere is told so, and that no newer term exists by then."""
        course, what = self._courses[kept.job], f"version {kept.version} of {kept.job}, term {kept.term},"
        self._hold((kept.term, kept.version) in course.durables, f"{what} was called kept and is not")
        newest = course.kept_term
        is_due = kept.term >= newest or kept.term == course.adopting
        self._hold(is_due, f"{what} was called kept under term {newest}")
        course.acknowledged = max(course.acknowledged, kept.version)

    def _leader(self, step: Step) -> None:
        course = self._courses[step.job]
        tenure = course.tenures[step.node]
        match step.event:
            case Received():
                self._heard(course, tenure, step, step.event)
            case PeerChanged(node="home", state=Liveness.LOST):
                tenure.cut_s = step.at_s if tenure.cut_s is None else tenure.cut_s
            case PeerChanged(state=Liveness.LOST):
                self._take_credits(tenure, step.event.node)
            case Saved():
                self._hold(
                    step.event.version <= course.durable,
                    f"version {step.event.version} was called saved; the disk has {course.durable}",
                )
                course.acknowledged = max(course.acknowledged, step.event.version)
                tenure.cut_s = None
            case _:
                pass
        for action in step.actions:
            match action:
                case Send():
                    self._said(course, tenure, step, action)
                case Save():
                    self._saving(course, tenure, step, action)
                case Record(kind="lease.expired" | "lease.returned"):
                    found = _LEASE.match(action.reason)
                    if found:
                        self._opened(tenure, int(found[1]))
                        self._closed(tenure, int(found[1]))
                case Record(kind="sum.rejected" | "update.invalid" | "model.invalid") if not _is_of_nothing(step.event):
                    self._hold(not self._is_honest, f"everyone is honest, and {action.reason}")
                case Record(kind="end.decided"):
                    tenure.is_closing = True
                case Record(kind="model.reverted"):
                    tenure.went_back = True
                case Record(kind="pace.changed"):
                    self._hold(len(course.spec.plan.paces) > 1, f"the plan has one pace, and {action.reason}")
                    tenure.changed_pace = True
                case Record(kind="version.skipped"):
                    tenure.passed += 1
                case End() if tenure.term == course.led_term:
                    course.vacant_s = step.at_s
                case _:
                    pass
        self._memory(course, tenure, step)
        self._leases_ended(tenure, step)

    def _closed(self, tenure: SeenLeader, lease: int) -> None:
        tenure.credits.pop(lease, None)
        tenure.open.pop(lease, None)
        if not any(lent.kind == "train" for lent in tenure.open.values()):
            tenure.quiet.add(tenure.answers)

    def _opened(self, tenure: SeenLeader, lease: int) -> None:
        """Reopen a lease whose update no version will contain, because its aggregators are gone."""
        lent = tenure.lent.get(lease)
        if lent is not None and lent.counts:
            tenure.open[lease] = lent
            self._uncount(tenure, lent)

    def _uncount(self, tenure: SeenLeader, lent: SeenLease) -> None:
        """Note that no version will contain the update of a lease that was counted as an answer."""
        lent.counts = False
        tenure.answers -= 1
        tenure.quiet = {count for count in tenure.quiet if count <= tenure.answers}

    def _leases_ended(self, tenure: SeenLeader, step: Step) -> None:
        """Check that a lost worker's leases return in the step that reports the loss, overdue ones at the next tick."""
        lost = step.event.node if isinstance(step.event, PeerChanged) and step.event.state is Liveness.LOST else ""
        if tenure.is_closing or not (lost or isinstance(step.event, TimerFired)):
            return
        if isinstance(step.event, TimerFired) and step.event.late_s:
            # Its process stood still, and could not receive messages meanwhile.
            for lent in tenure.open.values():
                lent.deadline_s += step.event.late_s + PAUSE_GRACE_S
        knows_rest = step.node in self._labels and not self._is_deposed(step.node)
        # A thousand leases may be open: texts are made only for what is wrong.
        for number, lent in tenure.open.items():
            if lent.node == lost:
                self._hold(False, f"{lost} was lost and kept lease {number} of {step.job}")
            if knows_rest:
                rests_s = step.at_s - self._dormant_s.get((step.node, lent.node), math.inf)
                if rests_s > HEARD_AFTER_S:
                    self._hold(False, f"{lent.node} is dormant and holds lease {number} of {step.job}")
            if not lost and step.at_s > lent.deadline_s:
                self._hold(False, f"lease {number} of {step.job} should have ended at {lent.deadline_s:.1f} s")

    def _heard(self, course: SeenJob, tenure: SeenLeader, step: Step, event: Received) -> None:
        message = event.message
        self._refused_rightly(step, event)
        match message:
            case Ready():
                self._take_credits(tenure, event.sender)
            case Offer() | UpdateReady() if message.term == tenure.term and message.lease in tenure.lent:
                # The update waits to be taken, or is on its way to aggregators: the worker is not late.
                tenure.lent[message.lease].deadline_s = math.inf
            case Update() | Evaluated() | Failed() if message.term == tenure.term:
                lent = tenure.lent.get(message.lease)
                if lent is not None and lent.node == event.sender:
                    if (
                        message.lease in tenure.open
                        and isinstance(message, Update)
                        and not _is_refused(step, message.lease)
                    ):
                        tenure.answers += 1
                        tenure.updates.append((step.at_s, message.lease, tenure.version))
                        lent.counts = True
                    self._closed(tenure, message.lease)
                    if isinstance(message, Update):
                        lent.answered = message.version
                    elif isinstance(message, Failed):
                        course.failures.update((lent.epoch, lent.kind, batch) for batch in lent.batches)
            case ReduceResult(weighed="") if message.term == tenure.term:
                self._summed(tenure, message)
            case BadShard() if message.term == tenure.term and _is_refused(step, message.lease):
                lent = tenure.lent.get(message.lease)
                if lent is not None and lent.counts:
                    self._uncount(tenure, lent)
                self._closed(tenure, message.lease)
            case _:
                pass

    def _summed(self, tenure: SeenLeader, sum_: ReduceResult) -> None:
        """Handle a sum, which may be of a past formation. It does not put an update into a version if that update was
        sent another way since."""
        lent = ((lease, tenure.lent.get(lease)) for lease in sum_.leases)
        due = [lease for lease, known in lent if known is not None and known.formation == sum_.formation]
        tenure.summed |= dict.fromkeys(due, min(due, default=0))

    def _refused_rightly(self, step: Step, event: Received) -> None:
        """Check that a refusal names a lease that exists: lease numbers start again in each term."""
        message = event.message
        answered = (getattr(message, "term", None), getattr(message, "lease", None))
        # An aggregator reports that the update of a worker is not sound.
        sender = message.node if isinstance(message, BadShard) else event.sender
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, UpdateRefused):
                named = (action.message.term, action.message.lease)
                self._hold(
                    action.to == sender and answered == named,
                    f"{action.to} was refused term and lease {named}; {sender} had sent {answered}",
                )

    def _take_credits(self, tenure: SeenLeader, node: str) -> None:
        for lease in [lease for lease, holder in tenure.credits.items() if holder == node]:
            del tenure.credits[lease]

    def _said(self, course: SeenJob, tenure: SeenLeader, step: Step, send: Send) -> None:
        at_s, message = step.at_s, send.message
        match message:
            case Work():
                self._grew(course, tenure, at_s, version_named(message.version))
                self._durable_told(course, message.durable_version)
                self._hold(message.lease not in tenure.lent, f"lease {message.lease} of {step.job} was given out twice")
                self._hold(message.term == tenure.term, f"a leader of term {tenure.term} spoke for {message.term}")
                tenure.open[message.lease] = tenure.lent[message.lease] = SeenLease(
                    send.to,
                    message.version,
                    message.epoch,
                    message.batches,
                    message.kind,
                    at_s + message.deadline_s + GRACE_S,
                    formation=message.formation,
                )
                away_s = at_s - self._down_s.get(send.to, math.inf)
                self._hold(away_s <= LONG_GONE_S, f"{send.to} was leased a batch {away_s:.0f} s after it went")
                if message.kind == "train":
                    self._unapplied(course, tenure, message)
                    # In a formation its shards go to aggregators: the leader holds none of it.
                    if message.credit and not message.formation:
                        tenure.credits[message.lease] = send.to
            case Go():
                self._went(tenure, message, send.to)
            case Bind():
                # Its update must be sent again, under other masks.
                self._opened(tenure, message.lease)
                if message.lease in tenure.lent:
                    tenure.lent[message.lease].deadline_s = math.inf
            case SteppedDown() if not message.failed:
                self._handed_over(course, tenure, step)
            case Progress():
                self._grew(course, tenure, at_s, message.version)
                self._durable_told(course, message.durable_version)
                self._hold(
                    message.state not in ENDED or course.ending,
                    f"{step.job} was called {message.state} before that was durable",
                )
            case Finished() if not _is_let_go(step, send.to):
                self._hold(course.ending, f"{send.to} was told that {step.job} is over before that was durable")
            case Wait():
                accused = self._is_honest and message.reason.startswith(("left out", "set aside"))
                self._hold(not accused, f"{send.to} is honest and was {message.reason}")
            case _:
                pass

    def _went(self, tenure: SeenLeader, go: Go, to: str) -> None:
        """Note that an update may be sent, or must be sent again by another way than before."""
        self._opened(tenure, go.lease)
        tenure.summed.pop(go.lease, None)
        if go.lease in tenure.lent:
            tenure.lent[go.lease].deadline_s = math.inf
            tenure.lent[go.lease].formation = go.formation
        if go.formation:
            tenure.credits.pop(go.lease, None)
        else:
            tenure.credits[go.lease] = to

    def _handed_over(self, course: SeenJob, tenure: SeenLeader, step: Step) -> None:
        """Check that a leader that hands over in order leaves no lease and no version that is not durable."""
        lent = list(tenure.open)
        self._hold(not lent, f"{step.node} handed {step.job} over with leases {lent} given out")
        version = tenure.version
        self._hold(
            version <= course.durable,
            f"{step.node} handed {step.job} over at version {version}; the disk has {course.durable}",
        )
        rest = tenure.answers - tenure.applied
        self._hold(not rest, f"{step.node} handed {step.job} over with {rest} updates in no version")
        if tenure.term in (course.kept_term, course.adopting):
            course.handed[course.kept_term] = version

    def _grew(self, course: SeenJob, tenure: SeenLeader, at_s: float, version: int) -> None:
        # In an asynchronous job each update may make a version, and not every version has to be sent.
        is_sync = course.spec.plan.paces[0] == "sync" and not tenure.changed_pace
        most = (tenure.version + 1 if is_sync else max(0, tenure.began) + tenure.answers) + tenure.passed
        is_renumbered = tenure.term == course.adopting and version == course.least
        self._hold(
            tenure.version <= version <= most or tenure.version < 0 or is_renumbered,
            f"the version went from {tenure.version} to {version}",
        )
        # A leader whose term is over has no effect on the job.
        if version > tenure.version and tenure.term == course.led_term:
            course.moved_s = at_s
        tenure.version = version

    def _durable_told(self, course: SeenJob, version: int) -> None:
        self._hold(
            version <= max(0, course.durable), f"version {version} was called durable; the disk has {course.durable}"
        )

    def _unapplied(self, course: SeenJob, tenure: SeenLeader, work: Work) -> None:
        if tenure.term < course.durable_term:
            # A leader whose term is over still gives out leases, to no effect.
            return
        for batch in work.batches:
            self._hold(
                (work.epoch, batch) not in course.history,
                f"batch {batch} of epoch {work.epoch} was leased again, and is in the durable history",
            )

    def _saving(self, course: SeenJob, tenure: SeenLeader, step: Step, save: Save) -> None:
        """Check that this leader leased each batch that a save applies, and for the version that the update is for."""
        tenure.version = max(tenure.version, save.version)
        is_sync = course.spec.plan.paces[0] == "sync" and not tenure.changed_pace
        for row in save.applied:
            lent = tenure.lent.get(row.lease)
            what = f"batch {row.batch} of epoch {row.epoch} in version {row.version}"
            if lent is None or (lent.node, lent.epoch, lent.kind) != (row.node, row.epoch, "train"):
                raise Violation(f"at {step.at_s:.3f} s: {what}: lease {row.lease} was not given to {row.node} for it")
            self._hold(row.batch in lent.batches, f"{what}: lease {row.lease} did not hold it")
            self._hold(lent.answered is not None, f"{what}: no update ever came for lease {row.lease}")
            self._hold(
                lent.answered == lent.version <= row.version - 1 and (lent.version == row.version - 1 or not is_sync),
                f"{what}: made against version {lent.answered}, leased for {lent.version}",
            )
        self._filled(course, tenure, step, save)
        self._hold(save.version == save.state["version"], "a save that names two versions")
        self._hold(tenure.term == save.state["term"], "a save of another leader's term")

    def _filled(self, course: SeenJob, tenure: SeenLeader, step: Step, save: Save) -> None:
        """Check that a version has as many updates as the pace requires, or fewer if no other could come."""
        plan = course.spec.plan
        size = {"sync": math.inf, "buffered": plan.buffer, "async": 1}[plan.paces[0]]
        for version, group in itertools.groupby(save.applied, key=lambda row: row.version):
            node_of = {row.lease: row.node for row in group}
            leases = list(node_of)
            known = tenure.made_of.setdefault(version, leases)
            self._hold(known == leases, f"version {version} was made of {known} and is of {leases}")
            if known is not leases:
                # It was saved before, but its leader was not told so.
                continue
            tenure.applied += len(leases)
            # Updates that were summed together come together: the last ones to come filled it.
            last = [
                lease
                for lease in leases
                if tenure.summed.get(lease, lease) == tenure.summed.get(leases[-1], leases[-1])
            ]
            fills = len(leases) - len(last) < size <= len(leases)
            if plan.believes.rule == "nearest":
                # Devices are compared: updates of different devices fill it, and a second one of a device does not.
                fills = len({node_of[lease] for lease in leases if lease not in last}) < size <= len(leases)
            is_whole = fills or (len(leases) < size and tenure.applied in tenure.quiet)
            self._hold(
                is_whole or tenure.is_closing or tenure.went_back or tenure.changed_pace,
                f"version {version} is made of {len(leases)} updates, the pace is {plan.pace} with {size}",
            )

    def _memory(self, course: SeenJob, tenure: SeenLeader, step: Step) -> None:
        most = max(2, self._budget_bytes // course.model_bytes)
        self._hold(
            len(tenure.credits) <= most,
            f"{len(tenure.credits)} uploads of {step.job} may be under way, at most {most} fit",
        )

    # The managers --------------------------------------------------------------------------------------

    def _is_deposed(self, node: str) -> bool:
        """Whether another manager took over from the one that runs here."""
        return False

    def _has_job(self, node: str, job: str) -> bool:
        """Whether the manager that runs here has this job."""
        return True

    def _manager_began_s(self, job: str) -> float:
        """Return when this job's manager began to manage it."""
        return self._began_s

    def _history_adopted(self, course: SeenJob) -> None:
        """Note that a manager adopts the history of an earlier leader."""

    # Marks of the world --------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        self._at_s = mark.at_s
        match mark.kind:
            case "power off" | "killed":
                self._down_s[mark.node] = mark.at_s
                self._vacated(mark.node, mark.at_s)
            case "started":
                self._down_s.pop(mark.node, None)
            case _:
                pass
        match mark.kind:
            case "durable":
                self._became_durable(mark)
            case "kept":
                self._kept(mark.facts["job"], mark.facts["state"], int(mark.facts["term"]), mark.at_s)
            case "led":
                self._led(mark)
            case "started" if "jobs" in mark.facts:
                self._began_s = mark.at_s
                for course in self._courses.values():
                    self._read(course)
                forgotten = self._accepted - set(mark.facts["jobs"])
                what = f"the manager forgot {sorted(forgotten)}, which it had accepted"
                self._hold(not forgotten, what)
            case "answered":
                answer = mark.facts["message"]
                if isinstance(answer, Done):
                    self._accepted.add(answer.job)
            case _:
                pass

    def _kept(self, job: str, state: str, term: int, at_s: float) -> None:
        course = self._courses[job]
        self._hold(course.state not in ENDED or state == course.state, f"{job} was {course.state} and is {state} now")
        self._hold(term >= course.kept_term, f"term {term} of {job} was written down after {course.kept_term}")
        course.state = state
        if term > course.kept_term:
            leads_on = course.vacant_s is None and course.led_term == course.kept_term
            leads_on = (
                leads_on and course.led[course.led_term] not in self._labels and course.led_term != course.deposed
            )
            began_s = self._manager_began_s(job)
            # A leader that has reported to it may be lost at any time.
            was_lost = began_s < course.heard_s < course.broke_s
            self._hold(
                not leads_on or was_lost or at_s - began_s > HEARD_AFTER_S,
                f"{course.led.get(course.led_term)} leads {job} and was replaced by a manager that began just now",
            )
            course.kept_term = term
            course.floor[term] = course.acknowledged

    def _led(self, mark: Mark) -> None:
        job, node = mark.facts["job"], mark.node
        course = self._courses[job]
        term, version = int(mark.facts["term"]), int(mark.facts["version"])
        self._hold(term not in course.led, f"{node} leads {job} under term {term} after {course.led}")
        self._hold(term <= course.kept_term, f"term {term} of {job} was used before it was written down")
        floor = course.floor[term]
        self._hold(version >= floor, f"resumed at version {version}; {floor} had been called durable")
        handed = course.handed.get(term - 1, version)
        # A superseded manager may begin when its store is back, with versions that came after it. It writes nothing.
        self._hold(
            version == handed or self._is_deposed(node),
            f"{job} was handed over at version {handed} and taken up at {version}",
        )
        course.led[term] = node
        course.tenures[node] = SeenLeader(node, term, version, began=version)
        course.past.append(course.tenures[node])
        if term > course.led_term:
            course.led_term, course.vacant_s = term, None

    def _vacated(self, node: str, at_s: float) -> None:
        """Note that a process on that node ended, so it no longer leads."""
        for course in self._courses.values():
            if course.led.get(course.led_term) == node and course.vacant_s is None:
                course.vacant_s = at_s

    def _became_durable(self, mark: Mark) -> None:
        course, save = self._courses[mark.facts["job"]], mark.facts["save"]
        at_s, ledger, term = mark.at_s, save.state["ledger"], int(save.state["term"])
        newest = max(course.durable_term, course.kept_term)
        is_adopted = term == course.adopting
        what = f"version {save.version} of term {term} was kept; the term is {newest}"
        self._hold(term >= newest or is_adopted, what)
        # Leases of leaders of the terms in between have no effect.
        course.durable_term = course.kept_term + 1 if is_adopted else term
        if is_adopted:
            # The next leader resumes from here, whatever the newest one handed over, and even if this one never does.
            course.handed.pop(course.kept_term, None)
        self._replaced(course, save, mark.facts.get("gone", ()), is_adopted=is_adopted)
        course.durables.add((term, save.version))
        # Each is an earlier version again, under a new number.
        again = sorted(again for _, again in save.state.get("went_back", ()))
        for row in mark.facts.get("again", ()):
            known = course.history.get((row.epoch, row.batch))
            self._hold(
                known == row.version,
                f"batch {row.batch} of epoch {row.epoch} came again in version {row.version}; it is in {known}",
            )
        self._hold(save.version >= course.durable, f"version {save.version} was saved after {course.durable}")
        course.durable = save.version
        self._hold(
            not course.ending or (bool(save.state["ending"]) and not save.applied),
            f"{mark.facts['job']} should have ended, which was durable, and went on",
        )
        course.ending = bool(save.state["ending"])
        course.ended_s = course.taken_s.get((term, save.version), at_s) if course.ending else math.inf
        for row in save.applied:
            key = (row.epoch, row.batch)
            while again and again[0] <= row.version:
                course.history_version = max(course.history_version, again.pop(0))
            self._hold(key not in course.history, f"batch {row.batch} of epoch {row.epoch} was applied twice")
            self._hold(
                course.history_version <= row.version <= save.version,
                f"version {row.version} came after {course.history_version} in the history",
            )
            course.history[key] = course.history_version = row.version
            course.trained_by[key] = (term, row.node)
            course.per_epoch[row.epoch] += 1
        course.history_version = max(course.history_version, *again, 0)
        ends = course.history_version
        is_renumbered = is_adopted and ends < save.version == course.least
        self._hold(
            ends == save.version or is_renumbered, f"the history ends at version {ends}, the save is {save.version}"
        )
        course.history_version = save.version
        self._ledger_matches(course, ledger)

    def _replaced(self, course: SeenJob, save: Save, gone: tuple[Applied, ...], *, is_adopted: bool) -> None:
        """Check that durable history is dropped only for a leader that led on during a partition with at least as many
        workers, or when a broken model went back to a good one."""
        if not gone:
            return
        is_back = bool(save.state.get("went_back"))
        self._hold(is_adopted or is_back, f"{len(gone)} durable batches of {save.state['job']} were thrown away")
        # A leader that was never told that its version is durable sends the same rows again.
        lost, kept = ({row.node for row in rows} for rows in (set(gone) - set(save.applied), save.applied))
        told = f"what {len(lost)} workers trained was thrown away for what {len(kept)} did"
        self._hold(is_back or len(kept) >= len(lost), told)
        for row in gone:
            del course.history[row.epoch, row.batch], course.trained_by[row.epoch, row.batch]
            course.per_epoch[row.epoch] -= 1
        course.history_version = max(course.history.values(), default=0)

    def _given_up(self, step: Step, node: str, message: StepDown) -> None:
        """Check that a manager that was cut off discards no version for which more workers trained than for others."""
        course = self._courses[message.job]
        tenure = course.tenures.get(node)
        if tenure is None or tenure.term != message.term or tenure.cut_s is None or course.state != "running":
            return
        is_told = isinstance(step.event, Received) and isinstance(step.event.message, Progress)
        is_settled = isinstance(step.event, TimerFired) and step.event.name.startswith("claim ")
        if not is_told and not is_settled:
            return
        if tenure.claimed_s > course.ended_s:
            # The job had ended when the message came.
            return
        held = tenure.trained(after_s=tenure.cut_s, until_s=step.at_s - TOLD_WITHIN_S)
        later = [other for other in course.past if other.term > tenure.term]
        # Leaders that followed each other since the partition continued one history: all who trained for it count.
        others = [len(set().union(*(other.trained(after_s=0.0, until_s=math.inf) for other in later)))]
        if course.heard_s > course.broke_s:
            # The manager has its own history, and may adopt an older one that as many workers made.
            records = (each for each in step.actions if isinstance(each, Record) and each.job == message.job)
            others += [course.claimed.get(term, 0) for each in records if (term := _adopted(each)) is not None]
        most = max(others, default=0)
        self._hold(
            len(held) <= most,
            f"{node} led {message.job} on for {len(held)} workers while the manager was away, and all of it was "
            f"discarded for what {most} did",
        )

    def _ledger_matches(self, course: SeenJob, ledger: dict[str, object]) -> None:
        spec = course.spec
        batches = spec.batches
        epoch = int(str(ledger["epoch"]))
        # A sealed epoch leaves batches that are too few for another sum.
        sealed = spec.plan.believes.sealed
        least = batches - spec.plan.opened_least + 1 if sealed is not None else batches
        for done in range(epoch):
            self._hold(
                least <= course.per_epoch[done] <= batches,
                f"epoch {done} was closed with {course.per_epoch[done]} of {batches} batches",
            )
        runs: list[list[int]] = ledger["applied"]  # type: ignore[assignment]
        applied = {batch for start, stop in runs for batch in range(start, stop)}
        known = {batch for e, batch in course.history if e == epoch}
        self._hold(applied == known, f"the saved ledger of epoch {epoch} and its history differ")

    # Progress ------------------------------------------------------------------------------------------

    def stuck(self, job: str, since_s: float, now_s: float, *, bound_s: float) -> None:
        """Check that a job that had enough live workers all this time made progress."""
        course, self._at_s = self._courses[job], now_s
        quiet_s = now_s - max(since_s, course.moved_s)
        self._hold(
            course.state in ENDED or quiet_s <= bound_s,
            f"{job} has enough workers and did not move for {quiet_s:.0f} s",
        )
        vacant_s = now_s - max(since_s, course.vacant_s) if course.vacant_s is not None else 0.0
        self._hold(course.state in ENDED or vacant_s <= LED_WITHIN_S, f"nobody has led {job} for {vacant_s:.0f} s")

    def failed_rightly(self, job: str, reason: str) -> None:
        """Check that a failed job had a batch that failed again and again."""
        # Without a time: the run is over.
        self._at_s = math.inf
        worst = max(self._courses[job].failures.values(), default=0)
        self._hold(worst >= FAILURES_TO_FAIL, f"{job} failed ({reason}); no batch failed more than {worst} times")

    def _hold(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"at {self._at_s:.3f} s: {what}")
