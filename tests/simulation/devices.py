"""Devices of the simulated cluster: an agent that may stop or die, its workers, and trainers that fail and hang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cluster import HOME, Session, World
from toy import answer

from shoal.roles import actions as act
from shoal.roles import events as ev
from shoal.roles.worker import Worker
from shoal.wire import messages as say


@dataclass(eq=False)
class Trainer:
    """One child process: answers in order, fails, hangs, and then must be prepared again."""

    model: np.ndarray | None = None
    free_s: float = 0.0
    hangs: act.Train | act.Evaluate | None = None


class Agent:
    """One incarnation of a device's agent."""

    def __init__(self, world: World, node: str) -> None:
        self.world, self.node = world, node
        self.incarnation = f"{node}-{world.now_s:.6f}"
        self.session: Session | None = None
        self.welcomed = False
        self.crowded_beats = 0
        self.workers: dict[str, tuple[Worker, Trainer]] = {}
        self.timers: Counter[tuple[str, str]] = Counter()
        self.stopped_until_s = 0.0
        world.agents[node] = self
        self.connect()
        self.beat()

    def awake(self, do: Callable[[], object]) -> None:
        """Run it now; when the process is stopped, once it goes on; never when it is dead."""
        if self.world.agents.get(self.node) is not self:
            return
        if self.world.now_s < self.stopped_until_s:
            self.world.after(self.stopped_until_s - self.world.now_s, lambda: self.awake(do))
        else:
            do()

    def later(self, delay_s: float, do: Callable[[], object]) -> None:
        self.world.after(delay_s, lambda: self.awake(do))

    def connect(self) -> None:
        if self.session is not None:
            return
        if self.world.home is None:
            self.later(self.world.between(0.1, 1.0), self.connect)
            return
        self.session = Session(self, self.world.home)
        self.world.home.opened(self.session)
        facts = say.Facts(host=self.node, torch="2")
        self.send(say.Hello(node=self.node, incarnation=self.incarnation, facts=facts))

    def closed(self, session: Session) -> None:
        self.awake(lambda: self.lost(session))

    def lost(self, session: Session) -> None:
        if self.session is session:
            self.session, self.welcomed = None, False
            for job in list(self.workers):
                self.work(job, ev.Disconnected(node=HOME, reason="the connection ended"))
            self.later(self.world.between(0.1, 2.5), self.connect)

    def beat(self) -> None:
        if self.welcomed:
            self.send(say.Heartbeat(seq=1))
        self.crowded_beats = self.crowded_beats + 1 if len(self.workers) > 1 else 0
        assert self.crowded_beats < 5, "a node works for one job at a time"
        self.later(1.0, self.beat)

    def send(self, message: say.Message) -> None:
        if self.session is not None:
            self.world.transmit(self.session, message, up=True)

    def received(self, session: Session, message: Any) -> None:
        self.awake(lambda: self.take(message) if self.session is session else None)

    def take(self, message: Any) -> None:
        match message:
            case say.Welcome():
                self.welcomed = True
                for job in list(self.workers):
                    self.work(job, ev.Connected(node=HOME))
            case say.Assign():
                if message.job in self.workers:
                    self.work(message.job, ev.Reassigned(term=message.term, leader=message.leader))
                    return
                worker = Worker(spec=message.spec, leader=message.leader, term=message.term)
                self.workers[message.job] = (worker, Trainer())
                self.work(message.job, ev.Started())
                if self.welcomed:
                    self.work(message.job, ev.Connected(node=HOME))
            case say.Dismiss():
                self.work(message.job, ev.StopRequested(reason=message.reason))
            case _:
                self.work(message.job, ev.Received(sender=HOME, message=message))

    def work(self, job: str, event: ev.Event) -> None:
        if job not in self.workers:
            return
        worker, trainer = self.workers[job]
        for action in worker.handle(event, self.world.now_s):
            self.perform(job, worker, trainer, action)

    def post(self, job: str, worker: Worker, delay_s: float, event: ev.Event) -> None:
        def arrive() -> None:
            if job in self.workers and self.workers[job][0] is worker:
                self.work(job, event)

        self.later(delay_s, arrive)

    def perform(self, job: str, worker: Worker, trainer: Trainer, action: act.Action) -> None:
        world = self.world
        match action:
            case act.Send():
                self.send(action.message)
            case act.SetTimer() | act.CancelTimer():
                self.timers[job, action.name] += 1
                number, name = self.timers[job, action.name], action.name

                def fire() -> None:
                    if self.timers[job, name] == number:
                        self.work(job, ev.TimerFired(name=name))

                if isinstance(action, act.SetTimer):
                    self.later(action.after_s, fire)
            case act.Prepare():
                delay_s = max(0.0, trainer.free_s - world.now_s) + world.between(0.1, 2.0)
                failed = world.happens(0.05)
                trainer.model, trainer.free_s, trainer.hangs = None, world.now_s + delay_s, None
                reason = "the data could not be fetched"
                self.post(job, worker, delay_s, ev.PrepareFailed(reason=reason) if failed else ev.Prepared())
            case act.Train() | act.Evaluate():
                delay_s = max(0.0, trainer.free_s - world.now_s) + world.between(0.05, 1.0)
                trainer.free_s = world.now_s + delay_s
                if action.tensors:
                    trainer.model = np.array(action.tensors["model"])
                if world.happens(0.01):
                    trainer.hangs = action
                elif trainer.model is None or world.happens(0.02):
                    self.post(job, worker, delay_s, ev.TrainerFailed(lease=action.lease, reason="it raised"))
                    trainer.model = None
                else:
                    self.post(job, worker, delay_s, answer(worker._spec, trainer.model, action))
            case act.Interrupt():
                if trainer.hangs is not None:
                    hung, trainer.hangs, trainer.model = trainer.hangs, None, None
                    self.post(job, worker, 0.1, ev.TrainerFailed(lease=hung.lease, reason=action.reason))
            case act.End():
                del self.workers[job]
            case act.Record():
                world.told.append(f"{world.now_s:7.2f} {self.node}: {action.kind} {action.reason}")

    def die(self, *, politely: bool = False, silent: bool = False) -> None:
        if politely:
            self.send(say.Leave(reason="stopped by its owner"))
        self.world.agents[self.node] = None
        session = self.session
        if session is not None:
            # What was said before the end still arrives.
            self.world.after(0.3, lambda: self.world.cut(session, silent=silent))
