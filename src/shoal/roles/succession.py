"""Who leads each job: appointed, watched, replaced when lost, asked to hand over. The manager's; it decides only.

A leader may be on any node. What keeps two of them from doing harm is the term: it is durable before anyone hears of
it, only the leader of the newest term may have a version kept, and the next is appointed once nothing of the last one
is being written any more.

Silence does not tell a dead leader from a cut cable. If a worker is in reach, the job gets another leader; if none is,
this node is the one that was cut off, and the leader keeps its term. A leader that was replaced and led on beyond a cut
may have made more than its successors: then its history is adopted, and theirs is discarded, aloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.roles.actions import Action, CancelTimer, Keep, Load, Record, Send, SetTimer, Store
from shoal.roles.events import Liveness, Stored, StoreFailed
from shoal.roles.reunion import Side, judge
from shoal.roles.roster import TERMS_KEPT, JobRecord, NodeRecord, Roster, Stage, Term
from shoal.states import JobState
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
    Progress,
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

#: A leader that fell silent with all of its workers has this long to be heard of, once one of them is. An attempt to
#: dial that began within the cut may take as long to fail, and the next comes after a pause.
RETURN_S = 30.0

#: How long a leader of an older term is listened to before it is decided whose history is kept: what it said first may
#: have been under way since the cut.
CLAIM_S = 2.0

#: A leader whose history is adopted speaks at least this often until it has handed over.
ADOPTED_S = 30.0

_LOOK, _MISSED, _SUSPECT, _CLAIM = "look", "missed", "suspect", "claim"


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
            return [action for record in missed for action in self._miss(record, "it was not heard of again")]
        stage, _, job = name.partition(" ")
        if stage == _SUSPECT:
            return self._on_suspect(node=job)
        if stage == _CLAIM:
            return self._settle(job)
        record = self._jobs.get(job)
        if record is None or not record.is_open or record.stage.value != stage:
            return []
        if record.stage is Stage.AWAY:
            return self._wait_over(record)
        if record.leader == self._node:
            # It is here and will hand over. Let go of now, its last save could end after the next leader began.
            return [_timer(record.stage, job, PARTING_S)]
        reason = "it was not set up in time" if record.stage is Stage.APPOINTED else "it did not hand over in time"
        record.unfit[record.leader] = self.now_s + UNFIT_S
        away = StepDown(job=job, term=record.leading_term, reason=reason)
        return [Send(to=record.leader, message=away), *self._vacate(record, reason)]

    def _open(self) -> list[JobRecord]:
        return [record for record in self._jobs.values() if record.is_open]

    def _led_by(self, node: str) -> list[JobRecord]:
        return [record for record in self._open() if record.leader == node]

    # Appointing ----------------------------------------------------------------------------------------------

    def fill(self) -> list[Action]:
        """Give every job that has none a leader."""
        actions = [action for record in self._open() if record.stage is Stage.AWAY for action in self._await(record)]
        vacant = [record for record in self._open() if record.stage is Stage.VACANT and record.storing is None]
        for record in vacant:
            actions += self._adopt(record, *record.heir) if record.heir is not None else self._appoint(record)
        return actions

    def _appoint(self, record: JobRecord) -> list[Action]:
        leader, why = self._choose(record)
        record.leader, record.successor = leader, None
        record.term += 1
        record.terms[record.term] = Term(node=leader, began=record.durable)
        for term in sorted(record.terms)[:-TERMS_KEPT]:
            del record.terms[term]
            record.sides.pop(term, None)
        record.endpoint = ""
        record.cut_off.clear()
        record.appointed_s, record.outdone = self.now_s, 0
        record.stage = Stage.LEADING if leader == self._node else Stage.APPOINTED
        job = record.spec.job
        why = f"led by {leader}: {why}"
        if record.state is not JobState.STOPPING:
            record.become(JobState.RUNNING, why, self.now_s)
        terms = {number: (term.node, term.began) for number, term in record.terms.items()}
        keep = Keep(job=job, state=record.state, reason=record.reason, term=record.term, leader=leader, terms=terms)
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
        if record.state is JobState.STOPPING:
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
        """Ask the leaders of those who are held, or needed more elsewhere, to let them go."""
        nodes = (self._nodes[name] for name in names)
        placed = [node for node in nodes if (node.held or node.node in self._roster.called_back) and node.job]
        return [
            Send(
                to=self._jobs[node.job].leader,
                message=Release(job=node.job, node=node.node, reason=node.held_back or "another job needs it more"),
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
            if (record.spec.job, record.leading_term) in told:
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
            # What it made decides whether it is told to step down. It tells with its next progress.
            return [] if self._may_claim(sender, leads) else self._fence(sender, leads)
        job, was = leads.job, record.stage
        if was is Stage.ADOPTING:
            return [self._hand_to_us(record)]
        if not leads.endpoint:
            record.unfit[sender] = self.now_s + UNFIT_S
            reason = "it has no address that others could dial"
            return [*self._fence(sender, leads), *self._vacate(record, reason)]
        if record.is_led and record.endpoint == leads.endpoint:
            return []
        record.endpoint = leads.endpoint
        if was is Stage.AWAY:
            return self._back(record)
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
        return record if (sender, term) == (record.leader, record.leading_term) else None

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

    def progress(self, sender: str, progress: Progress) -> tuple[JobRecord | None, list[Action]]:
        """The job, if its leader says this; else what to answer."""
        record = self._of(sender, progress)
        if record is None:
            return None, [] if sender == self._node else self._claim(sender, progress)
        record.hear(progress, self.now_s)
        record.durable = max(record.durable, progress.durable_version)
        if record.stage is Stage.ADOPTING:
            return record, [_timer(Stage.ADOPTING, progress.job, ADOPTED_S)]
        record.sides[progress.term] = Side(batches=progress.term_batches, workers=progress.term_workers)
        return record, []

    def suspected(self, node: str) -> list[Action]:
        """A leader is silent, or its session broke. It has a moment to be heard of."""
        return [SetTimer(name=f"{_SUSPECT} {node}", after_s=SUSPECT_S)] if self._led_by(node) else []

    def _on_suspect(self, node: str) -> list[Action]:
        known = self._nodes.get(node)
        if known is None or known.state is Liveness.ALIVE:
            return []
        return self.lost(node, known.reason)

    def lost(self, node: str, reason: str, *, is_certain: bool = False) -> list[Action]:
        """``is_certain``: it said so itself, or an operator did. Else it is silent, and may lead on beyond a cut."""
        give_up = self._vacate if is_certain else self._miss
        return [action for record in self._led_by(node) for action in give_up(record, f"{node} was lost: {reason}")]

    # Beyond a cut ---------------------------------------------------------------------------------------------

    def _miss(self, record: JobRecord, reason: str) -> list[Action]:
        """Its leader is silent. Who is in reach tells whether it was lost, or the cable to this node was cut."""
        if record.stage in (Stage.AWAY, Stage.APPOINTED, Stage.ADOPTING):
            # One that had not begun, or has to hand over, leads nobody on.
            return [] if record.stage is Stage.AWAY else self._vacate(record, reason)
        leader = self._nodes.get(record.leader)
        able = self._able(record)
        if any(node.heard_s >= (leader.suspect_s if leader is not None else 0.0) for node in able):
            return self._vacate(record, reason)
        if able and leader is not None:
            # They were heard lately, and not since: in a moment it is known whether they are silent too.
            return [SetTimer(name=f"{_SUSPECT} {record.leader}", after_s=SUSPECT_S)]
        record.away_from, record.away_s = record.stage, self.now_s
        record.stage, record.is_awaited = Stage.AWAY, False
        told = f"{record.leader} is not heard of, nor is any worker: it may lead on, so term {record.term} stays"
        if record.state is not JobState.STOPPING:
            record.reason = told
        return [Record(kind="leader", reason=f"{told}; {reason}", job=record.spec.job)]

    def _able(self, record: JobRecord) -> list[NodeRecord]:
        """Nodes that could train this job now, other than its leader."""
        wanted = ("", record.spec.job)
        nodes = (node for node in self._nodes.values() if node.job in wanted and node.node != record.leader)
        return [node for node in nodes if node.can_train]

    def _await(self, record: JobRecord) -> list[Action]:
        """A worker of a job whose leader is away is heard again: the leader may be, too, in a moment."""
        is_due = record.state is JobState.STOPPING or any(node.heard_s > record.away_s for node in self._able(record))
        if record.is_awaited or not is_due:
            return []
        record.is_awaited = True
        return [_timer(Stage.AWAY, record.spec.job, RETURN_S)]

    def _wait_over(self, record: JobRecord) -> list[Action]:
        if record.state is not JobState.STOPPING and not self._able(record):
            # They are gone again: this node is still the one that is cut off.
            record.is_awaited = False
            return []
        return self._vacate(record, f"{record.leader} was not heard of again, and others were")

    def heard_again(self, node: str) -> list[Action]:
        """A node that was silent speaks on the session it had. Where it led, it leads on."""
        away = [record for record in self._led_by(node) if record.stage is Stage.AWAY and record.endpoint]
        return [action for record in away for action in self._back(record)]

    def _back(self, record: JobRecord) -> list[Action]:
        job, record.stage = record.spec.job, record.away_from
        if record.stage is Stage.MISSED:
            record.stage = Stage.LEADING
        silent_s = self.now_s - record.away_s
        why = f"led by {record.leader}, which led on for {silent_s:.0f} s out of reach"
        if record.state is not JobState.STOPPING:
            record.reason = why
        told = Record(kind="leader", reason=f"{why}, term {record.term}", job=job)
        actions = [CancelTimer(name=f"{Stage.AWAY} {job}"), told, *self._in_place(record)]
        if record.stage is Stage.PARTING:
            actions.append(_timer(Stage.PARTING, job, PARTING_S))
        return actions

    def _may_claim(self, sender: str, message: Message) -> bool:
        """Whether this node led the job under an older term, so that its history may be adopted."""
        record = self._jobs.get(str(getattr(message, "job", "")))
        if record is None or not record.is_open:
            return False
        term = record.terms.get(int(getattr(message, "term", 0)))
        return term is not None and term.node == sender and int(getattr(message, "term", 0)) < record.term

    def _claim(self, sender: str, progress: Progress) -> list[Action]:
        """A leader of an older term led on beyond a cut. It is heard out before it is told to step down."""
        record = self._jobs.get(progress.job)
        if record is None or not self._may_claim(sender, progress):
            why = "the job is over" if record is not None and not record.is_open else "its term is over"
            return [*self._discard(sender, progress, why), *self._fence(sender, progress)]
        is_first = not record.claims
        record.claims[sender] = progress
        return [SetTimer(name=f"{_CLAIM} {progress.job}", after_s=CLAIM_S)] if is_first else []

    def _settle(self, job: str) -> list[Action]:
        """Whose history is kept: of all leaders that led on, or of the newest term."""
        record = self._jobs.get(job)
        if record is None or not record.claims:
            return []
        if record.is_open and (record.heir is not None or record.storing is not None):
            # It is settled when that is.
            return [SetTimer(name=f"{_CLAIM} {job}", after_s=CLAIM_S)]
        claims, record.claims = record.claims, {}
        actions: list[Action] = []
        # The one that made the most is heard first: it may be adopted, and the others are measured against it.
        for sender in sorted(claims, key=lambda name: (-_side(claims[name]).workers, -_side(claims[name]).batches)):
            claim = claims[sender]
            if not self._may_claim(sender, claim):
                actions += [*self._discard(sender, claim, "its term is over"), *self._fence(sender, claim)]
                continue
            if record.heir is not None:
                why = f"the history of {record.heir[0]} is adopted, which made more"
                actions += [*self._discard(sender, claim, why), *self._fence(sender, claim)]
                continue
            actions += self._judge(record, sender, claim)
        return actions

    def _judge(self, record: JobRecord, sender: str, claim: Progress) -> list[Action]:
        job, verdict = claim.job, judge(older=_side(claim), newer=record.made_after(claim.term))
        if not verdict.keeps_older:
            return [*self._discard(sender, claim, verdict.reason), *self._fence(sender, claim)]
        record.heir = (sender, claim.term)
        told = f"{sender} led on under term {claim.term} to version {claim.version}: {verdict.reason}"
        actions: list[Action] = [Record(kind="leader", reason=f"{told}; its history is adopted", job=job)]
        if record.leader == self._node:
            # In good order: a version of its own that is being written would come after the one that is adopted.
            return [*actions, *self.transfer(record, to=sender, reason=told)] if record.is_led else actions
        if record.leader:
            away = StepDown(job=job, term=record.term, reason=clip(told))
            actions.append(Send(to=record.leader, message=away))
        return [*actions, *self._vacate(record, told)]

    def _adopt(self, record: JobRecord, node: str, term: int) -> list[Action]:
        """Nobody else leads now: the leader of the older term hands over what it made."""
        known, record.heir = self._nodes.get(node), None
        if known is None or known.state is not Liveness.ALIVE:
            return self._appoint(record)
        record.leader, record.heir, record.stage = node, (node, term), Stage.ADOPTING
        record.successor, job = node, record.spec.job
        actions: list[Action] = [self._hand_to_us(record), _timer(Stage.ADOPTING, job, ADOPTED_S)]
        first = record.forked_from(term) + 1
        if record.durable >= first:
            told = _versions(first, record.durable)
            told = f"{told} made since under newer terms: {node} led on under term {term} with more"
            record.discarded = clip(told)
            actions.append(Record(kind="discarded", reason=told, job=job))
        return actions

    def _hand_to_us(self, record: JobRecord) -> Send:
        """Ask a leader of an older term for its history, under numbers that no other leader has used."""
        reason = "it led on out of reach, and is led again from what it made"
        over = HandOver(job=record.spec.job, term=record.leading_term, reason=reason, version_least=record.durable + 1)
        return Send(to=record.leader, message=over)

    def _discard(self, sender: str, progress: Progress, why: str) -> list[Action]:
        """Say what is lost with a leader that is told to step down; nothing, where nothing is."""
        side = _side(progress)
        if not side.batches or progress.version <= progress.durable_version:
            return []
        record = self._jobs.get(progress.job)
        term = record.terms.get(progress.term) if record is not None else None
        if record is None or term is None or term.node != sender:
            # A node that never led under this term made nothing under it, whatever it says.
            return []
        versions = _versions(progress.durable_version + 1, progress.version)
        told = f"{versions} that {sender} made under term {progress.term} out of reach ({side}): {why}"
        record.discarded = clip(told)
        return [Record(kind="discarded", reason=told, job=progress.job)]

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
        over = Record(kind="leader", reason=f"term {record.leading_term} is over: {reason}", job=job)
        if record.stage is Stage.ADOPTING:
            record.heir = None
        record.leader, record.endpoint, record.stage = "", "", Stage.VACANT
        watched = (Stage.APPOINTED, Stage.PARTING, Stage.AWAY, Stage.ADOPTING)
        return [*(CancelTimer(name=f"{stage} {job}") for stage in watched), over]

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
        if record.stage is Stage.AWAY and node and node != record.leader:
            known = self._nodes.get(node)
            if node == self._node or (known is not None and known.can_lead):
                return ""
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
        if record.stage is Stage.AWAY:
            # It cannot be asked. Should it come back with more than its successor made, that is kept.
            record.successor = to
            return self._vacate(record, reason)
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
            is_cut = record is not None and record.is_open and record.is_cut
            gone = Dismiss(job=message.job, reason="it is not needed there any more")
            return [] if is_cut else [Send(to=sender, message=gone)]
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

    def leads_now(self, sender: str, checkpoint: Checkpoint) -> bool:
        return self._of(sender, checkpoint) is not None

    def checkpoint(self, sender: str, checkpoint: Checkpoint) -> list[Action]:
        """Only the leader of the newest term may have a version kept, and one at a time."""
        record = self._of(sender, checkpoint)
        job, term, version = checkpoint.job, checkpoint.term, checkpoint.version
        if record is None:
            refused = CheckpointRefused(
                job=job, term=term, version=version, reason="its term is over", number=checkpoint.number
            )
            if self._may_claim(sender, checkpoint):
                # It is not settled yet whose history is kept: that is decided by its next progress.
                return [Send(to=sender, message=refused)]
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
        if isinstance(event, Stored):
            record.durable = max(record.durable, event.version)
        if not record.leader or record.leading_term != event.term:
            return []
        job, term, version, number = event.job, event.term, event.version, record.storing_number
        answer: Message = CheckpointKept(job=job, term=term, version=version, number=number)
        if isinstance(event, StoreFailed):
            reason = clip(event.reason)
            answer = CheckpointRefused(job=job, term=term, version=version, reason=reason, number=number)
        return [Send(to=record.leader, message=answer)]


def _timer(stage: Stage, job: str, after_s: float) -> SetTimer:
    return SetTimer(name=f"{stage} {job}", after_s=after_s)


def _side(progress: Progress) -> Side:
    """What would be lost with a leader that is told to step down."""
    return Side(batches=progress.unsaved_batches, workers=progress.unsaved_workers)


def _versions(first: int, last: int) -> str:
    count = last - first + 1
    return f"{count} version{'' if count == 1 else 's'} ({first} to {last})"


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
