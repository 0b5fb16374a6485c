"""A node between its sessions and the roles it hosts: which peers are alive, and which role a message is for.

The manager's node has a host router for the manager and the leaders on that node, and so has every other node that
leads. It is pure state that both drivers share, so that the simulator tests the code that devices run. It decides where
messages and events go; a driver delivers them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from shoal.errors import Misuse, PeerViolation
from shoal.roles.actions import Record, Save
from shoal.roles.events import LEFT, Event, Heard, Liveness, PeerChanged, Received, Saved, SaveFailed, StopRequested
from shoal.roles.machine import Decider
from shoal.roles.node.checkpoint_transfer import packed, version_of
from shoal.roles.node.doorway import Caller, Doorway
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.roles.node.heartbeat_interval import interval_s
from shoal.wire.limits import TRACEBACK_MAX_CHARS
from shoal.wire.messages import (
    Admit,
    AggregatorReady,
    AskCheckpoint,
    Assign,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Finished,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Lane,
    LeaderUnreachable,
    Leads,
    Leave,
    LogRecord,
    Message,
    Progress,
    Ready,
    Reduce,
    RelayModel,
    Release,
    Revoke,
    SetUpAggregator,
    StepDown,
    SteppedDown,
    StopRequest,
    TearDown,
    UpdateShard,
    Welcome,
    clip,
)

_NO_BUSINESS = "no job that it works for is led here"

#: The most heartbeats of silence that two checks of peers prove, however far apart they are: this process may have
#: been stopped, or starved, in between. Managers treat silent managers the same way (``seat_watch.GAP_MAX_S``).
LATE_HEARTBEATS = 1.5

#: The heartbeats of an aggregator's members. They are rare, since in a shard all members have sessions to each other.
SELDOM = Patience(heartbeat_s=5.0, suspect_after_s=15.0, lost_after_s=25.0)


@dataclass(frozen=True, slots=True)
class ToManager:
    event: Event


@dataclass(frozen=True, slots=True)
class ToLeader:
    job: str
    event: Event


@dataclass(frozen=True, slots=True)
class ToPeer:
    """Send over the session to this node. Without one the message is lost, and the roles learn that the node is."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class Lead:
    """Set up the leader of a job here. Messages for it wait until it is set up.

    On the manager's node it resumes from the version on the disk. Elsewhere the host router asks the manager for that
    version, which comes with ``Resume``.
    """

    assign: Assign


@dataclass(frozen=True, slots=True)
class Resume:
    """Begin from this version, which the manager sent, and call ``on_leading`` or ``on_failed``."""

    assign: Assign
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Drop:
    """End the leader of this job without notice: another node leads it."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartAggregator:
    """Set up an aggregator here, listen for its members, and call ``on_aggregator_set_up``."""

    form: SetUpAggregator
    leader: str


@dataclass(frozen=True, slots=True)
class ToAggregator:
    job: str
    formation: int
    event: Event


@dataclass(frozen=True, slots=True)
class DropAggregator:
    """End the aggregator: its formation is over."""

    job: str
    formation: int


@dataclass(frozen=True, slots=True)
class HangUp:
    node: str
    reason: str


Delivery = (
    ToManager | ToLeader | ToPeer | Lead | Resume | Drop | StartAggregator | ToAggregator | DropAggregator | HangUp
)


@dataclass(frozen=True, slots=True)
class _Sub:
    """A formation in which this node sums a part of the updates."""

    term: int
    leader: str
    members: frozenset[str]


@dataclass(slots=True)
class _Led:
    """A job led here, or about to be."""

    assign: Assign
    #: Whether the version to resume from has come.
    resumed: bool = False
    #: Its announcement, once it leads.
    leads: Leads | None = None
    #: The version that the manager was asked to keep and has not confirmed.
    saving: int | None = None
    #: How many saves were sent to the manager, which answers each by its number.
    saves: int = 0

    def is_saving(self, answer: CheckpointKept | CheckpointRefused) -> bool:
        """Whether this answers the current save, and not one that ended with an earlier session."""
        return (answer.term, answer.version, answer.number) == (self.assign.term, self.saving, self.saves)


@functools.lru_cache(maxsize=4096)
def _seen(seq: int, next_s: float) -> HeartbeatSeen:
    """Return the answer to a heartbeat, cached: every node counts from one, so most answers repeat."""
    return HeartbeatSeen(seq=seq, next_s=next_s)


P = ParamSpec("P")


def _entry(
    method: Callable[Concatenate[HostRouter, P], None],
) -> Callable[Concatenate[HostRouter, P], list[Delivery]]:
    """Make a method an input of the host router that returns the deliveries it decided on, in order."""

    @functools.wraps(method)
    def enter(self: HostRouter, /, *args: P.args, **kwargs: P.kwargs) -> list[Delivery]:
        try:
            method(self, *args, **kwargs)
        finally:
            # An input that broke a rule has no effect: its deliveries are dropped.
            deliveries = self.take_actions()
        return deliveries

    return enter


class HostRouter(Decider[Delivery]):
    def __init__(self, *, node: str, patience: Patience, manager: str | None = None) -> None:
        """``manager`` is the manager's node, or None for this one."""
        super().__init__()
        self._node = node
        self._manager = manager or node
        #: Whether this is the manager's node.
        self.is_home = self._manager == node
        self._patience = patience
        self.membership = FailureDetector(patience)
        #: Lets in one of two processes of one node.
        self.doorway = Doorway(self.membership)
        #: How often the driver must call ``check``, and when it last did.
        self.check_every_s = patience.heartbeat_s / 2
        self._checked_s: float | None = None
        #: The jobs led here, in the order they were given.
        self._led: dict[str, _Led] = {}
        #: Job -> the last term it was led under here. A term is never led twice.
        self._over: dict[str, int] = {}
        #: Jobs that are led elsewhere now: the manager tells their workers where, not this node.
        self._moved: set[str] = set()
        #: Job -> the nodes that may speak to its leader. On the manager's node, every member may.
        self._admitted: dict[str, set[str]] = {}
        #: Job -> requests for work of nodes that the manager has not admitted yet.
        self._early: dict[str, dict[str, Received]] = {}
        #: Nodes that were welcomed only as members of a formation.
        self._seldom: set[str] = set()
        #: (job, formation) in which this node is an aggregator.
        self._subs: dict[tuple[str, int], _Sub] = {}
        #: Job -> the final message of its leader, which the manager must confirm before this node may forget the job.
        self._last_words: dict[str, Progress | SteppedDown] = {}
        self._in_touch = True
        #: Node -> when it was last known to have work, or given some. A node that is not here has waited for a while.
        self._busy_s: dict[str, float] = {}
        #: The intervals of nodes that work and of nodes that wait, and the number of nodes they were computed for.
        self._intervals_of = -1
        self._intervals_s = (0.0, 0.0)
        #: Heartbeats that were not passed to the manager yet: node, time and message.
        self._heard: list[tuple[str, float, Heartbeat]] = []

    @property
    def node(self) -> str:
        return self._node

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs led here."""
        return tuple(self._led)

    @property
    def is_idle(self) -> bool:
        """Whether no job is led here and the manager has confirmed every final message."""
        return not self._led and not self._subs and not self._last_words

    def leads(self) -> tuple[Leads, ...]:
        """The leaders that this node announces to the manager when it connects."""
        return tuple(led.leads for led in self._led.values() if led.leads is not None)

    def admits(self, node: str) -> bool:
        """Whether the node works for a job that is led here, in whole or in part."""
        if self._is_watched(node):
            return True
        return any(node in sub.members for (job, _), sub in self._subs.items() if self._is_led(job, sub))

    def _is_led(self, job: str, sub: _Sub) -> bool:
        """Whether the leader of a formation may still lead it. One that was here and has ended does not: members that
        kept their session only for the aggregator would never ask where their leader is."""
        return sub.leader != self._node or job in self._led

    def _is_watched(self, node: str) -> bool:
        """Whether a role here must notice when the node is lost. Their leader watches the members of a formation."""
        return self.is_home or any(node in nodes for nodes in self._admitted.values())

    # Peers ---------------------------------------------------------------------------------------------

    @_entry
    def on_received(self, event: Received, now_s: float) -> None:
        """Handle a message from a peer whose identity is proven."""
        self.now_s = now_s
        sender, message = event.sender, event.message
        if type(message) is Heartbeat and self.is_home:
            self._on_heartbeat(sender, message)
            return
        match message:
            case Hello() if message.node != sender:
                raise PeerViolation(f"Hello.node is {message.node}; its certificate is for {sender}", peer=sender)
            case Leave():
                if message.come_s and self.is_home:
                    self._report(self.membership.on_rests(sender, now_s, come_s=message.come_s))
                else:
                    self._expel(sender, f"{LEFT}{message.reason}")
                # Hanging up confirms the goodbye: the peer waits for it before it disconnects.
                self.act(HangUp(sender, "it said goodbye"))
                return
            case Heartbeat() if not self.admits(sender):
                # Its job is led elsewhere now, or is over. Without this session it asks the manager where to go.
                self._expel(sender, _NO_BUSINESS)
                self.act(HangUp(sender, _NO_BUSINESS))
                return
            case Heartbeat():
                self.act(ToPeer(sender, HeartbeatSeen(seq=message.seq)))
            case _:
                pass
        if message.rule.lane is Lane.CONTROL and self._is_watched(sender):
            incarnation = (message.incarnation or None) if isinstance(message, Hello) else None
            self._report(self.membership.on_heard(sender, now_s, incarnation=incarnation))
        if isinstance(message, Hello) and self.is_home:
            # It will be welcomed, and sends heartbeats at the welcome's interval until it is told another.
            self._busy_s[sender] = now_s
            self.membership.expect(sender, self._patience.heartbeat_s, now_s)
        self._route(event)

    def _on_heartbeat(self, sender: str, beat: Heartbeat) -> None:
        """Answer a heartbeat at the manager's node with the interval for the next ones."""
        now_s, members = self.now_s, self.membership
        every_s = self._wanted_s(sender, is_idle=beat.is_idle)
        self._actions.append(ToPeer(sender, _seen(beat.seq, every_s)))
        changes = members.on_heard(sender, now_s)
        members.expect(sender, every_s, now_s)
        if changes:
            self._report(changes)
        # Passed to the manager in batches: the values in a heartbeat can wait for a moment.
        self._heard.append((sender, now_s, beat))

    def _wanted_s(self, node: str, *, is_idle: bool) -> float:
        """Return the interval of heartbeats for a node. A node without work gets a longer one only after a while: a
        message about its work may be under way, in either direction."""
        if not is_idle:
            self._busy_s[node] = self.now_s
        elif (busy_s := self._busy_s.get(node)) is not None and self.now_s - busy_s > self._patience.lost_after_s:
            del self._busy_s[node]
        return self._interval_s(is_idle=node not in self._busy_s)

    def _interval_s(self, *, is_idle: bool) -> float:
        devices = self.membership.present
        if devices != self._intervals_of:
            waiting_s = interval_s(self._patience, devices=devices, is_idle=True)
            working_s = interval_s(self._patience, devices=devices, is_idle=False)
            self._intervals_of, self._intervals_s = devices, (working_s, waiting_s)
        return self._intervals_s[is_idle]

    def _hurry(self, node: str) -> None:
        """Ask a node for a heartbeat at once, and then at the interval of nodes that work."""
        self._busy_s[node] = self.now_s
        every_s = self._interval_s(is_idle=False)
        if self.membership.every_s(node) > every_s:
            self.membership.expect(node, every_s, self.now_s)
            self.act(ToPeer(node, _seen(0, every_s)))

    @_entry
    def on_knock(self, caller: Caller) -> None:
        """Ask the connected process of this name, if there is one, for a sign of life: another wants to connect."""
        if self.is_home and self.doorway.is_taken(caller):
            self._hurry(caller.node)

    @_entry
    def on_closed(self, node: str, now_s: float, *, reason: str) -> None:
        """Note that the control session of a node ended."""
        self.now_s = now_s
        self._report(self.membership.on_closed(node, now_s, reason=reason))

    @_entry
    def on_expelled(self, node: str, *, reason: str) -> None:
        """Give up a member that an operator revoked: its leases return at once."""
        self._expel(node, reason)

    def _expel(self, node: str, reason: str) -> None:
        self._report(self.membership.on_left(node, reason=reason))

    @_entry
    def check(self, now_s: float) -> None:
        """Find nodes that have been silent for too long."""
        self.now_s = now_s
        if self._checked_s is not None:
            held_up_s = now_s - self._checked_s - LATE_HEARTBEATS * self._patience.heartbeat_s
            if held_up_s > 0:
                self.membership.pass_over(held_up_s, now_s)
        self._checked_s = now_s
        changes = self.membership.check(now_s)
        self._tell_heard()
        self._report(changes)
        if self.is_home:
            # The manager assigns a node that was lost its role again when it comes back.
            return
        # Here a lost node has to send a hello again.
        self.act(*(HangUp(change.node, change.reason) for change in changes if change.state is Liveness.LOST))

    def _report(self, changes: list[PeerChanged]) -> None:
        """Tell every role here which nodes are alive, suspect or lost now."""
        for change in changes:
            if self.is_home:
                self._tell_manager(change)
            if change.state is Liveness.DORMANT:
                # A dormant node works for no leader, so leaders treat it as lost.
                change = PeerChanged(node=change.node, state=Liveness.LOST, reason=change.reason)
            for job in self._led:
                self.act(ToLeader(job, change))

    def _tell_manager(self, event: Event) -> None:
        """Pass an event to the manager, after the heartbeats before it. The order matters: the manager checks which
        nodes sent something since a leader fell silent, or since their leader released them."""
        self._tell_heard()
        self.act(ToManager(event))

    def _tell_heard(self) -> None:
        if self._heard:
            heard, self._heard = tuple(self._heard), []
            self.act(ToManager(Heard(beats=heard)))

    def _route(self, event: Received) -> None:
        """Deliver a message from a peer to the role that it is for."""
        message, sender = event.message, event.sender
        recipient = message.rule.to
        if recipient == "manager":
            self._route_to_manager(event)
            return
        if isinstance(message, UpdateShard):
            if self.awaits_shard(sender, message):
                self.act(ToAggregator(message.job, message.formation, event))
            return
        if recipient != "leader":
            raise PeerViolation(f"{type(message).__name__} is not for this node", peer=sender)
        if self.membership.state(sender).is_gone:
            # The sender left, or was given up, while this was on its way: a leader would lease to a lost node. A node
            # that comes back is assigned its role again, and sends again then.
            return
        job = str(getattr(message, "job", ""))
        if job in self._moved:
            self._misdirected(event, job)
        elif job not in self._led:
            self.act(ToPeer(sender, Finished(job=job, reason="this job is not led here")))
        elif self.is_home or sender in self._admitted.get(job, ()):
            self.act(ToLeader(job, event))
        elif isinstance(message, Ready) and self.admits(sender):
            self._early.setdefault(job, {})[sender] = event

    def awaits_shard(self, sender: str, shard: UpdateShard) -> bool:
        """Whether an aggregator here waits for this member's shard."""
        sub = self._subs.get((shard.job, shard.formation))
        return sub is not None and sub.term == shard.term and sender in sub.members

    def _misdirected(self, event: Received, job: str) -> None:
        """Handle a message for a leader that was here. The worker gets, or already got, the new leader's address. If it
        was disconnected when its job ended, the manager answers it."""
        if not self.is_home:
            return
        term = int(getattr(event.message, "term", 0))
        asks = LeaderUnreachable(job=job, term=term, reason="its leader is not here any more")
        self._tell_manager(Received(sender=event.sender, message=asks))

    def _route_to_manager(self, event: Received) -> None:
        if self.is_home:
            self._tell_manager(event)
            return
        match event.message:
            case Hello():
                patience = self._patience if self._is_watched(event.sender) else SELDOM
                self._seldom.discard(event.sender)
                if patience is SELDOM:
                    self._seldom.add(event.sender)
                welcome = Welcome(heartbeat_s=patience.heartbeat_s, lost_after_s=patience.lost_after_s)
                self.act(ToPeer(event.sender, welcome))
            case Heartbeat():
                pass
            case _:
                raise PeerViolation(f"{type(event.message).__name__} must go to the manager", peer=event.sender)

    # Messages from the manager to leaders here -----------------------------------------------------------

    @_entry
    def on_manager_message(self, message: Message) -> None:
        """Handle a message from the manager to a leader on this node."""
        self._on_manager_message(message)

    def _on_manager_message(self, message: Message) -> None:
        match message:
            case Assign(role="leader"):
                self._on_assign(message)
            case Checkpoint():
                self._on_checkpoint(message)
            case StepDown():
                self._on_step_down(message)
            case Admit():
                self._on_admit(message)
            case Revoke():
                self._on_revoke(message)
            case _:
                led = self._led.get(str(getattr(message, "job", "")))
                if led is not None:
                    self._on_request(led, message)

    def _on_request(self, led: _Led, message: Message) -> None:
        """Handle the manager's request to a leader here, or its answer."""
        job = led.assign.job
        match message:
            case StopRequest():
                self.act(ToLeader(job, StopRequested(reason=message.reason, is_failure=message.failed)))
            case CheckpointKept() if led.is_saving(message):
                led.saving = None
                self.act(ToLeader(job, Saved(version=message.version)))
            case CheckpointRefused() if led.is_saving(message):
                led.saving = None
                self.act(ToLeader(job, SaveFailed(version=message.version, reason=message.reason)))
            case HandOver() | Release():
                self.act(ToLeader(job, Received(sender=self._manager, message=message)))
            case _:
                pass

    def _on_assign(self, assign: Assign) -> None:
        """Begin to lead a job."""
        job, led = assign.job, self._led.get(assign.job)
        if led is not None and led.assign.term >= assign.term:
            return
        spoken = self._last_words.get(job)
        if spoken is not None and spoken.term >= assign.term:
            # The manager may not have got the final message of this term.
            self.act(ToPeer(self._manager, spoken))
            return
        if self._over.get(job, 0) >= assign.term:
            self._say_last(SteppedDown(job=job, term=assign.term, reason="it led under this term before"))
            return
        if led is not None:
            self._drop(job, "it leads under a new term")
        self._led[job] = _Led(assign)
        # The final message of an older term is obsolete: the manager has given out this term.
        self._last_words.pop(job, None)
        self._moved.discard(job)
        self.act(Lead(assign))
        self._ask_checkpoint(job)

    def _ask_checkpoint(self, job: str) -> None:
        """Ask the manager for the version to resume from. On the manager's node, the disk has it."""
        led = self._led[job]
        if not self.is_home and not led.resumed:
            self.act(ToPeer(self._manager, AskCheckpoint(job=job, term=led.assign.term)))

    def _on_checkpoint(self, checkpoint: Checkpoint) -> None:
        led = self._led.get(checkpoint.job)
        if led is None or led.resumed or led.assign.term != checkpoint.term:
            return
        led.resumed = True
        self.act(Resume(led.assign, checkpoint))

    def _on_step_down(self, message: StepDown) -> None:
        job = message.job
        spoken = self._last_words.get(job)
        if spoken is not None and spoken.term <= message.term:
            del self._last_words[job]
        led = self._led.get(job)
        if led is not None and led.assign.term <= message.term:
            self._drop(job, message.reason)

    def _drop(self, job: str, reason: str) -> None:
        self.on_ended(job)
        self._moved.add(job)
        self.act(Drop(job, reason))

    def _on_admit(self, message: Admit) -> None:
        """Admit the nodes that the manager lists to the leader of a job here."""
        led = self._led.get(message.job)
        if led is None or led.assign.term != message.term:
            return
        admitted = self._admitted.setdefault(message.job, set())
        gone = sorted(admitted - set(message.nodes)) if message.anew else []
        for node in gone:
            self._on_revoke(
                Revoke(job=message.job, term=message.term, node=node, reason="it does not work there any longer")
            )
        # Nodes with a long heartbeat interval connect again, and get a shorter one.
        again = [node for node in message.nodes if node in self._seldom]
        self._seldom.difference_update(again)
        self.act(*(HangUp(node, "it works for a leader here now") for node in again))
        admitted.update(message.nodes)
        early = self._early.get(message.job, {})
        events = [early.pop(node) for node in message.nodes if node in early]
        alive = [event for event in events if not self.membership.state(event.sender).is_gone]
        self.act(*(ToLeader(message.job, event) for event in alive))

    def _on_revoke(self, message: Revoke) -> None:
        """Have the leader here release a worker that the manager gave up."""
        job, node = message.job, message.node
        led = self._led.get(job)
        if led is None or led.assign.term != message.term:
            return
        self._admitted.get(job, set()).discard(node)
        self._early.get(job, {}).pop(node, None)
        if self.admits(node):
            self.act(ToLeader(job, PeerChanged(node=node, state=Liveness.LOST, reason=message.reason)))
            return
        self._expel(node, message.reason)
        self.act(HangUp(node, message.reason))

    # Messages from a leader to aggregators here ----------------------------------------------------------

    @_entry
    def on_leader_message(self, leader: str, message: Message) -> None:
        """Handle a message from the leader of a job that this node works for to its aggregator here."""
        match message:
            case SetUpAggregator():
                self._on_set_up_aggregator(leader, message)
            case TearDown():
                over = [key for key, sub in self._subs.items() if key[0] == message.job and sub.term <= message.term]
                for key in over:
                    if key[1] <= message.formation:
                        self._drop_sub(key)
            case Reduce() | RelayModel():
                sub = self._subs.get((message.job, message.formation))
                if sub is not None and (sub.leader, sub.term) == (leader, message.term):
                    event = Received(sender=leader, message=message)
                    self.act(ToAggregator(message.job, message.formation, event))
            case _:
                pass

    def _on_set_up_aggregator(self, leader: str, form: SetUpAggregator) -> None:
        key = (form.job, form.formation)
        known = self._subs.get(key)
        if known is not None and known.term > form.term:
            return
        # A formation of an older term belongs to a leader that has ended, whatever its number.
        for old in [old for old, sub in self._subs.items() if old[0] == form.job and sub.term < form.term]:
            self._drop_sub(old)
        self._subs[key] = _Sub(form.term, leader, frozenset(form.members))
        if known is not None and known.term == form.term:
            self.act(ToAggregator(*key, Received(sender=leader, message=form)))
        else:
            self.act(StartAggregator(form, leader))

    def _drop_sub(self, key: tuple[str, int]) -> None:
        del self._subs[key]
        self.act(DropAggregator(*key))

    @_entry
    def on_aggregator_set_up(
        self, form: SetUpAggregator, *, endpoint: str | None = None, reason: str | None = None
    ) -> None:
        """Report to the leader that an aggregator is set up at this endpoint, or that it failed if there is none."""
        key = (form.job, form.formation)
        sub = self._subs.get(key)
        if sub is None or sub.term != form.term:
            return
        if endpoint is None:
            del self._subs[key]
        formed = AggregatorReady(
            job=form.job,
            term=form.term,
            formation=form.formation,
            endpoint=endpoint or "",
            reason=clip(reason or ""),
        )
        self.act(ToPeer(sub.leader, formed))

    # The session to the manager's node ---------------------------------------------------------------------

    @_entry
    def on_manager_reached(self) -> None:
        """Repeat everything that the manager may not have got, when it welcomes this node (again)."""
        was_in_touch, self._in_touch = self._in_touch, True
        self.act(*(ToPeer(self._manager, word) for word in self._last_words.values()))
        for job in self._led:
            self._ask_checkpoint(job)
        if not was_in_touch:
            back = PeerChanged(node=self._manager, state=Liveness.ALIVE, reason="the manager is in reach")
            self.act(*(ToLeader(job, back) for job in self._led))

    @_entry
    def on_manager_lost(self, *, reason: str) -> None:
        """Note that the session to the manager ended: a version that it should keep may not have arrived."""
        was_in_touch, self._in_touch = self._in_touch, False
        for job, led in self._led.items():
            if was_in_touch:
                self.act(ToLeader(job, PeerChanged(node=self._manager, state=Liveness.LOST, reason=reason)))
            if led.saving is not None:
                self.act(ToLeader(job, SaveFailed(version=led.saving, reason=reason)))
                led.saving = None

    # Actions of roles here -------------------------------------------------------------------------------

    @_entry
    def on_send(self, to: str, message: Message) -> None:
        """Deliver a message that a role here sends."""
        if to != self._manager:
            if self.is_home and isinstance(message, Assign):
                self._hurry(to)
            self.act(ToPeer(to, message))
            return
        is_last = isinstance(message, SteppedDown) or (isinstance(message, Progress) and message.is_last)
        if is_last and isinstance(message, Progress | SteppedDown):
            self._say_last(message)
            return
        if not self.is_home:
            self.act(ToPeer(to, message))
            return
        recipient = message.rule.to
        if recipient == "manager":
            self._tell_manager(Received(sender=self._node, message=message))
        elif isinstance(message, Assign | Release) or recipient == "leading":
            self._on_manager_message(message)
        else:
            raise Misuse(f"{type(message).__name__} from this node to itself")

    @_entry
    def on_save(self, job: str, save: Save) -> None:
        """Have the manager keep a version of a leader on this device, which may never come back."""
        led = self._led.get(job)
        if led is None:
            return
        if not self._in_touch:
            reason = "the manager is out of reach: this device holds it until the manager is back"
            self.act(ToLeader(job, SaveFailed(version=save.version, reason=reason)))
            return
        led.saving = save.version
        led.saves += 1
        checkpoint = packed(version_of(save), job=job, term=led.assign.term, number=led.saves)
        self.act(ToPeer(self._manager, checkpoint))

    @_entry
    def on_record(self, job: str, record: Record) -> None:
        """A leader on a device records a decision: the manager's log and ``shoal status`` show it too."""
        led = self._led.get(job)
        if led is None or not self._in_touch:
            return
        reason, traceback = clip(record.reason), clip(record.traceback, TRACEBACK_MAX_CHARS)
        noted = LogRecord(job=job, term=led.assign.term, kind=record.kind, reason=reason, traceback=traceback)
        self.act(ToPeer(self._manager, noted))

    @_entry
    def on_leading(self, job: str, *, endpoint: str) -> None:
        """Note that the leader of this job is set up and workers may dial it at the endpoint."""
        led = self._led.get(job)
        if led is None:
            return
        led.leads = Leads(job=job, term=led.assign.term, endpoint=endpoint)
        self.act(ToPeer(self._manager, led.leads))

    @_entry
    def on_failed(self, job: str, *, reason: str) -> None:
        """Note that the leader of this job could not be set up here."""
        led = self._led.get(job)
        if led is None:
            return
        self.on_ended(job)
        self._say_last(SteppedDown(job=job, term=led.assign.term, reason=clip(reason), failed=True))

    def on_ended(self, job: str) -> None:
        """Note that the job is not led here any more."""
        led = self._led.pop(job, None)
        if led is not None:
            self._over[job] = max(self._over.get(job, 0), led.assign.term)
        self._admitted.pop(job, None)
        self._early.pop(job, None)

    def _say_last(self, word: Progress | SteppedDown) -> None:
        """Send the final message of a leader to the manager, and repeat it until the manager confirms it."""
        if isinstance(word, SteppedDown):
            self._moved.add(word.job)
        if self.is_home:
            self._tell_manager(Received(sender=self._node, message=word))
            return
        self._last_words[word.job] = word
        self.act(ToPeer(self._manager, word))
