"""The leader of a job: the manager chooses a node, appoints it, tells its workers, asks it to hand over, lets it go.

The manager writes a term down before any node hears of it. ``failover`` decides which events change a leader; this
part changes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from shoal.roles.actions import Keep
from shoal.roles.events import Liveness
from shoal.roles.machine import Machine
from shoal.roles.manager.cluster_state import TERMS_KEPT, ClusterState, JobRecord, LeadershipStage, NodeRecord, Term
from shoal.scheduling.placement import LINK_ASSUMED_BYTES_PER_S, Candidate, best_placed, is_worth_moving
from shoal.states import JobState
from shoal.wire.messages import Admit, Assign, Dismiss, HandOver, Message, Release, Revoke, StepDown, StopRequest, clip

#: How long a node may take to set itself up as a leader, and to finish its round when asked to hand over.
APPOINTED_S = 60.0
PARTING_S = 600.0

#: How often in a row another node must be placed much better before the leader moves there.
OUTDONE_TIMES = 3

#: A leader does not move to a better place more often than this.
SETTLED_S = 300.0

#: A node that was unable to lead a job is not appointed again before this.
UNFIT_S = 900.0

#: Nodes that one message admits: their names must fit its envelope.
ADMITTED_AT_ONCE = 1000


class Appointments:
    def __init__(
        self, machine: Machine, cluster: ClusterState, *, node: str, prefers_devices: bool | None = None
    ) -> None:
        self._machine = machine
        self._cluster = cluster
        #: The manager's own node.
        self._node = node
        #: Whether the manager's node leads only where no device can. None if each plan decides.
        self._prefers_devices = prefers_devices
        self._home = Candidate(node=node, cpus=1, load=0.0)

    def on_home_load(self, *, cpus: int, load: float, link_bytes_per_s: float) -> None:
        """The manager's own node reports its load: it may lead like any other."""
        self._home = Candidate(node=self._node, cpus=cpus, load=load, link_bytes_per_s=link_bytes_per_s)

    # The manager appoints a leader ---------------------------------------------------------------------------

    def appoint(self, record: JobRecord) -> None:
        """Give the job a leader under a new term."""
        leader, why = self._choose(record)
        record.leader, record.successor = leader, None
        record.term += 1
        record.terms[record.term] = Term(node=leader, began=record.durable)
        for term in sorted(record.terms)[:-TERMS_KEPT]:
            del record.terms[term]
            record.sides.pop(term, None)
        record.endpoint = None
        record.cut_off.clear()
        record.appointed_s, record.outdone = self._machine.now_s, 0
        record.stage = LeadershipStage.LEADING if leader == self._node else LeadershipStage.APPOINTED
        job = record.spec.job
        about, why = f"{leader}, term {record.term}: {why}", f"led by {leader}: {why}"
        if record.state is not JobState.STOPPING:
            record.become(JobState.RUNNING, why, self._machine.now_s)
        terms = {number: (each.node, -1 if each.began is None else each.began) for number, each in record.terms.items()}
        self._machine.act(
            Keep(job=job, state=record.state, reason=record.reason or "", term=record.term, leader=leader, terms=terms)
        )
        self._machine.record("leader.appointed", about, job=job)
        self._machine.send(leader, assignment(record, "leader", why))
        if leader == self._node:
            self.introduce(record)
        else:
            self.watch(LeadershipStage.APPOINTED, job, APPOINTED_S)

    def _choose(self, record: JobRecord) -> tuple[str, str]:
        """The next leader, and why this node."""
        record.is_stopgap = False
        if record.successor is not None and self._may_lead(record.successor, record):
            return record.successor, "the one before was to hand over to it"
        workers = self._cluster.count(record.spec.job)
        home, *devices = self._candidates(record)
        prefers_devices = self._prefers_devices_for(record)
        if not devices:
            record.is_stopgap = prefers_devices
            return self._node, why_manager(record)
        best = best_placed(devices if prefers_devices else [home, *devices], workers=workers)
        assert best is not None
        if best.node == self._node:
            return best.node, why_manager(record)
        return best.node, f"placed best of {len(devices)} devices"

    def _prefers_devices_for(self, record: JobRecord) -> bool:
        """Whether the manager's node leads this job only if no device can.

        The manager issues certificates, so it should not also lead a sealed job in which certificates decide who is a
        member. If a device was unable to lead the job, others may be unable for the same reason, such as a network in
        which devices cannot dial each other: then the manager leads it.
        """
        if self._prefers_devices is not None:
            return self._prefers_devices
        return decides_members(record) and not record.unfit

    def _could_lead(self, node: str) -> bool:
        known = self._cluster.nodes.get(node)
        return node == self._node or (known is not None and known.can_lead)

    def _may_lead(self, node: str, record: JobRecord) -> bool:
        """Whether it could lead now, and the job's plan takes it."""
        if node == record.helper or not self._could_lead(node):
            return False
        return node == self._node or self._cluster.nodes[node].is_wanted(record.spec)

    def _candidates(self, record: JobRecord) -> list[Candidate]:
        """Nodes that could lead the job now: the manager's node, then devices by name."""
        nodes = self._cluster.nodes
        if self._lives_on_tabs(record):
            return [replace(self._home, link_bytes_per_s=self._home.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S)]
        # Devices measured their links to the manager's node: its own link is at least as good as the best of theirs.
        shown = max((node.link_bytes_per_s for node in nodes.values()), default=0.0)
        link = self._home.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
        home = replace(self._home, link_bytes_per_s=max(link, shown))
        # Filter before sorting: a manager may know a million nodes, and few of them are connected.
        here = [node for node in nodes.values() if node.state is Liveness.ALIVE and node.can_lead]
        wanted = (node for node in here if node.node != record.helper and node.is_wanted(record.spec))
        able = sorted(wanted, key=attrgetter("node"))
        now_s = self._machine.now_s
        return [home, *(node.candidate() for node in able if record.unfit.get(node.node, 0.0) <= now_s)]

    def _lives_on_tabs(self, record: JobRecord) -> bool:
        """Whether a job would lack workers without the tabs of browsers, which reach only the manager's node."""
        members = [self._cluster.nodes[name] for name in self._cluster.members(record.spec.job)]
        others = sum(not node.facts.browser for node in members)
        return others < len(members) and others < record.spec.plan.workers_least

    def find_unfit(self, record: JobRecord, node: str) -> None:
        """Do not appoint this node to this job for a while: it was unable to lead it."""
        record.unfit[node] = self._machine.now_s + UNFIT_S

    # The manager speaks to a leader and its workers ----------------------------------------------------------

    def tell_leader(self, record: JobRecord, message: Message) -> None:
        assert record.leader is not None, f"no node leads {record.spec.job}"
        self._machine.send(record.leader, message)

    def introduce(self, record: JobRecord) -> None:
        """A leader is set up: tell its workers where it is, and tell it everything that its predecessor was told."""
        self._let_tabs_go(record)
        members = self._cluster.members(record.spec.job)
        self.admit(record, members)
        for name in members:
            node = self._cluster.nodes[name]
            reason = f"led by {record.leader} now"
            self._machine.send(name, assignment(record, node.role, reason, card=node.card))
        self.remind(record, members)

    def _let_tabs_go(self, record: JobRecord) -> None:
        """A tab of a browser dials only its manager: it leaves a job whose leader is elsewhere now."""
        job = record.spec.job
        for name in self._cluster.members(job):
            node = self._cluster.nodes[name]
            if not self._cluster.reaches_leader(node, record, home=self._node):
                self._cluster.place(node, None)
                self._cluster.look(node)
                reason = f"{record.leader} leads it now, which a tab of a browser cannot reach"
                self._machine.record("device.dismissed", f"{name}: {reason}", job=job)
                self._machine.send(name, Dismiss(job=job, reason=clip(reason)))

    def remind(self, record: JobRecord, workers: list[str]) -> None:
        """Repeat requests that the leader may not have heard."""
        job = record.spec.job
        self.release(workers)
        if record.state is JobState.STOPPING:
            # An operator stopped the job before its last leader was lost: the next one must stop it too.
            self.tell_leader(record, StopRequest(job=job, reason=clip(record.reason or "")))
        if record.stage is LeadershipStage.PARTING:
            over = HandOver(job=job, term=record.term, reason=f"{record.successor} is to lead it")
            self.tell_leader(record, over)

    def admit(self, record: JobRecord, names: Iterable[str], *, is_complete: bool = False) -> None:
        """Tell a leader elsewhere which workers may speak to it: it lets in no others.

        ``is_complete``: it admits these alone, because it may have missed that others left.
        """
        names = tuple(names)
        if record.leader == self._node:
            return
        job, term = record.spec.job, record.term
        parts = [names[at : at + ADMITTED_AT_ONCE] for at in range(0, len(names), ADMITTED_AT_ONCE)]
        if is_complete and not parts:
            parts = [()]
        for number, part in enumerate(parts):
            self.tell_leader(record, Admit(job=job, term=term, nodes=part, anew=is_complete and number == 0))

    def release(self, names: Iterable[str]) -> None:
        """Ask leaders to let go of their workers that an operator holds back or that another job needs more."""
        for name in names:
            node = self._cluster.nodes[name]
            if node.job is None or (node.held is None and name not in self._cluster.called_back):
                continue
            record = self._cluster.jobs[node.job]
            if record.is_led:
                is_wanted = name == record.helper or node.is_wanted(record.spec)
                reason = node.held_back or (
                    "another job needs it more" if is_wanted else "is none of the devices that the job takes"
                )
                self.tell_leader(record, Release(job=node.job, node=name, reason=reason))

    def bar(self, node: str, job: str, reason: str) -> None:
        """The manager gave a worker up: its leader elsewhere lets it go too."""
        record = self._cluster.jobs.get(job)
        if record is None or not record.is_open or record.leader in (None, self._node):
            return
        self.tell_leader(record, Revoke(job=job, term=record.term, node=node, reason=clip(reason)))

    def bar_everywhere(self, node: str, reason: str) -> None:
        """An operator revoked a member: every other leader elsewhere bars it, known as its worker or not."""
        for record in self._cluster.open_jobs():
            if record.leader not in (None, self._node, node):
                bar = Revoke(job=record.spec.job, term=record.term, node=node, reason=clip(reason))
                self.tell_leader(record, bar)

    def fence(self, sender: str, message: Message) -> None:
        """Tell the sender of a message to step down: it does not lead this job under this term."""
        job, term = str(getattr(message, "job", "")), int(getattr(message, "term", 0))
        record = self._cluster.jobs.get(job)
        if record is None or not record.is_open:
            reason = "the job is over"
        elif term > record.term:
            reason = f"term {term} was never given out"
        else:
            reason = f"{record.leader or 'nobody'} leads it under term {record.term}"
        self._machine.send(sender, StepDown(job=job, term=term, reason=reason))

    # A leader goes, or moves ---------------------------------------------------------------------------------

    def vacate(self, record: JobRecord, reason: str) -> None:
        """The leader's term is over: the job waits for the next one."""
        job, over = record.spec.job, f"term {record.leading_term}: {reason}"
        if record.stage is LeadershipStage.ADOPTING:
            record.heir = None
        record.leader, record.endpoint, record.stage = None, None, LeadershipStage.VACANT
        for stage in (
            LeadershipStage.APPOINTED,
            LeadershipStage.PARTING,
            LeadershipStage.AWAY,
            LeadershipStage.ADOPTING,
        ):
            self.unwatch(stage, job)
        self._machine.record("term.ended", over, job=job)

    def why_not_transfer(self, record: JobRecord, node: str | None) -> str | None:
        """Why the job cannot move to this node (None: to any other) now; None: it can."""
        job = record.spec.job
        if node is not None and node == record.helper:
            return f"{node} opens the sealed sums of job {job}: one node that leads it too would see every update"
        known = self._cluster.nodes.get(node) if node is not None and node != self._node else None
        if known is not None and not known.is_wanted(record.spec):
            return f"{node} is none of the devices that job {job} takes: {record.spec.plan.where}"
        if (
            record.stage is LeadershipStage.AWAY
            and node is not None
            and node != record.leader
            and self._could_lead(node)
        ):
            return None
        if record.stage is not LeadershipStage.LEADING:
            return f"job {job} is changing its leader already: look at `shoal status {job}`"
        if node is None:
            is_possible = any(candidate.node != record.leader for candidate in self._candidates(record))
            return None if is_possible else "no other node can lead it now: look at `shoal nodes`"
        if node == record.leader:
            return f"{node} leads job {job} already"
        if self._could_lead(node):
            return None
        known = self._cluster.nodes.get(node)
        if known is None:
            return f"there is no node {node}: look at `shoal nodes`"
        if known.is_resting and known.held is None:
            return f"{node} cannot lead now: it was let go a moment ago"
        return f"{node} cannot lead now: it is {known.held or known.state}"

    def transfer(self, record: JobRecord, *, to: str | None, reason: str) -> None:
        """Ask the leader to finish its round, to have it kept, and to step down: nothing is lost.

        ``to``: the next leader; None: the node that is placed best.
        """
        job = record.spec.job
        if record.stage is LeadershipStage.AWAY:
            # This leader cannot be asked. If it comes back with more than its successor made, its history is adopted.
            record.successor = to
            self.vacate(record, reason)
            return
        record.stage, record.successor = LeadershipStage.PARTING, to or self._next(record)
        self._machine.record("leader.recalled", f"{record.leader}: {reason}", job=job)
        self.tell_leader(record, HandOver(job=job, term=record.term, reason=clip(reason)))
        self.watch(LeadershipStage.PARTING, job, PARTING_S)

    def _next(self, record: JobRecord) -> str:
        others = [candidate for candidate in self._candidates(record) if candidate.node != record.leader]
        if self._prefers_devices_for(record):
            others = [candidate for candidate in others if candidate.node != self._node] or others
        best = best_placed(others, workers=self._cluster.count(record.spec.job))
        return best.node if best is not None else self._node

    def transfer_from(self, node: NodeRecord) -> None:
        """A node hands over every job that it leads, if an operator holds it back; else those that do not take it any
        more, by its labels."""
        for record in self._cluster.led_by(node.node):
            is_unwanted = not node.is_wanted(record.spec)
            if record.stage is LeadershipStage.LEADING and (node.held is not None or is_unwanted):
                why = f"is {node.held}" if node.held is not None else "is none of the devices that the job takes"
                self.transfer(record, to=None, reason=f"{node.node} {why}")

    def relieve_home(self) -> None:
        """Move jobs that the manager's node leads only because no device could, as soon as a device can."""
        led = [r for r in self._cluster.led_by(self._node) if r.is_stopgap and r.stage is LeadershipStage.LEADING]
        for record in [record for record in led if len(self._candidates(record)) > 1]:
            self.transfer(record, to=None, reason="a device can lead it now")

    def rebalance(self) -> None:
        """Move a leader if another node is placed much better for long enough. (EDDL §4.4)"""
        for record in self._cluster.open_jobs():
            if record.stage is not LeadershipStage.LEADING or self._machine.now_s - record.appointed_s < SETTLED_S:
                continue
            workers = self._cluster.count(record.spec.job)
            home, *devices = self._candidates(record)
            leader = next((c for c in (home, *devices) if c.node == record.leader), None)
            measured = [c for c in devices if c.link_bytes_per_s and c.node != record.leader]
            prefers_devices = self._prefers_devices_for(record)
            others = measured if prefers_devices or record.leader == self._node else [home, *measured]
            best = best_placed(others, workers=workers)
            if leader is None or best is None or not is_worth_moving(best, leader=leader, workers=workers):
                record.outdone = 0
                continue
            record.outdone += 1
            if record.outdone >= OUTDONE_TIMES:
                reason = f"{best.node} has more spare processor and bandwidth than {record.leader}"
                self.transfer(record, to=best.node, reason=reason)

    # A stage of a job that must end --------------------------------------------------------------------------

    def watch(self, stage: LeadershipStage, job: str, after_s: float) -> None:
        """Fire a timer if the job is still in this stage then."""
        self._machine.timer(f"{stage} {job}", after_s)

    def unwatch(self, stage: LeadershipStage, job: str) -> None:
        self._machine.cancel(f"{stage} {job}")


def decides_members(record: JobRecord) -> bool:
    """Whether the manager decides who is in the groups of a sealed job: no operator signed its members."""
    trust = record.spec.plan.believes
    return trust.sealed is not None and not trust.has_signed_members


def why_manager(record: JobRecord) -> str:
    """Why the manager's node leads a job."""
    why = "it keeps the checkpoints and is always on"
    if decides_members(record):
        why += ". It also signs certificates, so it could read single updates"
    return why


def assignment(record: JobRecord, role: str, reason: str, *, card: bytes = b"") -> Assign:
    """The role of a node in a job, as the node is told. ``card``: that of a worker, for a job with signed members."""
    return Assign(
        job=record.spec.job,
        role=role,
        term=record.term,
        leader=record.leader or "",
        leader_endpoint=record.endpoint or "",
        spec=record.spec,
        reason=reason,
        card=card if record.spec.plan.believes.has_signed_members else b"",
    )
