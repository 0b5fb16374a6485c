"""Which events change the leader of a job, and whose versions are kept. A part of the manager; it decides only.

A leader may be on any node. The term keeps two leaders from doing harm: it is durable before any node hears of it, and
only the leader of the newest term may have a version kept. ``appointment`` changes a leader, and ``reconciliation``
decides about leaders beyond a cut.
"""

from __future__ import annotations

from shoal.roles.actions import Load, Store
from shoal.roles.events import Liveness, Stored, StoreFailed
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import PARTING_S, Appointments, assignment
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, LeadershipStage, next_version
from shoal.roles.manager.reconciliation import CLAIM, SUSPECT, Reconciliation
from shoal.roles.manager.reunion import Side
from shoal.roles.node.failure_detector import RESTARTED
from shoal.wire.messages import (
    AskCheckpoint,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Dismiss,
    Hello,
    LeaderUnreachable,
    Leads,
    LogRecord,
    Progress,
    StepDown,
    SteppedDown,
    clip,
)

#: How long a manager that has just started waits for leaders it remembers. A device waits up to 6.3 s between two
#: attempts to dial (``dial_state.BACKOFF_S``), and an attempt takes a moment.
MISSED_S = 8.0

#: How often the manager compares the place of each leader with that of other nodes.
LOOK_EVERY_S = 20.0

#: A leader is of no use once this share of its workers cannot reach it.
CUT_OFF_SHARE = 1 / 3
CUT_OFF_WITHIN_S = 30.0

_LOOK, _MISSED = "look", "missed"


class Failover:
    def __init__(
        self,
        machine: Machine,
        cluster: ClusterState,
        appointments: Appointments,
        reconciliation: Reconciliation,
        *,
        node: str,
    ) -> None:
        self._machine = machine
        self._cluster = cluster
        self._appointments = appointments
        self._reconciliation = reconciliation
        #: The manager's own node.
        self._node = node

    # The manager starts, and time passes ---------------------------------------------------------------------

    def on_started(self) -> None:
        """Leaders on the manager's node ended with its last process. Leaders elsewhere may lead on: wait for them."""
        missed = [record for record in self._cluster.open_jobs() if self._waits_for_leader(record)]
        if missed:
            self._machine.timer(_MISSED, MISSED_S)
        for record in missed:
            record.devices_come_by_s = self._machine.now_s + MISSED_S
        self._machine.timer(_LOOK, LOOK_EVERY_S)

    def on_taken(self, record: JobRecord) -> None:
        """The job was another manager's, and its leader may have been there."""
        record.devices_come_by_s = self._machine.now_s + MISSED_S
        self._waits_for_leader(record)
        # When it fires the manager gives out work again, also if it waits for no leader.
        self._machine.timer(f"{_MISSED} {record.spec.job}", MISSED_S)

    def _waits_for_leader(self, record: JobRecord) -> bool:
        """Wait for the job's leader, if a device led it; whether one did. A leader on a manager's node is gone."""
        if record.leader is None or record.leader == self._node:
            record.leader = None
            return False
        record.stage = LeadershipStage.MISSED
        told = f"{record.leader} led term {record.term} and has {MISSED_S:g} s to report"
        self._machine.record("leader.awaited", told, job=record.spec.job)
        return True

    def on_timer(self, name: str) -> None:
        kind, _, subject = name.partition(" ")
        if kind == _LOOK:
            self._appointments.rebalance()
            self._machine.timer(_LOOK, LOOK_EVERY_S)
        elif kind == _MISSED:
            missed = [each for each in self._cluster.open_jobs() if each.stage is LeadershipStage.MISSED]
            for record in [each for each in missed if subject in ("", each.spec.job)]:
                self._reconciliation.on_silent(record, "it was not heard of again")
        elif kind == SUSPECT:
            self._on_suspect(node=subject)
        elif kind == CLAIM:
            self._reconciliation.on_claims_heard(subject)
        else:
            late = self._cluster.jobs.get(subject)
            if late is not None and late.is_open and late.stage.value == kind:
                self._on_late(late)

    def _on_late(self, record: JobRecord) -> None:
        """A job is in the same stage for too long."""
        job = record.spec.job
        if record.stage is LeadershipStage.AWAY:
            self._reconciliation.on_wait_over(record)
            return
        assert record.leader is not None
        if record.leader == self._node:
            # It is here and will hand over. If it were let go now, its last save could end after the next leader began.
            self._appointments.watch(record.stage, job, PARTING_S)
            return
        reason = (
            "it was not set up in time" if record.stage is LeadershipStage.APPOINTED else "it did not hand over in time"
        )
        self._appointments.find_unfit(record, record.leader)
        self._machine.send(record.leader, StepDown(job=job, term=record.leading_term, reason=reason))
        self._appointments.vacate(record, reason)

    def fill(self) -> None:
        """Give every job without a leader one."""
        self._reconciliation.await_leaders()
        vacant = [
            each for each in self._cluster.open_jobs() if each.stage is LeadershipStage.VACANT and each.storing is None
        ]
        for record in vacant:
            if record.heir is not None:
                self._reconciliation.adopt(record, *record.heir)
            else:
                self._appointments.appoint(record)

    # Leaders come, report and go -----------------------------------------------------------------------------

    def on_hello(self, sender: str, hello: Hello, *, restarted: bool) -> None:
        """A node says which jobs it leads. Repeat to it everything that it was told and may not have heard."""
        back = [record for record in self._cluster.led_by(sender) if _known_as(record) in hello.leads]
        for leads in hello.leads:
            self.on_leads(sender, leads)
        for record in back:
            members = self._cluster.members(record.spec.job)
            self._appointments.admit(record, members, is_complete=True)
            self._appointments.remind(record, members)
        told = {(leads.job, leads.term) for leads in hello.leads}
        for record in self._cluster.led_by(sender):
            if (record.spec.job, record.leading_term) in told:
                continue
            if restarted or record.stage is LeadershipStage.MISSED:
                self._appointments.vacate(record, f"{sender} restarted")
            elif record.stage is LeadershipStage.APPOINTED:
                self._machine.send(sender, assignment(record, "leader", clip(record.reason or "")))
            # A leader that ended has a last word to say, and says it now.

    def on_leads(self, sender: str, leads: Leads) -> None:
        """A node says that it leads a job, and where workers dial it."""
        record = self._cluster.job_of(sender, leads)
        if record is None:
            # The work it did decides whether it is told to step down. Its next progress reports that.
            if not self._reconciliation.may_claim(sender, leads):
                self._appointments.fence(sender, leads)
            return
        job, was = leads.job, record.stage
        if was is LeadershipStage.ADOPTING:
            self._reconciliation.ask_for_history(record)
            return
        if not leads.endpoint:
            self._appointments.find_unfit(record, sender)
            self._appointments.fence(sender, leads)
            self._appointments.vacate(record, "it has no address that others could dial")
            return
        if record.is_led and record.endpoint == leads.endpoint:
            return
        record.endpoint = leads.endpoint
        if was is LeadershipStage.AWAY:
            self._reconciliation.take_back(record)
            return
        record.stage = LeadershipStage.PARTING if was is LeadershipStage.PARTING else LeadershipStage.LEADING
        heard = "still leads" if was is LeadershipStage.MISSED else "leads"
        self._appointments.unwatch(LeadershipStage.APPOINTED, job)
        self._machine.record("leader.connected", f"{sender} {heard} at {leads.endpoint}, term {leads.term}", job=job)
        self._appointments.introduce(record)
        node = self._cluster.nodes.get(sender)
        if node is not None:
            # If an operator held it back or labelled it otherwise meanwhile, it leads no longer than it must.
            self._appointments.transfer_from(node)

    def on_progress(self, record: JobRecord, progress: Progress) -> None:
        """The leader of a job reports."""
        record.on_progress(progress, self._machine.now_s)
        record.on_durable(progress.durable_version)
        if record.stage is not LeadershipStage.ADOPTING:
            before = record.sides.get(progress.term, Side())
            record.sides[progress.term] = Side(
                batches=progress.term_batches,
                workers=progress.term_workers,
                # A worker that is gone is not in later reports.
                names=before.names | {view.node for view in progress.workers if view.batches},
            )

    def on_suspected(self, node: str) -> None:
        """A leader is silent, or its session broke. It has a moment to be heard."""
        if self._cluster.led_by(node):
            self._reconciliation.suspect(node)

    def _on_suspect(self, node: str) -> None:
        known = self._cluster.nodes.get(node)
        if known is not None and known.state is not Liveness.ALIVE:
            self.on_lost(node, known.reason)

    def on_lost(self, node: str, reason: str, *, is_certain: bool = False) -> None:
        """``is_certain``: the node or an operator said so. Else the node is silent, and may lead on beyond a cut."""
        give_up = self._appointments.vacate if is_certain else self._reconciliation.on_silent
        for record in self._cluster.led_by(node):
            # A leader that is still waited for had no session about this job yet. The end of another one says nothing
            # of it, nor does that of an earlier process: the present one is about to say whether it leads.
            is_its_own = is_certain and reason != RESTARTED
            if is_its_own or record.stage is not LeadershipStage.MISSED:
                give_up(record, f"{node} was lost: {reason}")

    def on_stepped_down(self, sender: str, message: SteppedDown) -> JobRecord | None:
        """A leader's last word. Returns the job if no node can lead it."""
        record = self._cluster.job_of(sender, message)
        if sender != self._node:
            # This tells the leader that its last word was heard.
            self._appointments.fence(sender, message)
        if record is None:
            return None
        if message.failed and sender == self._node:
            return record
        if message.failed:
            self._appointments.find_unfit(record, sender)
        self._appointments.vacate(record, f"{sender} stepped down: {message.reason}")
        return None

    def on_log_record(self, sender: str, message: LogRecord) -> None:
        """A leader elsewhere decided something: the manager records it too."""
        if self._cluster.job_of(sender, message) is not None:
            self._machine.record(message.kind, message.reason, job=message.job, traceback=message.traceback)

    def on_leader_unreachable(self, sender: str, message: LeaderUnreachable) -> None:
        """A worker cannot reach its leader. If many cannot, the manager's node leads: every worker reaches that."""
        record, node = self._cluster.jobs.get(message.job), self._cluster.nodes.get(sender)
        is_elsewhere = self._cluster.is_settled and node is not None and node.job != message.job
        if record is None or not record.is_open or is_elsewhere:
            # It was away when its job ended or its place was taken, and no leader is there to tell it.
            if record is None or not record.is_open or not record.is_cut:
                self._machine.send(sender, Dismiss(job=message.job, reason="it is not needed there any more"))
            return
        if node is None or node.job != message.job:
            return
        if record.term > message.term and record.is_led:
            # It has not heard of the leader that leads now.
            self._appointments.admit(record, [sender])
            self._machine.send(sender, assignment(record, node.role, "led again", card=node.card))
            return
        if record.term == message.term and record.stage is LeadershipStage.LEADING and record.leader != self._node:
            self._on_current_leader_unreachable(record, sender, message)

    def _on_current_leader_unreachable(self, record: JobRecord, sender: str, message: LeaderUnreachable) -> None:
        """A worker cannot reach the leader that it is to reach."""
        now_s, nodes = self._machine.now_s, self._cluster.nodes
        record.cut_off[sender] = now_s
        self._machine.record("link.broken", message.reason, job=message.job)
        # Links break and mend, now this one, now that one: many at a time are a sign, many in an hour are not.
        lately = [name for name, at_s in record.cut_off.items() if now_s - at_s <= CUT_OFF_WITHIN_S]
        cut_off = sum(nodes[name].job == message.job and nodes[name].role == "worker" for name in lately)
        workers = self._cluster.count(message.job)
        leader = nodes.get(record.leader) if record.leader is not None else None
        # A job waits for its helper, even if all its workers reach the leader.
        is_enough = cut_off >= CUT_OFF_SHARE * workers or sender == record.helper
        if not is_enough or leader is None or leader.state is not Liveness.ALIVE:
            # A leader that is silent to the manager too is not out of reach but lost, and is replaced in a moment.
            return
        self._appointments.find_unfit(record, leader.node)
        who = f"{cut_off} of {workers} workers" if sender != record.helper else f"the helper {sender}"
        reason = f"{who} cannot reach {leader.node}"
        self._appointments.transfer(record, to=self._node, reason=reason)

    # Versions are kept ---------------------------------------------------------------------------------------

    def on_ask_checkpoint(self, sender: str, ask: AskCheckpoint) -> None:
        """A new leader asks for the version to go on from."""
        if self._cluster.job_of(sender, ask) is None:
            self._appointments.fence(sender, ask)
        else:
            self._machine.act(Load(job=ask.job, term=ask.term, to=sender))

    def on_checkpoint(self, sender: str, checkpoint: Checkpoint) -> None:
        """Only the leader of the newest term may have a version kept, and one at a time."""
        record = self._cluster.job_of(sender, checkpoint)
        if record is None:
            self._on_stray_checkpoint(sender, checkpoint)
        elif record.storing is not None:
            self._refuse(sender, checkpoint, f"version {record.storing} is being written")
        elif record.stage is LeadershipStage.ADOPTING and checkpoint.version < next_version(record.durable):
            # Sent before it was asked for its history: another leader used the number meanwhile.
            self._refuse(
                sender, checkpoint, f"version {record.durable} is kept by now: it hands over under a higher one"
            )
        elif record.stage is LeadershipStage.LEADING and record.claims:
            # Its last version would end the job before the manager has decided whose history it keeps.
            self._refuse(sender, checkpoint, "a leader of an older term is heard out first")
        else:
            record.storing, record.storing_number = checkpoint.version, checkpoint.number
            self._machine.act(Store(checkpoint=checkpoint))

    def _on_stray_checkpoint(self, sender: str, checkpoint: Checkpoint) -> None:
        """A node that does not lead the job under this term wants a version kept."""
        job, term, version = checkpoint.job, checkpoint.term, checkpoint.version
        if self._reconciliation.may_claim(sender, checkpoint):
            # The manager has not decided whose history it keeps: the next progress decides that.
            self._refuse(sender, checkpoint, "its term is over")
            return
        if job in self._cluster.jobs:
            # Of unknown jobs nothing is recorded: their names are without end.
            self._machine.record("version.fenced", f"version {version} of {sender}: term {term} is over", job=job)
        self._refuse(sender, checkpoint, "its term is over")
        self._appointments.fence(sender, checkpoint)

    def _refuse(self, sender: str, checkpoint: Checkpoint, reason: str) -> None:
        refused = CheckpointRefused(
            job=checkpoint.job,
            term=checkpoint.term,
            version=checkpoint.version,
            reason=reason,
            number=checkpoint.number,
        )
        self._machine.send(sender, refused)

    def on_stored(self, event: Stored | StoreFailed) -> None:
        """A version is durable, or is not: only now does its leader hear of it."""
        record = self._cluster.jobs.get(event.job)
        if record is None:
            return
        record.storing = None
        if isinstance(event, Stored):
            record.on_durable(event.version)
            record.is_done = event.is_last
            if record.stage is LeadershipStage.ADOPTING:
                self._reconciliation.on_adopted(record)
        if record.leader is None or record.leading_term != event.term:
            return
        job, term, version, number = event.job, event.term, event.version, record.storing_number
        if isinstance(event, Stored):
            kept = CheckpointKept(job=job, term=term, version=version, number=number)
            self._machine.send(record.leader, kept)
        else:
            reason = clip(event.reason)
            refused = CheckpointRefused(job=job, term=term, version=version, reason=reason, number=number)
            self._machine.send(record.leader, refused)


def _known_as(record: JobRecord) -> Leads | None:
    """The last announcement of the job's leader; None: there was none since the manager started."""
    if not record.is_led:
        return None
    return Leads(job=record.spec.job, term=record.term, endpoint=record.endpoint or "")
