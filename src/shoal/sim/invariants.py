"""What must never be false, checked on every step of a simulation from the outside: events, actions, and the disk.

It does not look into roles and shares none of their code, so that a bug cannot hide in both. It speaks of honest
devices: a worker that is accused of breaking the contract is a violation too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from shoal.roles.actions import Answer, Keep, Record, Save, Send
from shoal.roles.events import Liveness, PeerChanged, Received, TimerFired
from shoal.sim.observe import Mark, Step
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import (
    Assign,
    Done,
    Evaluated,
    Failed,
    Finished,
    Go,
    JobSpec,
    Offer,
    Progress,
    Ready,
    Refused,
    Update,
    Wait,
    Work,
)
from shoal.workload.batches import batch_count

#: How often a batch fails before its job does.
FAILURES_TO_FAIL = 4

#: What a leader grants beyond a lease's time, and how often it looks.
GRACE_S = 3.0

#: A node is lost after eight seconds of silence. Nobody lends to one that is gone for longer than this.
LONG_GONE_S = 40.0

_ENDED = ("finished", "failed", "stopped")
_LEASE = re.compile(r"lease (\d+) ")


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class _Lent:
    """A lease as it was given out."""

    node: str
    version: int
    epoch: int
    batches: tuple[int, ...]
    kind: str
    #: By when the leader takes it back; infinite while its update waits to be taken or is on its way.
    deadline_s: float
    is_open: bool = True
    #: The version its update was made against, once one came.
    answered: int | None = None


@dataclass(slots=True)
class _Course:
    """One job as seen from outside."""

    spec: JobSpec
    model_bytes: int
    term: int = 0
    version: int = -1
    #: The newest version anyone was told is durable, and the newest that is.
    told: int = 0
    durable: int = -1
    ending: bool = False
    state: str = ""
    lent: dict[int, _Lent] = field(default_factory=dict)
    #: Leases that may upload now -> their worker.
    credits: dict[int, str] = field(default_factory=dict)
    #: The surviving history: (epoch, batch) -> version.
    history: dict[tuple[int, int], int] = field(default_factory=dict)
    per_epoch: Counter[int] = field(default_factory=Counter)
    history_version: int = 0
    moved_s: float = 0.0
    #: Its leader decided that it ends: leases count no more.
    is_closing: bool = False
    #: (epoch, kind of lease, batch) -> how often a worker said that it failed.
    failures: Counter[tuple[int, str, int]] = field(default_factory=Counter)


class Invariants:
    """An observer that raises at the first step that breaks one."""

    def __init__(
        self,
        jobs: dict[str, tuple[JobSpec, int]],
        *,
        budget_bytes: int = UPLOAD_BUDGET_BYTES,
        is_honest: bool = True,
    ) -> None:
        #: Job -> its spec and the bytes of its model.
        self._courses = {name: _Course(spec, size_bytes) for name, (spec, size_bytes) in jobs.items()}
        self._budget_bytes = budget_bytes
        #: No device sends anything that may be refused, so none may be left out.
        self._is_honest = is_honest
        self._accepted: set[str] = set()
        #: Node -> since when no process of it runs.
        self._down_s: dict[str, float] = {}

    # What roles did ------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        if step.role == "leader":
            self._leader(step)
        elif step.role == "manager":
            self._manager(step)

    def _manager(self, step: Step) -> None:
        kept: set[tuple[str, int]] = set()
        for action in step.actions:
            if isinstance(action, Keep):
                kept.add((action.job, action.term))
            elif isinstance(action, Answer) and isinstance(action.message, Done):
                job = action.message.job
                known = job in self._accepted or any(name == job for name, _ in kept)
                self._hold(known, step.at_s, f"{job} was accepted before it was written down")
            elif isinstance(action, Send) and isinstance(action.message, Assign):
                course = self._courses[action.message.job]
                fresh = action.message.role == "leader"
                self._hold(
                    not fresh or (action.message.job, action.message.term) in kept,
                    step.at_s,
                    f"term {action.message.term} of {action.message.job} was used before it was written down",
                )
                self._hold(
                    course.state not in _ENDED,
                    step.at_s,
                    f"{action.to} was given a role in {action.message.job}, which is {course.state}",
                )

    def _leader(self, step: Step) -> None:
        course = self._courses[step.job]
        match step.event:
            case Received():
                self._heard(course, step, step.event)
            case PeerChanged(state=Liveness.LOST):
                self._take_credits(course, step.event.node)
            case _:
                pass
        for action in step.actions:
            match action:
                case Send():
                    self._said(course, step, action)
                case Save():
                    self._saving(course, step, action)
                case Record(kind="expired" | "lease-returned"):
                    found = _LEASE.match(action.reason)
                    if found:
                        self._closed(course, int(found[1]))
                case Record(kind="ending"):
                    course.is_closing = True
                case _:
                    pass
        self._memory(course, step)
        self._leases_ended(course, step)

    def _closed(self, course: _Course, lease: int) -> None:
        course.credits.pop(lease, None)
        if lease in course.lent:
            course.lent[lease].is_open = False

    def _leases_ended(self, course: _Course, step: Step) -> None:
        """A lost worker's leases are returned in the step that hears of it, an overdue one at the next tick."""
        lost = step.event.node if isinstance(step.event, PeerChanged) and step.event.state is Liveness.LOST else ""
        if course.is_closing or not (lost or isinstance(step.event, TimerFired)):
            return
        for number, lent in course.lent.items():
            if not lent.is_open:
                continue
            self._hold(lent.node != lost, step.at_s, f"{lost} was lost and kept lease {number} of {step.job}")
            self._hold(
                bool(lost) or step.at_s <= lent.deadline_s,
                step.at_s,
                f"lease {number} of {step.job} was to end at {lent.deadline_s:.1f} s",
            )

    def _heard(self, course: _Course, step: Step, event: Received) -> None:
        message = event.message
        self._refused_rightly(step, event)
        match message:
            case Ready():
                self._take_credits(course, event.sender)
            case Offer() if message.term == course.term and message.lease in course.lent:
                # It waits to be taken, which is not its fault.
                course.lent[message.lease].deadline_s = math.inf
            case Update() | Evaluated() | Failed() if message.term == course.term:
                lent = course.lent.get(message.lease)
                if lent is not None and lent.node == event.sender:
                    self._closed(course, message.lease)
                    if isinstance(message, Update):
                        lent.answered = message.version
                    elif isinstance(message, Failed):
                        course.failures.update((lent.epoch, lent.kind, batch) for batch in lent.batches)
            case _:
                pass

    def _refused_rightly(self, step: Step, event: Received) -> None:
        """A refusal names what it refuses: lease numbers begin anew with each term."""
        answered = (getattr(event.message, "term", None), getattr(event.message, "lease", None))
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Refused):
                named = (action.message.term, action.message.lease)
                self._hold(
                    action.to == event.sender and answered == named,
                    step.at_s,
                    f"{action.to} was refused term and lease {named}; {event.sender} had spoken of {answered}",
                )

    def _take_credits(self, course: _Course, node: str) -> None:
        for lease in [lease for lease, holder in course.credits.items() if holder == node]:
            del course.credits[lease]

    def _said(self, course: _Course, step: Step, send: Send) -> None:
        at_s, message = step.at_s, send.message
        match message:
            case Work():
                self._grew(course, at_s, message.version)
                self._durable_told(course, at_s, message.durable_version)
                self._hold(
                    message.lease not in course.lent, at_s, f"lease {message.lease} of {step.job} was given out twice"
                )
                self._hold(
                    message.term == course.term, at_s, f"a leader of term {course.term} spoke for {message.term}"
                )
                course.lent[message.lease] = _Lent(
                    send.to,
                    message.version,
                    message.epoch,
                    message.batches,
                    message.kind,
                    at_s + message.deadline_s + GRACE_S,
                )
                away_s = at_s - self._down_s.get(send.to, math.inf)
                self._hold(away_s <= LONG_GONE_S, at_s, f"{send.to} was lent a batch {away_s:.0f} s after it went")
                if message.kind == "train":
                    self._unapplied(course, step, message)
                    if message.credit:
                        course.credits[message.lease] = send.to
            case Go():
                course.credits[message.lease] = send.to
            case Progress():
                self._grew(course, at_s, message.version)
                self._durable_told(course, at_s, message.durable_version)
                self._hold(
                    message.state not in _ENDED or course.ending,
                    at_s,
                    f"{step.job} was called {message.state} before that was durable",
                )
            case Finished():
                self._hold(course.ending, at_s, f"{send.to} was told that {step.job} is over before that was durable")
            case Wait():
                accused = self._is_honest and message.reason.startswith("left out")
                self._hold(not accused, at_s, f"{send.to} is honest and was {message.reason}")
            case _:
                pass

    def _grew(self, course: _Course, at_s: float, version: int) -> None:
        self._hold(
            course.version <= version <= course.version + 1 or course.version < 0,
            at_s,
            f"the version went from {course.version} to {version}",
        )
        if version > course.version:
            course.moved_s = at_s
        course.version = version

    def _durable_told(self, course: _Course, at_s: float, version: int) -> None:
        self._hold(
            version <= max(0, course.durable),
            at_s,
            f"version {version} was called durable; the disk has {course.durable}",
        )
        course.told = max(course.told, version)

    def _unapplied(self, course: _Course, step: Step, work: Work) -> None:
        for batch in work.batches:
            self._hold(
                (work.epoch, batch) not in course.history,
                step.at_s,
                f"batch {batch} of epoch {work.epoch} was lent again, and is in the durable history",
            )

    def _saving(self, course: _Course, step: Step, save: Save) -> None:
        """What a save says was applied was lent by this leader, and answered against the version it was lent for."""
        for row in save.applied:
            lent = course.lent.get(row.lease)
            what = f"batch {row.batch} of epoch {row.epoch} in version {row.version}"
            if lent is None or (lent.node, lent.epoch, lent.kind) != (row.node, row.epoch, "train"):
                raise Violation(f"at {step.at_s:.3f} s: {what}: lease {row.lease} was not given to {row.node} for it")
            self._hold(row.batch in lent.batches, step.at_s, f"{what}: lease {row.lease} did not hold it")
            self._hold(lent.answered is not None, step.at_s, f"{what}: no update ever came for lease {row.lease}")
            self._hold(
                lent.answered == lent.version == row.version - 1,
                step.at_s,
                f"{what}: made against version {lent.answered}, lent for {lent.version}",
            )
        self._hold(save.version == save.state["version"], step.at_s, "a save that names two versions")

    def _memory(self, course: _Course, step: Step) -> None:
        most = max(2, self._budget_bytes // course.model_bytes)
        self._hold(
            len(course.credits) <= most,
            step.at_s,
            f"{len(course.credits)} uploads of {step.job} may be under way, at most {most} fit",
        )

    # What befell the world -----------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        match mark.kind:
            case "power off" | "killed":
                self._down_s[mark.node] = mark.at_s
            case "started":
                self._down_s.pop(mark.node, None)
            case _:
                pass
        match mark.kind:
            case "durable":
                self._became_durable(mark)
            case "kept":
                self._kept(mark.facts["job"], mark.facts["state"], mark.at_s)
            case "led":
                self._led(mark)
            case "started" if "jobs" in mark.facts:
                forgotten = self._accepted - set(mark.facts["jobs"])
                self._hold(not forgotten, mark.at_s, f"the manager forgot {sorted(forgotten)}, which it had accepted")
            case "answered":
                answer = mark.facts["message"]
                if isinstance(answer, Done):
                    self._accepted.add(answer.job)
            case _:
                pass

    def _kept(self, job: str, state: str, at_s: float) -> None:
        course = self._courses[job]
        self._hold(
            course.state not in _ENDED or state == course.state, at_s, f"{job} was {course.state} and is {state} now"
        )
        course.state = state

    def _led(self, mark: Mark) -> None:
        course = self._courses[mark.facts["job"]]
        term, version = int(mark.facts["term"]), int(mark.facts["version"])
        self._hold(term > course.term, mark.at_s, f"term {term} after term {course.term}")
        self._hold(
            version >= course.told or course.told == 0,
            mark.at_s,
            f"resumed at version {version}; {course.told} had been called durable",
        )
        course.term, course.version = term, version
        course.is_closing = False
        course.lent.clear()
        course.credits.clear()

    def _became_durable(self, mark: Mark) -> None:
        course, save = self._courses[mark.facts["job"]], mark.facts["save"]
        at_s, ledger = mark.at_s, save.state["ledger"]
        self._hold(save.version >= course.durable, at_s, f"version {save.version} was saved after {course.durable}")
        course.durable = save.version
        self._hold(
            not course.ending or (bool(save.state["ending"]) and not save.applied),
            at_s,
            f"{mark.facts['job']} was to end, which was durable, and went on",
        )
        course.ending = bool(save.state["ending"])
        for row in save.applied:
            key = (row.epoch, row.batch)
            self._hold(key not in course.history, at_s, f"batch {row.batch} of epoch {row.epoch} was applied twice")
            self._hold(
                course.history_version <= row.version <= save.version,
                at_s,
                f"version {row.version} came after {course.history_version} in the history",
            )
            course.history[key] = course.history_version = row.version
            course.per_epoch[row.epoch] += 1
        ends = course.history_version
        self._hold(ends == save.version, at_s, f"the history ends at version {ends}, the save is {save.version}")
        self._ledger_matches(course, at_s, ledger)

    def _ledger_matches(self, course: _Course, at_s: float, ledger: dict[str, object]) -> None:
        spec = course.spec
        batches = batch_count(spec.train.examples, spec.plan.batch_size)
        epoch = int(str(ledger["epoch"]))
        for done in range(epoch):
            self._hold(
                course.per_epoch[done] == batches,
                at_s,
                f"epoch {done} was closed with {course.per_epoch[done]} of {batches} batches",
            )
        runs: list[list[int]] = ledger["applied"]  # type: ignore[assignment]
        applied = {batch for start, stop in runs for batch in range(start, stop)}
        known = {batch for e, batch in course.history if e == epoch}
        self._hold(applied == known, at_s, f"the saved ledger of epoch {epoch} and its history differ")

    # Progress ------------------------------------------------------------------------------------------

    def stuck(self, job: str, since_s: float, now_s: float, *, bound_s: float) -> None:
        """A job that had enough live workers all this time must have moved."""
        course = self._courses[job]
        quiet_s = now_s - max(since_s, course.moved_s)
        self._hold(
            course.state in _ENDED or quiet_s <= bound_s,
            now_s,
            f"{job} has enough workers and did not move for {quiet_s:.0f} s",
        )

    def failed_rightly(self, job: str, reason: str) -> None:
        """A job may fail, if one of its batches did again and again."""
        worst = max(self._courses[job].failures.values(), default=0)
        self._hold(
            worst >= FAILURES_TO_FAIL, math.inf, f"{job} failed ({reason}); no batch failed more than {worst} times"
        )

    def _hold(self, holds: bool, at_s: float, what: str) -> None:
        if not holds:
            raise Violation(f"at {at_s:.3f} s: {what}")
