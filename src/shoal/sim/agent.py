"""A simulated device's agent: one process, from its start to its end. Dials its manager and the leaders of its jobs,
drives its workers, and leads where it is asked to.

The twin of the runtime's agent; what it decides, the station and the switchboard decide in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.roles.actions import Record, Save
from shoal.roles.custody import unpacked
from shoal.roles.events import Event, Received
from shoal.roles.station import (
    GOODBYE_TIMEOUT_S,
    Dial,
    Duty,
    Employ,
    HangUp,
    Part,
    Say,
    Station,
    ToHosted,
    ToWorker,
)
from shoal.roles.switchboard import Delivery, Resume, Switchboard
from shoal.roles.worker import Worker
from shoal.sim.chance import Stream
from shoal.sim.connection import Connection
from shoal.sim.host import Host
from shoal.sim.hosting import LOAD_S, Hosting
from shoal.sim.jobs import SimulatedJob
from shoal.sim.labour import Labour
from shoal.sim.line import Line
from shoal.sim.process import Process
from shoal.wire.messages import Assign, Count, Disband, Facts, Form, Message, Pass, Welcome

#: A machine that does not answer is given up after this.
CONNECT_TIMEOUT_S = 10.0

#: Trips to the other node and back that TCP, TLS and the first call take.
HANDSHAKE_S = 0.02


class Surroundings(Protocol):
    """What an agent asks of the world."""

    def dial(self, line: Line) -> tuple[Connection | None, float]:
        """A connection to the line's peer, or none, and how long that takes to know."""
        ...

    def hosting(self, agent: Agent) -> Hosting:
        """What it needs to lead."""
        ...

    def job(self, name: str) -> SimulatedJob: ...

    def gone(self, agent: Agent) -> None:
        """It ended itself, after its goodbye."""
        ...

    def exhausted(self, agent: Agent) -> None:
        """Its battery is empty."""
        ...

    def said(self, agent: Agent, to: str, message: Message, size_bytes: int) -> None:
        """It said this to its leader: the network may deliver it once more."""
        ...


class Agent:
    def __init__(
        self, process: Process, around: Surroundings, *, manager: str, incarnation: str, flaws: Stream | None
    ) -> None:
        self.process = process
        process.incarnation = incarnation
        self._around = around
        self._flaws = flaws
        self._manager = manager
        #: Where others dial it: another process, another port.
        self.endpoint = f"{process.node}:{7070 + int(incarnation.rpartition('-')[2]) % 50_000}"
        self._station = Station(node=process.node, incarnation=incarnation, manager=manager)
        self._home_line = Line(self, manager)
        #: Leaders elsewhere, by node; most devices never have one.
        self._lines: dict[str, Line] = {}
        #: Made when it is first asked to lead.
        self.hosting: Hosting | None = None
        self._workers: dict[str, tuple[Host, Labour]] = {}
        self._leaving = False
        process.now(self._home_line.dial)

    @property
    def connection(self) -> Connection | None:
        """To the manager's node."""
        return self._home_line.connection

    @property
    def dialled(self) -> list[Connection]:
        """To the manager's node and to leaders elsewhere."""
        lines = (self._home_line, *self._lines.values())
        return [line.connection for line in lines if line.connection is not None]

    @property
    def connections(self) -> list[Connection]:
        """All it has, dialled or taken."""
        taken = self.hosting.connections.values() if self.hosting is not None else ()
        return [*self.dialled, *taken]

    @property
    def jobs(self) -> tuple[str, ...]:
        """Those it works for."""
        return tuple(self._workers)

    @property
    def led(self) -> tuple[str, ...]:
        """Those it leads, or is about to."""
        return self.hosting.jobs if self.hosting is not None else ()

    @property
    def seconded(self) -> tuple[str, ...]:
        """Those of which it sums up a share."""
        return self.hosting.seconded if self.hosting is not None else ()

    # Lines ---------------------------------------------------------------------------------------------

    def reach(self, line: Line) -> tuple[Connection | None, float]:
        return self._around.dial(line)

    def line_opened(self, line: Line) -> None:
        leads = self.hosting.switchboard.leads() if self.hosting is not None else ()
        self._carry(self._station.on_opened(line.peer, self._facts(), self.process.clock_s, leads=leads))

    def _facts(self) -> Facts:
        device = self.process.machine.device
        return Facts(host=self.process.node, torch="2", cpus=1, memory_mb=device.build.memory_mb if device else 0)

    def heartbeat_s(self, peer: str) -> float:
        return self._station.heartbeat_s(peer)

    def backoff_s(self, peer: str) -> float:
        return self._station.backoff_s(peer)

    def beat(self, line: Line) -> None:
        self._carry(self._station.beat(line.peer, self.process.clock_s))

    def line_failed(self, line: Line, reason: str) -> None:
        self._disturb(line.peer)
        if line is self._home_line:
            if self._leaving:
                self._around.gone(self)
                return
            if self.hosting is not None:
                self.hosting.carry(self.hosting.switchboard.on_manager_lost(reason=reason))
        self._carry(self._station.on_closed(line.peer, reason=reason))

    def _disturb(self, peer: str) -> None:
        """What was on its way from this leader into a trainer's memory lies there in part."""
        for host, labour in self._workers.values():
            if getattr(host.role, "leader", "") == peer:
                labour.disturbed()

    def heard(self, line: Line, message: Message, size_bytes: int) -> None:
        event = Received(sender=line.peer, message=message, size_bytes=size_bytes)
        self._carry(self._station.on_received(event))
        if self.hosting is not None and line is self._home_line and isinstance(message, Welcome):
            self.hosting.carry(self.hosting.switchboard.on_manager_reached())

    def leave(self, reason: str) -> None:
        """Say goodbye, and end once it was heard or a moment later."""
        self._leaving = True
        self._carry(self._station.leave(reason))
        self.process.later(GOODBYE_TIMEOUT_S if self.connection else 0.0, self._around.gone, self)

    # What the station wants ----------------------------------------------------------------------------

    def _carry(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case ToWorker():
                    self._workers[duty.job][0].post(duty.event)
                case Employ():
                    self._employ(duty.assign)
                case Say():
                    self.send(duty.to, duty.message)
                case Dial():
                    line = self._lines[duty.node] = Line(self, duty.node, duty.endpoint)
                    line.dial()
                case Part():
                    self._disturb(duty.node)
                    self._lines.pop(duty.node).part(duty.reason)
                case HangUp():
                    self._line(duty.node).hang_up(duty.reason)
                case ToHosted():
                    if self.hosting is None:
                        self.hosting = self._around.hosting(self)
                    self.hosting.carry(_heard_by(self.hosting.switchboard, duty))

    def _line(self, peer: str) -> Line:
        return self._home_line if peer == self._manager else self._lines[peer]

    def send(self, to: str, message: Message) -> None:
        line = self._home_line if to == self._manager else self._lines.get(to)
        if line is not None and line.connection is not None:
            read, size_bytes = line.connection.up(message)
            # Of what speaks of a lease or of a formation, the network may deliver a late copy.
            if self.process.machine.copies and (getattr(message, "lease", 0) or getattr(message, "formation", 0)):
                self._around.said(self, to, read, size_bytes)

    # Workers -------------------------------------------------------------------------------------------

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

    def fetch(self, job: str, size_bytes: int, fetched: Callable[[bool], object]) -> None:
        """As large as it is, it comes beside the two streams and does not hold them up."""
        if self.connection is None:
            self.process.later(0.0, fetched, False)
            return
        self.connection.download(size_bytes, fetched)

    def exhausted(self) -> None:
        self._around.exhausted(self)

    def ended(self, job: str) -> None:
        self._workers.pop(job, None)
        self._carry(self._station.on_worker_ended(job))

    # Leading, as the hosting asks ----------------------------------------------------------------------

    @property
    def slow_factor(self) -> float:
        device = self.process.machine.device
        return device.slow_factor if device is not None else 1.0

    def manage(self, event: Event) -> None:
        raise AssertionError("the manager is elsewhere")

    def say(self, to: str, message: Message) -> None:
        self.send(to, message)

    def appointed(self, host: Host, assign: Assign) -> None:
        """Where the job stands was asked for."""

    def resume(self, host: Host, delivery: Resume) -> None:
        assert self.hosting is not None
        version = unpacked(delivery.checkpoint)
        self.process.later(LOAD_S * self.slow_factor, self.hosting.begin, host, delivery.assign, version)

    def begun(self, job: str) -> None:
        assert self.hosting is not None
        self.hosting.carry(self.hosting.switchboard.on_leading(job, endpoint=self.endpoint))

    def save(self, host: Host, save: Save) -> None:
        assert self.hosting is not None
        self.hosting.carry(self.hosting.switchboard.on_save(host.job, save))

    def record(self, host: Host, record: Record) -> None:
        assert self.hosting is not None
        self.hosting.carry(self.hosting.switchboard.on_record(host.job, record))


def _heard_by(switchboard: Switchboard, duty: ToHosted) -> list[Delivery]:
    """What a leader says to a sub-leader here, or the manager to a leader."""
    if isinstance(duty.message, Form | Count | Pass | Disband):
        return switchboard.on_leader_message(duty.sender, duty.message)
    return switchboard.on_manager_message(duty.message)
