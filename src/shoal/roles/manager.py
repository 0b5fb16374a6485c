"""The manager: knows the nodes and the jobs, picks leaders, gives nodes their roles. Decides; a driver acts.

Jobs are served in the order they came: first every job gets its least number of workers, then the earlier ones
are filled to their most. A node works for one job at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.roles.actions import Action, Answer, Keep, Record, Send
from shoal.roles.events import Asked, Event, Liveness, MemberHeld, PeerChanged, Received, Started
from shoal.roles.membership import Patience
from shoal.wire.messages import (
    PROTOCOL,
    Assign,
    Denied,
    Dismiss,
    Done,
    Facts,
    Heartbeat,
    Hello,
    JobSpec,
    JobView,
    NodeView,
    Progress,
    Release,
    Released,
    StopJob,
    Submit,
    Welcome,
    clip,
)

#: Ends of a job that a leader may report.
_ENDED = ("finished", "failed", "stopped")

#: What it means for a node to be held back, as it and others read it.
_HELD_BACK = {
    "pending": "waits for an operator to approve it (`shoal nodes approve`)",
    "drained": "is drained: it finishes its lease and gets no more (`shoal nodes undrain`)",
}


@dataclass(slots=True)
class NodeRecord:
    node: str
    facts: Facts = field(default_factory=Facts)
    state: Liveness = Liveness.LOST
    reason: str = "not seen since the manager started"
    job: str = ""
    #: Jobs it was given up in, and may not know.
    left_in: dict[str, None] = field(default_factory=dict)
    incarnation: str = ""
    load: float = 0.0
    memory_free_mb: int = 0
    #: Why an operator holds it back: ``pending``, ``drained``, or empty.
    held: str = ""
    #: Its leader has let it go, and it may not know yet: it is given nothing before it was heard again.
    is_resting: bool = False

    @property
    def can_train(self) -> bool:
        return self.state is Liveness.ALIVE and bool(self.facts.torch) and not self.held and not self.is_resting

    @property
    def is_free(self) -> bool:
        return self.can_train and not self.job


@dataclass(slots=True)
class JobRecord:
    spec: JobSpec
    state: str = "queued"
    reason: str = ""
    term: int = 0
    leader: str = ""
    progress: Progress | None = None

    @property
    def is_open(self) -> bool:
        return self.state in ("queued", "running", "stopping")


class _Roster:
    """Who works for which job, and who is free. Every change of place goes through here; none looks at all nodes."""

    def __init__(self) -> None:
        self._workers: dict[str, set[str]] = {}
        #: Names in order. One that is not free any more stays until its turn: then it is passed over.
        self._free: list[str] = []
        self._listed: set[str] = set()

    def place(self, node: NodeRecord, job: str) -> None:
        """The node works for this job and no other; empty: for none."""
        if node.job:
            self._workers[node.job].discard(node.node)
        node.job = job
        if job:
            self._workers.setdefault(job, set()).add(node.node)

    def look(self, node: NodeRecord) -> None:
        """Something about this node changed: it may be free now."""
        if node.is_free and node.node not in self._listed:
            self._listed.add(node.node)
            heapq.heappush(self._free, node.node)

    def take(self, nodes: dict[str, NodeRecord]) -> NodeRecord | None:
        """The first free node by name, which is not listed any more."""
        while self._free:
            name = heapq.heappop(self._free)
            self._listed.remove(name)
            if nodes[name].is_free:
                return nodes[name]
        return None

    def count(self, job: str) -> int:
        return len(self._workers.get(job, ()))

    def workers(self, job: str) -> list[str]:
        return sorted(self._workers.get(job, ()))


class Manager:
    def __init__(
        self,
        *,
        node: str,
        patience: Patience,
        jobs: list[JobRecord] | None = None,
        held: Mapping[str, str] | None = None,
    ) -> None:
        self._node = node
        #: Nodes that operators hold back, whether they are here or not.
        self._held: dict[str, str] = dict(held or {})
        self._patience = patience
        self._nodes: dict[str, NodeRecord] = {}
        self._roster = _Roster()
        #: In the order they were submitted.
        self._jobs: dict[str, JobRecord] = {record.spec.job: record for record in jobs or []}

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Started():
                return self._on_started()
            case Received():
                return self._on_received(event)
            case PeerChanged():
                return self._on_peer(event)
            case Asked():
                return self._on_asked(event)
            case MemberHeld():
                return self._on_held(event)
            case _:
                return []

    def _on_started(self) -> list[Action]:
        """Every open job gets a leader again, under a new term."""
        for record in self._jobs.values():
            record.leader = ""
        return self._schedule()

    # Nodes -------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Action]:
        match event.message:
            case Hello():
                return self._on_hello(event.sender, event.message)
            case Heartbeat():
                node = self._nodes.get(event.sender)
                if node is not None:
                    node.load, node.memory_free_mb = event.message.load, event.message.memory_free_mb
                    if node.is_resting:
                        return self._on_rested(node)
                return []
            case Progress():
                return self._on_progress(event.sender, event.message)
            case Released():
                return self._on_released(event.sender, event.message)
            case _:
                return []

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
        node.state, node.reason = Liveness.ALIVE, "restarted" if restarted else "connected"
        self._roster.look(node)
        actions: list[Action] = [
            Record(kind="node", reason=f"{sender} {node.reason} from {hello.facts.host or 'somewhere'}")
        ]
        if not node.facts.torch:
            actions.append(Record(kind="node", reason=f"{sender} has no PyTorch: it cannot train"))
        if node.job:
            # It may have forgotten (a new process) or not (a new connection): either way this is what it does.
            actions += self._assign_worker(node, self._jobs[node.job], "back in its job")
        # The welcome comes last: a node speaks to its leader once it knows all its roles.
        reason = _HELD_BACK.get(node.held, "")
        welcome = Welcome(heartbeat_s=patience.heartbeat_s, lost_after_s=patience.lost_after_s, reason=reason)
        return [*actions, *self._schedule(), *self._dismiss_elsewhere(node), Send(to=sender, message=welcome)]

    def _on_peer(self, event: PeerChanged) -> list[Action]:
        node = self._nodes.get(event.node)
        if node is None or node.state is event.state:
            return []
        node.state, node.reason = event.state, event.reason
        self._roster.look(node)
        record = Record(kind="node", reason=f"{event.node} is {event.state}: {event.reason}", job=node.job)
        if event.state is Liveness.LOST:
            if node.job:
                node.left_in[node.job] = None
            self._roster.place(node, "")
            return [record, *self._schedule()]
        if event.state is Liveness.ALIVE:
            return [record, *self._schedule(), *self._dismiss_elsewhere(node)]
        return [record]

    # Nodes that are held back --------------------------------------------------------------------------

    def _on_held(self, event: MemberHeld) -> list[Action]:
        """A node that is held keeps the lease it has: its leader lets it go when that is done, so nothing is lost."""
        if event.hold:
            self._held[event.node] = event.hold
        else:
            self._held.pop(event.node, None)
        node = self._nodes.get(event.node)
        if node is None or node.held == event.hold:
            return []
        node.held = event.hold
        what = _HELD_BACK.get(event.hold, "may be given work")
        record = Record(kind="node", reason=f"{event.node} {what}" + (f": {event.reason}" if event.reason else ""))
        if event.hold:
            return [record, *self._releases([event.node])]
        self._roster.look(node)
        return [record, *self._schedule()]

    def _releases(self, names: Iterable[str]) -> list[Action]:
        """Ask the leaders of those who are held to let them go."""
        placed = [node for node in (self._nodes[name] for name in names) if node.held and node.job]
        return [
            Send(
                to=self._jobs[node.job].leader,
                message=Release(job=node.job, node=node.node, reason=_HELD_BACK.get(node.held, "")),
            )
            for node in placed
            if self._jobs[node.job].leader
        ]

    def _on_released(self, sender: str, released: Released) -> list[Action]:
        record, node = self._jobs.get(released.job), self._nodes.get(released.node)
        if record is None or sender != record.leader or released.term != record.term:
            return []
        if node is None or node.job != released.job:
            return []
        self._roster.place(node, "")
        node.is_resting = True
        return self._schedule()

    def _on_rested(self, node: NodeRecord) -> list[Action]:
        """By now it has heard from its leader: it may be given work again, unless it is still held."""
        node.is_resting = False
        self._roster.look(node)
        return self._schedule()

    # Jobs --------------------------------------------------------------------------------------------

    def _on_asked(self, event: Asked) -> list[Action]:
        match event.message:
            case Submit():
                return self._on_submit(event.question, event.message.spec)
            case StopJob():
                return self._on_stop(event.question, event.message)
            case _:
                return [Answer(question=event.question, message=Denied(reason="not a command the manager knows"))]

    def _on_submit(self, question: int, spec: JobSpec) -> list[Action]:
        known = self._jobs.get(spec.job)
        if known is not None:
            if known.spec == spec:
                # The same submission again: its answer was lost on the way.
                return [Answer(question=question, message=Done(job=spec.job, reason=known.state))]
            return [Answer(question=question, message=Denied(reason=f"there is a job {spec.job} already"))]
        record = self._jobs[spec.job] = JobRecord(spec=spec, reason="waiting for a leader")
        keep = Keep(job=spec.job, state=record.state, reason=record.reason, term=0, spec=spec)
        return [keep, Answer(question=question, message=Done(job=spec.job, reason="queued")), *self._schedule()]

    def _on_stop(self, question: int, stop: StopJob) -> list[Action]:
        record = self._jobs.get(stop.job)
        if record is None:
            return [Answer(question=question, message=Denied(reason=f"there is no job {stop.job}"))]
        if not record.is_open:
            return [Answer(question=question, message=Denied(reason=f"job {stop.job} is {record.state} already"))]
        record.state, record.reason = "stopping", stop.reason
        return [
            Keep(job=stop.job, state=record.state, reason=record.reason, term=record.term),
            Answer(question=question, message=Done(job=stop.job, reason="stopping: the last version is being saved")),
            Send(to=record.leader, message=Dismiss(job=stop.job, reason=clip(record.reason))),
        ]

    def _on_progress(self, sender: str, progress: Progress) -> list[Action]:
        record = self._jobs.get(progress.job)
        if record is None or sender != record.leader or progress.term != record.term:
            return []
        record.progress = progress
        if progress.state not in _ENDED or not record.is_open:
            return []
        record.state, record.reason = progress.state, progress.reason
        actions: list[Action] = [
            Keep(job=progress.job, state=record.state, reason=record.reason, term=record.term),
            Record(kind="job", reason=f"{record.state}: {record.reason}", job=progress.job),
        ]
        for name in self._roster.workers(progress.job):
            self._roster.place(self._nodes[name], "")
            self._roster.look(self._nodes[name])
            actions.append(Send(to=name, message=Dismiss(job=progress.job, reason=clip(record.reason))))
        return [*actions, *self._schedule()]

    # Who does what -------------------------------------------------------------------------------------

    def _schedule(self) -> list[Action]:
        actions: list[Action] = []
        open_jobs = [record for record in self._jobs.values() if record.is_open]
        for record in open_jobs:
            if not record.leader:
                actions += self._appoint(record)
        for wanted in ("workers_min", "workers_max"):
            for record in open_jobs:
                actions += self._staff(record, getattr(record.spec.plan, wanted))
        return actions

    def _appoint(self, record: JobRecord) -> list[Action]:
        """Give a job a leader. The manager's own node holds the store and is always on."""
        record.leader = self._node
        record.term += 1
        job = record.spec.job
        why = f"led by {record.leader}: it keeps the checkpoints and is always on"
        assign = Assign(job=job, role="leader", term=record.term, leader=record.leader, spec=record.spec, reason=why)
        appointed: list[Action] = [
            Record(kind="leader", reason=f"term {record.term}: {why}", job=job),
            Send(to=self._node, message=assign),
            *self._releases(self._roster.workers(job)),
        ]
        if record.state == "stopping":
            # It was told to stop before its leader was lost: it still must.
            appointed.append(Send(to=record.leader, message=Dismiss(job=job, reason=clip(record.reason))))
        else:
            record.state, record.reason = "running", why
        return [Keep(job=job, state=record.state, reason=record.reason, term=record.term), *appointed]

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
        assign = Assign(
            job=record.spec.job,
            role="worker",
            term=record.term,
            leader=record.leader,
            spec=record.spec,
            reason=reason,
        )
        return [
            Record(kind="assigned", reason=f"{node.node}: {reason}", job=record.spec.job),
            Send(to=node.node, message=assign),
        ]

    def _dismiss_elsewhere(self, node: NodeRecord) -> list[Action]:
        """A node that was away may still work where its place was taken. It ignores jobs it does not know.

        Also in a job that ended meanwhile: what it said to that leader while it was given up was not heard, so nobody
        told it.
        """
        elsewhere = {job: None for job, record in self._jobs.items() if record.is_open} | node.left_in
        node.left_in.clear()
        return [
            Send(to=node.node, message=Dismiss(job=job, reason="its place was taken while it was away"))
            for job in elsewhere
            if job != node.job
        ]

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

    def job_views(self, job: str = "") -> tuple[JobView, ...]:
        return tuple(
            JobView(
                job=record.spec.job,
                name=record.spec.name,
                state=record.state,
                reason=clip(record.reason),
                leader=record.leader,
                plan=record.spec.plan,
                progress=record.progress,
                train_examples=record.spec.train.examples,
                test_examples=record.spec.test.examples,
            )
            for record in self._jobs.values()
            if not job or record.spec.job == job
        )

    def spec(self, job: str) -> JobSpec | None:
        record = self._jobs.get(job)
        return record.spec if record else None
