"""A device between its sessions and its workers: one to the manager, one to each leader and sub-leader elsewhere.

Pure state that both drivers share, as the switchboard is for what a node hosts. It says what is to be done; a driver
does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import PeerViolation
from shoal.roles.events import Connected, Disconnected, Event, Reassigned, Received, StopRequested
from shoal.roles.liaison import CONNECT_LONGEST_S, Liaison
from shoal.wire.messages import (
    RECIPIENT,
    Assign,
    Checkpoint,
    Disband,
    Dismiss,
    Facts,
    Form,
    HeartbeatSeen,
    Leads,
    Leave,
    Message,
    OutOfReach,
    Pass,
    Release,
    Route,
    Taken,
    Values,
    Welcome,
    Work,
    clip,
)

#: How long a device waits for its goodbye to be heard.
GOODBYE_TIMEOUT_S = 1.0

#: Attempts in vain before the manager hears that a leader cannot be reached from here.
ATTEMPTS_TOLD = 3

#: It hears so again after this many more: what it made of it may not have reached us.
ATTEMPTS_TOLD_AGAIN = 10

#: No formation of a term has a number as high as this.
FORMATIONS_END = 1 << 40


@dataclass(frozen=True, slots=True)
class ToWorker:
    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class Employ:
    """Set up the worker of a job here."""

    assign: Assign


@dataclass(frozen=True, slots=True)
class Say:
    """To this peer, on the lane of the message."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Dial:
    """Hold a session to this leader or sub-leader from now on, again and again, until ``Part``."""

    node: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Part:
    """No job here is led by this node any more, in whole or in part: let go of the session, and dial it no more."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """End this session; dial again after a while."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToHosted:
    """The manager has something to say to the leaders on this node, or makes it one; or a leader to a sub-leader."""

    message: Message
    sender: str = ""


Duty = ToWorker | Employ | Say | Dial | Part | HangUp | ToHosted


class Station:
    def __init__(self, *, node: str, incarnation: str, manager: str) -> None:
        self._node = node
        self._incarnation = incarnation
        self._manager = manager
        self._liaisons = {manager: Liaison(node=node, incarnation=incarnation, peer="the manager")}
        #: Job -> the role it was given last.
        self._assigned: dict[str, Assign] = {}
        #: Job -> the newest term whose leader was said to be out of reach.
        self._complained: dict[str, int] = {}
        #: Job -> formation -> by which sub-leaders its updates go.
        self._routes: dict[str, dict[int, Route]] = {}
        #: Jobs of which this node was made a sub-leader.
        self._seconded: set[str] = set()
        #: Where each leader and sub-leader is dialled.
        self._endpoints: dict[str, str] = {}

    @property
    def incarnation(self) -> str:
        return self._incarnation

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._assigned)

    @property
    def welcomed(self) -> bool:
        """Whether the manager has welcomed this node."""
        return self._liaisons[self._manager].welcomed

    # Sessions ------------------------------------------------------------------------------------------

    def heartbeat_s(self, peer: str) -> float:
        liaison = self._liaisons.get(peer)
        return liaison.heartbeat_s if liaison is not None else 1.0

    def connect_timeout_s(self, peer: str) -> float:
        liaison = self._liaisons.get(peer)
        return liaison.connect_timeout_s() if liaison is not None else CONNECT_LONGEST_S

    def backoff_s(self, peer: str) -> float:
        liaison = self._liaisons.get(peer)
        return liaison.backoff_s() if liaison is not None else 1.0

    def opened(
        self, peer: str, facts: Facts, now_s: float, *, leads: tuple[Leads, ...] = (), lends: bool = False
    ) -> list[Duty]:
        """There is a control stream to this peer."""
        if peer not in self._liaisons:
            return [HangUp(peer, "nobody needs it any more")]
        if peer != self._manager:
            leads, lends = (), False
        return [Say(peer, self._liaisons[peer].opened(facts, now_s, leads=leads, lends=lends))]

    def closed(self, peer: str, *, reason: str = "the connection ended") -> list[Duty]:
        """The connection is over, or could not be made."""
        liaison = self._liaisons.get(peer)
        if liaison is None:
            return []
        liaison.closed(reason)
        duties: list[Duty] = [ToWorker(job, Disconnected(node=peer, reason=reason)) for job in self._served_by(peer)]
        if peer != self._manager and liaison.attempts >= ATTEMPTS_TOLD:
            again = liaison.attempts % ATTEMPTS_TOLD_AGAIN == 0
            duties += self._complain(peer, reason, again=again)
        return duties

    def _complain(self, leader: str, reason: str, *, again: bool) -> list[Duty]:
        """Once a term, and now and then: the manager may find another leader, or another job for us, or none."""
        duties: list[Duty] = []
        for job in self._led_by(leader):
            term = self._assigned[job].term
            if self.welcomed and (again or self._complained.get(job, 0) < term):
                self._complained[job] = term
                told = clip(f"{self._node} cannot reach {leader}: {reason}")
                duties.append(Say(self._manager, OutOfReach(job=job, term=term, reason=told)))
        return duties

    def beat(
        self, peer: str, now_s: float, *, load: float = 0.0, memory_free_mb: int = 0, link_bytes_per_s: float = 0.0
    ) -> list[Duty]:
        """To be called every ``heartbeat_s`` while connected. A peer that stops answering is given up."""
        liaison = self._liaisons.get(peer)
        if liaison is None:
            return []
        beat, hang_up = liaison.beat(now_s, load=load, memory_free_mb=memory_free_mb, link_bytes_per_s=link_bytes_per_s)
        duties: list[Duty] = [Say(peer, beat)] if beat is not None else []
        return [*duties, HangUp(peer, hang_up)] if hang_up else duties

    def leaving(self, reason: str) -> list[Duty]:
        """Say goodbye, so that nobody waits for us. The manager hangs up in answer."""
        leaders = [peer for peer in self._liaisons if peer != self._manager]
        return [Say(peer, Leave(reason=reason)) for peer in (*leaders, self._manager)]

    def is_led_by(self, job: str, peer: str) -> bool:
        assign = self._assigned.get(job)
        return assign is not None and assign.leader == peer

    def expects(self, message: Message, peer: str) -> bool:
        """Whether tensors may follow this message from this peer: a model from a leader, values from a sub-leader."""
        job, term = str(getattr(message, "job", "")), int(getattr(message, "term", 0))
        if job not in self._assigned or term > self._assigned[job].term:
            return False
        if isinstance(message, Values):
            return self._is_hop(job, message.formation, peer)
        return isinstance(message, Work | Form | Pass) and self.is_led_by(job, peer)

    def _led_by(self, peer: str) -> list[str]:
        return [job for job, assign in self._assigned.items() if assign.leader == peer]

    def _served_by(self, peer: str) -> list[str]:
        """The jobs that are led by this node, or in part."""
        hopping = {job for job in self._routes if any(self._is_hop(job, number, peer) for number in self._routes[job])}
        return [job for job in self._assigned if job in hopping or self._assigned[job].leader == peer]

    def _is_hop(self, job: str, formation: int, peer: str) -> bool:
        route = self._routes.get(job, {}).get(formation)
        return route is not None and any(hop.node == peer for hop in route.hops)

    # What is said to us ----------------------------------------------------------------------------------

    def received(self, event: Received) -> list[Duty]:
        message, sender = event.message, event.sender
        liaison = self._liaisons.get(sender)
        if liaison is None:
            return []
        match message:
            case Welcome():
                liaison.welcome(heartbeat_s=message.heartbeat_s, lost_after_s=message.lost_after_s)
                if sender == self._manager:
                    # It may be another process, or may not have listened then.
                    self._complained.clear()
                return [ToWorker(job, Connected(node=sender)) for job in self._served_by(sender)]
            case HeartbeatSeen():
                liaison.answered(message.seq)
                return []
            case _:
                pass
        recipient, job = RECIPIENT.get(type(message)), str(getattr(message, "job", ""))
        if isinstance(message, Taken | Values):
            is_due = job in self._assigned and message.term == self._assigned[job].term
            return [ToWorker(job, event)] if is_due and self._is_hop(job, message.formation, sender) else []
        if recipient in ("worker", "subleader"):
            # Who led it before has nothing to say to its worker any more; nor has one who leads under a term that
            # nobody gave it: the worker would hear no leader after that.
            if not self.is_led_by(job, sender) or getattr(message, "term", 0) > self._assigned[job].term:
                return []
            if recipient == "subleader":
                self._seconded.add(job)
                return [ToHosted(message, sender)]
            return self._for_worker(job, event)
        if sender != self._manager:
            raise PeerViolation(f"{type(message).__name__} is not for a leader to say", peer=sender)
        match message:
            case Assign(role="worker"):
                return self._given(message)
            case Assign() | Checkpoint() | Release():
                return [ToHosted(message)]
            case Dismiss(job=""):
                return [HangUp(sender, f"dismissed: {message.reason}")]
            case Dismiss():
                stop = ToWorker(message.job, StopRequested(reason=message.reason))
                return [stop] if message.job in self._assigned else []
            case _:
                return [ToHosted(message)]

    def ended(self, job: str) -> list[Duty]:
        """The worker of this job is done."""
        self._complained.pop(job, None)
        assign = self._assigned.pop(job, None)
        if assign is None:
            return []
        return [*self._disbanded(job, assign.term, "the job is over here"), *self._unneeded(assign.leader)]

    # Formations ------------------------------------------------------------------------------------------

    def _for_worker(self, job: str, event: Received) -> list[Duty]:
        message = event.message
        match message:
            case Route():
                return self._routed(job, message, event)
            case Disband():
                routes = self._routes.get(job, {})
                over = [routes.pop(number) for number in sorted(routes) if number <= message.formation]
                parts = [duty for node in _nodes_of(over) for duty in self._unneeded(node)]
                hosted = [ToHosted(message, event.sender)] if job in self._seconded else []
                return [ToWorker(job, event), *hosted, *parts]
            case _:
                return [ToWorker(job, event)]

    def _routed(self, job: str, route: Route, event: Received) -> list[Duty]:
        """Every sub-leader of a route is dialled, as a leader would be."""
        self._routes.setdefault(job, {})[route.formation] = route
        duties: list[Duty] = [ToWorker(job, event)]
        for hop in route.hops:
            known = self._liaisons.get(hop.node)
            if known is not None and self._endpoints.get(hop.node) == hop.endpoint:
                if known.welcomed:
                    duties.append(ToWorker(job, Connected(node=hop.node)))
                continue
            if known is not None:
                if hop.node == self._manager:
                    continue
                # It is another process now, behind another port.
                lost = Disconnected(node=hop.node, reason="it is dialled elsewhere now")
                duties += [ToWorker(each, lost) for each in self._served_by(hop.node)]
                del self._liaisons[hop.node]
                duties.append(Part(hop.node, lost.reason))
            duties += self._dial(hop.node, hop.endpoint)
        return duties

    def _dial(self, node: str, endpoint: str) -> list[Duty]:
        self._liaisons[node] = Liaison(node=self._node, incarnation=self._incarnation, peer=node)
        self._endpoints[node] = endpoint
        return [Dial(node, endpoint)]

    def _disbanded(self, job: str, term: int, reason: str) -> list[Duty]:
        """No formation of this job is left here, neither its routes nor what this node sums up for it."""
        over = list(self._routes.pop(job, {}).values())
        duties: list[Duty] = []
        if job in self._seconded:
            self._seconded.discard(job)
            duties.append(ToHosted(Disband(job=job, term=term, formation=FORMATIONS_END, reason=reason)))
        return [*duties, *(duty for node in _nodes_of(over) for duty in self._unneeded(node))]

    def _given(self, assign: Assign) -> list[Duty]:
        job, leader = assign.job, assign.leader
        before = self._assigned.get(job)
        if before is not None and before.term > assign.term:
            return []
        self._assigned[job] = assign
        duties: list[Duty] = [Employ(assign)] if before is None else []
        if before is not None and before.term < assign.term:
            duties += self._disbanded(job, before.term, "the job is led anew")
        moved = before is not None and (before.leader, before.leader_endpoint) != (leader, assign.leader_endpoint)
        if before is not None and moved:
            # A leader that is dialled elsewhere now is so for every job here.
            parted = self._led_by(leader) if before.leader == leader else [job]
            reason = "the job is led elsewhere now"
            duties += [ToWorker(each, Disconnected(node=before.leader, reason=reason)) for each in parted]
            duties += self._unneeded(before.leader, moved=before.leader == leader)
        if before is not None:
            duties.append(ToWorker(job, Reassigned(term=assign.term, leader=leader)))
        if leader not in self._liaisons:
            return [*duties, *self._dial(leader, assign.leader_endpoint)]
        if self._endpoints.get(leader, assign.leader_endpoint) != assign.leader_endpoint:
            # It was a sub-leader here and is another process now, for every job.
            del self._liaisons[leader]
            again = "it is dialled elsewhere now"
            duties += [ToWorker(each, Disconnected(node=leader, reason=again)) for each in self._served_by(leader)]
            return [*duties, Part(leader, again), *self._dial(leader, assign.leader_endpoint)]
        if self._liaisons[leader].welcomed and (before is None or moved):
            duties.append(ToWorker(job, Connected(node=leader)))
        return duties

    def _unneeded(self, leader: str, *, moved: bool = False) -> list[Duty]:
        """One elsewhere is dialled for as long as a job here is led by it, in whole or in part, and where it is."""
        if leader == self._manager or leader not in self._liaisons or (self._served_by(leader) and not moved):
            return []
        del self._liaisons[leader]
        self._endpoints.pop(leader, None)
        return [Part(leader, "no job here is led by it any more")]


def _nodes_of(routes: Iterable[Route]) -> list[str]:
    return list(dict.fromkeys(hop.node for route in routes for hop in route.hops))
