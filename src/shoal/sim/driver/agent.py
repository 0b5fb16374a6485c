"""A simulated device's agent: one process, from its start to its end. Dials its manager and the leaders of its jobs,
drives its workers, and hosts the leaders and aggregators that it is given.

The twin of the runtime's agent; in both, the device router and the host router decide, and the tables find the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shoal.roles.actions import Evaluate, Record, Save, Train
from shoal.roles.events import EvaluationDone, Event, LinkMeasured, Received, Trained
from shoal.roles.node.checkpoint_transfer import unpacked
from shoal.roles.node.device_router import GOODBYE_TIMEOUT_S, DeviceRouter, ToHosted
from shoal.roles.node.worker_table import WorkerTable
from shoal.sim.driver.connection import CalledSession, Connection
from shoal.sim.driver.dialer import SimDialer
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.role_server import LOAD_S, SimRoleServer
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.sim.jobs import SimulatedJob
from shoal.sim.process import Process
from shoal.sim.rng import Stream
from shoal.wire.messages import Assign, Checkpoint, Facts, HeartbeatSeen, Message, Welcome, Work

#: A machine that does not answer is given up after this.
CONNECT_TIMEOUT_S = 10.0

#: Trips to the other node and back that TCP, TLS and the first call take.
HANDSHAKE_S = 0.02


class SimWorldApi(Protocol):
    """The interface of the world to an agent."""

    def dial(self, dialer: SimDialer) -> tuple[Connection | None, float]:
        """Return a connection to the dialer's peer, or None, and how long the attempt takes."""
        ...

    def role_server(self, agent: SimAgent) -> SimRoleServer:
        """Return the server with which an agent leads."""
        ...

    def job(self, name: str) -> SimulatedJob: ...

    def gone(self, agent: SimAgent) -> None:
        """Note that an agent ended itself, after its goodbye."""
        ...

    def exhausted(self, agent: SimAgent) -> None:
        """Note that an agent's battery is empty."""
        ...

    def rests(self, agent: SimAgent, for_s: float) -> None:
        """Note that an agent was told when to come again, and will dial then."""
        ...

    def said(self, agent: SimAgent, to: str, message: Message, size_bytes: int) -> None:
        """Note a message to an agent's leader: the network may deliver it twice."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """The state of a device that another driver had."""

    #: How long its session has been open, the messages that it received in it, and when its next heartbeat is due.
    open_s: float
    heard: tuple[Message, ...]
    beat_in_s: float
    #: Heartbeats that it sent, and the last answer.
    beats: int = 0
    seen: HeartbeatSeen | None = None
    #: Whether its trainer is ready, its lease, when it will be done with that, and its answer, if it gave one.
    is_prepared: bool = False
    work: Work | None = None
    action: Train | Evaluate | None = None
    free_s: float = 0.0
    answer: Trained | EvaluationDone | None = None


@dataclass(frozen=True, slots=True)
class EmployedWorker:
    """A worker's host, and the trainer that it drives."""

    host: Host
    worker_driver: SimWorkerDriver


class SimAgent:
    def __init__(
        self,
        process: Process,
        around: SimWorldApi,
        *,
        manager: str,
        incarnation: str,
        flaws: Stream | None,
        manager_endpoint: str = "",
        dials_in_s: float | None = 0.0,
    ) -> None:
        """``manager_endpoint`` is the address of one of several managers, or "" if there is only one. ``dials_in_s`` is
        when the agent first dials its manager, or None if it continues an existing session."""
        self.process = process
        process.incarnation = incarnation
        self._around = around
        self._flaws = flaws
        self._manager = manager
        #: Where others dial it: another process, another port.
        self.endpoint = f"{process.node}:{7070 + int(incarnation.rpartition('-')[2]) % 50_000}"
        self._router = DeviceRouter(node=process.node, incarnation=incarnation, manager=manager)
        if manager_endpoint:
            self._router.know_manager(manager_endpoint, ())
        self.manager_dialer = SimDialer(self, manager)
        #: Leaders elsewhere, by node; most devices never have one.
        self._dialers: dict[str, SimDialer] = {}
        #: Made when it first has to lead.
        self.role_server: SimRoleServer | None = None
        self._workers: WorkerTable[EmployedWorker] = WorkerTable(self._router, self)
        self._leaving = False
        #: Whether it is replaying its past: the messages that it sends were sent before.
        self._is_told = False
        if dials_in_s:
            process.later(dials_in_s, self.manager_dialer.dial)
        elif dials_in_s is not None:
            process.now(self.manager_dialer.dial)

    @property
    def connection(self) -> Connection | None:
        """To the manager's node."""
        return self.manager_dialer.connection

    @property
    def dialled(self) -> list[Connection]:
        """To the manager's node and to leaders elsewhere."""
        dialers = (self.manager_dialer, *self._dialers.values())
        return [dialer.connection for dialer in dialers if dialer.connection is not None]

    @property
    def connections(self) -> list[CalledSession]:
        """All its connections, dialled or accepted."""
        taken = self.role_server.connections.values() if self.role_server is not None else ()
        return [*self.dialled, *taken]

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that it works for."""
        return self._workers.jobs

    @property
    def led(self) -> tuple[str, ...]:
        """The jobs that it leads, or is about to."""
        return self.role_server.roles.jobs if self.role_server is not None else ()

    @property
    def aggregating(self) -> tuple[str, ...]:
        """The jobs for which it hosts an aggregator."""
        return self.role_server.roles.aggregating if self.role_server is not None else ()

    # A device that another driver had --------------------------------------------------------------------

    def goes_on(self, connection: Connection, past: Past) -> EmployedWorker | None:
        """Continue in the middle of a session, by replaying the messages that came in it. Returns the worker, if there
        is one."""
        dialer, router, clock_s = self.manager_dialer, self._router, self.process.clock_s
        dialer.goes_on(connection, beat_in_s=past.beat_in_s)
        self._is_told = True
        router.greet(self._manager, self._facts(), clock_s - past.open_s)
        for message in past.heard:
            self.heard(dialer, message, 0)
        for _ in range(past.beats):
            router.beat(self._manager, clock_s)
        if past.seen is not None:
            router.on_received(Received(sender=self._manager, message=past.seen))
        worker = next(iter(self._workers.workers), None)
        if worker is not None and past.is_prepared:
            worker.worker_driver.was_prepared(worker.host, worker.worker_driver.generation)
        if worker is not None and past.work is not None:
            worker.host.post(Received(sender=self._manager, message=past.work))
            assert past.action is not None
            worker.worker_driver.is_at(past.action, past.work.tensors["model"], free_s=past.free_s)
            if past.answer is not None:
                worker.worker_driver.was_done(worker.host, worker.worker_driver.generation, past.answer)
        if worker is not None:
            worker.worker_driver.is_told = False
        self._is_told = False
        return worker

    # Lines ---------------------------------------------------------------------------------------------

    def reach(self, dialer: SimDialer) -> tuple[Connection | None, float]:
        if dialer is self.manager_dialer:
            dialer.endpoint = self._router.manager_endpoint
        return self._around.dial(dialer)

    def dialer_opened(self, dialer: SimDialer) -> None:
        leads = self.role_server.router.leads() if self.role_server is not None else ()
        self._workers.carry(self._router.greet(dialer.peer, self._facts(), self.process.clock_s, leads=leads))

    def _facts(self) -> Facts:
        device = self.process.machine.device
        is_hub = device is not None and device.build.is_hub
        is_browser = device is not None and device.build.is_browser
        # A hub has no engine, and a browser has only that for exported steps.
        torch, onnx = "" if is_hub or is_browser else "2", "1" if is_browser else ""
        memory_mb, browser = device.build.memory_mb if device else 0, "Chromium 156" if is_browser else ""
        host = self.process.node
        return Facts(host=host, cpus=1, memory_mb=memory_mb, torch=torch, onnx=onnx, is_hub=is_hub, browser=browser)

    def heartbeat_s(self, peer: str) -> float:
        return self._router.heartbeat_s(peer)

    def backoff_s(self, peer: str) -> float:
        return self._router.backoff_s(peer)

    def dials_again(self, dialer: SimDialer, wait_s: float) -> None:
        if dialer is self.manager_dialer and self._router.is_sent_away and not self._leaving:
            self._around.rests(self, wait_s)

    def beat(self, dialer: SimDialer) -> None:
        self._workers.carry(self._router.beat(dialer.peer, self.process.clock_s, hosts=self._is_hosting()))

    def _is_hosting(self) -> bool:
        return self.role_server is not None and not self.role_server.router.is_idle

    def beat_now(self, node: str) -> None:
        self._line(node).beat_now()

    def line_failed(self, dialer: SimDialer, reason: str) -> None:
        self._disturb(dialer.peer)
        if dialer is self.manager_dialer:
            if self._leaving:
                self._around.gone(self)
                return
            if self.role_server is not None:
                self.role_server.roles.carry(self.role_server.router.on_manager_lost(reason=reason))
        self._workers.carry(self._router.on_closed(dialer.peer, reason=reason))

    def _disturb(self, peer: str) -> None:
        """Note that a model from this leader may be in a trainer's memory only in part."""
        for worker in self._workers.workers:
            if getattr(worker.host.role, "leader", "") == peer:
                worker.worker_driver.disturbed()

    def heard(self, dialer: SimDialer, message: Message, size_bytes: int) -> None:
        event = Received(sender=dialer.peer, message=message, size_bytes=size_bytes)
        self._workers.carry(self._router.on_received(event, hosts=self._is_hosting()))
        if self.role_server is not None and dialer is self.manager_dialer and isinstance(message, Welcome):
            self.role_server.roles.carry(self.role_server.router.on_manager_reached())

    def leave(self, reason: str) -> None:
        """Say goodbye, and end once it is answered or a moment later."""
        self._leaving = True
        self._workers.carry(self._router.leave(reason))
        self.process.later(GOODBYE_TIMEOUT_S if self.connection else 0.0, self._around.gone, self)

    # The interface of the worker table -----------------------------------------------------------------

    def dial(self, node: str, endpoint: str) -> None:
        dialer = self._dialers[node] = SimDialer(self, node, endpoint)
        dialer.dial()

    def part(self, node: str, reason: str) -> None:
        self._disturb(node)
        self._dialers.pop(node).part(reason)

    def hang_up(self, node: str, reason: str) -> None:
        self._line(node).hang_up(reason)

    def tell_hosted(self, duty: ToHosted) -> None:
        if self.role_server is None:
            self.role_server = self._around.role_server(self)
        roles = self.role_server.roles
        roles.carry(roles.said_to_hosted(duty.sender, duty.message))

    def _line(self, peer: str) -> SimDialer:
        return self.manager_dialer if peer == self._manager else self._dialers[peer]

    def send(self, to: str, message: Message) -> None:
        if self._is_told:
            return
        dialer = self.manager_dialer if to == self._manager else self._dialers.get(to)
        if dialer is not None and dialer.connection is not None:
            read, size_bytes = dialer.connection.up(message)
            # The network may deliver a late copy of a message about a lease or a formation.
            if self.process.machine.copies and (getattr(message, "lease", 0) or getattr(message, "formation", 0)):
                self._around.said(self, to, read, size_bytes)

    # Workers -------------------------------------------------------------------------------------------

    def employ(self, assign: Assign) -> EmployedWorker:
        device = self.process.machine.device
        assert device is not None, f"{self.process.node} has no device to train on"
        worker_driver = SimWorkerDriver(self._around.job(assign.job), self, device, self._flaws)
        worker_driver.is_told = self._is_told
        host = Host(self.process, assign.role, assign.job, worker_driver.perform, send=self.send)
        if assign.role == "hub":
            rate, medium = device.build.told_bytes_per_s, device.build.line.medium
            host.post(LinkMeasured(up_bytes_per_s=rate, down_bytes_per_s=rate, medium=medium))
        return EmployedWorker(host, worker_driver)

    def strike(self, trouble: str) -> None:
        """The task's code fails or hangs, now or in the next lease."""
        if not any(worker.worker_driver.strike(worker.host, trouble) for worker in self._workers.workers):
            self.process.machine.troubles.append(trouble)

    def fetch(self, job: str, size_bytes: int, fetched: Callable[[bool], object]) -> None:
        """Download a job's code and data in parallel to the two streams, without delaying them."""
        if self.connection is None:
            self.process.later(0.0, fetched, False)
            return
        self.connection.download(size_bytes, fetched)

    def exhausted(self) -> None:
        self._around.exhausted(self)

    def ended(self, job: str) -> None:
        self._workers.end(job)

    # Leading, as the table of roles asks ---------------------------------------------------------------

    @property
    def slow_factor(self) -> float:
        device = self.process.machine.device
        return device.slow_factor if device is not None else 1.0

    def to_manager(self, event: Event) -> None:
        raise AssertionError("the manager is elsewhere")

    def say(self, to: str, message: Message) -> None:
        self.send(to, message)

    def set_up_leader(self, host: Host, assign: Assign) -> None:
        """The host router has asked the manager for the checkpoint."""
        assert self.role_server is not None
        self.role_server.watch()

    def resume(self, host: Host, assign: Assign, checkpoint: Checkpoint) -> None:
        assert self.role_server is not None
        version = unpacked(checkpoint)
        self.process.later(LOAD_S * self.slow_factor, self.role_server.begin, host, assign, version)

    def save(self, host: Host, job: str, save: Save) -> None:
        assert self.role_server is not None
        self.role_server.roles.carry(self.role_server.router.on_save(job, save))

    def record(self, job: str, record: Record) -> None:
        assert self.role_server is not None
        self.role_server.roles.carry(self.role_server.router.on_record(job, record))
