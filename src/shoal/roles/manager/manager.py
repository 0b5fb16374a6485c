"""The manager: knows the nodes and the jobs, picks leaders, gives nodes their roles. Decides; a driver acts.

Jobs are served in the order they came: first every job gets its least number of workers, if that can be met, then the
earlier ones are filled to their most (``staffing``). A node works for one job at a time. Where a cluster has several
managers, each has jobs of its own, and the nodes that work for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from shoal.roles.actions import Answer, Keep
from shoal.roles.events import (
    Asked,
    DiskMeasured,
    Event,
    Heard,
    JobGiven,
    JobsOutdated,
    JobTaken,
    Liveness,
    LoadFailed,
    MemberHeld,
    OtherManagersSeen,
    PeerChanged,
    Received,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
)
from shoal.roles.machine import Machine
from shoal.roles.manager.appointment import Appointments
from shoal.roles.manager.cluster_state import ClusterState, JobRecord, NodeMark, NodeRecord
from shoal.roles.manager.failover import Failover
from shoal.roles.manager.housekeeping import Housekeeping
from shoal.roles.manager.member_settings import MemberSettings
from shoal.roles.manager.moving import Moving
from shoal.roles.manager.other_managers import COMES_WITHIN_S, OtherManagers
from shoal.roles.manager.reconciliation import Reconciliation
from shoal.roles.manager.referrals import Referrals
from shoal.roles.manager.staffing import AGAIN, Staffing
from shoal.roles.manager.trouble import NO_TROUBLE, job_trouble, node_troubles
from shoal.roles.node.dial_state import redial_s
from shoal.roles.node.failure_detector import Patience
from shoal.scheduling.check_in import CheckIns
from shoal.states import JobState
from shoal.wire.limits import COME_MOST_S
from shoal.wire.messages import (
    PROTOCOL,
    PROTOCOL_LEAST,
    AskCheckpoint,
    Checkpoint,
    Denied,
    Dismiss,
    Done,
    ForgetNode,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    LeaderUnreachable,
    Leads,
    LogRecord,
    Message,
    NodeView,
    Progress,
    Released,
    RemoveJob,
    Revoke,
    StepDown,
    SteppedDown,
    StopJob,
    StopRequest,
    Submit,
    TransferJob,
    Welcome,
    clip,
)

#: A device that is heard so long after it was sent away has stayed.
STAYED_S = 5.0

#: A device that had work stays for so long: the next job may be on its way.
LINGERS_S = 20.0

#: The kind of event by the new state of a device, and by the state in which a job ends.
_TURNS = {
    Liveness.ALIVE: "device.returned",
    Liveness.SUSPECT: "device.suspected",
    Liveness.LOST: "device.lost",
}
_ENDS = {JobState.FINISHED: "job.finished", JobState.FAILED: "job.failed", JobState.STOPPED: "job.stopped"}


class Manager(Machine):
    def __init__(
        self,
        *,
        node: str,
        patience: Patience,
        jobs: list[JobRecord] | None = None,
        held: Mapping[str, str] | None = None,
        cards: Mapping[str, bytes] | None = None,
        labels: Mapping[str, tuple[str, ...]] | None = None,
        members: Iterable[str] = (),
        cpus: int = 1,
        prefers_devices: bool | None = None,
        check_in_s: float = 0.0,
    ) -> None:
        """``cards``: those of members that have one; None if every node may be in sealed groups with signed members, as
        in a simulation. ``labels``: what operators say that nodes are. ``members``: devices that may work,
        whether they are here or not. ``prefers_devices``: this node leads only where
        no device can; None if each plan decides.
        ``check_in_s``: devices without work hang up, and come again after about so long; 0: they stay."""
        super().__init__()
        self._node = node
        self._patience = patience
        self._cluster = ClusterState(jobs or ())
        self._nodes, self._jobs = self._cluster.nodes, self._cluster.jobs
        self._appointments = Appointments(self, self._cluster, node=node, prefers_devices=prefers_devices)
        self._reconciliation = Reconciliation(self, self._cluster, self._appointments, node=node)
        self._failover = Failover(self, self._cluster, self._appointments, self._reconciliation, node=node)
        self._settings = MemberSettings(
            self,
            self._cluster,
            self._appointments,
            self._failover,
            held=held or {},
            cards=cards,
            labels=labels or {},
            schedule=self._schedule,
        )
        self._housekeeping = Housekeeping(self, self._cluster, patience=patience, held=self._settings.held)
        self._others = OtherManagers()
        self._referrals = Referrals(self, self._cluster, self._appointments, self._others)
        self._staffing = Staffing(
            self,
            self._cluster,
            self._appointments,
            self._others,
            node=node,
            members=members,
            check_in_s=check_in_s,
        )
        self._moving = Moving(self, self._cluster, self._appointments, self._others, node=node)
        self._check_in_s = check_in_s
        self._cpus = cpus
        self._check_ins = CheckIns(every_s=check_in_s, most_s=COME_MOST_S) if check_in_s else None
        #: A leader was missed when work was last given out.
        self._is_unsettled = False
        #: Jobs that ended since, in which nodes may work that this manager was not told of.
        self._ended_unsettled: dict[str, None] = {}

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self._housekeeping.on_started()
                self._staffing.await_members()
                self._failover.on_started()
                self._schedule()
            case Received():
                self._on_received(event)
            case PeerChanged():
                self._on_peer(event)
            case Heard():
                self._on_heard(event)
            case Asked():
                self._on_asked(event)
            case MemberHeld():
                self._settings.on_held(event)
            case DiskMeasured():
                self._housekeeping.on_disk(event)
            case JobsOutdated():
                self._housekeeping.on_outdated(event)
            case OtherManagersSeen():
                self._others.forget_given(self.now_s)
                self._others.on_seen(event, own=self._jobs)
                self._schedule()
            case JobTaken():
                self._on_taken(event.record)
            case JobGiven():
                self._on_given(event)
            case TimerFired():
                kind, _, subject = event.name.partition(" ")
                if kind == AGAIN:
                    self._staffing.on_again(subject)
                else:
                    self._failover.on_timer(event.name)
                self._schedule()
            case Stored() | StoreFailed():
                self._failover.on_stored(event)
                self._schedule()
            case LoadFailed():
                self._on_load_failed(event)
            case _:
                pass

    # Nodes -------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        if (node := self._nodes.get(event.sender)) is not None:
            node.heard_s = self.now_s
        if self._referrals.takes(event):
            return
        match event.message:
            case Hello():
                self._on_hello(event.sender, event.message)
            case Heartbeat():
                self._on_heartbeat(event.sender, event.message)
            case Progress():
                self._on_progress(event.sender, event.message)
            case Released():
                self._on_released(event.sender, event.message)
            case _:
                self._on_leader(event.sender, event.message)

    def _on_heartbeat(self, sender: str, beat: Heartbeat) -> None:
        if sender == self._node:
            link = beat.link_bytes_per_s
            self._appointments.on_home_load(cpus=self._cpus, load=beat.load, link_bytes_per_s=link)
            return
        self._on_heard(Heard(beats=((sender, self.now_s, beat),)))

    def _on_heard(self, event: Heard) -> None:
        for name, heard_s, beat in event.beats:
            node = self._nodes.get(name)
            if node is None:
                continue
            node.heard_s, node.preparing = max(node.heard_s, heard_s), beat.preparing
            if not beat.is_same:
                node.load, node.memory_free_mb = beat.load, beat.memory_free_mb
                node.link_bytes_per_s = beat.link_bytes_per_s
            if node.is_resting:
                self._on_rested(node)
            if self._check_ins is not None or node.sent_s is not None:
                self._on_heard_of_work(node, heard_s, is_idle=beat.is_idle)

    # Devices that check in, and do not stay --------------------------------------------------------------

    def _on_heard_of_work(self, node: NodeRecord, heard_s: float, *, is_idle: bool) -> None:
        """A heartbeat says whether a device has work. One that had none for a while is sent away."""
        if not is_idle:
            node.busy_s = heard_s
        if node.sent_s is not None:
            if heard_s - node.sent_s > STAYED_S:
                # It knows better, or is of a release that does not know the word: it may be given work.
                node.sent_s, node.stays = None, True
                self._cluster.look(node)
                self._schedule()
        elif is_idle and heard_s - node.busy_s > LINGERS_S and (come_s := self._come_s(node)):
            self.send(node.node, self._welcome(node, come_s))

    def _come_s(self, node: NodeRecord) -> float:
        """There is no work for this device: when it shall come again. 0: it stays."""
        may_stay = node.stays or node.leads or node.left_in or node.held is not None or node.is_resting
        if self._check_ins is None or node.job is not None or may_stay:
            return 0.0
        # A job without a leader may need it to lead, or may find that it works for it.
        if not all(record.is_led for record in self._cluster.open_jobs()):
            return 0.0
        if self._staffing.is_given_again(node, within_s=self._check_in_s):
            return 0.0
        digest = hashlib.sha256(f"{node.node}/{self.now_s}".encode()).digest()
        node.sent_s = self.now_s
        return self._check_ins.appoint(now_s=self.now_s, draw=int.from_bytes(digest[:4], "big") / (1 << 32))

    def _welcome(self, node: NodeRecord, come_s: float) -> Welcome:
        return Welcome(
            heartbeat_s=self._patience.heartbeat_s,
            lost_after_s=self._patience.lost_after_s,
            reason=node.held_back or "",
            redial_s=redial_s(len(self._nodes)),
            come_s=come_s,
        )

    def _on_leader(self, sender: str, message: Message) -> None:
        """A leader speaks, or a worker speaks of its leader."""
        failover = self._failover
        match message:
            case Leads():
                failover.on_leads(sender, message)
                self._schedule()
            case SteppedDown():
                self._on_stepped_down(sender, message)
            case LeaderUnreachable():
                failover.on_leader_unreachable(sender, message)
            case AskCheckpoint():
                failover.on_ask_checkpoint(sender, message)
            case Checkpoint():
                failover.on_checkpoint(sender, message)
            case LogRecord():
                failover.on_log_record(sender, message)
            case _:
                pass

    def _on_stepped_down(self, sender: str, message: SteppedDown) -> None:
        if (node := self._nodes.get(sender)) is not None:
            node.leads -= {message.job}
        hopeless = self._failover.on_stepped_down(sender, message)
        if hopeless is not None:
            self._close(hopeless, JobState.FAILED, f"could not start: {message.reason}")
        else:
            self._schedule()

    def _on_load_failed(self, event: LoadFailed) -> None:
        record = self._jobs.get(event.job)
        if record is None or not record.is_open or record.term != event.term:
            return
        if record.leader is not None:
            self.send(record.leader, StepDown(job=event.job, term=event.term, reason=clip(event.reason)))
        self._close(record, JobState.FAILED, event.reason)

    def _on_hello(self, sender: str, hello: Hello) -> None:
        if self._refuses(sender, hello) or self._referrals.refers(sender, hello):
            return
        if (node := self._nodes.get(sender)) is None:
            node = self._nodes[sender] = self._settings.newcomer(sender)
        restarted = node.incarnation not in (None, hello.incarnation)
        checks_in = node.sent_s is not None and not restarted
        self._referrals.note_arrival(node, hello, restarted=restarted)
        self._enter(node, hello, restarted=restarted)
        if not checks_in:
            # A device that checks in does so for years.
            host, lacks = hello.facts.host or "an unknown host", node.lacks
            self.record("device.connected", f"{sender} {node.reason} from {host}" + (f"; {lacks}" if lacks else ""))
        if hello.protocol < PROTOCOL:
            node.reason = f"{node.reason}; speaks protocol {hello.protocol}, before this release's: upgrade it"
        self._resettle(node, hello.jobs)
        self._failover.on_hello(sender, self._referrals.without_others(hello), restarted=restarted)
        if node.job is not None and self._jobs[node.job].is_led:
            # A new process has forgotten its job, a new connection has not: repeat it to both.
            self._staffing.assign(node, self._jobs[node.job], "back in its job")
        self._schedule()
        self._dismiss_elsewhere(node)
        self._referrals.free(sender, hello)
        # The welcome comes last: a node speaks to its leader once it knows all its roles.
        self.send(sender, self._welcome(node, self._come_s(node)))
        self._appointments.relieve_home()

    def _refuses(self, sender: str, hello: Hello) -> bool:
        """Dismiss a node whose protocol this release does not speak. Return whether it is one."""
        if PROTOCOL_LEAST <= hello.protocol <= PROTOCOL:
            return False
        which = "the manager" if hello.protocol > PROTOCOL else "this device"
        spoken = f"speaks protocol {hello.protocol}, this cluster speaks {PROTOCOL_LEAST} and {PROTOCOL}"
        reason = f"{spoken}: upgrade {which}"
        self.record("device.refused", f"{sender} {reason}")
        self.send(sender, Dismiss(job="", reason=reason))
        return True

    def _enter(self, node: NodeRecord, hello: Hello, *, restarted: bool) -> None:
        """Note what a node that connected is now. It loses its place in a job that this does not suit."""
        if node.facts.is_hub is not hello.facts.is_hub:
            # It was started again as something else.
            self._take_place(node)
        node.facts, node.incarnation = hello.facts, hello.incarnation or None
        if restarted and node.job is not None and not node.may_stay_in(self._jobs[node.job]):
            # It came back with other labels or without its engine.
            self._take_place(node)
        node.heard_s, node.sent_s = self.now_s, None
        node.stays = hello.lends or hello.facts.is_hub
        # A job that is unknown here is judged before the leader ends it.
        led = (leads.job for leads in hello.leads)
        node.leads = frozenset(job for job in led if job not in self._jobs or self._jobs[job].is_open)
        node.state, node.reason = Liveness.ALIVE, "restarted" if restarted else "connected"
        node.protocol = hello.protocol
        self._cluster.look(node)

    def _take_place(self, node: NodeRecord) -> None:
        if node.job is not None:
            node.left_in[node.job] = None
            self._cluster.place(node, None)

    def _on_peer(self, event: PeerChanged) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.state is event.state:
            return
        if node.state is Liveness.ALIVE:
            node.suspect_s = self.now_s
        is_rest = Liveness.DORMANT in (node.state, event.state) and event.state is not Liveness.LOST
        node.state, node.reason = event.state, event.reason
        self._cluster.look(node)
        if not is_rest:
            kind = "device.left" if node.has_parted else _TURNS[event.state]
            self.record(kind, f"{event.node}: {event.reason}", job=node.job or "")
        if event.state.is_gone:
            if node.job is not None:
                self._appointments.bar(node.node, node.job, event.reason)
                node.left_in[node.job] = None
            self._cluster.place(node, None)
            self._cluster.let_go.discard(node.node)
            self._failover.on_lost(event.node, event.reason, is_certain=event.is_certain)
            self._schedule()
        elif event.state is Liveness.ALIVE:
            self._resettle(node)
            self._reconciliation.on_heard_again(event.node)
            self._schedule()
            self._dismiss_elsewhere(node)
        else:
            self._failover.on_suspected(event.node)

    def _resettle(self, node: NodeRecord, jobs: tuple[str, ...] = ()) -> None:
        """A worker that was lost together with its leader still works there, beyond the cut between them and here. So
        does one of a job whose manager was another until now."""
        away = [job for job in node.left_in if (known := self._jobs.get(job)) is not None and known.is_cut]
        away += [job for job in jobs if job not in away and self._has_place(node, job)]
        away = [job for job in away if self._cluster.reaches_leader(node, self._jobs[job], home=self._node)]
        # It may have been labelled otherwise meanwhile.
        away = [job for job in away if node.may_stay_in(self._jobs[job])]
        if node.job is not None or not away:
            return
        node.left_in.pop(away[-1], None)
        self._cluster.place(node, away[-1])

    def _has_place(self, node: NodeRecord, job: str) -> bool:
        known = self._jobs.get(job)
        if known is None or not known.is_open or not node.can_train or not node.suits(known.spec):
            return False
        return self._cluster.count(job) < known.spec.plan.workers_max

    # Other managers ------------------------------------------------------------------------------------

    @property
    def needs(self) -> tuple[int, int]:
        """How many devices more the jobs here could use, and how many they lack to begin or to go on."""
        wants = starving = 0
        for record in self._cluster.open_jobs():
            if self.now_s < record.devices_come_by_s:
                continue
            have, plan = self._cluster.count(record.spec.job), record.spec.plan
            starving += max(0, plan.workers_least - have)
            wants += max(0, plan.workers_max - have)
        return wants, starving

    def _on_taken(self, record: JobRecord) -> None:
        job = record.spec.job
        if self._moving.is_giving(job):
            # The store was read before it was given away.
            return
        self._others.on_taken(job)
        if job in self._jobs:
            return
        self._cluster.add_job(record)
        if record.is_open:
            self.record("job.taken", "this manager has it now", job=job)
            self._failover.on_taken(record)
            self._staffing.await_members()
            self._schedule()

    def _on_given(self, event: JobGiven) -> None:
        self._moving.on_given(event)
        if event.record is not None:
            self._on_taken(event.record)
        self._schedule()

    def is_giving(self, job: str) -> bool:
        """Whether this manager gives the job to another one, which is not durable yet."""
        return self._moving.is_giving(job)

    def _on_released(self, sender: str, released: Released) -> None:
        record, node = self._jobs.get(released.job), self._nodes.get(released.node)
        if record is None or sender != record.leader or released.term != record.term:
            return
        if node is None or node.job != released.job:
            return
        self._cluster.place(node, None)
        node.is_resting = True
        self._cluster.let_go.add(node.node)
        # Its leader told it too. That word is lost with a broken session, and the node would stay in two jobs.
        self.send(node.node, Dismiss(job=released.job, reason="its leader released it"))
        if released.failure:
            self._staffing.on_released_unprepared(record, released)
        self._schedule()

    def _on_rested(self, node: NodeRecord) -> None:
        """By now the node has heard from its leader: it may be given work again, unless an operator holds it back."""
        node.is_resting = False
        self._cluster.let_go.discard(node.node)
        self._cluster.look(node)
        self._schedule()

    # Jobs --------------------------------------------------------------------------------------------

    def _on_asked(self, event: Asked) -> None:
        match event.message:
            case Submit():
                self._on_submit(event.question, event.message)
            case StopJob():
                self._on_stop(event.question, event.message, event.by)
            case TransferJob():
                self._on_transfer(event.question, event.message, event.by)
            case RemoveJob():
                self._housekeeping.on_remove_job(event.question, event.message, event.by)
            case ForgetNode():
                self._housekeeping.on_forget_node(event.question, event.message, event.by)
            case _:
                self._deny(event.question, "not a command the manager knows")

    def _deny(self, question: int, reason: str) -> None:
        self.act(Answer(question=question, message=Denied(reason=reason)))

    def _on_submit(self, question: int, submit: Submit) -> None:
        spec = submit.spec
        if spec.plan.topology == "chain":
            reason = "a chain of pairs has no manager: run `shoal flock train` on each device (docs/flock.md)"
            self._deny(question, reason)
            return
        if (why := spec.why_not_new) is not None:
            self._deny(question, why)
            return
        if spec.plan.believes.helper == self._node:
            reason = f"{self._node} is the manager's node, which may lead the job: name a helper of somebody else"
            self._deny(question, reason)
            return
        if self._others.has(spec.job):
            self._deny(question, f"another manager has job {spec.job}")
            return
        known = self._jobs.get(spec.job)
        if known is not None and known.spec == spec:
            # The same submission again: its answer was lost on the way.
            self.act(Answer(question=question, message=Done(job=spec.job, reason=known.state)))
            return
        if known is not None:
            self._deny(question, f"there is a job {spec.job} already")
            return
        if self._others.is_drained:
            self._send_on(question, spec.job)
            return
        if (no_room := self._housekeeping.why_no_room(spec.job)) is not None:
            self._deny(question, no_room)
            return
        reason = "waiting for a leader"
        record = self._jobs[spec.job] = JobRecord(spec=spec, reason=reason, since_s=self.now_s)
        self.act(
            Keep(job=spec.job, state=record.state, reason=reason, term=0, spec=spec),
            Answer(question=question, message=Done(job=spec.job, reason="queued")),
        )
        self._schedule()

    def _send_on(self, question: int, job: str) -> None:
        """This manager is drained: another one takes the job."""
        to = self._others.taker(job)
        if to is not None:
            reason = f"this manager is drained: the one at {to} takes new jobs"
        else:
            reason = (
                "this manager is drained, and no other one takes jobs: start another manager, or run `shoal managers"
                " undrain`"
            )
        self.act(Answer(question=question, message=Denied(reason=reason, endpoint=to or "")))

    def _on_stop(self, question: int, stop: StopJob, by: str) -> None:
        record = self._open_job(question, stop.job)
        if record is None:
            return
        reason = stop.reason or f"stopped by {by or 'an operator'}"
        if stop.reason and by:
            reason = f"{reason} (by {by})"
        record.become(JobState.STOPPING, reason, self.now_s)
        leader = record.leader or ""
        self.act(
            Keep(job=stop.job, state=record.state, reason=reason, term=record.term, leader=leader),
            Answer(question=question, message=Done(job=stop.job, reason="stopping: the last version is being saved")),
        )
        if record.is_led:
            self._appointments.tell_leader(record, StopRequest(job=stop.job, reason=clip(reason)))

    def _on_transfer(self, question: int, transfer: TransferJob, by: str) -> None:
        record = self._open_job(question, transfer.job)
        if record is None:
            return
        to = transfer.node or None
        problem = self._appointments.why_not_transfer(record, to)
        if problem is not None:
            self._deny(question, problem)
            return
        if to is not None:
            record.unfit.pop(to, None)
        leader = record.leader
        self._appointments.transfer(record, to=to, reason=f"{by or 'an operator'} asked for it")
        told = f"{leader} finishes its round and hands over to {record.successor}"
        if record.leader is None:
            told = f"{leader} is out of reach: {record.successor} leads from the last durable version"
        self.act(Answer(question=question, message=Done(job=transfer.job, reason=told)))
        self._schedule()

    def _open_job(self, question: int, job: str) -> JobRecord | None:
        """The job, if it is open; else the answer says why not."""
        record = self._jobs.get(job)
        if record is not None and record.is_open:
            return record
        if self._moving.is_giving(job):
            told = f"job {job} goes to another manager at this moment: try again in a few seconds"
        else:
            told = f"there is no job {job}" if record is None else f"job {job} is {record.state} already"
        self._deny(question, told)
        return None

    def _on_progress(self, sender: str, progress: Progress) -> None:
        record = self._cluster.job_of(sender, progress)
        if record is None:
            if sender != self._node and self._reconciliation.on_progress_of_old_term(sender, progress):
                self._schedule()
            return
        self._failover.on_progress(record, progress)
        if not progress.is_last:
            return
        # The leader repeats its last word until it is told that the manager heard it: once that is written down.
        self._end(record, JobState(progress.state), progress.reason)
        if sender != self._node:
            self.send(sender, StepDown(job=progress.job, term=progress.term, reason="the job is over"))
        self._dismiss_workers(record, progress.reason)
        self._schedule()

    def _close(self, record: JobRecord, state: JobState, reason: str) -> None:
        self._end(record, state, reason)
        self._dismiss_workers(record, reason)
        self._schedule()

    def _end(self, record: JobRecord, state: JobState, reason: str) -> None:
        """The job is over: write it down."""
        job = record.spec.job
        record.become(state, reason or None, self.now_s)
        if self._is_unsettled:
            self._ended_unsettled[job] = None
        for node in self._nodes.values():
            if job in node.leads:
                node.leads -= {job}
        self.act(Keep(job=job, state=state, reason=reason, term=record.term, leader=record.leader or ""))
        self.record(_ENDS[state], reason, job=job)
        self._cluster.on_ended(job)

    def _dismiss_workers(self, record: JobRecord, reason: str) -> None:
        """Free the workers and the hubs of a job that is over."""
        job = record.spec.job
        for name in self._cluster.members(job):
            self._cluster.place(self._nodes[name], None)
            self._cluster.look(self._nodes[name])
            self.send(name, Dismiss(job=job, reason=clip(reason)))

    # Which node works for which job ------------------------------------------------------------------

    def _schedule(self) -> None:
        """Give jobs their leaders and their workers. Called after everything that may change either."""
        self._moving.give_away()
        self._failover.fill()
        if not self._cluster.is_settled:
            self._is_unsettled = True
            return
        led = [r for r in self._jobs.values() if r.is_open and r.is_led]
        for record in led:
            self._find_helper(record)
        self._referrals.send_helpers()
        self._staffing.give_least(led)
        self._referrals.send_free(may_grow=False)
        self._staffing.grow(led)
        self._staffing.give_hubs(led)
        self._staffing.call_back(led)
        self._referrals.send_free(may_grow=True)
        if any(record.is_cut for record in self._jobs.values() if record.is_open):
            self._is_unsettled = True
        elif self._is_unsettled:
            self._is_unsettled = False
            ended, self._ended_unsettled = self._ended_unsettled, {}
            # Nodes that came meanwhile may work in a job that has no place for them any more, or that ended since.
            for node in [node for node in self._nodes.values() if node.state is Liveness.ALIVE]:
                self._dismiss_elsewhere(node)
                for job in ended:
                    self.send(node.node, Dismiss(job=job, reason="it is over"))

    def _find_helper(self, record: JobRecord) -> None:
        """Give a job the node that opens its sums, as soon as it is here. Another job that it trains for lets it go. A
        hub or a tab keeps no keys, and opens none."""
        node = self._nodes.get(record.helper) if record.helper is not None else None
        if node is None or not node.is_available or node.job == record.spec.job:
            return
        if node.facts.is_hub or node.facts.browser or not node.may_seal(record.spec):
            return
        if node.job is None:
            self._staffing.assign(node, record, "it opens the sums of this job, and trains nothing for it")
        elif self._jobs[node.job].helper != node.node and node.node not in self._cluster.called_back:
            self._cluster.called_back.add(node.node)
            self.record("device.recalled", f"{node.node}: another job has it as its helper", job=node.job)
            self._appointments.release([node.node])

    def _dismiss_elsewhere(self, node: NodeRecord) -> None:
        """A node that was away may still work in a job that gave its place to another. It ignores unknown jobs.

        Also in a job that ended meanwhile: its leader did not hear what the node said while it was given up, so it told
        the node nothing. And a leader that led on while the manager started again still counts on the node: the node
        would be heard there for another job, and the leader would wait for its update without end.
        """
        if not self._cluster.is_settled:
            # It may work for a leader that this manager has not heard of yet.
            return
        elsewhere = {job: None for job, record in self._jobs.items() if record.is_open} | node.left_in
        if node.job is not None:
            elsewhere.pop(node.job, None)
        # Beyond a cut it may work for a leader that will be heard again.
        cut = [job for job in elsewhere if (known := self._jobs.get(job)) is not None and known.is_cut]
        for job in cut:
            del elsewhere[job]
        left = [self._jobs[job] for job in node.left_in if job in elsewhere and job in self._jobs]
        node.left_in = {job: None for job in cut if job in node.left_in}
        reason = "its place was taken while it was away"
        for each in left:
            if each.is_open and each.leader == self._node:
                # A leader here may have heard it again before this manager did, and would count it as ready for ever.
                self.send(self._node, Revoke(job=each.spec.job, term=each.term, node=node.node, reason=reason))
        for job in elsewhere:
            self._appointments.bar(node.node, job, reason)
        for job in elsewhere:
            self.send(node.node, Dismiss(job=job, reason=reason))

    # What people see -----------------------------------------------------------------------------------

    def knows(self, node: str) -> bool:
        """A node of this name has said hello since the manager started."""
        return node in self._nodes

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that have said hello since the manager started."""
        return tuple(self._nodes)

    def _troubles(self) -> dict[str, str]:
        told = ((record.spec.job, record.told, record.unprepared) for record in self._cluster.open_jobs())
        return node_troubles(told, now_s=self.now_s)

    def node_marks(self, *, now_s: float) -> dict[str, NodeMark]:
        """Return what other managers are to know of each node."""
        troubled = {name for name, trouble in self._troubles().items() if trouble}
        return {name: _mark(node, name in troubled, now_s) for name, node in tuple(self._nodes.items())}

    def node_views(self, names: Iterable[str] | None = None, *, now_s: float | None = None) -> tuple[NodeView, ...]:
        """Those of these names that the manager knows; None: all."""
        troubles, now_s = self._troubles(), self.now_s if now_s is None else now_s
        return tuple(
            NodeView(
                node=node.node,
                state="elsewhere" if (is_sent := _is_on_its_way(node, now_s)) else str(node.state),
                reason=clip(f"sent to the manager at {node.sent_to}" if is_sent else node.reason, 400),
                manager=node.sent_to if is_sent else "",
                job=node.job or "",
                facts=node.facts,
                load=node.load,
                memory_free_mb=node.memory_free_mb,
                link_bytes_per_s=node.link_bytes_per_s,
                protocol=node.protocol,
                trouble=clip(troubles.get(node.node, ""), 400),
                preparing=clip(node.preparing, 200),
                labels=node.labels_shown,
            )
            for name in sorted(self._nodes if names is None else names)
            if (node := self._nodes.get(name)) is not None and not node.has_parted
        )

    def job_views(self, job: str | None = None, *, now_s: float = 0.0) -> tuple[JobView, ...]:
        """Every job, or one."""
        records = (record for record in self._jobs.values() if job is None or record.spec.job == job)
        return tuple(_job_view(record, now_s=now_s) for record in records)

    def open_jobs(self) -> tuple[tuple[JobSpec, Progress | None], ...]:
        """The jobs that are not over, with their progress."""
        return tuple((record.spec, record.progress) for record in self._jobs.values() if record.is_open)

    def awaits(self, sender: str, checkpoint: Checkpoint) -> bool:
        """Whether this node leads this job under this term: no other node has a version kept."""
        return self._cluster.job_of(sender, checkpoint) is not None

    def specs_of(self, node: str) -> tuple[JobSpec, ...]:
        """The jobs that this node works for or leads now, or is about to lead."""
        here = self._nodes.get(node)
        placed = self._jobs.get(here.job) if here is not None and here.job is not None else None
        led = [record for record in self._jobs.values() if record.is_open and record.leader == node]
        records = ([placed] if placed is not None and placed.is_open else []) + led
        return tuple(record.spec for record in records)

    def spec(self, job: str) -> JobSpec | None:
        record = self._jobs.get(job)
        return record.spec if record else None


def _is_on_its_way(node: NodeRecord, now_s: float) -> bool:
    """Whether a node that is not here was sent to another manager a moment ago."""
    return bool(node.sent_to) and node.state is Liveness.LOST and now_s - node.heard_s < COMES_WITHIN_S


def _mark(node: NodeRecord, is_troubled: bool, now_s: float) -> NodeMark:
    # A node's facts and labels change when it says hello, in another process.
    known = (node.incarnation, node.protocol, node.labels, node.held)
    is_sent = _is_on_its_way(node, now_s)
    return NodeMark(
        is_here=node.state is Liveness.ALIVE,
        view=(node.state, node.reason, node.job, bool(node.preparing), is_troubled, is_sent, known),
        figures=(node.preparing, round(node.load, 1), node.memory_free_mb // 64),
    )


def _ago(at_s: float | None, now_s: float) -> float:
    return -1.0 if at_s is None else max(0.0, now_s - at_s)


def _job_view(record: JobRecord, *, now_s: float) -> JobView:
    trouble = job_trouble(record.told, record.unprepared) if record.is_open else NO_TROUBLE
    return JobView(
        job=record.spec.job,
        name=record.spec.name,
        state=record.state,
        reason=clip(record.reason or ""),
        leader=record.leader or "",
        term=record.term,
        plan=record.spec.plan,
        progress=record.progress,
        discarded=record.discarded or "",
        train_examples=record.spec.train.examples,
        test_examples=record.spec.test.examples,
        since_s=_ago(record.since_s, now_s),
        heard_s=_ago(record.heard_s, now_s),
        trouble=clip(trouble.sentence),
        failing=trouble.failing,
        stalled=trouble.stalled,
    )
