"""The manager's node between its sessions and its roles: who is alive, and which role a message is for.

Pure state that both drivers share, so that what the simulator breaks is what the devices run. It says where things go;
a driver takes them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import Misuse, PeerViolation
from shoal.roles.events import Event, Liveness, PeerChanged, Received, StopRequested
from shoal.roles.membership import Membership, Patience
from shoal.wire.lanes import Lane, lane_of
from shoal.wire.messages import (
    RECIPIENT,
    Assign,
    Dismiss,
    Finished,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Leave,
    Message,
    Progress,
    Release,
    Released,
)


@dataclass(frozen=True, slots=True)
class ToManager:
    event: Event


@dataclass(frozen=True, slots=True)
class ToLeader:
    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class ToPeer:
    """Over the session to this node. Without one nobody hears it: membership tells the roles who was lost."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class Lead:
    """Set up the leader of a job here; what is for it meanwhile waits until it is."""

    assign: Assign


@dataclass(frozen=True, slots=True)
class HangUp:
    node: str
    reason: str


Delivery = ToManager | ToLeader | ToPeer | Lead | HangUp


class Switchboard:
    def __init__(self, *, node: str, patience: Patience) -> None:
        self._node = node
        self.membership = Membership(patience)
        #: How often ``check`` is to be called.
        self.check_every_s = patience.heartbeat_s / 2
        #: The jobs led here, in the order they were given.
        self._led: dict[str, None] = {}

    def received(self, event: Received, now_s: float) -> list[Delivery]:
        """A message from a peer whose identity is proven."""
        sender, message = event.sender, event.message
        deliveries: list[Delivery] = []
        match message:
            case Hello() if message.node != sender:
                raise PeerViolation(f"says it is {message.node}", peer=sender)
            case Leave():
                # Hanging up is its sign that the goodbye was heard: it waits for this before it cuts the connection.
                left = self.membership.left(sender, reason=f"left: {message.reason}")
                return [*self._changed(left), HangUp(sender, "it said goodbye")]
            case Heartbeat():
                deliveries.append(ToPeer(sender, HeartbeatSeen(seq=message.seq)))
            case _:
                pass
        if lane_of(message) is Lane.CONTROL:
            incarnation = message.incarnation if isinstance(message, Hello) else ""
            deliveries += self._changed(self.membership.heard(sender, now_s, incarnation=incarnation))
        return [*deliveries, *self._route(event)]

    def closed(self, node: str, now_s: float, *, reason: str) -> list[Delivery]:
        """Its control session is over."""
        return self._changed(self.membership.closed(node, now_s, reason=reason))

    def expelled(self, node: str, *, reason: str) -> list[Delivery]:
        """It is a member no more: what it holds returns at once."""
        return self._changed(self.membership.left(node, reason=reason))

    def check(self, now_s: float) -> list[Delivery]:
        """Who has been silent for too long?"""
        return self._changed(self.membership.check(now_s))

    def sent(self, to: str, message: Message) -> list[Delivery]:
        """A role here has something to say."""
        if to != self._node:
            return [ToPeer(to, message)]
        match message:
            case Assign(role="leader"):
                self._led[message.job] = None
                return [Lead(message)]
            case Dismiss():
                stop = ToLeader(message.job, StopRequested(reason=message.reason))
                return [stop] if message.job in self._led else []
            case Release():
                release = ToLeader(message.job, Received(sender=self._node, message=message))
                return [release] if message.job in self._led else []
            case Progress() | Released():
                return [ToManager(Received(sender=self._node, message=message))]
            case _:
                raise Misuse(f"{type(message).__name__} from this node to itself")

    def ended(self, job: str) -> None:
        """The job is not led here any more."""
        self._led.pop(job, None)

    def _changed(self, changes: list[PeerChanged]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for change in changes:
            deliveries.append(ToManager(change))
            deliveries += [ToLeader(job, change) for job in self._led]
        return deliveries

    def _route(self, event: Received) -> list[Delivery]:
        message = event.message
        recipient = RECIPIENT.get(type(message))
        if recipient == "manager":
            return [ToManager(event)]
        if recipient != "leader":
            raise PeerViolation(f"{type(message).__name__} is not for a manager", peer=event.sender)
        if self.membership.state(event.sender) is Liveness.LOST:
            # It left, or was given up, while this was on its way: a leader would lend to a node that is gone.
            # One that is back after all is assigned its role again, and speaks then.
            return []
        job = str(getattr(message, "job", ""))
        if job not in self._led:
            return [ToPeer(event.sender, Finished(job=job, reason="this job is not led here"))]
        return [ToLeader(job, event)]
