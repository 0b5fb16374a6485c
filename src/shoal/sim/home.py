"""The simulated manager's node: one process, from its start to its end. Drives the manager and the leaders.

The twin of the runtime's home; who hears what, the switchboard decides in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from shoal.errors import Misuse
from shoal.roles.actions import Action, Answer, End, Keep, Record, Save, Send
from shoal.roles.events import Asked, Event, Received, Saved, SaveFailed
from shoal.roles.leader import Leader
from shoal.roles.manager import Manager
from shoal.roles.membership import Patience
from shoal.roles.switchboard import Delivery, HangUp, Lead, Switchboard, ToLeader, ToManager, ToPeer
from shoal.sim.connection import Connection
from shoal.sim.disk import Disk
from shoal.sim.host import Host
from shoal.sim.jobs import SimulatedJob
from shoal.sim.network import SMALL_BYTES
from shoal.sim.process import Process
from shoal.sim.turns import Turns
from shoal.wire.messages import NO_TENSORS, Assign, Message, StopJob, Submit

#: What checking and merging an update takes on a small x86 core: two passes over it.
MERGE_S_PER_BYTE = 1.5e-9

#: What reading a job's model and checkpoint takes.
LOAD_S = 0.05


class Surroundings(Protocol):
    def job(self, name: str) -> SimulatedJob: ...


class Home:
    def __init__(
        self,
        process: Process,
        around: Surroundings,
        disk: Disk,
        *,
        patience: Patience,
        turn_hold_s: float,
        upload_budget_bytes: int,
        slow_factor: float = 1.0,
    ) -> None:
        self.process = process
        self._around = around
        self._disk = disk
        self._connections: dict[str, Connection] = {}
        self._switchboard = Switchboard(node=process.node, patience=patience)
        self._turns = Turns(process.kernel, hold_s=turn_hold_s)
        self._led: dict[str, Host] = {}
        self._questions = 0
        self.slow_factor = slow_factor
        self._upload_budget_bytes = upload_budget_bytes
        self.manager = Manager(node=process.node, patience=patience, jobs=disk.stored_jobs())
        self._manager_host = Host(process, "manager", "", self._perform_manager)
        self._manager_host.start(self.manager)
        self._check()

    @property
    def connections(self) -> dict[str, Connection]:
        return self._connections

    def leader(self, job: str) -> Leader | None:
        host = self._led.get(job)
        return host.role if host is not None and isinstance(host.role, Leader) else None

    def submit(self, job: SimulatedJob) -> None:
        self._questions += 1
        self._manager_host.post(Asked(question=self._questions, message=Submit(spec=job.spec)))

    def stop(self, job: str) -> None:
        """As an operator does."""
        self._questions += 1
        self._manager_host.post(Asked(question=self._questions, message=StopJob(job=job)))

    # Peers ---------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        node = connection.agent.process.node
        older = self._connections.get(node)
        self._connections[node] = connection
        if older is not None:
            older.cut("the same node connected again")

    def closed(self, connection: Connection, reason: str) -> None:
        node = connection.agent.process.node
        if self._connections.get(node) is connection:
            del self._connections[node]
            self._carry(self._switchboard.closed(node, self.process.clock_s, reason=reason))

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None:
        self.heard(connection.agent.process.node, message, size_bytes)

    def heard(self, node: str, message: Message, size_bytes: int) -> None:
        """A message that this node sent at some time, by whatever way it came."""
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        self._carry(self._switchboard.received(event, self.process.clock_s))

    def _check(self) -> None:
        self._carry(self._switchboard.check(self.process.clock_s))
        self.process.later(self._switchboard.check_every_s, self._check)

    def _carry(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            match delivery:
                case ToManager():
                    self._manager_host.post(delivery.event)
                case ToLeader():
                    self._led[delivery.job].post(delivery.event)
                case ToPeer():
                    self._send(delivery.node, delivery.message)
                case Lead():
                    self._lead(delivery.assign)
                case HangUp():
                    connection = self._connections.get(delivery.node)
                    if connection is not None:
                        connection.cut(delivery.reason)

    def _send(self, node: str, message: Message) -> None:
        connection = self._connections.get(node)
        if connection is None:
            return
        if getattr(message, "tensors", NO_TENSORS):
            self._turns.take(functools.partial(self._send_model, connection, message))
        else:
            connection.down(message)

    def _send_model(self, connection: Connection, message: Message, left: Callable[[], object]) -> None:
        if connection.is_open and self.process.alive:
            connection.down(message, left)
        else:
            left()

    # The manager ---------------------------------------------------------------------------------------

    def _perform_manager(self, host: Host, action: Action) -> float:
        match action:
            case Send():
                self._carry(self._switchboard.sent(action.to, action.message))
            case Keep():
                return self._disk.keep(action)
            case Answer():
                self.process.mark("answered", message=action.message)
            case Record():
                pass
            case _:
                raise Misuse(f"a manager does not ask for {type(action).__name__}")
        return 0.0

    # Leaders -------------------------------------------------------------------------------------------

    def _lead(self, assign: Assign) -> None:
        host = self._led[assign.job] = Host(self.process, "leader", assign.job, self._perform_leader, self._merging_s)
        self.process.later(LOAD_S, self._begin_leading, host, assign)

    def _begin_leading(self, host: Host, assign: Assign) -> None:
        job = self._around.job(assign.job)
        leader = Leader(
            spec=assign.spec,
            layout=job.layout,
            model=job.model,
            term=assign.term,
            manager=self.process.node,
            upload_budget_bytes=self._upload_budget_bytes,
        )
        loaded = self._disk.newest(assign.job)
        if loaded is not None:
            leader.restore(tensors=loaded.tensors, state=loaded.state)
        restored = loaded.version if loaded is not None else -1
        self.process.mark("led", job=assign.job, term=assign.term, version=restored)
        host.start(leader)

    def _perform_leader(self, host: Host, action: Action) -> float:
        match action:
            case Send():
                self._carry(self._switchboard.sent(action.to, action.message))
            case Save():
                self._disk.write(host.job, action, functools.partial(self._saved, host, action.version))
            case End():
                host.ended = True
                del self._led[host.job]
                self._switchboard.ended(host.job)
            case Record():
                pass
            case _:
                raise Misuse(f"a leader does not ask for {type(action).__name__}")
        return 0.0

    def _merging_s(self, event: Event) -> float:
        size_bytes = event.size_bytes if isinstance(event, Received) else 0
        return size_bytes * MERGE_S_PER_BYTE * self.slow_factor if size_bytes > SMALL_BYTES else 0.0

    def _saved(self, host: Host, version: int, is_durable: bool) -> None:
        answer = Saved(version=version) if is_durable else SaveFailed(version=version, reason="the disk is full")
        self.process.now(host.post, answer)
