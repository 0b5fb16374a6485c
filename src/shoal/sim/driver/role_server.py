"""The driver of a simulated node that hosts roles: the sessions of the nodes that call it, and the hosts of its leaders
and aggregators.

The host router decides which role gets a message, and the table which host that is, as in the runtime. The manager's
node and a device store versions and reach the manager in different ways: see ``SimHostApi``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from shoal.learning.algorithm_call import AlgorithmAnswer, answered
from shoal.roles.actions import Action, AskAlgorithm, Role
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import AlgorithmAnswered, Event, Received
from shoal.roles.leader.gathering.private_sum import Normals
from shoal.roles.leader.leader import Leader
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.roles.node.doorway import LOOK_EVERY_S, Caller, Door, Knock
from shoal.roles.node.host_router import HostRouter
from shoal.roles.node.role_table import NodeApi, RoleTable
from shoal.scheduling.placement import MERGE_S_PER_BYTE
from shoal.sim.driver.connection import CalledSession
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.send_slots import SendSlots
from shoal.sim.jobs import SimulatedJob
from shoal.sim.network import SMALL_BYTES
from shoal.sim.process import Process
from shoal.wire.messages import NO_TENSORS, Assign, Message, SetUpAggregator

#: How long a node takes to read a job's model and checkpoint.
LOAD_S = 0.05

#: How long a node takes to set up an aggregator: it opens a port and reads nothing.
SECOND_S = 0.02


class SimServerApi(Protocol):
    """The interface of the world to leaders."""

    def job(self, name: str) -> SimulatedJob: ...

    def led(self, term: int, host: Host, process: Process) -> None:
        """Note that a leader begins in a process."""
        ...

    def noise_seed(self, job: str, term: int) -> int:
        """Return the seed of the noise of this job's leader."""
        ...


class SimHostApi(NodeApi[Host], Protocol):
    """The differences between the manager's node and a device, in the simulator."""

    @property
    def slow_factor(self) -> float: ...

    @property
    def endpoint(self) -> str | None:
        """The address at which workers dial it, or None if every node has it."""
        ...


class SimRoleServer:
    def __init__(
        self,
        process: Process,
        around: SimServerApi,
        node: SimHostApi,
        router: HostRouter,
        *,
        manager: str,
        turn_hold_s: float,
        upload_budget_bytes: int,
    ) -> None:
        self.process = process
        self.router = router
        self._around = around
        self._node = node
        #: Where the manager is.
        self._manager = manager
        self._upload_budget_bytes = upload_budget_bytes
        self._turns = SendSlots(process.kernel, hold_s=turn_hold_s)
        self.connections: dict[str, CalledSession] = {}
        #: Connections that wait to be let in, and the messages that came over them meanwhile.
        self._outside: dict[CalledSession, list[tuple[Message, int]]] = {}
        self._is_checking = False
        #: The leaders and aggregators here.
        self.roles: RoleTable[Host] = RoleTable(router, node, self)

    def leader(self, job: str) -> Role | None:
        """The leader of this job here, once it leads."""
        return self.roles.leader(job)

    # Sessions ------------------------------------------------------------------------------------------

    def opened(self, connection: CalledSession) -> None:
        node = connection.node
        if not self.router.admits(node):
            connection.cut(f"{node} has no business here")
            return
        caller = Caller(node=node, incarnation=connection.incarnation, address=node)
        if self.router.is_home:
            knock = self.router.doorway.knock(caller)
            self.roles.carry(self.router.on_knock(knock.caller))
            self._look(connection, knock)
        else:
            self._enter(connection, caller)

    def _look(self, connection: CalledSession, knock: Knock) -> None:
        """Let a connection in, or refuse it, once the doorway has decided."""
        door, reason = self.router.doorway.ask(knock)
        if door is Door.WAIT and connection.is_open:
            self._outside.setdefault(connection, [])
            self.process.later(LOOK_EVERY_S, self._look, connection, knock)
            return
        said = self._outside.pop(connection, [])
        if door is Door.SHUT:
            connection.cut(reason or "")
        elif connection.is_open:
            self._enter(connection, knock.caller)
            for message, size_bytes in said:
                self.received(connection, message, size_bytes)

    def _enter(self, connection: CalledSession, caller: Caller) -> None:
        node = caller.node
        older = self.connections.get(node)
        self.connections[node] = connection
        self.router.doorway.on_entered(caller)
        if older is not None:
            older.cut("the same node connected again")
        self.watch()

    def closed(self, connection: CalledSession, reason: str) -> None:
        node = connection.node
        if self.connections.get(node) is connection:
            del self.connections[node]
            self.roles.carry(self.router.on_closed(node, self.process.clock_s, reason=reason))

    def received(self, connection: CalledSession, message: Message, size_bytes: int) -> None:
        if connection in self._outside:
            # Read once the sender is let in.
            self._outside[connection].append((message, size_bytes))
            return
        self.heard(connection.node, message, size_bytes)

    def heard(self, node: str, message: Message, size_bytes: int) -> None:
        """Handle a message from this node, over its session or as a late copy."""
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        self.roles.carry(self.router.on_received(event, self.process.clock_s))

    def watch(self) -> None:
        """Look for silent nodes, as long as any node is connected or any role is hosted."""
        if not self._is_checking:
            self._is_checking = True
            self._check()

    def _check(self) -> None:
        self.roles.carry(self.router.check(self.process.clock_s))
        if self.router.is_home or self.connections or not self.router.is_idle:
            self.process.later(self.router.check_every_s, self._check)
        else:
            self._is_checking = False

    # What the table asks -------------------------------------------------------------------------------

    def post(self, node: str, message: Message) -> None:
        connection = self.connections.get(node)
        if connection is None:
            return
        if getattr(message, "tensors", NO_TENSORS):
            self._turns.take(functools.partial(self._send_model, connection, message))
        else:
            connection.down(message)

    def _send_model(self, connection: CalledSession, message: Message, left: Callable[[], object]) -> None:
        if connection.is_open and self.process.alive:
            connection.down(message, left)
        else:
            left()

    def hang_up(self, node: str, reason: str) -> None:
        connection = self.connections.get(node)
        if connection is not None:
            connection.cut(reason)

    def end(self, host: Host) -> None:
        host.ended = True

    # Leaders -------------------------------------------------------------------------------------------

    def leader_host(self, assign: Assign) -> Host:
        return Host(
            self.process, "leader", assign.job, self._perform_leader, send=self.roles.send, cost_s=self._merging_s
        )

    def _perform_leader(self, host: Host, action: Action) -> float:
        if isinstance(action, AskAlgorithm):
            host.answer(AlgorithmAnswered(number=action.number, answer=self._answer(host.job, action)))
            return 0.0
        self.roles.perform_leader(host, host.job, action)
        return 0.0

    def begin(self, host: Host, assign: Assign, version: StoredVersion | None) -> None:
        """Make a leader and start it, unless it was released meanwhile."""
        if host.ended:
            return
        job = self._around.job(assign.job)
        leader = Leader(
            spec=assign.spec,
            layout=job.layout,
            model=job.model,
            term=assign.term,
            manager=self._manager,
            upload_budget_bytes=self._upload_budget_bytes,
            normals=self._normals(assign),
        )
        if version is not None:
            leader.restore(tensors=version.tensors, state=version.state)
        restored = version.version if version is not None else -1
        self._around.led(assign.term, host, self.process)
        self.process.mark("led", job=assign.job, term=assign.term, version=restored)
        self.roles.begin(host, assign, leader, endpoint=self._node.endpoint)

    def _answer(self, job: str, asked: AskAlgorithm) -> AlgorithmAnswer:
        algorithm = self._around.job(job).algorithm
        assert algorithm is not None, "the plan names an algorithm, and the job has none"
        return answered(algorithm, asked.layout, asked.question, asked.state)

    def _normals(self, assign: Assign) -> Normals:
        """Return the random numbers for the noise of one leader, since each term is led once."""
        generator = np.random.default_rng(self._around.noise_seed(assign.job, assign.term))

        def draw(size: int) -> np.ndarray:
            drawn = generator.standard_normal(size, dtype=np.float32)
            self.process.mark("noise", job=assign.job, term=assign.term, normals=drawn)
            return drawn

        return draw

    # Aggregators ---------------------------------------------------------------------------------------

    def aggregator_host(self, form: SetUpAggregator) -> Host:
        perform = functools.partial(self._perform_aggregator, form.formation)
        return Host(self.process, "aggregator", form.job, perform, send=self.roles.send, cost_s=self._merging_s)

    def _perform_aggregator(self, formation: int, host: Host, action: Action) -> float:
        self.roles.perform_aggregator(host.job, formation, action)
        return 0.0

    def set_up_aggregator(self, host: Host, form: SetUpAggregator, leader: str) -> None:
        self.watch()
        self.process.later(SECOND_S * self._node.slow_factor, self._set_up, host, form, leader)

    def _set_up(self, host: Host, form: SetUpAggregator, leader: str) -> None:
        """Start an aggregator, unless the formation came to an end meanwhile."""
        if host.ended:
            return
        host.start(Aggregator(form, node=self.process.node, leader=leader))
        self.roles.formed(host, form, endpoint=self._node.endpoint or "")

    def _merging_s(self, event: Event) -> float:
        size_bytes = event.size_bytes if isinstance(event, Received) else 0
        return size_bytes * MERGE_S_PER_BYTE * self._node.slow_factor if size_bytes > SMALL_BYTES else 0.0
