"""A device between its sessions and its workers: one session to the manager, one to each leader and aggregator.

Pure state that both drivers share, as the host router is for the roles that a node hosts. Each input returns a list of
duties in order, which a driver carries out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.errors import PeerViolation
from shoal.roles.events import Connected, Disconnected, Event, Reassigned, Received, StopRequested
from shoal.roles.node.dial_state import CONNECT_LONGEST_S, DialState
from shoal.wire.messages import (
    Assign,
    Bind,
    Dismiss,
    Facts,
    HeartbeatSeen,
    LeaderUnreachable,
    Leads,
    Leave,
    Message,
    ModelShard,
    RelayModel,
    Route,
    SetUpAggregator,
    ShardAck,
    TearDown,
    Welcome,
    Work,
    clip,
)

#: How long a device waits for the answer to its goodbye.
GOODBYE_TIMEOUT_S = 1.0

#: Failed attempts before the device reports to the manager that it cannot reach a leader.
ATTEMPTS_TOLD = 3

#: Failed attempts before the device reports it again: the manager's answer may not have arrived.
ATTEMPTS_TOLD_AGAIN = 10

#: A number above that of any formation of a term.
FORMATIONS_END = 1 << 40


@dataclass(frozen=True, slots=True)
class ToWorker:
    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class Employ:
    """Set up the worker or the hub of a job here."""

    assign: Assign


@dataclass(frozen=True, slots=True)
class Say:
    """Send to this peer, on the lane of the message."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Dial:
    """Hold a session to this leader or aggregator, and dial again whenever it ends, until ``DropSession``."""

    node: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class DropSession:
    """End the session to a node that no longer leads or aggregates for a job here, and stop dialling it."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Redial:
    """End this session, and dial again after a while."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat to this peer now: it asked for shorter intervals."""

    node: str


@dataclass(frozen=True, slots=True)
class ToHosted:
    """Pass a message to the roles on this node: from the manager to a leader, or from a leader to its aggregator."""

    message: Message
    sender: str = ""


Duty = ToWorker | Employ | Say | Dial | DropSession | Redial | Beat | ToHosted


class DeviceRouter:
    def __init__(self, *, node: str, incarnation: str, manager: str) -> None:
        self._node = node
        self._incarnation = incarnation
        self._manager = manager
        self._dial_states = {manager: DialState(node=node, incarnation=incarnation, peer="the manager")}
        #: Job -> the last role that the manager assigned.
        self._assigned: dict[str, Assign] = {}
        #: Job -> the newest term whose leader this device reported as unreachable.
        self._complained: dict[str, int] = {}
        #: Job -> formation -> the aggregators that its updates go to.
        self._routes: dict[str, dict[int, Route]] = {}
        #: Jobs for which this node is an aggregator.
        self._aggregating: set[str] = set()
        #: Where each leader and aggregator is dialled.
        self._endpoints: dict[str, str] = {}
        #: The duties that this input has decided on so far.
        self._duties: list[Duty] = []

    @property
    def node(self) -> str:
        return self._node

    @property
    def incarnation(self) -> str:
        return self._incarnation

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self._assigned)

    @property
    def welcomed(self) -> bool:
        """Whether the manager has welcomed this node."""
        return self._dial_states[self._manager].welcomed

    # Sessions ------------------------------------------------------------------------------------------

    def heartbeat_s(self, peer: str) -> float:
        dial_state = self._dial_states.get(peer)
        return dial_state.heartbeat_s if dial_state is not None else 1.0

    def connect_timeout_s(self, peer: str) -> float:
        dial_state = self._dial_states.get(peer)
        return dial_state.connect_timeout_s() if dial_state is not None else CONNECT_LONGEST_S

    @property
    def is_sent_away(self) -> bool:
        """Whether the manager said when to come again, and that time has not come."""
        return self._dial_states[self._manager].is_sent_away

    def know_manager(self, endpoint: str, managers: tuple[str, ...]) -> None:
        """Note where the manager was reached last, and where the cluster's managers are (none if it has only one)."""
        self._dial_states[self._manager].know(endpoint, managers)

    @property
    def manager_endpoint(self) -> str:
        """The address at which to dial the manager now."""
        return self._dial_states[self._manager].endpoint

    def backoff_s(self, peer: str) -> float:
        dial_state = self._dial_states.get(peer)
        return dial_state.backoff_s() if dial_state is not None else 1.0

    def greet(
        self, peer: str, facts: Facts, now_s: float, *, leads: tuple[Leads, ...] = (), lends: bool = False
    ) -> list[Duty]:
        """Greet a peer on a new control stream."""
        if peer not in self._dial_states:
            return [Redial(peer, "nobody needs it any more")]
        jobs = self.jobs
        if peer != self._manager:
            leads, lends, jobs = (), False, ()
        return [Say(peer, self._dial_states[peer].greet(facts, now_s, leads=leads, lends=lends, jobs=jobs))]

    def on_closed(self, peer: str, *, reason: str = "the connection ended") -> list[Duty]:
        """Handle a connection that ended or could not be made."""
        dial_state = self._dial_states.get(peer)
        if dial_state is None:
            return []
        dial_state.on_closed(reason)
        self._disconnect(self._served_by(peer), peer, reason)
        if peer != self._manager and dial_state.attempts >= ATTEMPTS_TOLD:
            self._complain(peer, reason, again=dial_state.attempts % ATTEMPTS_TOLD_AGAIN == 0)
        return self._take_duties()

    def _complain(self, leader: str, reason: str, *, again: bool) -> None:
        """Report an unreachable leader to the manager, once per term and now and then. The manager may answer with
        another leader or another job."""
        for job in self._led_by(leader):
            term = self._assigned[job].term
            if self.welcomed and (again or self._complained.get(job, 0) < term):
                self._complained[job] = term
                told = clip(f"{self._node} cannot reach {leader}: {reason}")
                self._do(Say(self._manager, LeaderUnreachable(job=job, term=term, reason=told)))

    def beat(
        self,
        peer: str,
        now_s: float,
        *,
        load: float = 0.0,
        memory_free_mb: int = 0,
        link_bytes_per_s: float = 0.0,
        hosts: bool = False,
        preparing: str = "",
    ) -> list[Duty]:
        """Send a heartbeat, or give up a peer that stopped answering. To be called every ``heartbeat_s`` while
        connected.

        ``hosts`` is true if a leader or an aggregator is here, or this device multiplies for others."""
        dial_state = self._dial_states.get(peer)
        if dial_state is None:
            return []
        if dial_state.is_heard() and not self._is_watched_by(peer):
            # In a shard all members have sessions to each other: heartbeats would cost as much as the values.
            return []
        beat, hang_up = dial_state.beat(
            now_s,
            load=load,
            memory_free_mb=memory_free_mb,
            link_bytes_per_s=link_bytes_per_s,
            # Only devices that work for a leader elsewhere send it heartbeats.
            is_idle=peer == self._manager and not hosts and not self._assigned,
            preparing=preparing if peer == self._manager else "",
        )
        if beat is not None:
            self._do(Say(peer, beat))
        if hang_up is not None:
            self._do(Redial(peer, hang_up))
        return self._take_duties()

    def leave(self, reason: str) -> list[Duty]:
        """Say goodbye, so that no peer waits for this device. The manager hangs up in answer."""
        leaders = [peer for peer in self._dial_states if peer != self._manager]
        return [Say(peer, Leave(reason=reason)) for peer in (*leaders, self._manager)]

    def is_led_by(self, job: str, peer: str) -> bool:
        assign = self._assigned.get(job)
        return assign is not None and assign.leader == peer

    def expects(self, message: Message, peer: str) -> bool:
        """Whether tensors may follow this message from this peer: a model or indices from a leader, values from an
        aggregator."""
        job, term = str(getattr(message, "job", "")), int(getattr(message, "term", 0))
        if job not in self._assigned or term > self._assigned[job].term:
            return False
        if isinstance(message, ModelShard):
            return self._is_hop(job, message.formation, peer)
        return isinstance(message, Work | Bind | SetUpAggregator | RelayModel) and self.is_led_by(job, peer)

    def _is_watched_by(self, peer: str) -> bool:
        """Whether the peer must notice when this node is lost. An aggregator need not: its leader notices."""
        return peer == self._manager or bool(self._led_by(peer))

    def _led_by(self, peer: str) -> list[str]:
        return [job for job, assign in self._assigned.items() if assign.leader == peer]

    def _served_by(self, peer: str) -> list[str]:
        """Return the jobs that this peer leads or aggregates for."""
        hopping = {job for job in self._routes if any(self._is_hop(job, number, peer) for number in self._routes[job])}
        return [job for job in self._assigned if job in hopping or self._assigned[job].leader == peer]

    def _is_hop(self, job: str, formation: int, peer: str) -> bool:
        route = self._routes.get(job, {}).get(formation)
        return route is not None and any(hop.node == peer for hop in route.hops)

    # Messages --------------------------------------------------------------------------------------------

    def on_received(self, event: Received, *, hosts: bool = False) -> list[Duty]:
        """Handle a message from a peer. ``hosts`` means the same as in ``beat``."""
        dial_state = self._dial_states.get(event.sender)
        if dial_state is None:
            return []
        match event.message:
            case Welcome() as welcome:
                dial_state.on_welcome(
                    heartbeat_s=welcome.heartbeat_s,
                    lost_after_s=welcome.lost_after_s,
                    redial_s=welcome.redial_s,
                    # Only the manager may say where managers are.
                    managers=welcome.managers if event.sender == self._manager else (),
                )
                self._on_welcomed(event.sender)
                if welcome.come_s and event.sender == self._manager and not hosts and not self._assigned:
                    # The manager hangs up in answer: it then knows that this device holds no lease.
                    dial_state.on_sent_away(welcome.come_s)
                    self._do(Say(event.sender, Leave(reason="there is no work", come_s=welcome.come_s)))
            case HeartbeatSeen() as seen:
                if dial_state.on_answered(seen.seq, next_s=seen.next_s):
                    self._do(Beat(event.sender))
            case ShardAck() | ModelShard() as said:
                self._on_said_by_hop(event, said)
            case _:
                self._on_order(event)
        return self._take_duties()

    def _on_welcomed(self, peer: str) -> None:
        if peer == self._manager:
            # The manager may be a new process, or may not have got the reports.
            self._complained.clear()
        for job in self._served_by(peer):
            self._do(ToWorker(job, Connected(node=peer)))

    def _on_said_by_hop(self, event: Received, said: ShardAck | ModelShard) -> None:
        assign = self._assigned.get(said.job)
        if assign is not None and said.term == assign.term and self._is_hop(said.job, said.formation, event.sender):
            self._dial_states[event.sender].on_heard()
            self._do(ToWorker(said.job, event))

    def _on_order(self, event: Received) -> None:
        """Route a message from a leader to its worker or aggregator here, or from the manager to this node."""
        message, sender = event.message, event.sender
        recipient, job = message.rule.to, str(getattr(message, "job", ""))
        if recipient in ("worker", "aggregator"):
            # A former leader must not direct its worker any longer. Nor may a leader with a term that the manager did
            # not give it: the worker would then ignore every later leader.
            if not self.is_led_by(job, sender) or getattr(message, "term", 0) > self._assigned[job].term:
                return
            if recipient == "aggregator":
                self._aggregating.add(job)
                self._do(ToHosted(message, sender))
            else:
                self._on_said_to_worker(job, event)
            return
        if sender != self._manager:
            raise PeerViolation(f"{type(message).__name__} must not come from a leader", peer=sender)
        match message:
            case Assign(role="worker" | "hub"):
                self._on_assigned(message)
            case Dismiss(job=""):
                self._on_dismiss(message)
            case Dismiss():
                if message.job in self._assigned:
                    self._do(ToWorker(message.job, StopRequested(reason=message.reason)))
            case _:
                self._do(ToHosted(message))

    def _on_dismiss(self, message: Dismiss) -> None:
        """Leave a manager that does not serve this node, or that sends it to another manager."""
        dial_state = self._dial_states[self._manager]
        if message.endpoint:
            dial_state.refer(message.endpoint)
        if message.endpoint and dial_state.welcomed:
            # The manager hangs up in answer, and then knows that this device holds no lease.
            self._do(Say(self._manager, Leave(reason=message.reason)))
        else:
            # No Leave: a manager that takes over the job meanwhile would take it that this node left.
            self._do(Redial(self._manager, f"dismissed: {message.reason}"))

    def on_worker_ended(self, job: str) -> list[Duty]:
        """End the formations of a job whose worker is done."""
        self._complained.pop(job, None)
        assign = self._assigned.pop(job, None)
        if assign is not None:
            self._tear_down(job, assign.term, "the job is over here")
            self._part_unless_needed(assign.leader)
        return self._take_duties()

    # Formations ------------------------------------------------------------------------------------------

    def _on_said_to_worker(self, job: str, event: Received) -> None:
        message = event.message
        self._do(ToWorker(job, event))
        match message:
            case Route():
                self._on_route(job, message)
            case TearDown():
                routes = self._routes.get(job, {})
                over = [routes.pop(number) for number in sorted(routes) if number <= message.formation]
                if job in self._aggregating:
                    self._do(ToHosted(message, event.sender))
                self._part_from_hops(over)
            case _:
                pass

    def _on_route(self, job: str, route: Route) -> None:
        """Dial every aggregator of a route, like a leader."""
        self._routes.setdefault(job, {})[route.formation] = route
        for hop in route.hops:
            known = self._dial_states.get(hop.node)
            if known is not None and self._endpoints.get(hop.node) == hop.endpoint:
                if known.welcomed:
                    self._do(ToWorker(job, Connected(node=hop.node)))
                continue
            if known is not None:
                if hop.node == self._manager:
                    continue
                self._part_from_old_process(hop.node)
            self._dial(hop.node, hop.endpoint)

    def _part_from_old_process(self, node: str) -> None:
        """End all sessions to a node that is now another process behind another port."""
        reason = "it is dialled elsewhere now"
        self._disconnect(self._served_by(node), node, reason)
        del self._dial_states[node]
        self._do(DropSession(node, reason))

    def _dial(self, node: str, endpoint: str) -> None:
        self._dial_states[node] = DialState(node=self._node, incarnation=self._incarnation, peer=node)
        self._endpoints[node] = endpoint
        self._do(Dial(node, endpoint))

    def _tear_down(self, job: str, term: int, reason: str) -> None:
        """End every formation of this job here: its routes, and the aggregator that this node hosts for it."""
        over = list(self._routes.pop(job, {}).values())
        if job in self._aggregating:
            self._aggregating.discard(job)
            self._do(ToHosted(TearDown(job=job, term=term, formation=FORMATIONS_END, reason=reason)))
        self._part_from_hops(over)

    def _on_assigned(self, assign: Assign) -> None:
        job, leader = assign.job, assign.leader
        before = self._assigned.get(job)
        if before is not None and before.term > assign.term:
            return
        self._assigned[job] = assign
        if before is None:
            self._do(Employ(assign))
        elif before.term < assign.term:
            self._tear_down(job, before.term, "it has a new leader")
        is_moved = before is not None and (before.leader, before.leader_endpoint) != (leader, assign.leader_endpoint)
        if before is not None and is_moved:
            # A leader with a new address has it for every job here.
            parted = self._led_by(leader) if before.leader == leader else [job]
            self._disconnect(parted, before.leader, "the job is led elsewhere now")
            self._part_unless_needed(before.leader, is_moved=before.leader == leader)
        if before is not None:
            self._do(ToWorker(job, Reassigned(term=assign.term, leader=leader)))
        if leader not in self._dial_states:
            self._dial(leader, assign.leader_endpoint)
        elif self._endpoints.get(leader, assign.leader_endpoint) != assign.leader_endpoint:
            # It was an aggregator here.
            self._part_from_old_process(leader)
            self._dial(leader, assign.leader_endpoint)
        elif self._dial_states[leader].welcomed and (before is None or is_moved):
            self._do(ToWorker(job, Connected(node=leader)))

    def _part_from_hops(self, routes: Iterable[Route]) -> None:
        for node in dict.fromkeys(hop.node for route in routes for hop in route.hops):
            self._part_unless_needed(node)

    def _part_unless_needed(self, node: str, *, is_moved: bool = False) -> None:
        """Stop dialling a node that no longer leads or aggregates for a job here, or that has a new address."""
        if node == self._manager or node not in self._dial_states or (self._served_by(node) and not is_moved):
            return
        del self._dial_states[node]
        self._endpoints.pop(node, None)
        self._do(DropSession(node, "no job here is led by it any more"))

    # Duties ----------------------------------------------------------------------------------------------

    def _disconnect(self, jobs: Iterable[str], node: str, reason: str) -> None:
        for job in jobs:
            self._do(ToWorker(job, Disconnected(node=node, reason=reason)))

    def _do(self, duty: Duty) -> None:
        self._duties.append(duty)

    def _take_duties(self) -> list[Duty]:
        """Return everything decided since the last call, in order."""
        duties, self._duties = self._duties, []
        return duties
