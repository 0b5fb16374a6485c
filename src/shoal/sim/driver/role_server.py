"""What a simulated node that leads does, home or device: the sessions of its workers, and the leaders and aggregators
themselves.

Who hears what, the node's switchboard decides, as it does in the runtime. Where versions are kept and how the manager
is reached differs between home and a device: that is theirs to say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from shoal.errors import Misuse
from shoal.roles.actions import Action, End, Record, Role, Save, Send
from shoal.roles.aggregation.aggregator import Aggregator
from shoal.roles.events import Event, Received
from shoal.roles.leader.leader import Leader
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.roles.node.doorway import LOOK_EVERY_S, Caller, Door, Knock
from shoal.roles.node.host_router import (
    Delivery,
    Drop,
    DropAggregator,
    HangUp,
    HostRouter,
    Lead,
    Resume,
    Second,
    ToAggregator,
    ToLeader,
    ToManager,
    ToPeer,
)
from shoal.scheduling.placement import MERGE_S_PER_BYTE
from shoal.sim.driver.connection import Connection
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.send_slots import SendSlots
from shoal.sim.jobs import SimulatedJob
from shoal.sim.network import SMALL_BYTES
from shoal.sim.process import Process
from shoal.wire.messages import NO_TENSORS, RECIPIENT, Assign, Message

#: What reading a job's model and checkpoint takes.
LOAD_S = 0.05

#: What setting an aggregator up takes: a door is opened, nothing is read.
SECOND_S = 0.02


class SimServerApi(Protocol):
    """What leaders ask of the world."""

    def job(self, name: str) -> SimulatedJob: ...

    def led(self, term: int, host: Host, process: Process) -> None:
        """A leader begins there."""
        ...


class SimHostApi(Protocol):
    """What differs between home and a device."""

    def manage(self, event: Event) -> None:
        """For the manager on this node."""
        ...

    def say(self, to: str, message: Message) -> None:
        """Over the line that this node dialled: to the manager elsewhere, and to the leaders it works for."""
        ...

    def appointed(self, host: Host, assign: Assign) -> None:
        """A leader is to be set up here."""
        ...

    def resume(self, host: Host, delivery: Resume) -> None:
        """Where its job stands has come from elsewhere."""
        ...

    def begun(self, job: str) -> None:
        """The leader of this job is set up."""
        ...

    def save(self, host: Host, save: Save) -> None: ...

    def record(self, host: Host, record: Record) -> None: ...

    @property
    def slow_factor(self) -> float: ...

    @property
    def endpoint(self) -> str:
        """Where it is dialled."""
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
        self.connections: dict[str, Connection] = {}
        #: Those that wait to be let in, and what they said meanwhile.
        self._outside: dict[Connection, list[tuple[Message, int]]] = {}
        self._led: dict[str, Host] = {}
        #: (job, formation) -> the aggregator here.
        self._subs: dict[tuple[str, int], Host] = {}
        self._is_checking = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs led here, or about to be."""
        return tuple(self._led)

    @property
    def seconded(self) -> tuple[str, ...]:
        """The jobs of which this node sums up a share."""
        return tuple(dict.fromkeys(job for job, _ in self._subs))

    def leader(self, job: str) -> Role | None:
        """The leader of this job here, once it leads."""
        host = self._led.get(job)
        return host.role if host is not None else None

    # Sessions ------------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        node = connection.caller.process.node
        if not self.router.admits(node):
            connection.cut(f"{node} has no business here")
            return
        if self.router.is_home:
            self._look(connection, self.router.doorway.knock(_caller(connection)))
        else:
            self._enter(connection)

    def _look(self, connection: Connection, knock: Knock) -> None:
        """Let it in, or not, once that is known."""
        door, reason = self.router.doorway.ask(knock)
        if door is Door.WAIT and connection.is_open:
            self._outside.setdefault(connection, [])
            self.process.later(LOOK_EVERY_S, self._look, connection, knock)
            return
        said = self._outside.pop(connection, [])
        if door is Door.SHUT:
            connection.cut(reason or "")
        elif connection.is_open:
            self._enter(connection)
            for message, size_bytes in said:
                self.received(connection, message, size_bytes)

    def _enter(self, connection: Connection) -> None:
        node = connection.caller.process.node
        older = self.connections.get(node)
        self.connections[node] = connection
        self.router.doorway.on_entered(_caller(connection))
        if older is not None:
            older.cut("the same node connected again")
        self.watch()

    def closed(self, connection: Connection, reason: str) -> None:
        node = connection.caller.process.node
        if self.connections.get(node) is connection:
            del self.connections[node]
            self.carry(self.router.on_closed(node, self.process.clock_s, reason=reason))

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None:
        if connection in self._outside:
            # It is read once its sender is let in.
            self._outside[connection].append((message, size_bytes))
            return
        self.heard(connection.caller.process.node, message, size_bytes)

    def heard(self, node: str, message: Message, size_bytes: int) -> None:
        """A message that this node sent at some time, by whatever way it came."""
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        self.carry(self.router.on_received(event, self.process.clock_s))

    def watch(self) -> None:
        """Look after who is silent, for as long as there is anyone to look after."""
        if not self._is_checking:
            self._is_checking = True
            self._check()

    def _check(self) -> None:
        self.carry(self.router.check(self.process.clock_s))
        if self.router.is_home or self.connections or not self.router.is_idle:
            self.process.later(self.router.check_every_s, self._check)
        else:
            self._is_checking = False

    # What the switchboard wants ------------------------------------------------------------------------

    def carry(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            match delivery:
                case ToManager():
                    self._node.manage(delivery.event)
                case ToLeader():
                    host = self._led.get(delivery.job)
                    # What came just before may have ended it.
                    if host is not None:
                        host.post(delivery.event)
                case ToPeer():
                    self.send(delivery.node, delivery.message)
                case Lead():
                    self._lead(delivery.assign)
                case Resume():
                    self._node.resume(self._led[delivery.assign.job], delivery)
                case Drop():
                    self._led.pop(delivery.job).ended = True
                case Second():
                    self._second(delivery)
                case ToAggregator():
                    self._subs[delivery.job, delivery.formation].post(delivery.event)
                case DropAggregator():
                    self._subs.pop((delivery.job, delivery.formation)).ended = True
                case HangUp():
                    connection = self.connections.get(delivery.node)
                    if connection is not None:
                        connection.cut(delivery.reason)

    def send(self, node: str, message: Message) -> None:
        if not self.router.is_home and RECIPIENT.get(type(message)) in ("manager", "leader"):
            self._node.say(node, message)
            return
        connection = self.connections.get(node)
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

    # Leaders -------------------------------------------------------------------------------------------

    def _lead(self, assign: Assign) -> None:
        host = self._led[assign.job] = Host(self.process, "leader", assign.job, self._perform, self._merging_s)
        self.watch()
        self._node.appointed(host, assign)

    def begin(self, host: Host, assign: Assign, version: StoredVersion | None) -> None:
        """Set a leader up and let it start, unless that came to nothing meanwhile."""
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
        )
        if version is not None:
            leader.restore(tensors=version.tensors, state=version.state)
        restored = version.version if version is not None else -1
        self._around.led(assign.term, host, self.process)
        self.process.mark("led", job=assign.job, term=assign.term, version=restored)
        host.start(leader)
        if not host.ended:
            self._node.begun(assign.job)

    def _perform(self, host: Host, action: Action) -> float:
        if host.ended:
            # It was let go of while it spoke.
            return 0.0
        match action:
            case Send():
                self.carry(self.router.on_send(action.to, action.message))
            case Save():
                self._node.save(host, action)
            case End():
                host.ended = True
                del self._led[host.job]
                self.router.on_ended(host.job)
            case Record():
                self._node.record(host, action)
            case _:
                raise Misuse(f"a leader does not ask for {type(action).__name__}")
        return 0.0

    # Aggregators ---------------------------------------------------------------------------------------

    def _second(self, second: Second) -> None:
        form = second.form
        host = Host(self.process, "aggregator", form.job, self._perform_second, self._merging_s)
        self._subs[form.job, form.formation] = host
        self.watch()
        self.process.later(SECOND_S * self._node.slow_factor, self._seconded, host, second)

    def _seconded(self, host: Host, second: Second) -> None:
        """It is set up, unless the formation came to an end meanwhile."""
        if host.ended:
            return
        host.start(Aggregator(second.form, node=self.process.node, leader=second.leader))
        self.carry(self.router.on_seconded(second.form, endpoint=self._node.endpoint))

    def _perform_second(self, host: Host, action: Action) -> float:
        match action:
            case Send() if not host.ended:
                self.carry(self.router.on_send(action.to, action.message))
            case End():
                host.ended = True
            case Send() | Record():
                pass
            case _:
                raise Misuse(f"an aggregator does not ask for {type(action).__name__}")
        return 0.0

    def _merging_s(self, event: Event) -> float:
        size_bytes = event.size_bytes if isinstance(event, Received) else 0
        return size_bytes * MERGE_S_PER_BYTE * self._node.slow_factor if size_bytes > SMALL_BYTES else 0.0


def _caller(connection: Connection) -> Caller:
    process = connection.caller.process
    return Caller(node=process.node, incarnation=process.incarnation, address=process.node)
