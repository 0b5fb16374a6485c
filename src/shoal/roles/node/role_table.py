"""The leaders and aggregators that a node hosts: which of them a delivery is for, which are set up and released.

Both drivers use this table. The driver has the sockets, the tasks and the clock, and the table calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from shoal.compress.codec import Codec
from shoal.errors import Misuse
from shoal.roles.actions import Action, End, Record, Save
from shoal.roles.events import Event, Received
from shoal.roles.node.host_router import (
    Delivery,
    Drop,
    DropAggregator,
    HangUp,
    HostRouter,
    Lead,
    Resume,
    StartAggregator,
    ToAggregator,
    ToLeader,
    ToManager,
    ToPeer,
)
from shoal.roles.node.role_runner import RoleRunner
from shoal.wire.coded import bytes_max
from shoal.wire.limits import PAYLOAD_MAX_BYTES, VALUE_BYTES
from shoal.wire.messages import (
    Assign,
    Checkpoint,
    MaskSum,
    Message,
    Reduce,
    ReduceResult,
    RelayModel,
    SetUpAggregator,
    TearDown,
    Update,
    UpdateShard,
)

if TYPE_CHECKING:
    from shoal.roles.leader.leader import Leader


H = TypeVar("H", bound=RoleRunner)
_H = TypeVar("_H", bound=RoleRunner, contravariant=True)


class NodeApi(Protocol[_H]):
    """The differences between the manager's node and a device, in either driver."""

    def to_manager(self, event: Event) -> None:
        """Hand an event to the manager on this node."""
        ...

    def say(self, to: str, message: Message) -> None:
        """Send over a session that this node dialled: to the manager elsewhere, or to a leader that it works for."""
        ...

    def set_up_leader(self, host: _H, assign: Assign) -> None:
        """Read the job's checkpoint and ``begin``; or, on a device, wait for ``resume``."""
        ...

    def resume(self, host: _H, assign: Assign, checkpoint: Checkpoint) -> None:
        """Begin from this checkpoint, which the manager sent."""
        ...

    def save(self, host: _H, job: str, save: Save) -> None:
        """Make a version durable, and report the result to the host."""
        ...

    def record(self, job: str, record: Record) -> None: ...


class HostDriver(Protocol[H]):
    """The sessions and the hosts of a node."""

    def post(self, node: str, message: Message) -> None:
        """Send over the session that a node opened to this one, if there is one."""
        ...

    def hang_up(self, node: str, reason: str) -> None: ...

    def leader_host(self, assign: Assign) -> H: ...

    def aggregator_host(self, form: SetUpAggregator) -> H: ...

    def set_up_aggregator(self, host: H, form: SetUpAggregator, leader: str) -> None:
        """Start the role, listen for its members, and call ``formed``."""
        ...

    def end(self, host: H) -> None:
        """Release a host; ``ended`` is true from now on."""
        ...


@dataclass(slots=True)
class _Led(Generic[H]):
    """A job led on this node, or about to be."""

    host: H
    #: Set once it is set up.
    leader: Leader | None = None


@dataclass(frozen=True, slots=True)
class _Sub(Generic[H]):
    """An aggregator on this node."""

    host: H
    shard_max_bytes: int


class RoleTable(Generic[H]):
    def __init__(self, router: HostRouter, node_api: NodeApi[H], driver: HostDriver[H]) -> None:
        self._router = router
        self._node_api = node_api
        self._driver = driver
        #: Job -> its leader here.
        self._led: dict[str, _Led[H]] = {}
        #: (job, formation) -> the aggregator here.
        self._subs: dict[tuple[str, int], _Sub[H]] = {}

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that are led here, or about to be."""
        return tuple(self._led)

    @property
    def aggregating(self) -> tuple[str, ...]:
        """The jobs that have an aggregator here."""
        return tuple(dict.fromkeys(job for job, _ in self._subs))

    @property
    def hosts(self) -> tuple[H, ...]:
        return (*(led.host for led in self._led.values()), *(sub.host for sub in self._subs.values()))

    def leader(self, job: str) -> Leader | None:
        """The leader of this job here, once it is set up."""
        led = self._led.get(job)
        return led.leader if led is not None else None

    # Deliveries ----------------------------------------------------------------------------------------

    def reading(self, delivery: Delivery) -> tuple[H, Received] | None:
        """Return the host that reads a message, and the message, or None for every other delivery.

        A driver with real memory waits until the role has read a message, because it then reuses the memory.
        """
        match delivery:
            case ToLeader(event=Received() as event) if (led := self._led.get(delivery.job)) is not None:
                return led.host, event
            case ToAggregator(event=Received() as event):
                sub = self._subs.get((delivery.job, delivery.formation))
                return (sub.host, event) if sub is not None else None
            case _:
                return None

    def carry(self, deliveries: Iterable[Delivery]) -> None:
        """Carry out the host router's deliveries, in order."""
        for delivery in deliveries:
            match delivery:
                case ToManager():
                    self._node_api.to_manager(delivery.event)
                case ToLeader():
                    # The delivery before this one may have ended the leader.
                    if (led := self._led.get(delivery.job)) is not None:
                        led.host.post(delivery.event)
                case ToPeer():
                    self.post(delivery.node, delivery.message)
                case Lead():
                    self._lead(delivery.assign)
                case Resume():
                    self._node_api.resume(self._led[delivery.assign.job].host, delivery.assign, delivery.checkpoint)
                case Drop():
                    self._drop(delivery.job)
                case StartAggregator():
                    self._start_aggregator(delivery.form, delivery.leader)
                case ToAggregator():
                    if (sub := self._subs.get((delivery.job, delivery.formation))) is not None:
                        sub.host.post(delivery.event)
                case DropAggregator():
                    self._drop_sub(delivery.job, delivery.formation)
                case HangUp():
                    self._driver.hang_up(delivery.node, delivery.reason)

    def post(self, node: str, message: Message) -> None:
        """Send to a node: over the session that this device dialled if the message is for a manager or a leader, else
        over the session that the node opened here."""
        if not self._router.is_home and message.rule.to in ("manager", "leader"):
            self._node_api.say(node, message)
        else:
            self._driver.post(node, message)

    def said_to_hosted(self, sender: str, message: Message) -> list[Delivery]:
        """Pass on a message from the manager to this node's leaders (such as an appointment), or from a leader to its
        aggregator here."""
        if isinstance(message, SetUpAggregator | Reduce | RelayModel | TearDown):
            return self._router.on_leader_message(sender, message)
        return self._router.on_manager_message(message)

    # Roles ---------------------------------------------------------------------------------------------

    def send(self, to: str, message: Message) -> None:
        """Send a message of a role on this node."""
        self.carry(self._router.on_send(to, message))

    def perform_leader(self, host: H, job: str, action: Action) -> None:
        match action:
            case Record():
                self._node_api.record(job, action)
            case Save():
                self._node_api.save(host, job, action)
            case End():
                self._router.on_ended(job)
                self._drop(job)
            case _:
                raise Misuse(f"a leader must not ask for {type(action).__name__}")

    def perform_aggregator(self, job: str, formation: int, action: Action) -> None:
        match action:
            case Record():
                self._node_api.record(job, action)
            case End():
                self._drop_sub(job, formation)
            case _:
                raise Misuse(f"an aggregator must not ask for {type(action).__name__}")

    # Leaders -------------------------------------------------------------------------------------------

    def _lead(self, assign: Assign) -> None:
        host = self._driver.leader_host(assign)
        self._led[assign.job] = _Led(host)
        self._node_api.set_up_leader(host, assign)

    def begin(self, host: H, assign: Assign, leader: Leader, *, endpoint: str | None = None) -> None:
        """Start the leader of a job, unless its host was released meanwhile.

        ``endpoint`` is where workers dial this device. The manager's node needs none: every member has its address.
        """
        if host.ended:
            return
        self._led[assign.job].leader = leader
        host.start(leader)
        if endpoint is not None and not host.ended:
            self.carry(self._router.on_leading(assign.job, endpoint=endpoint))

    def fail(self, host: H, job: str, reason: str) -> None:
        """Report that the leader of a job could not be set up."""
        if not host.ended:
            self._drop(job)
            self.carry(self._router.on_failed(job, reason=reason))

    def _drop(self, job: str) -> None:
        led = self._led.pop(job, None)
        if led is not None:
            self._driver.end(led.host)

    # Aggregators ---------------------------------------------------------------------------------------

    def _start_aggregator(self, form: SetUpAggregator, leader: str) -> None:
        host = self._driver.aggregator_host(form)
        self._subs[form.job, form.formation] = _Sub(host, _shard_max_bytes(form))
        self._driver.set_up_aggregator(host, form, leader)

    def formed(self, host: H, form: SetUpAggregator, *, endpoint: str | None = None, reason: str | None = None) -> None:
        """Report an aggregator that its members may dial at ``endpoint``, or that could not be set up if it is None."""
        if host.ended:
            return
        if endpoint is None:
            self._drop_sub(form.job, form.formation)
        self.carry(self._router.on_aggregator_set_up(form, endpoint=endpoint, reason=reason))

    def _drop_sub(self, job: str, formation: int) -> None:
        sub = self._subs.pop((job, formation), None)
        if sub is not None:
            self._driver.end(sub.host)

    # Tensors -------------------------------------------------------------------------------------------

    def payload_limit(self, message: Message) -> int:
        """Return the most bytes of tensors that may follow this message from a worker or from an aggregator.

        A message for a leader that is not here, or not yet, may have any size: its tensors take no memory.
        """
        match message:
            case Update() | MaskSum():
                leader = self.leader(message.job)
                return leader.update_max_bytes if leader is not None else PAYLOAD_MAX_BYTES
            case ReduceResult():
                leader = self.leader(message.job)
                return leader.sum_max_bytes if leader is not None else PAYLOAD_MAX_BYTES
            case UpdateShard():
                sub = self._subs.get((message.job, message.formation))
                return sub.shard_max_bytes if sub is not None else 0
            case _:
                return 0

    def awaits_tensors(self, sender: str, message: Message) -> bool:
        """Whether a role here can use the tensors of this message. Others get no memory."""
        match message:
            case Update() | ReduceResult() | MaskSum():
                leader = self.leader(message.job)
                return leader is not None and leader.awaits(sender, message)
            case UpdateShard():
                return self._router.awaits_shard(sender, message)
            case _:
                return False


def _shard_max_bytes(form: SetUpAggregator) -> int:
    if form.sizes:
        return bytes_max(Codec.parse(form.codec), form.sizes, entries=form.entries)
    return VALUE_BYTES * (form.stop - form.start)
