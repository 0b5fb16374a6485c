"""Who leads each job: appointed, watched, replaced when lost, asked to hand over. The manager's; it decides only.

A leader may be on any node. What keeps two of them from doing harm is the term: it is durable before anyone hears of
it, only the leader of the newest term may have a version kept, and the next is appointed once nothing of the last one
is being written any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.roles.actions import Action, CancelTimer, Keep, Load, Record, Send, SetTimer, Store
from shoal.roles.events import Liveness, Stored, StoreFailed
from shoal.roles.roster import JobRecord, NodeRecord, Roster, Stage
from shoal.wire.messages import (
    Admit,
    AskCheckpoint,
    Assign,
    Bar,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Conclude,
    Dismiss,
    HandOver,
    Hello,
    Leads,
    Message,
    Noted,
    OutOfReach,
    Release,
    StepDown,
    SteppedDown,
    clip,
)
from shoal.workload.placement import LINK_ASSUMED_BYTES_PER_S, Candidate, best_placed, is_worth_moving

#: How long a manager that has just started waits for leaders it remembers: devices dial again within seconds.
MISSED_S = 5.0

#: How long a node may take to set itself up as a leader, and to finish its round when asked to hand over.
APPOINTED_S = 60.0
PARTING_S = 600.0

#: How often it is asked whether another node is placed much better, and how often in a row it must be.
LOOK_EVERY_S = 20.0
OUTDONE_TIMES = 3

#: A leader is not moved for being outdone more often than this.
SETTLED_S = 300.0

#: A leader is of no use once this share of its workers cannot reach it.
CUT_OFF_SHARE = 1 / 3
CUT_OFF_WITHIN_S = 30.0

#: One that was found unable to lead a job is not asked again before this.
UNFIT_S = 900.0

#: Nodes that one message admits: their names must fit its envelope.
ADMITTED_AT_ONCE = 1000

#: A leader of whom nothing is heard is given up sooner than a worker: all of its workers may be waiting for it.
SUSPECT_S = 1.0

_LOOK, _MISSED, _SUSPECT = "look", "missed", "suspect"


class Succession:
    def __init__(
        self,
        *,
        node: str,
        nodes: Mapping[str, NodeRecord],
        jobs: Mapping[str, JobRecord],
        roster: Roster,
        prefers_devices: bool = False,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._jobs = jobs
        self._roster = roster
        #: The manager's node leads only where no device can.
        self._prefers_devices = prefers_devices
        self._here = Candidate(node=node, cpus=1, load=0.0)
        #: The time of the event at hand.
        self.now_s = 0.0

    # The manager starts, and looks around ------------------------------------------------------------------

    def started(self) -> list[Action]:
        """Leaders at home went with the last process. Those elsewhere may lead on: they are waited for."""
        actions: list[Action] = []
        for record in self._open():
            if record.leader and record.leader != self._node:
                record.stage = Stage.MISSED
                told = f"{record.leader} led it under term {record.term}: it has {MISSED_S:g} s to be heard of"
                actions.append(Record(kind="leader", reason=told, job=record.spec.job))
            else:
                record.leader = ""
        if actions:
            actions.append(SetTimer(name=_MISSED, after_s=MISSED_S))
        return [*actions, SetTimer(name=_LOOK, after_s=LOOK_EVERY_S)]

    @property
    def is_settled(self) -> bool:
        """No job waits to hear of the leader it had: until then nodes stay where they may be at work."""
        return not any(record.stage is Stage.MISSED for record in self._open())

    def here(self, *, cpus: int, load: float, link_bytes_per_s: float) -> None:
        """How the manager's own node is."""
        self._here = Candidate(node=self._node, cpus=cpus, load=load, link_bytes_per_s=link_bytes_per_s)

    def timer(self, name: str) -> list[Action]:
        if name == _LOOK:
            return [*self._look(), SetTimer(name=_LOOK, after_s=LOOK_EVERY_S)]
        if name == _MISSED:
            missed = [record for record in self._open() if record.stage is Stage.MISSED]
            return [action for record in missed for action in self._vacate(record, "it was not heard of again")]
        stage, _, job = name.partition(" ")
        if stage == _SUSPECT:
            return self._on_suspect(node=job)
        record = self._jobs.get(job)
        if record is None or not record.is_open or record.stage.value != stage:
            return []
        if record.leader == self._node:
            # It is here and will hand over. Let go of now, its last save could end after the next leader began.
            return [_timer(record.stage, job, PARTING_S)]
        reason = "it was not set up in time" if record.stage is Stage.APPOINTED else "it did not hand over in time"
        record.unfit[record.leader] = self.now_s + UNFIT_S
        away = StepDown(job=job, term=record.term, reason=reason)
        return [Send(to=record.leader, message=away), *self._vacate(record, reason)]

    def _open(self) -> list[JobRecord]:
        return [record for record in self._jobs.values() if record.is_open]

    def _led_by(self, node: str) -> list[JobRecord]:
        return [record for record in self._open() if record.leader == node]

    # Appointing ----------------------------------------------------------------------------------------------

    def fill(self) -> list[Action]:
        """Give every job that has none a leader."""
        vacant = [record for record in self._open() if record.stage is Stage.VACANT and record.storing is None]
        return [action for record in vacant for action in self._appoint(record)]

    def _appoint(self, record: JobRecord) -> list[Action]:
        leader, why = self._choose(record)
        record.leader, record.successor = leader, None
        record.term += 1
        record.endpoint = ""
        record.cut_off.clear()
        record.appointed_s, record.outdone = self.now_s, 0
        record.stage = Stage.LEADING if leader == self._node else Stage.APPOINTED
        job = record.spec.job
        why = f"led by {leader}: {why}"
        if record.state != "stopping":
            record.state, record.reason = "running", why
        keep = Keep(job=job, state=record.state, reason=record.reason, term=record.term, leader=leader)
        told = Record(kind="leader", reason=f"term {record.term}: {why}", job=job)
        actions: list[Action] = [keep, told, Send(to=leader, message=_assign(record, "leader", why))]
        if leader == self._node:
            return [*actions, *self._in_place(record)]
        return [*actions, _timer(Stage.APPOINTED, job, APPOINTED_S)]

    def _choose(self, record: JobRecord) -> tuple[str, str]:
        """Who is to lead, and why."""
        record.is_stopgap = False
        wanted = self._nodes.get(record.successor or "")
        if record.successor == self._node:
            return self._node, "the one before was to hand over to it"
        if wanted is not None and wanted.can_lead:
            return wanted.node, "the one before was to hand over to it"
        workers = self._roster.count(record.spec.job)
        home, *devices = self._candidates(record)
        if not devices:
            record.is_stopgap = self._prefers_devices
            return self._node, "it keeps the checkpoints and is always on"
        best = best_placed(devices if self._prefers_devices else [home, *devices], workers=workers)
        assert best is not None
        if best.node == self._node:
            return best.node, "it keeps the checkpoints and is always on"
        return best.node, f"placed best of {len(devices)} devices"

    def _is_fit(self, node: str, record: JobRecord) -> bool:
        return record.unfit.get(node, 0.0) <= self.now_s

    def _home(self) -> Candidate:
        """The manager's own node. What a device measured, it measured from here: this link is at least as good."""
        shown = max((node.link_bytes_per_s for node in self._nodes.values()), default=0.0)
        link = self._here.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
        return replace(self._here, link_bytes_per_s=max(link, shown))

    def _candidates(self, record: JobRecord) -> list[Candidate]:
        """Who could lead it now: the manager's node, then devices by name."""
        able = (self._nodes[name] for name in sorted(self._nodes))
        devices = [node.candidate() for node in able if node.can_lead and self._is_fit(node.node, record)]
        return [self._home(), *devices]

    def _in_place(self, record: JobRecord) -> list[Action]:
        """Its leader is set up: its workers hear where it is, and it hears what was said to the one before."""
        workers = self._roster.workers(record.spec.job)
        actions = self.admit(record, workers)
        for name in workers:
            actions.append(Send(to=name, message=self.worker_assign(record, f"led by {record.leader} now")))
        return [*actions, *self._wanted_of(record, workers)]

    def _wanted_of(self, record: JobRecord, workers: list[str]) -> list[Action]:
        """What its leader was asked for, and may not have heard."""
        job, actions = record.spec.job, self.releases(workers)
        if record.state == "stopping":
            # It was told to stop before its leader was lost: it still must.
            actions.append(Send(to=record.leader, message=Conclude(job=job, reason=clip(record.reason))))
        if record.stage is Stage.PARTING:
            over = HandOver(job=job, term=record.term, reason=f"{record.successor} is to lead it")
            actions.append(Send(to=record.leader, message=over))
        return actions

    def worker_assign(self, record: JobRecord, reason: str) -> Assign:
        return _assign(record, "worker", reason)

    def admit(self, record: JobRecord, names: Iterable[str], *, anew: bool = False) -> list[Action]:
        """A leader elsewhere lets in whom it was told of, and nobody else. ``anew``: it may have missed who went."""
        names = tuple(names)
        if record.leader == self._node:
            return []
        job, term = record.spec.job, record.term
        parts = [names[at : at + ADMITTED_AT_ONCE] for at in range(0, len(names), ADMITTED_AT_ONCE)]
        if anew and not parts:
            parts = [()]
        return [
            Send(to=record.leader, message=Admit(job=job, term=term, nodes=part, anew=anew and number == 0))
            for number, part in enumerate(parts)
        ]

    def releases(self, names: Iterable[str]) -> list[Action]:
        """Ask the leaders of those who are held to let them go."""
        placed = [node for node in (self._nodes[name] for name in names) if node.held and node.job]
        return [
            Send(
                to=self._jobs[node.job].leader,
                message=Release(job=node.job, node=node.node, reason=node.held_back),
            )
            for node in placed
            if self._jobs[node.job].is_led
        ]

    # Leaders come, and go ------------------------------------------------------------------------------------

    def hello(self, sender: str, hello: Hello, *, restarted: bool) -> list[Action]:
        """A node says what it leads. What it was told and did not hear is said again."""
        actions: list[Action] = []
        back = [record for record in self._led_by(sender) if self._known_as(record) in hello.leads]
        for leads in hello.leads:
            actions += self.leads(sender, leads)
        for record in back:
            workers = self._roster.workers(record.spec.job)
            actions += [*self.admit(record, workers, anew=True), *self._wanted_of(record, workers)]
        told = {(leads.job, leads.term) for leads in hello.leads}
        for record in self._led_by(sender):
            if (record.spec.job, record.term) in told:
                continue
            if restarted or record.stage is Stage.MISSED:
                actions += self._vacate(record, f"{sender} started anew")
            elif record.stage is Stage.APPOINTED:
                actions.append(Send(to=sender, message=_assign(record, "leader", clip(record.reason))))
            # One who led it has a last word to say, and says it now.
        return actions

    def _known_as(self, record: JobRecord) -> Leads | None:
        """What its leader has said of itself; None: it has not, or not since the manager started."""
        if not record.is_led:
            return None
        return Leads(job=record.spec.job, term=record.term, endpoint=record.endpoint)

    def leads(self, sender: str, leads: Leads) -> list[Action]:
        record = self._of(sender, leads)
        if record is None:
            return self._fence(sender, leads)
        job, was = leads.job, record.stage
        if not leads.endpoint:
            record.unfit[sender] = self.now_s + UNFIT_S
            reason = "it has no address that others could dial"
            return [*self._fence(sender, leads), *self._vacate(record, reason)]
        if record.is_led and record.endpoint == leads.endpoint:
            return []
        record.endpoint = leads.endpoint
        record.stage = Stage.PARTING if was is Stage.PARTING else Stage.LEADING
        heard = "still leads" if was is Stage.MISSED else "leads"
        told = Record(kind="leader", reason=f"{sender} {heard} at {leads.endpoint}, term {leads.term}", job=job)
        actions = [CancelTimer(name=f"{Stage.APPOINTED} {job}"), told, *self._in_place(record)]
        node = self._nodes.get(sender)
        # One who was held back meanwhile leads no longer than it must.
        return [*actions, *self.held(node)] if node is not None and node.held else actions

    def _of(self, sender: str, message: Message) -> JobRecord | None:
        """The job a leader speaks of, if it is the one who leads it, under this term."""
        record = self._jobs.get(str(getattr(message, "job", "")))
        if record is None or not record.is_open:
            return None
        term = int(getattr(message, "term", 0))
        return record if (sender, term) == (record.leader, record.term) else None

    def _fence(self, sender: str, message: Message) -> list[Action]:
        """It leads no more, and does not know: a message of an older term is refused, whoever sends it."""
        job, term = str(getattr(message, "job", "")), int(getattr(message, "term", 0))
        record = self._jobs.get(job)
        if record is None or not record.is_open:
            reason = "the job is over"
        elif term > record.term:
            reason = f"term {term} was never given out"
        else:
            reason = f"{record.leader or 'nobody'} leads it under term {record.term}"
        return [Send(to=sender, message=StepDown(job=job, term=term, reason=reason))]

    def heard_of(self, sender: str, message: Message) -> tuple[JobRecord | None, list[Action]]:
        """The job, if its leader says this; else what to answer."""
        record = self._of(sender, message)
        if record is not None or sender == self._node:
            return record, []
        return None, self._fence(sender, message)

    def suspected(self, node: str) -> list[Action]:
        """A leader is silent, or its session broke. It has a moment to be heard of."""
        return [SetTimer(name=f"{_SUSPECT} {node}", after_s=SUSPECT_S)] if self._led_by(node) else []

    def _on_suspect(self, node: str) -> list[Action]:
        known = self._nodes.get(node)
        if known is None or known.state is Liveness.ALIVE:
            return []
        return self.lost(node, known.reason)

    def lost(self, node: str, reason: str) -> list[Action]:
        return [
            action for record in self._led_by(node) for action in self._vacate(record, f"{node} was lost: {reason}")
        ]

    def shut_out(self, node: str, reason: str) -> list[Action]:
        """A member is one no more: every leader elsewhere hears of it, whether or not it was known to work there."""
        led = [record for record in self._open() if record.leader not in ("", self._node)]
        return [
            Send(
                to=record.leader,
                message=Bar(job=record.spec.job, term=record.term, node=node, reason=clip(reason)),
            )
            for record in led
        ]

    def bar(self, node: str, job: str, reason: str) -> list[Action]:
        """A worker was given up: its leader elsewhere lets it go too."""
        record = self._jobs.get(job)
        if record is None or not record.is_open or record.leader in ("", self._node):
            return []
        bar = Bar(job=job, term=record.term, node=node, reason=clip(reason))
        return [Send(to=record.leader, message=bar)]

    def _vacate(self, record: JobRecord, reason: str) -> list[Action]:
        job = record.spec.job
        record.leader, record.endpoint, record.stage = "", "", Stage.VACANT
        return [
            CancelTimer(name=f"{Stage.APPOINTED} {job}"),
            CancelTimer(name=f"{Stage.PARTING} {job}"),
            Record(kind="leader", reason=f"term {record.term} is over: {reason}", job=job),
        ]

    def stepped_down(self, sender: str, message: SteppedDown) -> tuple[JobRecord | None, list[Action]]:
        """A leader's last word. Returns the job if it cannot be led anywhere, and what to do."""
        record = self._of(sender, message)
        heard = self._fence(sender, message) if sender != self._node else []
        if record is None:
            return None, heard
        if message.failed and sender == self._node:
            return record, []
        if message.failed:
            record.unfit[sender] = self.now_s + UNFIT_S
        return None, [*heard, *self._vacate(record, f"{sender} stepped down: {message.reason}")]

    def noted(self, sender: str, message: Noted) -> list[Action]:
        if self._of(sender, message) is None:
            return []
        return [Record(kind=message.kind, reason=message.reason, job=message.job, traceback=message.traceback)]

    # Moving the role ----------------------------------------------------------------------------------------

    def why_not_transfer(self, record: JobRecord, node: str) -> str:
        """Why this job cannot be given to this node now; empty: it can."""
        job = record.spec.job
        if record.stage is not Stage.LEADING:
            return f"job {job} is changing its leader already: look at `shoal status {job}`"
        if node == record.leader:
            return f"{node} leads job {job} already"
        if not node:
            others = [c for c in self._candidates(record) if c.node != record.leader]
            return "" if others else "no other node can lead it now: look at `shoal nodes`"
        known = self._nodes.get(node)
        if node == self._node or (known is not None and known.can_lead):
            return ""
        if known is None:
            return f"there is no node {node}: look at `shoal nodes`"
        if known.is_resting and not known.held:
            return f"{node} cannot lead now: it was let go a moment ago"
        return f"{node} cannot lead now: it is {known.held or known.state}"

    def transfer(self, record: JobRecord, *, to: str, reason: str) -> list[Action]:
        """Ask the leader to finish its round, have it kept, and step down: nothing is lost."""
        job = record.spec.job
        record.stage, record.successor = Stage.PARTING, to or self._next(record)
        return [
            Record(kind="leader", reason=f"{record.leader} is to hand over: {reason}", job=job),
            Send(to=record.leader, message=HandOver(job=job, term=record.term, reason=clip(reason))),
            _timer(Stage.PARTING, job, PARTING_S),
        ]

    def _next(self, record: JobRecord) -> str:
        others = [candidate for candidate in self._candidates(record) if candidate.node != record.leader]
        if self._prefers_devices:
            others = [candidate for candidate in others if candidate.node != self._node]
        best = best_placed(others, workers=self._roster.count(record.spec.job))
        return best.node if best is not None else self._node

    def held(self, node: NodeRecord) -> list[Action]:
        """A node that is held back gives up what it leads, in good order."""
        led = [record for record in self._led_by(node.node) if record.stage is Stage.LEADING]
        return [
            action for record in led for action in self.transfer(record, to="", reason=f"{node.node} is {node.held}")
        ]

    def relieve(self) -> list[Action]:
        """Where devices are to lead, the manager's node does so only until there is one, or where it was asked to."""
        led = [r for r in self._led_by(self._node) if r.is_stopgap and r.stage is Stage.LEADING]
        led = [record for record in led if len(self._candidates(record)) > 1]
        return [action for r in led for action in self.transfer(r, to="", reason="a device can lead it now")]

    def out_of_reach(self, sender: str, message: OutOfReach) -> list[Action]:
        """A leader that its workers cannot reach is no leader: the manager's node, they can."""
        record, node = self._jobs.get(message.job), self._nodes.get(sender)
        if record is None or not record.is_open or (self.is_settled and node is not None and node.job != message.job):
            # It was away when its job ended, or when its place was taken, and nobody is there to tell it.
            return [Send(to=sender, message=Dismiss(job=message.job, reason="it is not needed there any more"))]
        if record.term > message.term and record.is_led and node is not None and node.job == message.job:
            # It has not heard who leads now.
            return [*self.admit(record, [sender]), Send(to=sender, message=self.worker_assign(record, "led anew"))]
        if record.term != message.term or record.stage is not Stage.LEADING or record.leader == self._node:
            return []
        if node is None or node.job != message.job:
            return []
        record.cut_off[sender] = self.now_s
        workers = self._roster.count(message.job)
        told = Record(kind="unreachable", reason=message.reason, job=message.job)
        # Links break and mend, now of this one, now of that: many at a time are a sign, many in an hour are not.
        lately = [name for name, at_s in record.cut_off.items() if self.now_s - at_s <= CUT_OFF_WITHIN_S]
        cut_off = sum(self._nodes[name].job == message.job for name in lately)
        leader = self._nodes.get(record.leader)
        if cut_off < CUT_OFF_SHARE * workers or leader is None or leader.state is not Liveness.ALIVE:
            # One that is silent to the manager too is not out of reach but lost, and another will lead in a moment.
            return [told]
        reason = f"{cut_off} of {workers} workers cannot reach {record.leader}"
        record.unfit[record.leader] = self.now_s + UNFIT_S
        return [told, *self.transfer(record, to=self._node, reason=reason)]

    def _look(self) -> list[Action]:
        """Is another node placed so much better, for so long, that the role should move? (EDDL §4.4)"""
        actions: list[Action] = []
        for record in self._open():
            if record.stage is not Stage.LEADING or self.now_s - record.appointed_s < SETTLED_S:
                continue
            workers = self._roster.count(record.spec.job)
            home, *devices = self._candidates(record)
            leader = next((c for c in (home, *devices) if c.node == record.leader), None)
            measured = [c for c in devices if c.link_bytes_per_s and c.node != record.leader]
            others = measured if self._prefers_devices or record.leader == self._node else [home, *measured]
            best = best_placed(others, workers=workers)
            if leader is None or best is None or not is_worth_moving(best, leader=leader, workers=workers):
                record.outdone = 0
                continue
            record.outdone += 1
            if record.outdone >= OUTDONE_TIMES:
                reason = f"{best.node} has more spare processor and bandwidth than {record.leader}"
                actions += self.transfer(record, to=best.node, reason=reason)
        return actions

    # What must not be lost ------------------------------------------------------------------------------------

    def asked(self, sender: str, ask: AskCheckpoint) -> list[Action]:
        if self._of(sender, ask) is None:
            return self._fence(sender, ask)
        return [Load(job=ask.job, term=ask.term, to=sender)]

    def checkpoint(self, sender: str, checkpoint: Checkpoint) -> list[Action]:
        """Only the leader of the newest term may have a version kept, and one at a time."""
        record = self._of(sender, checkpoint)
        job, term, version = checkpoint.job, checkpoint.term, checkpoint.version
        if record is None:
            refused = CheckpointRefused(
                job=job, term=term, version=version, reason="its term is over", number=checkpoint.number
            )
            told = Record(kind="fenced", reason=f"version {version} of {sender}: term {term} is over", job=job)
            # Of a job that is not there nothing is written down: names of such are without end.
            written = [told] if job in self._jobs else []
            return [*written, Send(to=sender, message=refused), *self._fence(sender, checkpoint)]
        if record.storing is not None:
            reason = f"version {record.storing} is being written"
            refused = CheckpointRefused(job=job, term=term, version=version, reason=reason, number=checkpoint.number)
            return [Send(to=sender, message=refused)]
        record.storing = version
        record.storing_number = checkpoint.number
        return [Store(checkpoint=checkpoint)]

    def stored(self, event: Stored | StoreFailed) -> list[Action]:
        """It is durable, or it is not: only now does anyone hear of it."""
        record = self._jobs.get(event.job)
        if record is None:
            return []
        record.storing = None
        if not record.leader or record.term != event.term:
            return []
        job, term, version, number = event.job, event.term, event.version, record.storing_number
        answer: Message = CheckpointKept(job=job, term=term, version=version, number=number)
        if isinstance(event, StoreFailed):
            reason = clip(event.reason)
            answer = CheckpointRefused(job=job, term=term, version=version, reason=reason, number=number)
        return [Send(to=record.leader, message=answer)]


def _timer(stage: Stage, job: str, after_s: float) -> SetTimer:
    return SetTimer(name=f"{stage} {job}", after_s=after_s)


def _assign(record: JobRecord, role: str, reason: str) -> Assign:
    return Assign(
        job=record.spec.job,
        role=role,
        term=record.term,
        leader=record.leader,
        leader_endpoint=record.endpoint,
        spec=record.spec,
        reason=reason,
    )
