"""A simulated device's agent: one process, from its start to its end. Dials its manager and the leaders of its jobs,
drives its workers, and leads where it is asked to.

The twin of the runtime's agent; what it decides, the station and the switchboard decide in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.roles.actions import Record, Save
from shoal.roles.events import Event, Received
from shoal.roles.node.checkpoint_transfer import unpacked
from shoal.roles.node.device_router import (
    GOODBYE_TIMEOUT_S,
    DeviceRouter,
    Dial,
    DropSession,
    Duty,
    Employ,
    Redial,
    Say,
    ToHosted,
    ToWorker,
)
from shoal.roles.node.host_router import Delivery, HostRouter, Resume
from shoal.roles.worker import Worker
from shoal.sim.driver.connection import Connection
from shoal.sim.driver.dialer import SimDialer
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.role_server import LOAD_S, SimRoleServer
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.sim.jobs import SimulatedJob
from shoal.sim.process import Process
from shoal.sim.rng import Stream
from shoal.wire.messages import Assign, Facts, Message, Reduce, RelayModel, SetUpAggregator, TearDown, Welcome

#: A machine that does not answer is given up after this.
CONNECT_TIMEOUT_S = 10.0

#: Trips to the other node and back that TCP, TLS and the first call take.
HANDSHAKE_S = 0.02


class SimWorldApi(Protocol):
    """What an agent asks of the world."""

    def dial(self, dialer: SimDialer) -> tuple[Connection | None, float]:
        """A connection to the line's peer, or none, and how long that takes to know."""
        ...

    def role_server(self, agent: SimAgent) -> SimRoleServer:
        """What it needs to lead."""
        ...

    def job(self, name: str) -> SimulatedJob: ...

    def gone(self, agent: SimAgent) -> None:
        """It ended itself, after its goodbye."""
        ...

    def exhausted(self, agent: SimAgent) -> None:
        """Its battery is empty."""
        ...

    def said(self, agent: SimAgent, to: str, message: Message, size_bytes: int) -> None:
        """It said this to its leader: the network may deliver it once more."""
        ...


class SimAgent:
    def __init__(
        self, process: Process, around: SimWorldApi, *, manager: str, incarnation: str, flaws: Stream | None
    ) -> None:
        self.process = process
        process.incarnation = incarnation
        self._around = around
        self._flaws = flaws
        self._manager = manager
        #: Where others dial it: another process, another port.
        self.endpoint = f"{process.node}:{7070 + int(incarnation.rpartition('-')[2]) % 50_000}"
        self._router = DeviceRouter(node=process.node, incarnation=incarnation, manager=manager)
        self._manager_dialer = SimDialer(self, manager)
        #: Leaders elsewhere, by node; most devices never have one.
        self._dialers: dict[str, SimDialer] = {}
        #: Made when it is first asked to lead.
        self.role_server: SimRoleServer | None = None
        self._workers: dict[str, tuple[Host, SimWorkerDriver]] = {}
        self._leaving = False
        process.now(self._manager_dialer.dial)

    @property
    def connection(self) -> Connection | None:
        """To the manager's node."""
        return self._manager_dialer.connection

    @property
    def dialled(self) -> list[Connection]:
        """To the manager's node and to leaders elsewhere."""
        dialers = (self._manager_dialer, *self._dialers.values())
        return [dialer.connection for dialer in dialers if dialer.connection is not None]

    @property
    def connections(self) -> list[Connection]:
        """All it has, dialled or taken."""
        taken = self.role_server.connections.values() if self.role_server is not None else ()
        return [*self.dialled, *taken]

    @property
    def jobs(self) -> tuple[str, ...]:
        """Those it works for."""
        return tuple(self._workers)

    @property
    def led(self) -> tuple[str, ...]:
        """Those it leads, or is about to."""
        return self.role_server.jobs if self.role_server is not None else ()

    @property
    def seconded(self) -> tuple[str, ...]:
        """Those of which it sums up a share."""
        return self.role_server.seconded if self.role_server is not None else ()

    # Lines ---------------------------------------------------------------------------------------------

    def reach(self, dialer: SimDialer) -> tuple[Connection | None, float]:
        return self._around.dial(dialer)

    def dialer_opened(self, dialer: SimDialer) -> None:
        leads = self.role_server.router.leads() if self.role_server is not None else ()
        self._carry(self._router.on_opened(dialer.peer, self._facts(), self.process.clock_s, leads=leads))

    def _facts(self) -> Facts:
        device = self.process.machine.device
        return Facts(host=self.process.node, torch="2", cpus=1, memory_mb=device.build.memory_mb if device else 0)

    def heartbeat_s(self, peer: str) -> float:
        return self._router.heartbeat_s(peer)

    def backoff_s(self, peer: str) -> float:
        return self._router.backoff_s(peer)

    def beat(self, dialer: SimDialer) -> None:
        self._carry(self._router.beat(dialer.peer, self.process.clock_s))

    def line_failed(self, dialer: SimDialer, reason: str) -> None:
        self._disturb(dialer.peer)
        if dialer is self._manager_dialer:
            if self._leaving:
                self._around.gone(self)
                return
            if self.role_server is not None:
                self.role_server.carry(self.role_server.router.on_manager_lost(reason=reason))
        self._carry(self._router.on_closed(dialer.peer, reason=reason))

    def _disturb(self, peer: str) -> None:
        """What was on its way from this leader into a trainer's memory lies there in part."""
        for host, worker_driver in self._workers.values():
            if getattr(host.role, "leader", "") == peer:
                worker_driver.disturbed()

    def heard(self, dialer: SimDialer, message: Message, size_bytes: int) -> None:
        event = Received(sender=dialer.peer, message=message, size_bytes=size_bytes)
        self._carry(self._router.on_received(event))
        if self.role_server is not None and dialer is self._manager_dialer and isinstance(message, Welcome):
            self.role_server.carry(self.role_server.router.on_manager_reached())

    def leave(self, reason: str) -> None:
        """Say goodbye, and end once it was heard or a moment later."""
        self._leaving = True
        self._carry(self._router.leave(reason))
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
                    dialer = self._dialers[duty.node] = SimDialer(self, duty.node, duty.endpoint)
                    dialer.dial()
                case DropSession():
                    self._disturb(duty.node)
                    self._dialers.pop(duty.node).part(duty.reason)
                case Redial():
                    self._line(duty.node).hang_up(duty.reason)
                case ToHosted():
                    if self.role_server is None:
                        self.role_server = self._around.role_server(self)
                    self.role_server.carry(_heard_by(self.role_server.router, duty))

    def _line(self, peer: str) -> SimDialer:
        return self._manager_dialer if peer == self._manager else self._dialers[peer]

    def send(self, to: str, message: Message) -> None:
        dialer = self._manager_dialer if to == self._manager else self._dialers.get(to)
        if dialer is not None and dialer.connection is not None:
            read, size_bytes = dialer.connection.up(message)
            # Of what speaks of a lease or of a formation, the network may deliver a late copy.
            if self.process.machine.copies and (getattr(message, "lease", 0) or getattr(message, "formation", 0)):
                self._around.said(self, to, read, size_bytes)

    # Workers -------------------------------------------------------------------------------------------

    def _employ(self, assign: Assign) -> None:
        device = self.process.machine.device
        assert device is not None, f"{self.process.node} has no device to train on"
        worker_driver = SimWorkerDriver(self._around.job(assign.job), self, device, self._flaws)
        host = Host(self.process, "worker", assign.job, worker_driver.perform)
        self._workers[assign.job] = (host, worker_driver)
        host.start(Worker(spec=assign.spec, leader=assign.leader, term=assign.term))

    def strike(self, trouble: str) -> None:
        """The task's code fails or hangs, now or in the next lease."""
        if not any(worker_driver.strike(host, trouble) for host, worker_driver in self._workers.values()):
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
        self._carry(self._router.on_worker_ended(job))

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
        assert self.role_server is not None
        version = unpacked(delivery.checkpoint)
        self.process.later(LOAD_S * self.slow_factor, self.role_server.begin, host, delivery.assign, version)

    def begun(self, job: str) -> None:
        assert self.role_server is not None
        self.role_server.carry(self.role_server.router.on_leading(job, endpoint=self.endpoint))

    def save(self, host: Host, save: Save) -> None:
        assert self.role_server is not None
        self.role_server.carry(self.role_server.router.on_save(host.job, save))

    def record(self, host: Host, record: Record) -> None:
        assert self.role_server is not None
        self.role_server.carry(self.role_server.router.on_record(host.job, record))


def _heard_by(router: HostRouter, duty: ToHosted) -> list[Delivery]:
    """What a leader says to an aggregator here, or the manager to a leader."""
    if isinstance(duty.message, SetUpAggregator | Reduce | RelayModel | TearDown):
        return router.on_leader_message(duty.sender, duty.message)
    return router.on_manager_message(duty.message)
