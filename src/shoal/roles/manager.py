"""The manager: knows the nodes and the jobs, picks leaders, gives nodes their roles. Decides; a driver acts.

Jobs are served in the order they came: first every job gets its least number of workers, then the earlier ones
are filled to their most. A node works for one job at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.roles.actions import Action, Answer, Keep, Record, Send
from shoal.roles.events import (
    Asked,
    Event,
    Liveness,
    LoadFailed,
    MemberHeld,
    PeerChanged,
    Received,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
)
from shoal.roles.membership import Patience
from shoal.roles.roster import HELD_BACK, JobRecord, NodeRecord, Roster
from shoal.roles.succession import Succession
from shoal.states import JobState
from shoal.wire.messages import (
    PROTOCOL,
    AskCheckpoint,
    Bar,
    Checkpoint,
    Conclude,
    Denied,
    Dismiss,
    Done,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    Leads,
    Message,
    NodeView,
    Noted,
    OutOfReach,
    Progress,
    Released,
    StepDown,
    SteppedDown,
    StopJob,
    Submit,
    TransferJob,
    Welcome,
    clip,
)


class Manager:
    def __init__(
        self,
        *,
        node: str,
        patience: Patience,
        jobs: list[JobRecord] | None = None,
        held: Mapping[str, str] | None = None,
        cpus: int = 1,
        prefers_devices: bool = False,
    ) -> None:
        """``prefers_devices``: this node leads only where no device can."""
        self._node = node
        #: Nodes that operators hold back, whether they are here or not.
        self._held: dict[str, str] = dict(held or {})
        self._patience = patience
        self._nodes: dict[str, NodeRecord] = {}
        self._roster = Roster()
        #: In the order they were submitted.
        self._jobs: dict[str, JobRecord] = {record.spec.job: record for record in jobs or []}
        self._succession = Succession(
            node=node, nodes=self._nodes, jobs=self._jobs, roster=self._roster, prefers_devices=prefers_devices
        )
        self._cpus = cpus
        #: A leader was missed when work was last given out.
        self._is_unsettled = False

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self._succession.now_s = now_s
        match event:
            case Started():
                return [*self._succession.started(), *self._schedule()]
            case Received():
                return self._on_received(event)
            case PeerChanged():
                return self._on_peer(event)
            case Asked():
                return self._on_asked(event)
            case MemberHeld():
                return self._on_held(event)
            case TimerFired():
                return self._on_timer(event.name)
            case Stored() | StoreFailed():
                return [*self._succession.stored(event), *self._schedule()]
            case LoadFailed():
                return self._on_load_failed(event)
            case _:
                return []

    def _on_timer(self, name: str) -> list[Action]:
        return [*self._succession.timer(name), *self._schedule()]

    # Nodes -------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Action]:
        if (node := self._nodes.get(event.sender)) is not None:
            node.heard_s = self._succession.now_s
        match event.message:
            case Hello():
                return self._on_hello(event.sender, event.message)
            case Heartbeat():
                return self._on_heartbeat(event.sender, event.message)
            case Progress():
                return self._on_progress(event.sender, event.message)
            case Released():
                return self._on_released(event.sender, event.message)
            case _:
                return self._on_leader(event.sender, event.message)

    def _on_heartbeat(self, sender: str, beat: Heartbeat) -> list[Action]:
        if sender == self._node:
            # How the manager's own node is: it may lead like any other.
            self._succession.here(cpus=self._cpus, load=beat.load, link_bytes_per_s=beat.link_bytes_per_s)
            return []
        node = self._nodes.get(sender)
        if node is None:
            return []
        node.load, node.memory_free_mb = beat.load, beat.memory_free_mb
        node.link_bytes_per_s = beat.link_bytes_per_s
        return self._on_rested(node) if node.is_resting else []

    def _on_leader(self, sender: str, message: Message) -> list[Action]:
        """What leaders say, and what is said of them."""
        succession = self._succession
        match message:
            case Leads():
                return [*succession.leads(sender, message), *self._schedule()]
            case SteppedDown():
                return self._on_stepped_down(sender, message)
            case OutOfReach():
                return succession.out_of_reach(sender, message)
            case AskCheckpoint():
                return succession.asked(sender, message)
            case Checkpoint():
                return succession.checkpoint(sender, message)
            case Noted():
                return succession.noted(sender, message)
            case _:
                return []

    def _on_stepped_down(self, sender: str, message: SteppedDown) -> list[Action]:
        hopeless, actions = self._succession.stepped_down(sender, message)
        if hopeless is not None:
            return [*actions, *self._close(hopeless, JobState.FAILED, f"could not start: {message.reason}")]
        return [*actions, *self._schedule()]

    def _on_load_failed(self, event: LoadFailed) -> list[Action]:
        record = self._jobs.get(event.job)
        if record is None or not record.is_open or record.term != event.term:
            return []
        away = StepDown(job=event.job, term=event.term, reason=clip(event.reason))
        return [Send(to=record.leader, message=away), *self._close(record, JobState.FAILED, event.reason)]

    def _on_hello(self, sender: str, hello: Hello) -> list[Action]:
        patience = self._patience
        if hello.protocol != PROTOCOL:
            reason = f"speaks protocol {hello.protocol}, this cluster speaks {PROTOCOL}: install the same release"
            return [
                Record(kind="refused", reason=f"{sender} {reason}"),
                Send(to=sender, message=Dismiss(job="", reason=reason)),
            ]
        node = self._nodes.get(sender)
        if node is None:
            node = self._nodes[sender] = NodeRecord(node=sender, held=self._held.get(sender, ""))
        restarted = node.incarnation not in ("", hello.incarnation)
        node.facts, node.incarnation = hello.facts, hello.incarnation
        node.heard_s = self._succession.now_s
        node.state, node.reason = Liveness.ALIVE, "restarted" if restarted else "connected"
        self._roster.look(node)
        actions: list[Action] = [
            Record(kind="node", reason=f"{sender} {node.reason} from {hello.facts.host or 'somewhere'}")
        ]
        if not node.facts.torch:
            actions.append(Record(kind="node", reason=f"{sender} has no PyTorch: it cannot train"))
        self._resettle(node)
        actions += self._succession.hello(sender, hello, restarted=restarted)
        if node.job and self._jobs[node.job].is_led:
            # It may have forgotten (a new process) or not (a new connection): either way this is what it does.
            actions += self._assign_worker(node, self._jobs[node.job], "back in its job")
        # The welcome comes last: a node speaks to its leader once it knows all its roles.
        welcome = Welcome(heartbeat_s=patience.heartbeat_s, lost_after_s=patience.lost_after_s, reason=node.held_back)
        actions += [*self._schedule(), *self._dismiss_elsewhere(node), Send(to=sender, message=welcome)]
        return [*actions, *self._succession.relieve()]

    def _on_peer(self, event: PeerChanged) -> list[Action]:
        node = self._nodes.get(event.node)
        if node is None or node.state is event.state:
            return []
        if node.state is Liveness.ALIVE:
            node.suspect_s = self._succession.now_s
        node.state, node.reason = event.state, event.reason
        self._roster.look(node)
        record = Record(kind="node", reason=f"{event.node} is {event.state}: {event.reason}", job=node.job)
        if event.state is Liveness.LOST:
            barred = self._succession.bar(node.node, node.job, event.reason)
            if node.job:
                node.left_in[node.job] = None
            self._roster.place(node, "")
            self._roster.let_go.discard(node.node)
            lost = self._succession.lost(event.node, event.reason, is_certain=event.is_certain)
            return [record, *barred, *lost, *self._schedule()]
        if event.state is Liveness.ALIVE:
            self._resettle(node)
            again = self._succession.heard_again(event.node)
            return [record, *again, *self._schedule(), *self._dismiss_elsewhere(node)]
        return [record, *self._succession.suspected(event.node)]

    def _resettle(self, node: NodeRecord) -> None:
        """A worker that was lost with its leader still works there, beyond the cut that both were behind."""
        away = [job for job in node.left_in if (known := self._jobs.get(job)) is not None and known.is_cut]
        if node.job or not away:
            return
        del node.left_in[away[-1]]
        self._roster.place(node, away[-1])

    # Nodes that are held back --------------------------------------------------------------------------

    def _on_held(self, event: MemberHeld) -> list[Action]:
        """A node that is held keeps the lease it has: its leader lets it go when that is done, so nothing is lost."""
        if event.hold == "revoked":
            gone = self._succession.lost(event.node, event.reason, is_certain=True)
            return [*self._succession.shut_out(event.node, event.reason), *gone, *(self._schedule() if gone else ())]
        if event.hold:
            self._held[event.node] = event.hold
        else:
            self._held.pop(event.node, None)
        node = self._nodes.get(event.node)
        if node is None or node.held == event.hold:
            return []
        node.held = event.hold
        what = HELD_BACK.get(event.hold, "may be given work")
        record = Record(kind="node", reason=f"{event.node} {what}" + (f": {event.reason}" if event.reason else ""))
        if event.hold:
            return [record, *self._succession.releases([event.node]), *self._succession.held(node)]
        self._roster.look(node)
        return [record, *self._schedule()]

    def _on_released(self, sender: str, released: Released) -> list[Action]:
        record, node = self._jobs.get(released.job), self._nodes.get(released.node)
        if record is None or sender != record.leader or released.term != record.term:
            return []
        if node is None or node.job != released.job:
            return []
        self._roster.place(node, "")
        node.is_resting = True
        self._roster.let_go.add(node.node)
        return self._schedule()

    def _on_rested(self, node: NodeRecord) -> list[Action]:
        """By now it has heard from its leader: it may be given work again, unless it is still held."""
        node.is_resting = False
        self._roster.let_go.discard(node.node)
        self._roster.look(node)
        return self._schedule()

    # Jobs --------------------------------------------------------------------------------------------

    def _on_asked(self, event: Asked) -> list[Action]:
        match event.message:
            case Submit():
                return self._on_submit(event.question, event.message.spec)
            case StopJob():
                return self._on_stop(event.question, event.message)
            case TransferJob():
                return self._on_transfer(event.question, event.message)
            case _:
                return [Answer(question=event.question, message=Denied(reason="not a command the manager knows"))]

    def _on_submit(self, question: int, spec: JobSpec) -> list[Action]:
        if spec.plan.shape == "chain":
            reason = "a chain of pairs has no manager: run `shoal flock train` on each device (docs/flock.md)"
            return [Answer(question=question, message=Denied(reason=reason))]
        known = self._jobs.get(spec.job)
        if known is not None:
            if known.spec == spec:
                # The same submission again: its answer was lost on the way.
                return [Answer(question=question, message=Done(job=spec.job, reason=known.state))]
            return [Answer(question=question, message=Denied(reason=f"there is a job {spec.job} already"))]
        record = self._jobs[spec.job] = JobRecord(spec=spec, reason="waiting for a leader")
        record.since_s = self._succession.now_s
        keep = Keep(job=spec.job, state=record.state, reason=record.reason, term=0, spec=spec)
        return [keep, Answer(question=question, message=Done(job=spec.job, reason="queued")), *self._schedule()]

    def _on_stop(self, question: int, stop: StopJob) -> list[Action]:
        record = self._jobs.get(stop.job)
        if record is None:
            return [Answer(question=question, message=Denied(reason=f"there is no job {stop.job}"))]
        if not record.is_open:
            return [Answer(question=question, message=Denied(reason=f"job {stop.job} is {record.state} already"))]
        record.become(JobState.STOPPING, stop.reason, self._succession.now_s)
        actions: list[Action] = [
            Keep(job=stop.job, state=record.state, reason=record.reason, term=record.term, leader=record.leader),
            Answer(question=question, message=Done(job=stop.job, reason="stopping: the last version is being saved")),
        ]
        if record.is_led:
            actions.append(Send(to=record.leader, message=Conclude(job=stop.job, reason=clip(record.reason))))
        return actions

    def _on_transfer(self, question: int, transfer: TransferJob) -> list[Action]:
        record = self._jobs.get(transfer.job)
        if record is None:
            return [Answer(question=question, message=Denied(reason=f"there is no job {transfer.job}"))]
        if not record.is_open:
            return [Answer(question=question, message=Denied(reason=f"job {transfer.job} is {record.state} already"))]
        problem = self._succession.why_not_transfer(record, transfer.node)
        if problem:
            return [Answer(question=question, message=Denied(reason=problem))]
        record.unfit.pop(transfer.node, None)
        leader = record.leader
        actions = self._succession.transfer(record, to=transfer.node, reason="an operator asked for it")
        told = f"{leader} finishes its round and hands over to {record.successor}"
        if not record.leader:
            told = f"{leader} is out of reach: {record.successor} leads from the last durable version"
        answer = Answer(question=question, message=Done(job=transfer.job, reason=told))
        return [*actions, answer, *self._schedule()]

    def _on_progress(self, sender: str, progress: Progress) -> list[Action]:
        record, answer = self._succession.progress(sender, progress)
        if record is None:
            return [*answer, *self._schedule()] if answer else []
        if not progress.is_last:
            return []
        heard: list[Action] = []
        if sender != self._node:
            # It says so until it knows that it was heard; and it is heard once it is written down.
            over = StepDown(job=progress.job, term=progress.term, reason="the job is over")
            heard.append(Send(to=sender, message=over))
        return self._close(record, JobState(progress.state), progress.reason, before=heard)

    def _close(
        self, record: JobRecord, state: JobState, reason: str, before: list[Action] | None = None
    ) -> list[Action]:
        job = record.spec.job
        record.become(state, reason, self._succession.now_s)
        actions: list[Action] = [
            Keep(job=job, state=state, reason=reason, term=record.term, leader=record.leader),
            Record(kind="job", reason=f"{state}: {reason}", job=job),
            *(before or ()),
        ]
        for name in self._roster.workers(job):
            self._roster.place(self._nodes[name], "")
            self._roster.look(self._nodes[name])
            actions.append(Send(to=name, message=Dismiss(job=job, reason=clip(reason))))
        return [*actions, *self._schedule()]

    # Who does what -------------------------------------------------------------------------------------

    def _schedule(self) -> list[Action]:
        actions = self._succession.fill()
        if not self._succession.is_settled:
            self._is_unsettled = True
            return actions
        led = [r for r in self._jobs.values() if r.is_open and r.is_led]
        for wanted in ("workers_min", "workers_max"):
            for record in led:
                actions += self._staff(record, getattr(record.spec.plan, wanted))
        actions += self._call_back(led)
        if any(record.is_cut for record in self._jobs.values() if record.is_open):
            self._is_unsettled = True
        elif self._is_unsettled:
            self._is_unsettled = False
            # Those who came meanwhile may be at work where nobody has a place for them any more.
            alive = [node for node in self._nodes.values() if node.state is Liveness.ALIVE]
            actions += [action for node in alive for action in self._dismiss_elsewhere(node)]
        return actions

    def _call_back(self, led: list[JobRecord]) -> list[Action]:
        """A job below its least number of workers gets those that another has beyond its own. Nobody is free then."""
        roster = self._roster
        needed = sum(max(0, record.spec.plan.workers_min - roster.count(record.spec.job)) for record in led)
        needed -= len(roster.called_back) + len(roster.let_go)
        actions: list[Action] = []
        # The last to come is the first to give.
        for record in reversed(led):
            job = record.spec.job
            spare = min(needed, roster.count(job) - record.spec.plan.workers_min)
            if spare <= 0:
                continue
            others = [name for name in reversed(roster.workers(job)) if name != record.leader]
            for name in [name for name in others if name not in roster.called_back][:spare]:
                needed -= 1
                roster.called_back.add(name)
                told = f"{name}: another job has fewer workers than it needs"
                actions.append(Record(kind="called-back", reason=told, job=job))
                actions += self._succession.releases([name])
        return actions

    def _staff(self, record: JobRecord, wanted: int) -> list[Action]:
        have = self._roster.count(record.spec.job)
        actions: list[Action] = []
        while have < wanted:
            node = self._roster.take(self._nodes)
            if node is None:
                break
            have += 1
            actions += self._assign_worker(node, record, f"worker {have} of at most {record.spec.plan.workers_max}")
        return actions

    def _assign_worker(self, node: NodeRecord, record: JobRecord, reason: str) -> list[Action]:
        self._roster.place(node, record.spec.job)
        return [
            Record(kind="assigned", reason=f"{node.node}: {reason}", job=record.spec.job),
            *self._succession.admit(record, [node.node]),
            Send(to=node.node, message=self._succession.worker_assign(record, reason)),
        ]

    def _dismiss_elsewhere(self, node: NodeRecord) -> list[Action]:
        """A node that was away may still work where its place was taken. It ignores jobs it does not know.

        Also in a job that ended meanwhile: what it said to that leader while it was given up was not heard, so nobody
        told it. And a leader that led on while the manager began anew still counts on it: it may be heard of there for
        another job, and would be missed for ever.
        """
        if not self._succession.is_settled:
            # It may be at work for a leader that this manager has not heard of yet.
            return []
        elsewhere = {job: None for job, record in self._jobs.items() if record.is_open} | node.left_in
        elsewhere.pop(node.job, None)
        # Beyond a cut it may be at work for a leader that will be heard of again.
        cut = [job for job in elsewhere if (known := self._jobs.get(job)) is not None and known.is_cut]
        for job in cut:
            del elsewhere[job]
        left = [self._jobs[job] for job in node.left_in if job in elsewhere and job in self._jobs]
        node.left_in = {job: None for job in cut if job in node.left_in}
        reason = "its place was taken while it was away"
        # A leader here may have heard of it again before this manager did, and would count it as ready for ever.
        here = [
            Send(to=self._node, message=Bar(job=each.spec.job, term=each.term, node=node.node, reason=reason))
            for each in left
            if each.is_open and each.leader == self._node
        ]
        dismissed: list[Action] = [Send(to=node.node, message=Dismiss(job=job, reason=reason)) for job in elsewhere]
        barred = [action for job in elsewhere for action in self._succession.bar(node.node, job, reason)]
        return [*here, *barred, *dismissed]

    # What people see -----------------------------------------------------------------------------------

    def node_views(self) -> tuple[NodeView, ...]:
        return tuple(
            NodeView(
                node=node.node,
                state=str(node.state),
                reason=clip(node.reason, 400),
                job=node.job,
                facts=node.facts,
                load=node.load,
                memory_free_mb=node.memory_free_mb,
            )
            for node in (self._nodes[name] for name in sorted(self._nodes))
        )

    def job_views(self, job: str = "", *, now_s: float = 0.0) -> tuple[JobView, ...]:
        return tuple(
            JobView(
                job=record.spec.job,
                name=record.spec.name,
                state=record.state,
                reason=clip(record.reason),
                leader=record.leader,
                term=record.term,
                plan=record.spec.plan,
                progress=record.progress,
                discarded=record.discarded,
                train_examples=record.spec.train.examples,
                test_examples=record.spec.test.examples,
                since_s=_ago(record.since_s, now_s),
                heard_s=_ago(record.heard_s, now_s),
            )
            for record in self._jobs.values()
            if not job or record.spec.job == job
        )

    def awaits(self, sender: str, checkpoint: Checkpoint) -> bool:
        """Whether this node leads this job under this term: nobody else has a version kept."""
        return self._succession.leads_now(sender, checkpoint)

    def specs_of(self, node: str) -> tuple[JobSpec, ...]:
        """The jobs that this node works for or leads now, or is about to lead."""
        here = self._nodes.get(node)
        placed = self._jobs.get(here.job) if here is not None and here.job else None
        led = [record for record in self._jobs.values() if record.is_open and record.leader == node]
        records = ([placed] if placed is not None and placed.is_open else []) + led
        return tuple(record.spec for record in records)

    def spec(self, job: str) -> JobSpec | None:
        record = self._jobs.get(job)
        return record.spec if record else None


def _ago(at_s: float | None, now_s: float) -> float:
    return -1.0 if at_s is None else max(0.0, now_s - at_s)
