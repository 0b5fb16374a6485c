"""What a node does as a host: sessions of those who call it, the leaders and aggregators it was given. At home and on a
device; aggregators are on devices alone.

Everything is decided by roles and by the switchboard; this takes events and messages where they belong.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shoal.compress.codec import Codec
from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.identity.names import RemoteIdentity
from shoal.net.base import BROKE_CONTRACT, Session
from shoal.roles.actions import Action, End, Record, Save, Send
from shoal.roles.aggregation.aggregator import Aggregator
from shoal.roles.events import Event, Received
from shoal.roles.leader.leader import Leader
from shoal.roles.node.checkpoint_transfer import StoredVersion
from shoal.roles.node.doorway import Caller
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
from shoal.runtime.role_host import HEAVY_BYTES, RoleHost
from shoal.trainer.prepared_job import first_model
from shoal.wire.coded import bytes_max
from shoal.wire.limits import PAYLOAD_MAX_BYTES, VALUE_BYTES
from shoal.wire.messages import (
    NO_TENSORS,
    Assign,
    Checkpoint,
    Lane,
    Message,
    Reduce,
    ReduceResult,
    SetUpAggregator,
    Update,
    UpdateShard,
    lane_of,
    with_tensors,
)


class HostApi(Protocol):
    """What differs between the manager's node and a device that leads."""

    def to_manager(self, event: Event) -> None:
        """The manager is here: it hears this."""
        ...

    def send(self, node: str, message: Message) -> bool:
        """Send to a node that is not among those who called. False: nobody here can."""
        ...

    async def lead(self, assign: Assign) -> None:
        """Set up the leader of a job: at home at once, elsewhere once ``resume`` brings where it stands."""
        ...

    async def resume(self, assign: Assign, checkpoint: Checkpoint) -> None: ...

    async def open_door(self) -> str:
        """Where others dial this node, which listens there from now on."""
        ...

    async def save(self, job: str, host: RoleHost, save: Save) -> None:
        """Make a version durable; the role hears whether it is."""
        ...

    def note(self, job: str, record: Record) -> None: ...

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        """It broke the contract: whose fault it was is to be seen."""
        ...


@dataclass(slots=True)
class _Led:
    """A job led on this node, or about to be."""

    host: RoleHost
    term: int
    #: Set once it is there.
    leader: Leader | None = None


@dataclass(frozen=True, slots=True)
class _Sub:
    """An aggregator on this node."""

    host: RoleHost
    shard_max_bytes: int


class RoleServer:
    def __init__(self, router: HostRouter, place: HostApi) -> None:
        self._router = router
        self._place = place
        #: One thread for merging: it does not hold up the event loop.
        self._merging = ThreadPoolExecutor(1, thread_name_prefix="shoal-merge")
        self._sessions: dict[tuple[str, Lane], Session] = {}
        self._led: dict[str, _Led] = {}
        #: (job, formation) in which this node sums up a share.
        self._subs: dict[tuple[str, int], _Sub] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Ask who has been silent for too long, on time."""
        while True:
            await asyncio.sleep(self._router.check_every_s)
            self.carry(self._router.check(time.monotonic()))

    async def stop(self) -> None:
        leading = [led.host for led in self._led.values()]
        for host in [*leading, *(sub.host for sub in self._subs.values())]:
            await host.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._merging.shutdown(wait=True)

    # Those who call -------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        key = (session.peer.node, session.lane)
        older = self._sessions.get(key)
        self._sessions[key] = session
        if session.lane is Lane.CONTROL:
            self._router.doorway.on_entered(caller_of(session.peer))
        if older is not None:
            older.close("the same node connected again")

    def closed(self, session: Session, reason: str) -> None:
        if reason.startswith(BROKE_CONTRACT):
            self._place.turned_away(session.peer, reason)
        key = (session.peer.node, session.lane)
        if self._sessions.get(key) is not session:
            return
        del self._sessions[key]
        if session.lane is Lane.CONTROL:
            self.carry(self._router.on_closed(session.peer.node, time.monotonic(), reason=reason))

    def hang_up(self, node: str, reason: str) -> None:
        for lane in Lane:
            session = self._sessions.get((node, lane))
            if session is not None:
                session.close(reason)

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        node = session.peer.node
        if lane_of(message) is not session.lane:
            raise PeerViolation(f"{type(message).__name__} came on the {session.lane} stream", peer=node)
        if isinstance(message, Checkpoint):
            # Its memory is used again once this returns, and it is not written down by then.
            message = owned(message)
        event = Received(sender=node, message=message, size_bytes=size_bytes)
        await self.take(self._router.on_received(event, time.monotonic()))

    def payload_limit(self, message: Message) -> int:
        """The most bytes of tensors that may follow this message from a worker, or from an aggregator of ours.

        What is for a leader that is not here, or not yet, is of any size that a message may have: nobody awaits it.
        """
        match message:
            case Update():
                leader = self._leader(message.job)
                return leader.update_max_bytes if leader else PAYLOAD_MAX_BYTES
            case ReduceResult():
                leader = self._leader(message.job)
                return leader.sum_max_bytes if leader else PAYLOAD_MAX_BYTES
            case UpdateShard():
                sub = self._subs.get((message.job, message.formation))
                return sub.shard_max_bytes if sub else 0
            case _:
                return 0

    def awaits_tensors(self, sender: str, message: Message) -> bool:
        """Whether a role here can use the tensors of this message: memory is taken for no others."""
        match message:
            case Update() | ReduceResult():
                leader = self._leader(message.job)
                return leader is not None and leader.awaits(sender, message)
            case UpdateShard():
                return self._router.awaits_shard(sender, message)
            case _:
                return False

    def _leader(self, job: str) -> Leader | None:
        led = self._led.get(job)
        return led.leader if led is not None else None

    # Deliveries -----------------------------------------------------------------------------------------

    async def take(self, deliveries: list[Delivery]) -> None:
        """Carry out what came of a message. Whoever hears it is waited for: what is large is held back where it comes
        from, and the memory it lies in is used again once this returns."""
        for delivery in deliveries:
            match delivery:
                case ToLeader(event=Received()):
                    if (led := self._led.get(delivery.job)) is not None:
                        await led.host.deliver(delivery.event)
                case ToAggregator(event=Received()):
                    if (sub := self._subs.get((delivery.job, delivery.formation))) is not None:
                        await sub.host.deliver(delivery.event)
                case _:
                    self.carry([delivery])

    def carry(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            match delivery:
                case ToManager():
                    self._place.to_manager(delivery.event)
                case ToLeader():
                    # What came before in the same breath may have ended it.
                    if (led := self._led.get(delivery.job)) is not None:
                        led.host.post(delivery.event)
                case ToPeer():
                    self._post(delivery.node, delivery.message)
                case Lead():
                    self._lead(delivery.assign)
                case Resume():
                    resuming = self._place.resume(delivery.assign, delivery.checkpoint)
                    self.spawn(resuming, f"resume {delivery.assign.job}")
                case Drop():
                    self._drop(delivery.job)
                case Second():
                    self._second(delivery.form, delivery.leader)
                case ToAggregator():
                    if (sub := self._subs.get((delivery.job, delivery.formation))) is not None:
                        sub.host.post(delivery.event)
                case DropAggregator():
                    self._drop_sub(delivery.job, delivery.formation)
                case HangUp():
                    self.hang_up(delivery.node, delivery.reason)

    def _post(self, node: str, message: Message) -> None:
        if self._place.send(node, message):
            return
        session = self._sessions.get((node, lane_of(message)))
        if session is not None:
            session.post(message)

    # Leaders --------------------------------------------------------------------------------------------

    def _lead(self, assign: Assign) -> None:
        host = RoleHost(f"leader of {assign.job}", self._perform, executor=self._merging)
        self._led[assign.job] = _Led(host, assign.term)
        self.spawn(self._place.lead(assign), f"lead {assign.job}")

    def begin(self, assign: Assign, leader: Leader) -> bool:
        """The leader of a job is there. False: it is wanted here no more."""
        led = self._led.get(assign.job)
        if led is None or not self.awaits(assign):
            return False
        led.leader = leader
        led.host.start(leader)
        return True

    def awaits(self, assign: Assign) -> bool:
        """Whether this very leader is still to be set up. One of an older term would speak and save under the newer."""
        led = self._led.get(assign.job)
        return led is not None and led.term == assign.term and led.host.role is None

    def is_led_by(self, job: str, host: RoleHost) -> bool:
        """Whether this is the leader the job has now, and not one that was let go of."""
        led = self._led.get(job)
        return led is not None and led.host is host

    def failed(self, job: str, reason: str) -> None:
        """The leader of a job could not be set up."""
        self._drop(job)
        self.carry(self._router.on_failed(job, reason=reason))

    def _drop(self, job: str) -> None:
        led = self._led.pop(job, None)
        if led is not None:
            self.spawn(led.host.stop(), f"end {led.host.key}")

    async def _perform(self, host: RoleHost, action: Action) -> None:
        job = next((job for job, led in self._led.items() if led.host is host), "")
        if not job:
            # It was let go of in the middle of what it wanted.
            return
        match action:
            case Send():
                self.carry(self._router.on_send(action.to, action.message))
            case Record():
                self._place.note(job, action)
            case Save():
                self.spawn(self._place.save(job, host, action), f"save {job}")
            case End():
                self._router.on_ended(job)
                self._drop(job)
            case _:
                raise Misuse(f"a leader does not ask for {type(action).__name__}")

    # Aggregators ----------------------------------------------------------------------------------------

    def _second(self, form: SetUpAggregator, leader: str) -> None:
        part_bytes = VALUE_BYTES * (form.stop - form.start)
        host = RoleHost(
            f"aggregator of {form.job} in formation {form.formation}",
            self._perform_sub,
            executor=self._merging,
            is_heavy=functools.partial(_is_heavy, part_bytes=part_bytes),
        )
        piece_bytes = bytes_max(Codec.parse(form.codec), form.sizes, entries=form.entries) if form.sizes else part_bytes
        sub = self._subs[form.job, form.formation] = _Sub(host, piece_bytes)
        # Where its part stands comes to it when all are there: this is memory that is used again.
        form = with_tensors(form, NO_TENSORS)
        host.start(Aggregator(form, node=self._router.node, leader=leader))
        self.spawn(self._open_to(form, sub), f"second {form.job}")

    async def _open_to(self, form: SetUpAggregator, sub: _Sub) -> None:
        """Let the members of a formation in, and tell its leader where."""
        where: str | None = None
        reason: str | None = None
        try:
            where = await self._place.open_door() or None
        except (ShoalError, OSError) as error:
            reason = str(error)
        if self._subs.get((form.job, form.formation)) is not sub:
            # It was disbanded, or formed anew, before anyone could come in.
            return
        if where is None:
            self._drop_sub(form.job, form.formation)
        self.carry(self._router.on_seconded(form, endpoint=where, reason=reason))

    def _drop_sub(self, job: str, formation: int) -> None:
        sub = self._subs.pop((job, formation), None)
        if sub is not None:
            self.spawn(sub.host.stop(), f"end {sub.host.key}")

    async def _perform_sub(self, host: RoleHost, action: Action) -> None:
        of = next((of for of, sub in self._subs.items() if sub.host is host), None)
        if of is None:
            return
        match action:
            case Send():
                self.carry(self._router.on_send(action.to, action.message))
            case Record():
                self._place.note(of[0], action)
            case End():
                self._drop_sub(*of)
            case _:
                raise Misuse(f"an aggregator does not ask for {type(action).__name__}")


def _is_heavy(event: Event, *, part_bytes: int) -> bool:
    """For an aggregator: a few bytes may ask it to add up everything that it keeps."""
    match event:
        case Received(message=Reduce() as count):
            return part_bytes * (len(count.leases) + count.last) > HEAVY_BYTES
        case Received():
            return part_bytes > HEAVY_BYTES
        case _:
            return False


def caller_of(peer: RemoteIdentity) -> Caller:
    return Caller(node=peer.node, incarnation=peer.incarnation, address=peer.address)


def owned(message: Checkpoint) -> Checkpoint:
    """The same checkpoint in memory of its own."""
    whole: Checkpoint = with_tensors(message, {name: array.copy() for name, array in message.tensors.items()})
    return whole


def make_leader(initial: Path, assign: Assign, version: StoredVersion | None, *, manager: str) -> Leader:
    """The leader of a job, from its first model or from where it stands. Reads a file."""
    layout, model = first_model(initial)
    model.flags.writeable = False
    leader = Leader(spec=assign.spec, layout=layout, model=model, term=assign.term, manager=manager)
    if version is not None:
        leader.restore(tensors=version.tensors, state=version.state)
    return leader
