"""Two drivers, one behaviour: what a role was told under one driver, told again under the other, has the same effect.

Roles are recorded whole on one side and handed to the host of the other, event by event, at the recorded times. Their
actions must be equal, whatever the host does with clocks, inboxes and threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.join_code import JoinCode
from shoal.roles.actions import Action, CancelTimer, Role, Send, SetTimer
from shoal.roles.events import Event, Started
from shoal.runtime.agent import Agent
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.runtime.role_host import RoleHost
from shoal.sim.driver.role_host import Host
from shoal.sim.kernel import Do, Kernel
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import Message
from testbed.echo_job import echo_job

Told = tuple[Event, float, list[Action]]


@dataclasses.dataclass
class Recorded:
    """A role as it was before its first event, and all it was told and decided."""

    kind: str
    role: Role
    told: list[Told] = dataclasses.field(default_factory=list)


def frozen(event: Event) -> Event:
    """The same event, with arrays of its own: drivers use their memory again."""
    return copy.deepcopy(event)


def same(left: list[Action], right: list[Action]) -> None:
    """Equal, and their tensors too: messages compare without them."""
    assert left == right
    for one, other in zip(left, right, strict=True):
        for here, there in zip(arrays_of(one), arrays_of(other), strict=True):
            np.testing.assert_array_equal(here, there)


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    for owner in (value, getattr(value, "message", None)):
        yield from getattr(owner, "tensors", {}).values()


# From the simulator to the runtime -----------------------------------------------------------------------


class SimulatedRoles:
    """Every role of a simulation from its start."""

    def __init__(self) -> None:
        self.roles: list[Recorded] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        start, run = Host.start, self

        def starting(host: Host, role: Role) -> None:
            recorded = Recorded(host.kind, copy.deepcopy(role))
            run.roles.append(recorded)
            start(host, Recorder(role, recorded))

        with mock.patch.object(Host, "start", starting):
            yield


class Recorder:
    """Stands before a role and writes down what passes."""

    def __init__(self, role: Role, recorded: Recorded) -> None:
        self._role = role
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        kept = frozen(event)
        actions = self._role.handle(event, now_s)
        self._recorded.told.append((kept, now_s, copy.deepcopy(actions)))
        return actions


async def in_the_runtime(recorded: Recorded) -> list[list[Action]]:
    """Hand the recorded events to a runtime host; what it had carried out for each."""
    now_s = 0.0
    performed: list[Action] = []

    async def perform(host: RoleHost, action: Action) -> None:
        performed.append(action)

    def send(to: str, message: Message) -> None:
        performed.append(Send(to=to, message=message))

    host = Untimed(recorded.kind, perform, send=send, clock=lambda: now_s)
    assert recorded.told[0][0] == Started()
    now_s = recorded.told[0][1]
    host.start(Unmoved(copy.deepcopy(recorded.role)))
    await host.deliver(NOTHING)
    heard = [list(performed)]
    for event, at_s, _ in recorded.told[1:]:
        performed.clear()
        now_s = at_s
        await host.deliver(frozen(event))
        # Handled; the actions are carried out before the host takes another event.
        await host.deliver(NOTHING)
        heard.append(list(performed))
    await host.stop()
    return heard


class Untimed(RoleHost):
    """A host whose own timers never fire: when they did is among what was recorded."""

    def _wake(self, name: str) -> None:
        pass


class Nothing:
    """An event that no role is told of."""


class Unmoved:
    """A role that nothing does not move: a leader that is to hand over looks around at every event."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def handle(self, event: Event, now_s: float) -> list[Action]:
        return [] if event is NOTHING else self._role.handle(event, now_s)


NOTHING: Any = Nothing()


#: Seeds in which devices sum up for others.
SHAPED = (7, 8, 13)


@pytest.mark.parametrize("seed", [0, 1, 2, 5, *SHAPED])
def test_the_runtime_does_what_the_simulator_did(seed: int) -> None:
    roles = SimulatedRoles()
    with roles.recording():
        CheckedRun(case("plain", seed)).run()
    kinds = {recorded.kind for recorded in roles.roles}
    assert kinds - {"aggregator"} == {"manager", "leader", "worker"}
    assert ("aggregator" in kinds) is (seed in SHAPED)
    for recorded in roles.roles:
        performed = asyncio.run(in_the_runtime(recorded))
        for (_, _, decided), done in zip(recorded.told, performed, strict=True):
            same([action for action in decided if not isinstance(action, SetTimer | CancelTimer)], done)


# From the runtime to the simulator -----------------------------------------------------------------------


class StillProcess:
    """A process whose time stands still between the events it is given: timers that are set do not fire."""

    node = label = "replayed"

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.observers = [self]
        self.steps: list[Step] = []

    @property
    def clock_s(self) -> float:
        return self.kernel.now_s

    def later(self, delay_s: float, do: Do, *args: object) -> None:
        pass

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def mark(self, mark: Mark) -> None:
        pass


@contextlib.contextmanager
def recording_the_runtime(roles: list[Recorded]) -> Iterator[None]:
    start = RoleHost.start

    def starting(host: RoleHost, role: Role) -> None:
        recorded = Recorded(host.key.split()[0], copy.deepcopy(role))
        roles.append(recorded)
        start(host, Recorder(role, recorded))

    with mock.patch.object(RoleHost, "start", starting):
        yield


#: Shape -> the roles there are; and how slow the trainers are, for a formation takes a moment to be set up.
SHAPES = {
    "star": (["leader", "manager", "worker", "worker"], 0.0),
    "shard": (["aggregator", "aggregator", "leader", "manager", "worker", "worker"], 0.25),
}


async def real_cluster(directory: Path, shape: str) -> None:
    """A manager, a leader and two workers in this process, over real sockets, until an echo job is over."""
    ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()
    home = asyncio.create_task(run_home(ManagerOptions(home=directory / "home"), on_ready=ready.set_result))
    tasks = [home]
    try:
        line = (await asyncio.wait_for(ready, 30)).join_line
        for name in ("device-1", "device-2"):
            places = Paths(directory / name)
            (await enrol(JoinCode.parse(line), wanted=name)).save(places.node)
            options = AgentOptions(home=places.home, child_module="shoal.trainer.echo", pace_s=SHAPES[shape][1])
            agent = Agent(Enrolled.load(places.node), options)
            tasks.append(asyncio.create_task(agent.run()))
        async with Operator.open(directory / "home") as operator:
            job = echo_job(directory, values=500, batches=40)
            name = await operator.submit(job, plan={"workers_min": 2, "topology": shape})
            while (await operator.status(name)).jobs[0].state != "finished":
                await asyncio.sleep(0.05)
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.timeout(360)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_simulator_does_what_the_runtime_did(shape: str, tmp_path: Path) -> None:
    roles: list[Recorded] = []
    with recording_the_runtime(roles):
        asyncio.run(asyncio.wait_for(real_cluster(tmp_path, shape), 100))
    assert sorted(recorded.kind for recorded in roles) == SHAPES[shape][0]
    assert sum(len(recorded.told) for recorded in roles) > 150
    for recorded in roles:
        process = StillProcess()
        carried: list[Action] = []
        host = Host(
            process,
            recorded.kind,
            "",
            lambda host, action: float(bool(carried.append(action))),  # noqa: B023
            send=lambda to, message: carried.append(Send(to=to, message=message)),  # noqa: B023
        )
        for number, (event, at_s, decided) in enumerate(recorded.told):
            process.kernel.now_s = at_s
            carried.clear()
            if number == 0:
                host.start(recorded.role)
            else:
                host.post(event)
            same(process.steps[number].actions, decided)
            same(carried, [action for action in decided if not isinstance(action, SetTimer | CancelTimer)])
