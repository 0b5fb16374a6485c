"""A whole cluster in one thread: the real roles, an event heap, a virtual clock and seeded faults.

A test tool: it drives Manager, Leader, Worker and Membership as the agents do, breaks everything that may break, and
checks after every event what must never be false. Training is a function of the model, the epoch and the batch.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from toy import FIRST_MODEL, LAYOUT

from shoal.roles import actions as act
from shoal.roles import events as ev
from shoal.roles.leader import Leader
from shoal.roles.manager import JobRecord, Manager
from shoal.roles.membership import Membership, Patience
from shoal.wire import messages as say
from shoal.wire.frames import frames, read_message
from shoal.wire.lanes import Lane, lane_of
from shoal.workload.admission import Admission
from shoal.workload.ledger import Applied

if TYPE_CHECKING:
    from devices import Agent

HOME = "home"


@dataclass
class Disk:
    """What a crash of the manager's node leaves behind."""

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    checkpoints: dict[str, tuple[act.Save, dict[str, Any]]] = field(default_factory=dict)
    history: dict[str, list[Applied]] = field(default_factory=dict)

    def write(self, save: act.Save) -> None:
        job = save.state["job"]
        # As a file: the state is JSON, and later changes to the arrays do not reach it.
        copy = {name: np.array(array) for name, array in save.tensors.items()}
        kept = act.Save(version=save.version, tensors=copy, state=json.loads(json.dumps(save.state)))
        assert job not in self.checkpoints or self.checkpoints[job][0].version <= save.version
        self.checkpoints[job] = (kept, kept.state)
        self.history.setdefault(job, []).extend(save.applied)


@dataclass(eq=False)
class Session:
    """Two lanes each way, each in order; nothing arrives after a break."""

    agent: Agent
    home: Home
    broken: bool = False
    last_s: dict[tuple[Lane, bool], float] = field(default_factory=dict)


class World:
    """Time, chance, the disk, and who runs."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.disk = Disk()
        self.home: Home | None = None
        self.agents: dict[str, Agent | None] = {}
        #: Leaders have memory for two uploads only, so that updates are offered and queue.
        self.is_scarce = self.happens(0.3)
        self.copies = (0.0, 0.05, 0.4)[self.chance.integers(3)]
        self.durable: Counter[str] = Counter()
        self.told: list[str] = []

    def after(self, delay_s: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), do))

    def between(self, low: float, high: float) -> float:
        return float(self.chance.uniform(low, high))

    def happens(self, probability: float) -> bool:
        return bool(self.chance.random() < probability)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        while self._heap and not until():
            self.now_s, _, do = heapq.heappop(self._heap)
            if self.now_s > limit_s:
                return False
            do()
        return until()

    def transmit(self, session: Session, message: say.Message, *, up: bool) -> None:
        message = read_message(frames(message))
        lane = lane_of(message)
        delay_s = self.between(0.001, 0.3 if lane is Lane.WORK else 0.05)
        at_s = max(self.now_s + delay_s, session.last_s.get((lane, up), 0.0))
        session.last_s[lane, up] = at_s

        def arrive() -> None:
            if not session.broken:
                (session.home.received if up else session.agent.received)(session, message)

        self.after(at_s - self.now_s, arrive)
        if up and getattr(message, "lease", 0) and self.happens(self.copies):
            # A copy that comes late: after a break, a restart, or the answer to the first.
            self.after(self.between(0.0, 10.0), lambda: self.home and self.home.to_leader(session, message))

    def cut(self, session: Session, *, silent: bool = False) -> None:
        """Both sides notice, soon; a peer that lost its power is noticed by its silence only."""
        session.broken = True
        if not silent:
            self.after(self.between(0.0, 0.2), lambda: session.home.closed(session))
        self.after(self.between(0.0, 0.2), lambda: session.agent.closed(session))


class Home:
    """The manager's node: what is not on the disk dies with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: dict[str, Session] = {}
        patience = Patience()
        self.membership = Membership(patience)
        stored = [replace(record) for record in world.disk.jobs.values()]
        self.manager = Manager(node=HOME, patience=patience, jobs=stored)
        self.leaders: dict[str, Leader] = {}
        self.timers: Counter[tuple[str, str]] = Counter()
        world.home = self
        self.to_manager(ev.Started())
        self.check()

    @property
    def is_up(self) -> bool:
        return self.world.home is self

    def check(self) -> None:
        if self.is_up:
            self.changed(self.membership.check(self.world.now_s))
            self.world.after(0.5, self.check)

    def changed(self, changes: list[ev.PeerChanged]) -> None:
        for change in changes:
            self.to_manager(change)
            for job in list(self.leaders):
                self.lead(job, change)

    def opened(self, session: Session) -> None:
        older = self.sessions.get(session.agent.node)
        self.sessions[session.agent.node] = session
        if older is not None:
            self.world.cut(older)

    def closed(self, session: Session) -> None:
        node = session.agent.node
        if self.is_up and self.sessions.get(node) is session:
            del self.sessions[node]
            self.changed(self.membership.closed(node, self.world.now_s, reason="the connection broke"))

    def received(self, session: Session, message: say.Message) -> None:
        node, now_s = session.agent.node, self.world.now_s
        if not self.is_up:
            return
        if isinstance(message, say.Leave):
            self.changed(self.membership.left(node, reason=message.reason))
            return
        if lane_of(message) is Lane.CONTROL:
            incarnation = message.incarnation if isinstance(message, say.Hello) else ""
            self.changed(self.membership.heard(node, now_s, incarnation=incarnation))
        if say.RECIPIENT[type(message)] == "manager":
            self.to_manager(ev.Received(sender=node, message=message))
        else:
            self.to_leader(session, message)

    def to_leader(self, session: Session, message: Any) -> None:
        if message.job in self.leaders:
            self.lead(message.job, ev.Received(sender=session.agent.node, message=message))
        else:
            self.send(session.agent.node, say.Finished(job=message.job, reason="this job is not led here"))

    def send(self, to: str, message: say.Message) -> None:
        if to != HOME:
            if to in self.sessions:
                self.world.transmit(self.sessions[to], message, up=False)
        elif isinstance(message, say.Assign):
            self.begin(message)
        elif isinstance(message, say.Dismiss):
            self.lead(message.job, ev.StopRequested(reason=message.reason))
        else:
            assert isinstance(message, say.Progress)
            assert message.durable_version >= self.world.durable[message.job], "a durable version was lost"
            self.world.durable[message.job] = message.durable_version
            self.to_manager(ev.Received(sender=HOME, message=message))

    def to_manager(self, event: ev.Event) -> None:
        for action in self.manager.handle(event, self.world.now_s):
            match action:
                case act.Send():
                    self.send(action.to, action.message)
                case act.Keep():
                    known = self.world.disk.jobs.get(action.job)
                    spec = action.spec or (known and known.spec)
                    assert spec is not None
                    record = JobRecord(spec=spec, state=action.state, reason=action.reason, term=action.term)
                    self.world.disk.jobs[action.job] = record
                case act.Record() | act.Answer():
                    self.world.told.append(f"{self.world.now_s:7.2f} manager: {action}")

    def begin(self, assign: say.Assign) -> None:
        leader = Leader(spec=assign.spec, layout=LAYOUT, model=FIRST_MODEL, term=assign.term, manager=HOME, node=HOME)
        if self.world.is_scarce:
            leader._admission = Admission(update_bytes=1, budget_bytes=2)
        if assign.job in self.world.disk.checkpoints:
            save, state = self.world.disk.checkpoints[assign.job]
            leader.restore(tensors=save.tensors, state=state)
        self.leaders[assign.job] = leader
        self.lead(assign.job, ev.Started())

    def lead(self, job: str, event: ev.Event) -> None:
        leader = self.leaders.get(job)
        if leader is None or not self.is_up:
            return
        before = leader.version
        performed = leader.handle(event, self.world.now_s)
        assert before <= leader.version <= before + 1
        leader._course.ledger.check()
        assert not any(member.violations for member in leader._crew._members.values()), "an honest worker was accused"
        for action in performed:
            self.perform(job, leader, action)

    def perform(self, job: str, leader: Leader, action: act.Action) -> None:
        world = self.world
        match action:
            case act.Send():
                assert not isinstance(action.message, say.Work) or action.message.version == leader.version
                if isinstance(action.message, say.Finished):
                    assert world.disk.checkpoints[job][1]["ending"], "finished was said before it was durable"
                self.send(action.to, action.message)
            case act.SetTimer():
                self.timers[job, action.name] += 1
                number, name = self.timers[job, action.name], action.name

                def fire() -> None:
                    if self.timers[job, name] == number:
                        self.lead(job, ev.TimerFired(name=name))

                world.after(action.after_s, fire)
            case act.Save():
                world.after(world.between(0.05, 1.5), lambda: self.write(job, action))
            case act.End():
                del self.leaders[job]
            case act.Record():
                world.told.append(f"{world.now_s:7.2f} leader: {action.kind} {action.reason}")

    def write(self, job: str, save: act.Save) -> None:
        if not self.is_up:
            return
        answer: ev.Event = ev.SaveFailed(version=save.version, reason="the disk is full")
        if not self.world.happens(0.05):
            self.world.disk.write(save)
            answer = ev.Saved(version=save.version)
        # A crash in between: written, and nobody was told.
        self.world.after(self.world.between(0.0, 0.3), lambda: self.lead(job, answer))

    def crash(self) -> None:
        self.world.home = None
        for session in list(self.sessions.values()):
            self.world.cut(session, silent=True)
