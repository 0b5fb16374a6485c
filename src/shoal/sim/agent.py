"""A simulated device's agent: one process, from its start to its end. Dials its manager and drives its workers.

The twin of the runtime's agent; what it decides, the station decides in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.roles.events import Received
from shoal.roles.station import GOODBYE_TIMEOUT_S, Duty, Employ, HangUp, Say, Station, ToWorker
from shoal.roles.worker import Worker
from shoal.sim.chance import Stream
from shoal.sim.connection import Connection
from shoal.sim.host import Host
from shoal.sim.jobs import SimulatedJob
from shoal.sim.labour import Labour
from shoal.sim.process import Process
from shoal.wire.messages import Assign, Facts, Message

#: A machine that does not answer is given up after this.
CONNECT_TIMEOUT_S = 10.0

#: Trips to the manager and back that TCP, TLS and the first call take.
HANDSHAKE_S = 0.02


class Surroundings(Protocol):
    """What an agent asks of the world."""

    def dial(self, agent: Agent) -> tuple[Connection | None, float]:
        """A connection to the manager's node, or none, and how long that takes to know."""
        ...

    def job(self, name: str) -> SimulatedJob: ...

    def gone(self, agent: Agent) -> None:
        """It ended itself, after its goodbye."""
        ...

    def exhausted(self, agent: Agent) -> None:
        """Its battery is empty."""
        ...

    def said(self, agent: Agent, message: Message, size_bytes: int) -> None:
        """It said this to its leader: the network may deliver it once more."""
        ...


class Agent:
    def __init__(self, process: Process, around: Surroundings, *, incarnation: str, flaws: Stream | None) -> None:
        self.process = process
        self._around = around
        self._flaws = flaws
        self._station = Station(node=process.node, incarnation=incarnation)
        self._connection: Connection | None = None
        self._workers: dict[str, tuple[Host, Labour]] = {}
        self._beats = 0
        self._leaving = False
        process.now(self._dial)

    @property
    def connection(self) -> Connection | None:
        return self._connection

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._workers)

    # The link ------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        connection, after_s = self._around.dial(self)
        self.process.later(after_s, self._opened if connection else self._failed, connection)

    def _failed(self, connection: Connection | None) -> None:
        self._carry(self._station.closed())
        self.process.later(self._station.backoff_s(), self._dial)

    def _opened(self, connection: Connection) -> None:
        if not connection.home.process.alive:
            self._failed(None)
            return
        self._connection = connection
        home = connection.home
        home.process.now(home.opened, connection)
        self._beats += 1
        self._carry(self._station.opened(self._facts(), self.process.clock_s))
        self.process.later(self._station.heartbeat_s, self._beat, self._beats)

    def _facts(self) -> Facts:
        device = self.process.machine.device
        return Facts(host=self.process.node, torch="2", cpus=1, memory_mb=device.build.memory_mb if device else 0)

    def _beat(self, number: int) -> None:
        """Heartbeats of one connection end with it."""
        if number != self._beats or self._connection is None:
            return
        self._carry(self._station.beat(self.process.clock_s))
        self.process.later(self._station.heartbeat_s, self._beat, number)

    def closed(self, connection: Connection, reason: str) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        for _, labour in self._workers.values():
            labour.disturbed()
        if self._leaving:
            self._around.gone(self)
            return
        self._failed(None)

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None:
        if self._connection is connection:
            sender = connection.home.process.node
            self._carry(self._station.received(Received(sender=sender, message=message, size_bytes=size_bytes)))

    def leave(self, reason: str) -> None:
        """Say goodbye, and end once it was heard or a moment later."""
        self._leaving = True
        self._carry(self._station.leaving(reason))
        self.process.later(GOODBYE_TIMEOUT_S if self._connection else 0.0, self._around.gone, self)

    # Jobs ----------------------------------------------------------------------------------------------

    def _carry(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case ToWorker():
                    self._workers[duty.job][0].post(duty.event)
                case Employ():
                    self._employ(duty.assign)
                case Say():
                    self.send(duty.message)
                case HangUp():
                    if self._connection is not None:
                        self._connection.cut(duty.reason)

    def _employ(self, assign: Assign) -> None:
        device = self.process.machine.device
        assert device is not None, f"{self.process.node} has no device to train on"
        labour = Labour(self._around.job(assign.job), self, device, self._flaws)
        host = Host(self.process, "worker", assign.job, labour.perform)
        self._workers[assign.job] = (host, labour)
        host.start(Worker(spec=assign.spec, leader=assign.leader, term=assign.term))

    def strike(self, trouble: str) -> None:
        """The task's code fails or hangs, now or in the next lease."""
        if not any(labour.strike(host, trouble) for host, labour in self._workers.values()):
            self.process.machine.troubles.append(trouble)

    def send(self, message: Message) -> None:
        if self._connection is not None:
            read, size_bytes = self._connection.up(message)
            if self.process.machine.copies and getattr(message, "lease", 0):
                self._around.said(self, read, size_bytes)

    def fetch(self, job: str, size_bytes: int, fetched: Callable[[bool], object]) -> None:
        """As large as it is, it comes beside the two streams and does not hold them up."""
        if self._connection is None:
            self.process.later(0.0, fetched, False)
            return
        self._connection.download(size_bytes, fetched)

    def exhausted(self) -> None:
        self._around.exhausted(self)

    def ended(self, job: str) -> None:
        self._workers.pop(job, None)
        self._station.ended(job)
