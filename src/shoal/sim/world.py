"""A whole cluster under a virtual clock: the deployed roles on simulated machines, network and disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shoal.errors import Misuse
from shoal.net.shared_budget import TURN_HOLD_S
from shoal.roles.actions import Role, Save
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter
from shoal.scheduling.ledger import Applied
from shoal.sim.cohort import Cohort
from shoal.sim.devices import Build, Device
from shoal.sim.disk import SYNC_S, Disk
from shoal.sim.driver.agent import CONNECT_TIMEOUT_S, HANDSHAKE_S, SimAgent
from shoal.sim.driver.connection import Connection
from shoal.sim.driver.dialer import SimDialer
from shoal.sim.driver.manager_node import SimManagerNode
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.role_server import SimRoleServer
from shoal.sim.driver.visit import HomeLink
from shoal.sim.jobs import SimulatedJob
from shoal.sim.kernel import Kernel
from shoal.sim.managers import OneManager, WorldManagers
from shoal.sim.network import AccessLink, Network
from shoal.sim.observe import Mark, Observer, announce
from shoal.sim.process import Process, SimMachine
from shoal.sim.rng import Rng
from shoal.sim.wire_size import Weighed, WireSizer
from shoal.wire.limits import UPLOAD_BUDGET_BYTES
from shoal.wire.messages import Message

HOME = "home"

#: Seconds to start a process: the manager's, and an agent's.
HOME_START_S = 0.5
AGENT_START_S = 0.3

#: The latest arrival of a late copy of a message.
COPY_WITHIN_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a world."""

    seed: int
    builds: Sequence[Build]
    home_line: AccessLink
    jobs: Sequence[SimulatedJob]
    patience: Patience = field(default_factory=Patience)
    #: Devices start one by one over this time.
    arrive_within_s: float = 2.0
    #: How long a model's turn to be sent lasts at most. 0 to send models in parallel.
    turn_hold_s: float = TURN_HOLD_S
    #: Memory that a leader reserves for uploads.
    upload_budget_bytes: int = UPLOAD_BUDGET_BYTES
    #: Whether trainers and disks fail now and then by themselves.
    has_flaws: bool = False
    #: Seconds in which the manager's disk makes a small write durable.
    disk_sync_s: float = SYNC_S
    #: Whether devices lead jobs, and the manager's node only if none can.
    prefers_devices: bool = False
    #: After how long devices without work come again, or 0 if they stay connected.
    check_in_s: float = 0.0
    #: Whether devices for which nothing has to be decided are rows of arrays (``sim.cohort``), except watched ones.
    is_cohort: bool = False
    watched: Sequence[str] = ()


class World:
    def __init__(
        self,
        settings: Settings,
        *,
        sizer: WireSizer | None = None,
        observers: Sequence[Observer] = (),
        managers: Callable[[World], WorldManagers] = OneManager,
    ) -> None:
        """``managers`` makes those of this world."""
        if not settings.builds:
            raise Misuse("a simulation needs at least one device")
        self.settings = settings
        self.kernel = Kernel()
        self.rng = Rng(settings.seed)
        self.network = Network(self.kernel, self.rng)
        self.observers = list(observers)
        self._sizer = sizer or Weighed()
        self._jobs = {job.spec.job: job for job in settings.jobs}
        flaws = self.rng.stream("disk") if settings.has_flaws else None
        self.disk = Disk(self.kernel, flaws, sync_s=settings.disk_sync_s)
        self.disk.on_durable = self._durable
        self.disk.on_kept = self.kept
        #: Whether every job is over, by the last record. Cached, since it is checked after every event.
        self._is_over = False
        self.home_slow_factor = 1.0
        self.machines = {HOME: SimMachine(HOME)}
        self.agents: dict[str, SimAgent | None] = {}
        self.incarnations: dict[str, int] = {}
        #: Devices whose owner wants them to leave, until they have.
        self._leaving: set[str] = set()
        self._copies = self.rng.stream("copies")
        #: Job -> the newest term that anyone led it under, the leader of that term, and its process.
        self._leaders: dict[str, tuple[int, Host, Process]] = {}
        self.home_node = HOME
        self.managers = managers(self)
        self.network.attach(HOME, settings.home_line)
        self.cohort = self._as_cohort() if settings.is_cohort else None
        if self.cohort is None:
            for number, build in enumerate(settings.builds, start=1):
                self._place(f"w{number}", build)

    def _as_cohort(self) -> Cohort:
        settings = self.settings
        if settings.has_flaws or settings.prefers_devices:
            raise Misuse("a cohort is of devices that do not lead, and whose trainers do not fail by themselves")
        return Cohort(
            self,
            settings.builds,
            jobs=self._jobs,
            sizer=self._sizer,
            home_link=HomeLink(settings.home_line),
            watched=settings.watched,
        )

    @property
    def devices(self) -> int:
        """The number of devices, in any form."""
        return len(self.settings.builds)

    @property
    def home_bytes(self) -> tuple[int, int]:
        """Return the bytes that the manager's node received and sent."""
        received, sent = self.network.received_bytes(HOME), self.network.sent_bytes(HOME)
        if self.cohort is None:
            return received, sent
        link = self.cohort.home_link
        return received + link.received_bytes, sent + link.sent_bytes

    def touch(self, name: str, reason: str) -> None:
        """Make this node a full device if it is not one, because something happens to it."""
        if self.cohort is not None:
            self.cohort.touch(name, reason)

    def _place(self, name: str, build: Build) -> None:
        device = Device(build, self.rng.stream("device", name))
        self.machines[name] = SimMachine(name, device)
        self.agents[name] = None
        self.network.attach(name, build.line)

    @property
    def home(self) -> SimManagerNode | None:
        """The manager's node, or the one with the most jobs if there are several."""
        return self.managers.current()

    # Time ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start everything. Faults from second 0 are active by now."""
        self.start(HOME)
        for job in self._jobs.values():
            self.kernel.at(job.submit_s, self._submit, job)
        if self.cohort is not None:
            self.cohort.begin(arrive_within_s=self.settings.arrive_within_s)
            return
        arrivals = self.rng.stream("arrival")
        for name, machine in self.machines.items():
            if machine.device is None:
                continue
            at_s = arrivals.between(0.0, self.settings.arrive_within_s)
            if machine.device.is_present(0.0):
                self.kernel.at(at_s, self.start, name)
            self._next_presence(name)

    def run(self, *, limit_s: float, events_max: int | None = None) -> bool:
        """Let time pass until every job is over. Return False if that did not happen."""
        return self.kernel.run(lambda: self._is_over, limit_s=limit_s, events_max=events_max)

    def _durable(self, job: str, save: Save, again: tuple[Applied, ...], gone: tuple[Applied, ...]) -> None:
        self.mark(HOME, "durable", job=job, save=save, again=again, gone=gone)

    def kept(self, record: JobRecord, *, kind: str = "kept") -> None:
        """Note that a job's record is durable. ``kind`` is the kind of the mark."""
        jobs = self.disk.jobs
        self._is_over = len(jobs) == len(self._jobs) and not any(kept.is_open for kept in jobs.values())
        self.mark(HOME, kind, job=record.spec.job, state=record.state, term=record.term)

    @property
    def is_over(self) -> bool:
        """Whether every job has ended."""
        return self._is_over

    def _submit(self, job: SimulatedJob) -> None:
        """Submit a job like a person: again, until there is an answer."""
        if job.spec.job in self.disk.jobs:
            return
        home = self.managers.serving(self.managers.endpoint)
        if home is not None:
            home.process.now(home.submit, job)
        self.kernel.after(self.managers.submit_again_s, self._submit, job)

    def stop_job(self, job: str) -> None:
        """Stop a job like an operator: again, until it is over."""
        record = self.disk.jobs.get(job)
        if record is not None and record.state.is_ended:
            return
        home = self.managers.of_job(job)
        if home is not None and record is not None:
            home.process.now(home.stop, job)
        self.kernel.after(5.0, self.stop_job, job)

    def transfer(self, job: str, node: str) -> None:
        """Move a job's leader like an operator, once: to this node or, if it is empty, to the best placed one."""
        home = self.managers.of_job(job)
        if home is not None:
            home.process.now(home.transfer, job, node)

    # Who leads -----------------------------------------------------------------------------------------

    def noise_seed(self, job: str, term: int) -> int:
        return self.rng.stream("noise", f"{job} {term}").below(1 << 32)

    def led(self, term: int, host: Host, process: Process) -> None:
        known = self._leaders.get(host.job)
        if known is None or known[0] < term:
            self._leaders[host.job] = (term, host, process)

    def leader(self, job: str) -> Role | None:
        """Return the leader of the newest term, wherever it is, or None while there is none."""
        led = self._led_now(job)
        return led[0].role if led is not None else None

    def leader_at(self, node: str, job: str) -> Role | None:
        """Return the leader of this job on this node, whatever its term."""
        if node in self.managers.labels:
            home = self.managers.labelled(node)
            role_server = home.role_server if home is not None else None
        else:
            agent = self.agents.get(node)
            role_server = agent.role_server if agent is not None else None
        return role_server.leader(job) if role_server is not None else None

    def leader_node(self) -> str:
        """Return the node that leads the first job that has a leader, or home if none has."""
        for job in self._jobs:
            led = self._led_now(job)
            if led is not None:
                return led[1].node
        return HOME

    def _led_now(self, job: str) -> tuple[Host, Process] | None:
        known = self._leaders.get(job)
        if known is None or known[1].ended or not known[2].alive:
            return None
        return known[1], known[2]

    # Machines and their processes ----------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Switch a machine on and start its process, unless it runs."""
        if self.cohort is not None and name != HOME and self.cohort.is_row(name):
            self.cohort.start(name)
            return
        machine = self.machines[name]
        machine.is_on = True
        if name == HOME:
            self.managers.start()
        elif name in self._leaving:
            # It was told to leave and has not left yet, perhaps because it is stopped. It comes back after that.
            self.kernel.after(1.0, self.start, name)
        elif self.agents[name] is None:
            number = self.incarnations[name] = self.incarnations.get(name, 0) + 1
            self.mark(name, "started")
            flaws = self.rng.stream(f"flaws {number}", name) if self.settings.has_flaws else None
            process = Process(machine, self.kernel, self.observers)
            self.agents[name] = SimAgent(
                process,
                self,
                manager=HOME,
                manager_endpoint=self.managers.endpoint,
                incarnation=f"{name}-{number}",
                flaws=flaws,
            )

    def manager_process(self) -> Process:
        return Process(self.machines[HOME], self.kernel, self.observers)

    def manager_node(self, process: Process, disk: Disk) -> SimManagerNode:
        settings = self.settings
        return SimManagerNode(
            process,
            self,
            disk,
            patience=settings.patience,
            turn_hold_s=settings.turn_hold_s,
            upload_budget_bytes=settings.upload_budget_bytes,
            slow_factor=self.home_slow_factor,
            prefers_devices=settings.prefers_devices,
            check_in_s=settings.check_in_s,
        )

    def power_off(self, name: str, *, disk: str = "safe") -> None:
        """Switch a machine off without notice: others notice the silence."""
        if name == HOME:
            self.managers.power_off(disk=disk)
            return
        self.machines[name].is_on = False
        self.mark(name, "power off")
        agent = self._end_agent(name)
        device = self.machines[name].device
        if device is not None:
            device.interrupt(self.kernel.now_s)
        if agent is not None:
            for connection in agent.connections:
                connection.silence(agent.process)
            self._row_again(name)

    def kill(self, name: str) -> None:
        """End a process at once. Its machine keeps running and breaks the connections."""
        if name == HOME:
            self.managers.kill()
            return
        self.mark(name, "killed")
        agent = self._end_agent(name)
        for connection in agent.connections if agent is not None else ():
            connection.cut("the process on the other side ended")
        self._row_again(name)

    def _row_again(self, name: str) -> None:
        """Make a full device that ended a row of its cohort again, if possible."""
        if self.cohort is not None:
            self.cohort.ended(name)

    def _end_agent(self, name: str) -> SimAgent | None:
        agent = self.agents[name]
        if agent is not None:
            agent.process.alive = False
            self.agents[name] = None
            self._leaving.discard(name)
        return agent

    def leave(self, name: str, reason: str) -> None:
        agent = self.agents.get(name)
        if agent is not None:
            self._leaving.add(name)
            agent.process.now(agent.leave, reason)

    def _next_presence(self, name: str) -> None:
        device = self.machines[name].device
        assert device is not None
        change_s = device.next_change_s(self.kernel.now_s)
        if change_s is not None:
            self.kernel.at(change_s, self._presence_changed, name)

    def _presence_changed(self, name: str) -> None:
        device = self.machines[name].device
        assert device is not None
        if device.is_present(self.kernel.now_s):
            self.start(name)
        else:
            self.leave(name, "its owner needs it")
        self._next_presence(name)

    def mark(self, node: str, kind: str, **facts: object) -> None:
        announce(self.observers, Mark(self.kernel.now_s, node, kind, facts))

    # What agents and home ask --------------------------------------------------------------------------

    def job(self, name: str) -> SimulatedJob:
        return self._jobs[name]

    def job_names(self) -> tuple[str, ...]:
        return tuple(self._jobs)

    def dial(self, line: SimDialer) -> tuple[Connection | None, float]:
        if not self.machines[line.peer].is_on or not self.network.reachable(line.process.node, line.peer):
            return None, CONNECT_TIMEOUT_S
        called = self._listening(line.peer, line.endpoint)
        if called is None:
            return None, HANDSHAKE_S
        return Connection(self.network, self._sizer, caller=line, called=called), HANDSHAKE_S

    def _listening(self, node: str, endpoint: str = "") -> SimRoleServer | None:
        """Return the server that answers at an address, if there is one. A device that never led does not listen."""
        if node == HOME:
            home = self.managers.serving(endpoint)
            return home.role_server if home is not None else None
        agent = self.agents.get(node)
        if agent is None or (endpoint and endpoint != agent.endpoint):
            return None
        return agent.role_server

    def role_server(self, agent: SimAgent) -> SimRoleServer:
        settings, process = self.settings, agent.process
        return SimRoleServer(
            process,
            self,
            agent,
            HostRouter(node=process.node, patience=settings.patience, manager=HOME),
            manager=HOME,
            turn_hold_s=settings.turn_hold_s,
            upload_budget_bytes=settings.upload_budget_bytes,
        )

    def gone(self, agent: SimAgent) -> None:
        if agent.process.alive:
            self.mark(agent.process.node, "left")
            self.kill(agent.process.node)

    def exhausted(self, agent: SimAgent) -> None:
        self.mark(agent.process.node, "battery empty")
        self.kernel.after(0.0, self.power_off, agent.process.node)

    def rests(self, agent: SimAgent, for_s: float) -> None:
        if self.cohort is not None:
            self.cohort.rests(agent, for_s)

    def said(self, agent: SimAgent, to: str, message: Message, size_bytes: int) -> None:
        if self._copies.happens(agent.process.machine.copies):
            after_s = self._copies.between(0.0, COPY_WITHIN_S)
            self.kernel.after(after_s, self._say_again, agent.process.node, to, message, size_bytes)

    def _say_again(self, node: str, to: str, message: Message, size_bytes: int) -> None:
        if to == HOME:
            home = self.managers.connected(node)
            role_server = home.role_server if home is not None else None
        else:
            role_server = self._listening(to)
        if role_server is not None:
            role_server.process.now(role_server.heard, node, message, size_bytes)
