"""A node between its sessions and the roles it hosts: who is alive, and which role a message is for.

The manager's node has one, with the manager and the leaders that are at home; so has any other node that leads. Pure
state that both drivers share, so that what the simulator breaks is what the devices run. It says where things go; a
driver takes them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import Misuse, PeerViolation
from shoal.roles.actions import Record, Save
from shoal.roles.custody import packed, version_of
from shoal.roles.doorway import Doorway
from shoal.roles.events import Event, Liveness, PeerChanged, Received, Saved, SaveFailed, StopRequested
from shoal.roles.membership import Membership, Patience
from shoal.wire.limits import TRACEBACK_MAX_CHARS
from shoal.wire.messages import (
    RECIPIENT,
    Admit,
    AskCheckpoint,
    Assign,
    Bar,
    Checkpoint,
    CheckpointKept,
    CheckpointRefused,
    Conclude,
    Count,
    Disband,
    Finished,
    Form,
    Formed,
    HandOver,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Lane,
    Leads,
    Leave,
    Message,
    Noted,
    OutOfReach,
    Pass,
    Piece,
    Progress,
    Ready,
    Release,
    StepDown,
    SteppedDown,
    Welcome,
    clip,
    lane_of,
)

_NO_BUSINESS = "no job that it works for is led here"

#: How often members of a formation are heard of at their sub-leaders' doors. In a shard each has a session to each.
SELDOM = Patience(heartbeat_s=5.0, suspect_after_s=15.0, lost_after_s=25.0)

#: Ends of a job that a leader reports: its last word, repeated until the manager has heard it.


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
    """Set up the leader of a job here; what is for it meanwhile waits until it is.

    At home it goes on from what the disk holds. Elsewhere that is asked for, and comes with ``Resume``.
    """

    assign: Assign


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the job stands has come: its leader begins, and the driver says ``leading``, or ``failed``."""

    assign: Assign
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Drop:
    """The leader of this job is to be let go of, without a word: another leads."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Second:
    """Set up a sub-leader here, and open the door to its members; the driver says ``seconded``, or why not."""

    form: Form
    leader: str


@dataclass(frozen=True, slots=True)
class ToSubLeader:
    job: str
    formation: int
    event: Event


@dataclass(frozen=True, slots=True)
class DropSubLeader:
    """The formation is over."""

    job: str
    formation: int


@dataclass(frozen=True, slots=True)
class HangUp:
    node: str
    reason: str


Delivery = ToManager | ToLeader | ToPeer | Lead | Resume | Drop | Second | ToSubLeader | DropSubLeader | HangUp


@dataclass(frozen=True, slots=True)
class _Sub:
    """A formation in which this node sums up a share."""

    term: int
    leader: str
    members: frozenset[str]


@dataclass(slots=True)
class _Led:
    """A job led here, or about to be."""

    assign: Assign
    #: The version to go on from is here.
    resumed: bool = False
    #: Where workers dial it, once it leads.
    leads: Leads | None = None
    #: The version that the manager is asked to keep.
    saving: int | None = None
    #: How many were asked for: each is answered by its number.
    saves: int = 0

    def is_saving(self, answer: CheckpointKept | CheckpointRefused) -> bool:
        """Whether this answers the save under way, not one that was given up with a session."""
        return (answer.term, answer.version, answer.number) == (self.assign.term, self.saving, self.saves)


class Switchboard:
    def __init__(self, *, node: str, patience: Patience, manager: str = "") -> None:
        """``manager``: on which node the manager is; empty: on this one."""
        self._node = node
        self._manager = manager or node
        self._patience = patience
        self.membership = Membership(patience)
        #: Of two processes of one node, which is let in.
        self.doorway = Doorway(self.membership)
        #: How often ``check`` is to be called.
        self.check_every_s = patience.heartbeat_s / 2
        #: The jobs led here, in the order they were given.
        self._led: dict[str, _Led] = {}
        #: Job -> the last term it was led under here. A term is never led twice.
        self._over: dict[str, int] = {}
        #: Jobs that are led elsewhere now: their workers hear where from the manager, not from here.
        self._moved: set[str] = set()
        #: Job -> who may speak to its leader. At home, everyone the manager knows.
        self._admitted: dict[str, set[str]] = {}
        #: Workers who asked for work before this node heard of them.
        self._early: dict[str, dict[str, Received]] = {}
        #: Who was welcomed as a member of a formation alone.
        self._seldom: set[str] = set()
        #: (job, formation) in which this node sums up a share.
        self._subs: dict[tuple[str, int], _Sub] = {}
        #: Job -> what the manager must hear before this node may forget the job.
        self._last_words: dict[str, Progress | SteppedDown] = {}
        self._in_touch = True

    @property
    def node(self) -> str:
        return self._node

    @property
    def is_home(self) -> bool:
        return self._manager == self._node

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs led here."""
        return tuple(self._led)

    @property
    def is_idle(self) -> bool:
        """Nothing is led here, and nothing is left to say."""
        return not self._led and not self._subs and not self._last_words

    def leads(self) -> tuple[Leads, ...]:
        """What this node tells the manager when it connects."""
        return tuple(led.leads for led in self._led.values() if led.leads is not None)

    def admits(self, node: str) -> bool:
        """Whether it works for a job that is led here, in whole or in part."""
        if self.is_home or any(node in nodes for nodes in self._admitted.values()):
            return True
        return any(node in sub.members for (job, _), sub in self._subs.items() if self._is_led(job, sub))

    def _is_led(self, job: str, sub: _Sub) -> bool:
        """Whether the leader of a formation may still lead it. One that was here and is no more does not: members who
        kept their session for the sub-leader's sake would never ask where their leader is."""
        return sub.leader != self._node or job in self._led

    def _is_watched(self, node: str) -> bool:
        """Whether someone here must know when it is gone. Of the members of a formation, their leader does."""
        return self.is_home or any(node in nodes for nodes in self._admitted.values())

    # Peers ---------------------------------------------------------------------------------------------

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
            case Heartbeat() if not self.admits(sender):
                # Its job is led elsewhere now, or is over. Without this session it asks the manager where to go.
                return [*self.expelled(sender, reason=_NO_BUSINESS), HangUp(sender, _NO_BUSINESS)]
            case Heartbeat():
                deliveries.append(ToPeer(sender, HeartbeatSeen(seq=message.seq)))
            case _:
                pass
        if lane_of(message) is Lane.CONTROL and self._is_watched(sender):
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
        changes = self.membership.check(now_s)
        deliveries = self._changed(changes)
        if not self.is_home:
            # At home the manager gives its role back to one who was lost and is heard again. Here it says hello anew.
            lost = [change for change in changes if change.state is Liveness.LOST]
            deliveries += [HangUp(change.node, change.reason) for change in lost]
        return deliveries

    def _changed(self, changes: list[PeerChanged]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for change in changes:
            if self.is_home:
                deliveries.append(ToManager(change))
            deliveries += [ToLeader(job, change) for job in self._led]
        return deliveries

    def _route(self, event: Received) -> list[Delivery]:
        message, sender = event.message, event.sender
        recipient = RECIPIENT.get(type(message))
        if recipient == "manager":
            return self._for_manager(event)
        if isinstance(message, Piece):
            return [ToSubLeader(message.job, message.formation, event)] if self.awaits_piece(sender, message) else []
        if recipient != "leader":
            raise PeerViolation(f"{type(message).__name__} is not for this node", peer=sender)
        if self.membership.state(sender) is Liveness.LOST:
            # It left, or was given up, while this was on its way: a leader would lend to a node that is gone.
            # One that is back after all is assigned its role again, and speaks then.
            return []
        job = str(getattr(message, "job", ""))
        if job in self._moved:
            return self._misdirected(event, job)
        if job not in self._led:
            return [ToPeer(sender, Finished(job=job, reason="this job is not led here"))]
        if not self.is_home and sender not in self._admitted.get(job, ()):
            if isinstance(message, Ready) and self.admits(sender):
                self._early.setdefault(job, {})[sender] = event
            return []
        return [ToLeader(job, event)]

    def awaits_piece(self, sender: str, piece: Piece) -> bool:
        """Whether a sub-leader here sums up for this member."""
        sub = self._subs.get((piece.job, piece.formation))
        return sub is not None and sub.term == piece.term and sender in sub.members

    def _misdirected(self, event: Received, job: str) -> list[Delivery]:
        """A worker speaks to a leader that was here. It will hear, or has heard, where that is now; unless it was away
        when its job ended, which the manager knows."""
        if not self.is_home:
            return []
        term = int(getattr(event.message, "term", 0))
        asks = OutOfReach(job=job, term=term, reason="its leader is not here any more")
        return [ToManager(Received(sender=event.sender, message=asks))]

    def _for_manager(self, event: Received) -> list[Delivery]:
        if self.is_home:
            return [ToManager(event)]
        match event.message:
            case Hello():
                patience = self._patience if self._is_watched(event.sender) else SELDOM
                self._seldom.discard(event.sender)
                if patience is SELDOM:
                    self._seldom.add(event.sender)
                welcome = Welcome(heartbeat_s=patience.heartbeat_s, lost_after_s=patience.lost_after_s)
                return [ToPeer(event.sender, welcome)]
            case Heartbeat():
                return []
            case _:
                raise PeerViolation(f"{type(event.message).__name__} is for the manager", peer=event.sender)

    # What the manager says ------------------------------------------------------------------------------

    def told(self, message: Message) -> list[Delivery]:
        """The manager has something to say to a leader on this node."""
        match message:
            case Assign(role="leader"):
                return self._assigned(message)
            case Checkpoint():
                return self._resumed(message)
            case StepDown():
                return self._step_down(message)
            case Admit():
                return self._admit(message)
            case Bar():
                return self._bar(message)
            case _:
                pass
        job = str(getattr(message, "job", ""))
        led = self._led.get(job)
        if led is None:
            return []
        match message:
            case Conclude():
                return [ToLeader(job, StopRequested(reason=message.reason))]
            case CheckpointKept() if led.is_saving(message):
                led.saving = None
                return [ToLeader(job, Saved(version=message.version))]
            case CheckpointRefused() if led.is_saving(message):
                led.saving = None
                return [ToLeader(job, SaveFailed(version=message.version, reason=message.reason))]
            case HandOver() | Release():
                return [ToLeader(job, Received(sender=self._manager, message=message))]
            case _:
                return []

    def _assigned(self, assign: Assign) -> list[Delivery]:
        job, led = assign.job, self._led.get(assign.job)
        if led is not None and led.assign.term >= assign.term:
            return []
        spoken = self._last_words.get(job)
        if spoken is not None and spoken.term >= assign.term:
            # It has a last word about this term that the manager may not have heard.
            return [ToPeer(self._manager, spoken)]
        if self._over.get(job, 0) >= assign.term:
            return self._say_last(SteppedDown(job=job, term=assign.term, reason="it led under this term before"))
        deliveries: list[Delivery] = []
        if led is not None:
            deliveries += self._drop(job, "it leads under a new term")
        self._led[job] = _Led(assign)
        # Whatever was said last, of an older term, is of no use to anyone: the manager has given out this one.
        self._last_words.pop(job, None)
        self._moved.discard(job)
        deliveries.append(Lead(assign))
        return [*deliveries, *self._ask(job)]

    def _ask(self, job: str) -> list[Delivery]:
        """Elsewhere than at home, where the job stands is asked for."""
        led = self._led[job]
        if self.is_home or led.resumed:
            return []
        return [ToPeer(self._manager, AskCheckpoint(job=job, term=led.assign.term))]

    def _resumed(self, checkpoint: Checkpoint) -> list[Delivery]:
        led = self._led.get(checkpoint.job)
        if led is None or led.resumed or led.assign.term != checkpoint.term:
            return []
        led.resumed = True
        return [Resume(led.assign, checkpoint)]

    def _step_down(self, message: StepDown) -> list[Delivery]:
        job = message.job
        spoken = self._last_words.get(job)
        if spoken is not None and spoken.term <= message.term:
            del self._last_words[job]
        led = self._led.get(job)
        if led is None or led.assign.term > message.term:
            return []
        return self._drop(job, message.reason)

    def _drop(self, job: str, reason: str) -> list[Delivery]:
        self.ended(job)
        self._moved.add(job)
        return [Drop(job, reason)]

    def _admit(self, message: Admit) -> list[Delivery]:
        led = self._led.get(message.job)
        if led is None or led.assign.term != message.term:
            return []
        admitted = self._admitted.setdefault(message.job, set())
        gone = sorted(admitted - set(message.nodes)) if message.anew else []
        barred = [Bar(job=message.job, term=message.term, node=node, reason="it works there no more") for node in gone]
        deliveries = [delivery for bar in barred for delivery in self._bar(bar)]
        # Those who are heard of seldom come again, and are told to be heard of often.
        again = [node for node in message.nodes if node in self._seldom]
        self._seldom.difference_update(again)
        deliveries += [HangUp(node, "it works for a leader here now") for node in again]
        admitted.update(message.nodes)
        early = self._early.get(message.job, {})
        events = [early.pop(node) for node in message.nodes if node in early]
        alive = [event for event in events if self.membership.state(event.sender) is not Liveness.LOST]
        return [*deliveries, *(ToLeader(message.job, event) for event in alive)]

    def _bar(self, message: Bar) -> list[Delivery]:
        job, node = message.job, message.node
        led = self._led.get(job)
        if led is None or led.assign.term != message.term:
            return []
        self._admitted.get(job, set()).discard(node)
        self._early.get(job, {}).pop(node, None)
        if self.admits(node):
            return [ToLeader(job, PeerChanged(node=node, state=Liveness.LOST, reason=message.reason))]
        return [*self.expelled(node, reason=message.reason), HangUp(node, message.reason)]

    # What a leader says to sub-leaders here --------------------------------------------------------------

    def formed_by(self, leader: str, message: Message) -> list[Delivery]:
        """A leader of a job that this node works for makes it a sub-leader, or speaks to it as one."""
        match message:
            case Form():
                return self._second(leader, message)
            case Disband():
                over = [key for key, sub in self._subs.items() if key[0] == message.job and sub.term <= message.term]
                return [self._drop_sub(key) for key in over if key[1] <= message.formation]
            case Count() | Pass():
                sub = self._subs.get((message.job, message.formation))
                if sub is None or (sub.leader, sub.term) != (leader, message.term):
                    return []
                event = Received(sender=leader, message=message)
                return [ToSubLeader(message.job, message.formation, event)]
            case _:
                return []

    def _second(self, leader: str, form: Form) -> list[Delivery]:
        key = (form.job, form.formation)
        known = self._subs.get(key)
        if known is not None and known.term > form.term:
            return []
        # One of an older term is of a leader that is no more, whatever its number.
        stale = [old for old, sub in self._subs.items() if old[0] == form.job and sub.term < form.term]
        deliveries: list[Delivery] = [self._drop_sub(old) for old in stale]
        self._subs[key] = _Sub(form.term, leader, frozenset(form.members))
        if known is not None and known.term == form.term:
            return [*deliveries, ToSubLeader(*key, Received(sender=leader, message=form))]
        return [*deliveries, Second(form, leader)]

    def _drop_sub(self, key: tuple[str, int]) -> DropSubLeader:
        del self._subs[key]
        return DropSubLeader(*key)

    def seconded(self, form: Form, *, endpoint: str = "", reason: str = "") -> list[Delivery]:
        """The sub-leader is set up and its members may dial it there; without an endpoint: it could not be."""
        key = (form.job, form.formation)
        sub = self._subs.get(key)
        if sub is None or sub.term != form.term:
            return []
        if not endpoint:
            del self._subs[key]
        formed = Formed(job=form.job, term=form.term, formation=form.formation, endpoint=endpoint, reason=clip(reason))
        return [ToPeer(sub.leader, formed)]

    # The manager's node, as seen from here -------------------------------------------------------------

    def in_touch(self) -> list[Delivery]:
        """The manager has welcomed this node (again): what it may not have heard is said once more."""
        was_in_touch, self._in_touch = self._in_touch, True
        asks = [delivery for job in self._led for delivery in self._ask(job)]
        back = PeerChanged(node=self._manager, state=Liveness.ALIVE, reason="the manager is in reach")
        told = [] if was_in_touch else [ToLeader(job, back) for job in self._led]
        return [*(ToPeer(self._manager, word) for word in self._last_words.values()), *asks, *told]

    def out_of_touch(self, *, reason: str) -> list[Delivery]:
        """The session to the manager is over: what was to be kept may not have arrived."""
        was_in_touch, self._in_touch = self._in_touch, False
        deliveries: list[Delivery] = []
        for job, led in self._led.items():
            if was_in_touch:
                deliveries.append(ToLeader(job, PeerChanged(node=self._manager, state=Liveness.LOST, reason=reason)))
            if led.saving is not None:
                deliveries.append(ToLeader(job, SaveFailed(version=led.saving, reason=reason)))
                led.saving = None
        return deliveries

    # What roles here want --------------------------------------------------------------------------------

    def sent(self, to: str, message: Message) -> list[Delivery]:
        """A role here has something to say."""
        is_last = isinstance(message, SteppedDown) or (isinstance(message, Progress) and message.is_last)
        if to == self._manager and is_last and isinstance(message, Progress | SteppedDown):
            return self._say_last(message)
        if not (self.is_home and to == self._node):
            return [ToPeer(to, message)]
        recipient = RECIPIENT.get(type(message))
        if recipient == "manager":
            return [ToManager(Received(sender=self._node, message=message))]
        if isinstance(message, Assign | Release) or recipient == "leading":
            return self.told(message)
        raise Misuse(f"{type(message).__name__} from this node to itself")

    def saving(self, job: str, save: Save) -> list[Delivery]:
        """A leader on a device wants a version kept: where the manager is, for a device may never come back."""
        led = self._led.get(job)
        if led is None:
            return []
        if not self._in_touch:
            reason = "the manager is out of reach: this device holds it until the manager is back"
            return [ToLeader(job, SaveFailed(version=save.version, reason=reason))]
        led.saving = save.version
        led.saves += 1
        return [ToPeer(self._manager, packed(version_of(save), job=job, term=led.assign.term, number=led.saves))]

    def noted(self, job: str, record: Record) -> list[Delivery]:
        """A leader on a device decided something: the manager's log and ``shoal status`` show it too."""
        led = self._led.get(job)
        if led is None or not self._in_touch:
            return []
        reason, traceback = clip(record.reason), clip(record.traceback, TRACEBACK_MAX_CHARS)
        noted = Noted(job=job, term=led.assign.term, kind=record.kind, reason=reason, traceback=traceback)
        return [ToPeer(self._manager, noted)]

    def leading(self, job: str, *, endpoint: str) -> list[Delivery]:
        """The leader of this job is set up, and workers may dial it there."""
        led = self._led.get(job)
        if led is None:
            return []
        led.leads = Leads(job=job, term=led.assign.term, endpoint=endpoint)
        return [ToPeer(self._manager, led.leads)]

    def failed(self, job: str, *, reason: str) -> list[Delivery]:
        """The leader of this job could not be set up here."""
        led = self._led.get(job)
        if led is None:
            return []
        self.ended(job)
        return self._say_last(SteppedDown(job=job, term=led.assign.term, reason=clip(reason), failed=True))

    def ended(self, job: str) -> None:
        """The job is not led here any more."""
        led = self._led.pop(job, None)
        if led is not None:
            self._over[job] = max(self._over.get(job, 0), led.assign.term)
        self._admitted.pop(job, None)
        self._early.pop(job, None)

    def _say_last(self, word: Progress | SteppedDown) -> list[Delivery]:
        if isinstance(word, SteppedDown):
            self._moved.add(word.job)
        if self.is_home:
            return [ToManager(Received(sender=self._node, message=word))]
        self._last_words[word.job] = word
        return [ToPeer(self._manager, word)]
