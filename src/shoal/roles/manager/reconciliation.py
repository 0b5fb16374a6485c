"""Leaders beyond a cut: the manager waits for a silent leader, hears it out when it is back, and keeps one history.

Silence does not tell a dead leader from a cut cable. If the manager reaches a worker, the job gets another leader. If
it reaches none, the manager's node is the one that was cut off, and the leader keeps its term. A leader that was
replaced and led on may have made more than its successors: then the manager adopts its history and discards theirs,
and records that. ``reunion`` weighs the two sides.
"""

from __future__ import annotations

from shoal.roles.events import Liveness
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import PARTING_S, Appointments
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, LeadershipStage, NodeRecord, next_version
from shoal.roles.manager.reunion import Side, judge
from shoal.states import JobState
from shoal.wire.messages import HandOver, Message, Progress, StepDown, clip

#: The manager replaces a silent leader sooner than a worker: all of its workers may be waiting for it.
SUSPECT_S = 1.0

#: A leader that fell silent with all of its workers has this long to be heard, once one of them is heard. An attempt to
#: dial that began within the cut may take as long to fail, and the next comes after a pause.
RETURN_S = 30.0

#: How long the manager listens to a leader of an older term before it decides whose history it keeps: the first report
#: may have been under way since the cut.
CLAIM_S = 2.0

#: A leader whose history is adopted has this long to hand over.
ADOPTED_S = 30.0

#: Timers, each followed by the name of a node or a job.
SUSPECT, CLAIM = "suspect", "claim"


class Reconciliation:
    def __init__(self, machine: Machine, cluster: ClusterState, appointments: Appointments, *, node: str) -> None:
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        #: The manager's own node.
        self._node = node

    # A leader falls silent -----------------------------------------------------------------------------------

    def suspect(self, node: str) -> None:
        """Look at this leader again in a moment."""
        self._machine.timer(f"{SUSPECT} {node}", SUSPECT_S)

    def on_silent(self, record: JobRecord, reason: str) -> None:
        """The job's leader is silent. The nodes in reach show whether it was lost, or the manager's node cut off."""
        if record.stage is LeadershipStage.AWAY:
            return
        if record.stage in (LeadershipStage.APPOINTED, LeadershipStage.ADOPTING):
            # A leader that had not begun, or has to hand over, leads no workers on.
            self._appointments.vacate(record, reason)
            return
        leader = self._cluster.nodes.get(record.leader) if record.leader is not None else None
        able = self._able(record)
        if any(node.heard_s >= (leader.suspect_s if leader is not None else 0.0) for node in able):
            self._appointments.vacate(record, reason)
            return
        if able and leader is not None:
            # The manager heard them lately, and not since: in a moment it knows whether they are silent too.
            self.suspect(leader.node)
            return
        record.away_from, record.away_s = record.stage, self._machine.now_s
        record.stage, record.is_awaited = LeadershipStage.AWAY, False
        told = f"{record.leader} is not heard of, nor is any worker: it may lead on, so term {record.term} stays"
        if record.state is not JobState.STOPPING:
            record.reason = told
        self._machine.record("leader.missed", f"{told}; {reason}", job=record.spec.job)

    def _able(self, record: JobRecord) -> list[NodeRecord]:
        """Nodes that could train this job now, other than its leader."""
        wanted = (None, record.spec.job)
        nodes = (node for node in self._cluster.nodes.values() if node.job in wanted and node.node != record.leader)
        return [node for node in nodes if node.can_train and node.suits(record.spec)]

    def await_leaders(self) -> None:
        """Give leaders that are away a last wait, where a worker of theirs is heard again."""
        for record in self._cluster.open_jobs():
            if record.stage is LeadershipStage.AWAY and not record.is_awaited:
                self._await(record)

    def _await(self, record: JobRecord) -> None:
        is_due = record.state is JobState.STOPPING or any(node.heard_s > record.away_s for node in self._able(record))
        if is_due:
            record.is_awaited = True
            self._appointments.watch(LeadershipStage.AWAY, record.spec.job, RETURN_S)

    def on_wait_over(self, record: JobRecord) -> None:
        """The leader was not heard within its last wait."""
        if record.state is not JobState.STOPPING and not self._able(record):
            # The workers are gone again: the manager's node is still the one that is cut off.
            record.is_awaited = False
            return
        self._appointments.vacate(record, f"{record.leader} was not heard of again, and others were")

    def on_heard_again(self, node: str) -> None:
        """A node that was silent speaks on the session it had. It leads on where it led."""
        for record in self._cluster.led_by(node):
            if record.stage is LeadershipStage.AWAY and record.endpoint is not None:
                self.take_back(record)

    def take_back(self, record: JobRecord) -> None:
        """A leader that was away leads on under its term."""
        job, record.stage = record.spec.job, record.away_from
        if record.stage is LeadershipStage.MISSED:
            record.stage = LeadershipStage.LEADING
        silent_s = self._machine.now_s - record.away_s
        why = f"led by {record.leader}, which led on for {silent_s:.0f} s out of reach"
        about = f"{record.leader}, term {record.term}: it led on for {silent_s:.0f} s out of reach"
        if record.state is not JobState.STOPPING:
            record.reason = why
        self._appointments.unwatch(LeadershipStage.AWAY, job)
        self._machine.record("leader.returned", about, job=job)
        self._appointments.introduce(record)
        if record.claims:
            # It is weighed by what it made out of reach, and its first report has not come yet.
            self._machine.timer(f"{CLAIM} {job}", CLAIM_S)
        if record.stage is LeadershipStage.PARTING:
            self._appointments.watch(LeadershipStage.PARTING, job, PARTING_S)
        if record.leader is not None and (leader := self._cluster.nodes.get(record.leader)) is not None:
            self._appointments.transfer_from(leader)

    # A leader of an older term is back -----------------------------------------------------------------------

    def may_claim(self, sender: str, message: Message) -> bool:
        """Whether this node led the job under a term that is over, so that its history may be adopted."""
        record = self._cluster.jobs.get(str(getattr(message, "job", "")))
        if record is None or not record.is_open:
            return False
        number = int(getattr(message, "term", 0))
        term = record.terms.get(number)
        # A silent leader that was given up may be heard before the next one is appointed.
        is_over = number < record.term or (number == record.term and record.stage is LeadershipStage.VACANT)
        return is_over and term is not None and term.node == sender

    def on_progress_of_old_term(self, sender: str, progress: Progress) -> bool:
        """A leader of an older term reports: hear it out before it is told to step down. Whether anything follows."""
        record = self._cluster.jobs.get(progress.job)
        if record is None or not self.may_claim(sender, progress):
            self._refuse(
                sender, progress, "the job is over" if record is not None and not record.is_open else "its term is over"
            )
            return True
        if record.heir == (sender, progress.term):
            # Its history is about to be adopted. If this report were judged afterwards, it would be adopted twice.
            record.heir_claim = progress
            return False
        is_first = not record.claims
        record.claims[sender] = progress
        if is_first:
            self._machine.timer(f"{CLAIM} {progress.job}", CLAIM_S)
        return is_first

    def on_claims_heard(self, job: str) -> None:
        """Decide whose history is kept: one of all leaders that led on, or that of the newest term."""
        record = self._cluster.jobs.get(job)
        if record is None or not record.claims:
            return
        if record.is_open and self._must_wait(record):
            self._machine.timer(f"{CLAIM} {job}", CLAIM_S)
            return
        claims, record.claims = record.claims, {}
        # The leader that made the most comes first: it may be adopted, and the others are measured against it.
        for sender in sorted(claims, key=lambda name: (-_side(claims[name]).workers, -_side(claims[name]).batches)):
            claim = claims[sender]
            if not self.may_claim(sender, claim):
                self._refuse(sender, claim, "its term is over")
            elif record.heir is not None:
                self._refuse(sender, claim, f"the history of {record.heir[0]} is adopted, which made more")
            else:
                self._judge(record, sender, claim)

    def _must_wait(self, record: JobRecord) -> bool:
        """Whether an adoption or a write is under way, or the manager does not know what the newest leader made: that
        leader is heard again, or replaced."""
        is_busy = record.heir is not None or record.storing is not None
        return is_busy or self._is_silent(record) or self._is_behind(record)

    def _is_silent(self, record: JobRecord) -> bool:
        """Whether the job's leader may lead on out of reach."""
        if record.stage is LeadershipStage.AWAY:
            return True
        leader = self._cluster.nodes.get(record.leader) if record.leader is not None else None
        return leader is not None and leader.node != self._node and leader.state is not Liveness.ALIVE

    def _is_behind(self, record: JobRecord) -> bool:
        """Whether the last report of the job's leader is older than a version that it has kept since."""
        told = record.progress
        if record.leader is None or record.durable is None or told is None or told.term != record.term:
            return False
        return told.version < record.durable

    def _judge(self, record: JobRecord, sender: str, claim: Progress) -> None:
        """Adopt the history of one leader, or tell it to step down."""
        job, verdict = claim.job, judge(older=_side(claim), newer=record.made_after(claim.term))
        if record.is_done:
            # Adopting what others made would train a job on that is over.
            self._refuse(sender, claim, "the last version of the job is kept")
            return
        if not verdict.keeps_older:
            self._refuse(sender, claim, verdict.reason)
            return
        record.heir, record.heir_claim = (sender, claim.term), claim
        told = f"{sender} led on under term {claim.term} to version {claim.version}: {verdict.reason}"
        self._machine.record("history.adopted", told, job=job)
        if record.leader == self._node:
            # In good order: a version of its own that is being written would come after the one that is adopted.
            if record.is_led:
                self._appointments.transfer(record, to=sender, reason=told)
            return
        if record.leader is not None:
            self._machine.send(record.leader, StepDown(job=job, term=record.term, reason=clip(told)))
        self._appointments.vacate(record, told)

    def adopt(self, record: JobRecord, node: str, term: int) -> None:
        """No other node leads now: the leader of the older term hands its history over."""
        known, record.heir = self._cluster.nodes.get(node), None
        if known is None or known.state is not Liveness.ALIVE:
            self._appointments.appoint(record)
            return
        if (claim := record.heir_claim) is not None:
            # The leader that handed over made more meanwhile: workers brought in what they had been lent.
            verdict = judge(older=_side(claim), newer=record.made_after(term))
            if record.is_done or not verdict.keeps_older:
                self._refuse(node, claim, "the last version of the job is kept" if record.is_done else verdict.reason)
                self._appointments.appoint(record)
                return
        record.leader, record.heir, record.stage = node, (node, term), LeadershipStage.ADOPTING
        record.successor, job = node, record.spec.job
        self.ask_for_history(record)
        self._appointments.watch(LeadershipStage.ADOPTING, job, ADOPTED_S)
        first = next_version(record.forked_from(term))
        if record.durable is not None and record.durable >= first:
            told = _versions(first, record.durable)
            told = f"{told} made since under newer terms: {node} led on under term {term} with more"
            record.discarded = clip(told)
            self._machine.record("version.discarded", told, job=job)

    def on_adopted(self, record: JobRecord) -> None:
        """The history of an older term is durable. A leader of a term between the two is weighed against it from here
        on, and no longer against what was discarded for it."""
        if record.heir is None or record.heir_claim is None:
            return
        kept = {number: side for number, side in record.sides.items() if number <= record.heir[1]}
        record.sides = {**kept, record.term: _side(record.heir_claim)}

    def ask_for_history(self, record: JobRecord) -> None:
        """Ask a leader of an older term for its history, under numbers that no other leader has used."""
        reason = "it led on out of reach, and is led again from what it made"
        least = next_version(record.durable)
        over = HandOver(job=record.spec.job, term=record.leading_term, reason=reason, version_least=least)
        self._appointments.tell_leader(record, over)

    def _refuse(self, sender: str, progress: Progress, why: str) -> None:
        """Tell a leader of an older term to step down, and record which versions are lost with it."""
        self._discard(sender, progress, why)
        self._appointments.fence(sender, progress)

    def _discard(self, sender: str, progress: Progress, why: str) -> None:
        side = _side(progress)
        if not side.batches or progress.version <= progress.durable_version:
            return
        record = self._cluster.jobs.get(progress.job)
        term = record.terms.get(progress.term) if record is not None else None
        if record is None or term is None or term.node != sender:
            # A node that never led under this term made nothing under it, whatever it says.
            return
        versions = _versions(progress.durable_version + 1, progress.version)
        told = f"{versions} that {sender} made under term {progress.term} out of reach ({side}): {why}"
        record.discarded = clip(told)
        self._machine.record("version.discarded", told, job=progress.job)


def _side(progress: Progress) -> Side:
    """The work that would be lost with a leader that is told to step down."""
    return Side(batches=progress.unsaved_batches, workers=progress.unsaved_workers)


def _versions(first: int, last: int) -> str:
    count = last - first + 1
    return f"{count} version{'' if count == 1 else 's'} ({first} to {last})"
