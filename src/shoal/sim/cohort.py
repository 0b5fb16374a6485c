"""The devices of a large fleet as rows of arrays, as long as nothing has to be decided for them. A driver, like
``driver.agent``.

A device that is away or asleep is a row: when it wakes, when its owner needs it, how warm it is, what it has fetched,
what it sent. While it is awake and nothing unusual happens, it is a visit (``driver.visit``), without its own roles.
The manager and the leader are the deployed ones, and receive the same messages as from any device.

A row becomes a full device, with the deployed worker and router, when a fault, a refusal or an observer touches it. It
becomes a row again when it next sleeps or leaves and no effect of that is left. Only the cohort's own counts show the
difference.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np

from shoal.errors import Misuse
from shoal.sim.devices import Build, Device, DeviceRest, Presence
from shoal.sim.driver.agent import HANDSHAKE_S, SimAgent, SimWorldApi
from shoal.sim.driver.connection import Connection
from shoal.sim.driver.manager_node import SimManagerNode
from shoal.sim.driver.visit import Heir, HomeLink, Visit
from shoal.sim.jobs import SimulatedJob
from shoal.sim.kernel import Kernel
from shoal.sim.network import Network
from shoal.sim.observe import Observer
from shoal.sim.outcome import Census
from shoal.sim.process import Process, SimMachine
from shoal.sim.profiles import Fleet
from shoal.sim.rng import Rng
from shoal.sim.wire_size import WireSizer

#: Devices that wake within this time are put on the virtual clock; those that wake later wait in a list by the second.
SLOT_S = 1.0

#: The random state of a device that was never awake: it has no stream of numbers yet.
_NO_STREAM = 0


class RowState(IntEnum):
    #: No process runs there.
    AWAY = 0
    #: It is switched on, for the first time, at its time.
    DUE = 1
    #: It was told when to come again, and dials then.
    ASLEEP = 2
    #: It is a visit.
    AWAKE = 3
    #: It is a full device.
    FULL = 4


class CohortWorld(SimWorldApi, Protocol):
    """The interface of the world to a cohort."""

    kernel: Kernel
    rng: Rng
    network: Network
    observers: list[Observer]
    machines: dict[str, SimMachine]
    agents: dict[str, SimAgent | None]
    incarnations: dict[str, int]

    @property
    def home(self) -> SimManagerNode | None: ...

    @property
    def home_node(self) -> str: ...

    def start(self, name: str) -> None: ...

    def leave(self, name: str, reason: str) -> None: ...

    def mark(self, node: str, kind: str, **facts: object) -> None: ...


def why_not(job: SimulatedJob, *, hubs: int = 0) -> str | None:
    """Return why the devices of a job cannot be rows, or None if they can. Between two leases, a row keeps no more than
    the number of its examples that it has trained on, and nobody dials it.

    ``hubs`` is how many hubs there are throughout. If only these sum updates, the devices that work become full ones
    when their leader sends them their route, and the others stay rows."""
    plan = job.spec.plan
    is_tree_of_hubs = plan.topology == "tree" and 0 < plan.aggregators <= hubs
    reasons = {
        "updates meet in aggregators": plan.topology != "star" and not is_tree_of_hubs,
        "devices keep a part of each update": plan.codec != "dense" or plan.down != "dense",
        "devices have a part of the model of their own": job.local is not None and job.local.first_own is not None,
        "devices keep the state of their optimisers": plan.data == "local" and plan.inner_state == "kept",
        "shares of work are fixed": plan.work != "leased",
        "devices keep a sum of their updates": bool(plan.device_momentum),
        "updates are sealed": plan.believes.sealed is not None,
        "devices keep account of what leaves them": plan.privacy is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Cohort:
    def __init__(
        self,
        world: CohortWorld,
        builds: Sequence[Build],
        *,
        jobs: Mapping[str, SimulatedJob],
        sizer: WireSizer,
        home_link: HomeLink,
        watched: Sequence[str] = (),
    ) -> None:
        hubs = sum(builds[_row(name)].is_hub for name in watched)
        for simulated in jobs.values():
            if (reason := why_not(simulated, hubs=hubs)) is not None:
                raise Misuse(f"the devices of {simulated.spec.job} cannot be simulated as a cohort: {reason}")
        count = len(builds)
        self.kernel = world.kernel
        self.sizer = sizer
        self.home_link = home_link
        self._world = world
        self._builds = builds
        self._jobs = jobs
        #: Rows that stay full devices.
        self._watched = frozenset(_row(name) for name in watched)
        # Columns of the standard library: they are read and written a row at a time, which numpy's are slow at.
        self._state = bytearray(count)
        #: When it wakes, and when its owner next wants it, or wants it no longer.
        self._due_s = array("d", [math.inf]) * count
        self._change_s = array("d", [math.inf]) * count
        #: How many processes ran there.
        self._processes = array("l", [0]) * count
        #: ``DeviceRest``, a column each.
        self._since_s = array("d", [0.0]) * count
        self._temperature_c = array("d", [0.0]) * count
        self._spent_j = array("d", [0.0]) * count
        self._is_hot = bytearray(count)
        self._stream = array("Q", [_NO_STREAM]) * count
        self._fetched = {job: bytearray(count) for job in jobs}
        #: How many of its own examples each device has trained on, in jobs with local data.
        self._seen = {name: array("q", [0]) * count for name, job in jobs.items() if job.local is not None}
        self.bytes_up = array("q", [0]) * count
        self.bytes_down = array("q", [0]) * count
        self._awake: dict[int, Visit] = {}
        #: Second -> the rows for which something happens within it.
        self._slots: dict[int, array[int]] = {}
        self._slot = -1
        #: How often a row became a full device, and a full device a row.
        self.made_full = 0
        self.made_rows = 0

    def __len__(self) -> int:
        return len(self._builds)

    @property
    def awake(self) -> int:
        """Devices that are visits now."""
        return len(self._awake)

    @property
    def states(self) -> np.ndarray:
        """Return the state of each device, as one of ``RowState``."""
        return np.frombuffer(bytes(self._state), np.int8)

    def census(self) -> Census:
        """Count all devices by their states. A full device counts as waiting while its process runs."""
        working = sum(visit.is_working for visit in self._awake.values())
        # Every full device has an agent while its process runs, and no row has.
        full = sum(agent is not None for agent in self._world.agents.values())
        asleep = self._state.count(RowState.ASLEEP)
        waiting = len(self._awake) - working + full
        away = len(self) - working - waiting - asleep
        return Census(at_s=self.kernel.now_s, working=working, waiting=waiting, asleep=asleep, away=away)

    # Time ------------------------------------------------------------------------------------------------

    def begin(self, *, arrive_within_s: float) -> None:
        arrivals, count = self._world.rng.stream("arrival"), len(self._builds)
        at_s = np.fromiter((arrivals.between(0.0, arrive_within_s) for _ in range(count)), np.float64, count)
        for row in range(count):
            presence = self._presence(row)
            if presence is None or presence.is_present(0.0):
                self._due_s[row], self._state[row] = at_s[row], RowState.DUE
            change_s = presence.next_change_s(0.0) if presence is not None else None
            if change_s is not None:
                self._change_s[row] = change_s
        self._plan(self._due_s)
        self._plan(self._change_s)
        for row in sorted(self._watched):
            self._touch(row, "it is watched")

    def _presence(self, row: int) -> Presence | None:
        builds = self._builds
        return builds.presence(row) if isinstance(builds, Fleet) else builds[row].presence

    def _plan(self, column: array[float]) -> None:
        """Put every row that has a time into the list of its second."""
        times_s = np.array(column)
        rows = np.flatnonzero(np.isfinite(times_s))
        slots = (times_s[rows] // SLOT_S).astype(np.int64)
        order = np.argsort(slots, kind="stable")
        rows, slots = rows[order], slots[order]
        cuts = np.flatnonzero(np.diff(slots)) + 1
        for part in np.split(np.arange(len(rows)), cuts) if len(rows) else ():
            slot = int(slots[part[0]])
            self._list(slot).frombytes(rows[part].astype(np.int64).tobytes())

    def _list(self, slot: int) -> array[int]:
        rows = self._slots.get(slot)
        if rows is None:
            rows = self._slots[slot] = array("q")
            self.kernel.at(max(self.kernel.now_s, slot * SLOT_S), self._open, slot)
        return rows

    def _open(self, slot: int) -> None:
        self._slot = slot
        for row in self._slots.pop(slot):
            for times_s, do in ((self._due_s, self._wake), (self._change_s, self._change)):
                when_s = times_s[row]
                if when_s // SLOT_S == slot:
                    self.kernel.at(max(self.kernel.now_s, when_s), do, row, when_s)

    def _at(self, times_s: array[float], when_s: float, do: Callable[[int, float], None], row: int) -> None:
        times_s[row] = when_s
        slot = int(when_s // SLOT_S)
        if slot <= self._slot:
            self.kernel.at(when_s, do, row, when_s)
        else:
            self._list(slot).append(row)

    def _wake(self, row: int, when_s: float) -> None:
        if when_s != self._due_s[row]:
            # It was put off, or became a full device. Of two entries for one time the first cleared the time.
            return
        self._due_s[row] = math.inf
        if self._state[row] == RowState.DUE:
            self._state[row] = RowState.AWAY
            self._start(row)
        elif self._state[row] == RowState.ASLEEP:
            self._dial(row)

    def _change(self, row: int, when_s: float) -> None:
        """Note that a device's owner needs it, or needs it no longer."""
        if when_s != self._change_s[row]:
            return
        presence, now_s = self._presence(row), self.kernel.now_s
        assert presence is not None
        next_s = presence.next_change_s(now_s)
        self._change_s[row] = math.inf
        if next_s is not None:
            self._at(self._change_s, next_s, self._change, row)
        name = _name(row)
        if presence.is_present(now_s):
            self._world.start(name)
        elif self._state[row] == RowState.FULL:
            self._world.leave(name, "its owner needs it")
        elif self._state[row] == RowState.AWAKE:
            self._awake[row].leave("its owner needs it")
        elif self._state[row] == RowState.ASLEEP:
            self._end(row)

    # Rows ------------------------------------------------------------------------------------------------

    def is_row(self, name: str) -> bool:
        """Whether a device is not a full device now."""
        return self._state[_row(name)] != RowState.FULL

    def start(self, name: str) -> None:
        """Switch a device on that is a row, unless it runs."""
        row = _row(name)
        visit = self._awake.get(row)
        if visit is not None and visit.is_leaving:
            self.kernel.after(1.0, self._world.start, name)
        elif self._state[row] in (RowState.AWAY, RowState.DUE):
            self._due_s[row] = math.inf
            self._start(row)

    def _start(self, row: int) -> None:
        self._processes[row] += 1
        self._world.mark(_name(row), "started")
        self._dial(row)

    def _dial(self, row: int) -> None:
        world = self._world
        home, name, device = world.home, _name(row), self._device(row)
        if home is None or not world.network.is_ordinary(world.home_node):
            self._make_full(row, device, reason="it does not reach the manager", dials_in_s=0.0)
            return
        if not _is_plain(device):
            self._make_full(row, device, reason="its link is shared, or loses pieces", dials_in_s=0.0)
            return
        self._state[row] = RowState.AWAKE
        visit = self._awake[row] = Visit(
            self,
            row,
            node=name,
            incarnation=f"{name}-{self._processes[row]}",
            device=device,
            stream=world.rng.stream("visit", f"{name} {self.kernel.now_s}"),
            called=home.role_server,
        )
        self.kernel.after(HANDSHAKE_S, visit.open)

    def _device(self, row: int) -> Device:
        builds = self._builds
        build = builds.body(row) if isinstance(builds, Fleet) else builds[row]
        if self._stream[row] == _NO_STREAM:
            return Device(build, self._world.rng.stream("device", _name(row)))
        rest = DeviceRest(
            since_s=self._since_s[row],
            temperature_c=self._temperature_c[row],
            spent_j=self._spent_j[row],
            is_hot=bool(self._is_hot[row]),
            stream=self._stream[row],
        )
        return Device.rested(build, rest)

    def used(self) -> Iterator[tuple[str, Device]]:
        """Yield the name and the state of each row that was ever awake."""
        for row, state in enumerate(self._state):
            if state == RowState.AWAKE:
                yield _name(row), self._awake[row].device
            elif state != RowState.FULL and self._stream[row] != _NO_STREAM:
                yield _name(row), self._device(row)

    def _lay_down(self, row: int, device: Device, state: RowState) -> None:
        """Store a device in the arrays."""
        rest = device.at_rest(self.kernel.now_s)
        self._since_s[row], self._temperature_c[row], self._spent_j[row] = rest[:3]
        self._is_hot[row], self._stream[row] = rest.is_hot, rest.stream
        self._state[row] = state

    # What visits ask -------------------------------------------------------------------------------------

    def job(self, name: str) -> SimulatedJob:
        return self._jobs[name]

    def has_fetched(self, row: int, job: str) -> bool:
        return bool(self._fetched[job][row])

    def fetched(self, visit: Visit, job: str) -> None:
        self._fetched[job][visit.row] = True

    def seen(self, row: int, job: str) -> int:
        return self._seen[job][row] if job in self._seen else 0

    def has_seen(self, visit: Visit, job: str, examples: int) -> None:
        self._seen[job][visit.row] = examples

    def sleeps(self, visit: Visit, come_s: float) -> None:
        row = visit.row
        self._over(visit, RowState.ASLEEP)
        self._at(self._due_s, self.kernel.now_s + come_s, self._wake, row)

    def gone(self, visit: Visit) -> None:
        visit.end()
        self._over(visit, RowState.AWAY)
        self._end(visit.row)

    def _end(self, row: int) -> None:
        name = _name(row)
        self._state[row], self._due_s[row] = RowState.AWAY, math.inf
        self._world.mark(name, "left")
        self._world.mark(name, "killed")

    def _over(self, visit: Visit, state: RowState) -> None:
        row = visit.row
        del self._awake[row]
        visit.end_trainer()
        self._add_bytes(visit)
        self._lay_down(row, visit.device, state)

    def carried_late(self, visit: Visit, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        self.bytes_up[visit.row] += up_bytes
        self.bytes_down[visit.row] += down_bytes

    def _add_bytes(self, visit: Visit) -> None:
        self.bytes_up[visit.row] += visit.bytes_up
        self.bytes_down[visit.row] += visit.bytes_down

    # Full devices ----------------------------------------------------------------------------------------

    def touch(self, name: str, reason: str) -> None:
        """Make a row a full device, because something happens to it that a row cannot handle. For the manager's node,
        do so for all devices that are awake."""
        if name != self._world.home_node:
            self._touch(_row(name), reason)
            return
        for row in sorted(self._awake):
            self._touch(row, reason)

    def _touch(self, row: int, reason: str) -> None:
        state = RowState(self._state[row])
        if state is RowState.FULL:
            return
        if state is RowState.AWAKE:
            self.becomes_full(self._awake[row], reason=reason)
            return
        due_s, self._due_s[row] = self._due_s[row], math.inf
        device = self._device(row)
        if state is RowState.ASLEEP:
            self._make_full(row, device, reason=reason, dials_in_s=due_s - self.kernel.now_s)
            return
        self._machine(row, device, reason)
        self._world.agents[_name(row)] = None
        if state is RowState.DUE:
            self.kernel.at(due_s, self._world.start, _name(row))

    def _machine(self, row: int, device: Device, reason: str) -> SimMachine:
        """The machine of a full device."""
        world, name = self._world, _name(row)
        self.made_full += 1
        self._state[row] = RowState.FULL
        machine = world.machines[name] = SimMachine(name, device)
        machine.cached.update(job for job, fetched in self._fetched.items() if fetched[row])
        machine.seen.update((job, seen[row]) for job, seen in self._seen.items() if seen[row])
        world.network.attach(name, device.build.line)
        world.incarnations[name] = self._processes[row]
        world.mark(name, "full", reason=reason)
        return machine

    def _make_full(self, row: int, device: Device, *, reason: str, dials_in_s: float | None) -> SimAgent:
        world, name = self._world, _name(row)
        process = Process(self._machine(row, device, reason), self.kernel, world.observers)
        agent = world.agents[name] = SimAgent(
            process,
            world,
            manager=world.home_node,
            incarnation=f"{name}-{self._processes[row]}",
            flaws=None,
            dials_in_s=dials_in_s,
        )
        return agent

    def becomes_full(self, visit: Visit, *, reason: str) -> Connection | None:
        row, server = visit.row, visit.called
        del self._awake[row]
        self._add_bytes(visit)
        is_inside = server.connections.get(visit.node) is visit
        if not is_inside and (visit.is_open or not visit.opened_s):
            # It was not let in yet, or nobody listens: no role has seen it.
            visit.end()
            self._make_full(row, visit.device, reason=reason, dials_in_s=0.0)
            return None
        agent = self._make_full(row, visit.device, reason=reason, dials_in_s=None)
        connection = Connection(self._world.network, self.sizer, caller=agent.manager_dialer, called=server)
        worker = agent.goes_on(connection, visit.past())
        if worker is not None and visit.job is not None:
            driver = worker.worker_driver
            visit.job.heir = Heir(agent.process, worker.host, driver, driver.generation, visit.job.work)
        was_open = visit.is_open
        visit.successor = connection
        if is_inside:
            server.connections[visit.node] = connection
        if not was_open:
            connection.is_open = False
            agent.manager_dialer.closed(connection, reason)
        if visit.is_leaving:
            self._world.leave(visit.node, "its owner needs it")
        return connection

    def rests(self, agent: SimAgent, for_s: float) -> None:
        """Make a full device that was told when to come again a row, if it has no state that a row cannot hold."""
        name = agent.process.node
        if self._take_back(name, RowState.ASLEEP):
            agent.process.alive = False
            self._at(self._due_s, self.kernel.now_s + for_s, self._wake, _row(name))

    def ended(self, name: str) -> None:
        """Make a full device whose process ended a row, if it has no state that a row cannot hold."""
        self._take_back(name, RowState.AWAY)

    def _take_back(self, name: str, state: RowState) -> bool:
        row, world = _row(name), self._world
        machine = world.machines[name]
        device = machine.device
        assert device is not None
        is_touched = machine.skew_s or machine.copies or machine.troubles or device.slow_factor != 1.0
        agent = world.agents[name]
        hosts = agent is not None and agent.role_server is not None
        is_touched = is_touched or not _is_plain(device) or not world.network.is_ordinary(name)
        if row in self._watched or is_touched or hosts:
            return False
        self.made_rows += 1
        for job in machine.cached:
            self._fetched[job][row] = True
        for job, seen in machine.seen.items():
            self._seen[job][row] = seen
        self._processes[row] = world.incarnations[name]
        self._lay_down(row, device, state)
        del world.machines[name], world.agents[name]
        world.mark(name, "row")
        return True


def _is_plain(device: Device) -> bool:
    """Whether a device has its own link, on which everything arrives."""
    return not device.build.line.medium and not device.build.line.loss


def _row(name: str) -> int:
    return int(name[1:]) - 1


def _name(row: int) -> str:
    return f"w{row + 1}"
