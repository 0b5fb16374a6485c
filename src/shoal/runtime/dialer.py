"""Lines from this process to one other node: dialled, held, dialled again. A line decides nothing.

``PersistentLink`` is the part that lines of every kind have; ``Dialer`` is a device's, to its manager and leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from shoal.errors import PeerViolation, ShoalError
from shoal.identity.identity import Identity
from shoal.net.base import RESTS, Session
from shoal.net.grpc import GrpcLink
from shoal.net.session import OUTBOX_MAX
from shoal.wire.messages import HeartbeatSeen, Lane, Message, Welcome

#: How often a peer may ask for heartbeats. A leader is a node like any other: if it asked for them without a pause,
#: this device would do nothing else.
HEARTBEAT_LEAST_S = 0.05
HEARTBEAT_MOST_S = 600.0


class PersistentLink:
    """A listener (see ``net.base``) on the streams to one peer, which connects again and again.

    A line of its own kind says how it connects and when it dials again, and takes what it expects from its peer.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._sessions: dict[Lane, Session] = {}

    async def hold(self) -> None:
        """Stay connected, until ``may_dial_again`` says that the line is not needed."""
        while True:
            try:
                reason = await self.connect_once()
            except ShoalError as error:
                reason = str(error)
            if not await self.may_dial_again(reason):
                return

    async def connect_once(self) -> str:
        """Hold the streams until they end; returns why."""
        raise NotImplementedError

    async def may_dial_again(self, reason: str) -> bool:
        """The connection is over, or could not be made: wait for the next attempt. False: there is none."""
        raise NotImplementedError

    def post(self, message: Message) -> None:
        """Send a message if there is a stream for it. Without a stream it is lost, and the roles know."""
        session = self._sessions.get(message.rule.lane)
        if session is not None:
            session.post(message)

    def hang_up(self, reason: str) -> None:
        for session in list(self._sessions.values()):
            session.close(reason)

    # Its streams ----------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._sessions[session.lane] = session

    def closed(self, session: Session, reason: str) -> None:
        if self._sessions.get(session.lane) is session:
            del self._sessions[session.lane]

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        raise PeerViolation(f"{type(message).__name__} may not be sent here")

    def payload_limit(self, session: Session, message: Message) -> int:
        return 0

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None


class DialerOwner(Protocol):
    """What a device's line asks of the agent that has it."""

    @property
    def identity(self) -> Identity:
        """The identity of this device, at this moment."""
        ...

    @property
    def incarnation(self) -> str:
        """Which process of this device it is."""
        ...

    def dialer_opened(self, dialer: Dialer) -> None: ...

    async def line_ended(self, dialer: Dialer, reason: str) -> bool:
        """The connection is over, or could not be made: wait for the next attempt. False: the line is not needed."""
        ...

    def dialer_beat(self, dialer: Dialer, now_s: float) -> None: ...

    async def dialer_received(self, dialer: Dialer, message: Message, size_bytes: int) -> None: ...

    def dialer_payload_limit(self, dialer: Dialer, message: Message) -> int: ...

    def dialer_payload_buffer(self, dialer: Dialer, message: Message, size_bytes: int) -> memoryview | None: ...

    def heartbeat_s(self, peer: str) -> float: ...

    def connect_timeout_s(self, peer: str) -> float: ...

    def has_work(self, peer: str) -> bool:
        """Whether models and updates may cross this line soon."""
        ...


class Dialer(PersistentLink):
    """A device's line to its manager, or to a leader or aggregator of its jobs, with heartbeats."""

    def __init__(self, switch: DialerOwner, *, peer: str, role: str, endpoint: str) -> None:
        super().__init__(peer)
        self._switch = switch
        self._role = role
        self.endpoint = endpoint
        self.link: GrpcLink | None = None
        #: Set while no control stream is open.
        self.hung_up = asyncio.Event()
        #: Set to send a heartbeat before its time.
        self._hurry = asyncio.Event()
        #: Messages that wait for the work lane, which the first of them opens.
        self._early: list[Message] = []

    @property
    def is_open(self) -> bool:
        return Lane.CONTROL in self._sessions

    async def connect_once(self) -> str:
        self.link = GrpcLink(
            self._switch.identity,
            server_node=self.peer,
            server_role=self._role,
            endpoint=self.endpoint,
            incarnation=self._switch.incarnation,
            has_heartbeats=True,
        )
        beating = asyncio.create_task(self._beat())
        try:
            return await self.link.run(
                self,
                connect_timeout_s=self._switch.connect_timeout_s(self.peer),
                works=self._switch.has_work(self.peer),
            )
        finally:
            self._early.clear()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            self.link = None

    async def _beat(self) -> None:
        """Heartbeats, on time."""
        while True:
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._switch.heartbeat_s(self.peer)):
                    await self._hurry.wait()
            if self.is_open:
                self._switch.dialer_beat(self, time.monotonic())

    def beat_now(self) -> None:
        """Send a heartbeat before its time, and the next one an interval later."""
        self._hurry.set()

    def welcomed_at(self, endpoint: str) -> None:
        """The peer is dialled there, and its work lane may open."""
        self.endpoint = endpoint
        if self.link is not None:
            self.link.move(endpoint)
            if self._switch.has_work(self.peer):
                self.link.open_work()

    async def may_dial_again(self, reason: str) -> bool:
        return await self._switch.line_ended(self, reason)

    def post(self, message: Message) -> None:
        """Send a message. The first one of the work lane opens it: a device that waits has one connection alone."""
        lane = message.rule.lane
        if lane is Lane.WORK and lane not in self._sessions and self.is_open and self.link is not None:
            if len(self._early) < OUTBOX_MAX:
                self._early.append(message)
            self.link.open_work()
            return
        super().post(message)

    def rest(self) -> None:
        """Close the work lane, until there is something to say on it."""
        session = self._sessions.pop(Lane.WORK, None)
        if session is not None and self.link is not None:
            self.link.rest()
            session.close(RESTS)

    # Its streams ----------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        super().opened(session)
        if session.lane is Lane.CONTROL:
            self.hung_up.clear()
            self._switch.dialer_opened(self)
            return
        early, self._early = self._early, []
        for message in early:
            session.post(message)

    def closed(self, session: Session, reason: str) -> None:
        super().closed(session, reason)
        if session.lane is Lane.CONTROL:
            self.hung_up.set()

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        if isinstance(message, Welcome):
            _check_pace(message)
        elif isinstance(message, HeartbeatSeen) and message.next_s:
            _check_interval(message.next_s)
        await self._switch.dialer_received(self, message, size_bytes)

    def payload_limit(self, session: Session, message: Message) -> int:
        return self._switch.dialer_payload_limit(self, message)

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return self._switch.dialer_payload_buffer(self, message, size_bytes)


def _check_interval(every_s: float) -> None:
    if not HEARTBEAT_LEAST_S <= every_s <= HEARTBEAT_MOST_S:
        raise PeerViolation(f"asks for a heartbeat every {every_s:g} s")


def _check_pace(welcome: Welcome) -> None:
    every_s, lost_after_s = welcome.heartbeat_s, welcome.lost_after_s
    _check_interval(every_s)
    if not 0.0 <= welcome.redial_s <= HEARTBEAT_MOST_S:
        raise PeerViolation(f"wants to be dialled again after {welcome.redial_s:g} s")
    if lost_after_s < every_s:
        # No answer could be in time: it would be given up and dialled again without an end.
        raise PeerViolation(f"wants to be given up after {lost_after_s:g} s, before a heartbeat of {every_s:g} s")
