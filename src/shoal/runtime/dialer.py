"""A device's line to one other node: dialled, held, dialled again. Says what the station says; decides nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from shoal.errors import PeerViolation, ShoalError
from shoal.identity.identity import Identity
from shoal.net.base import Session
from shoal.net.grpc import GrpcLink
from shoal.wire.messages import Lane, Message, Welcome, lane_of

#: How often a peer may ask for heartbeats. A leader is a node like any other: one that asked for them without a pause
#: would have this device do nothing else.
HEARTBEAT_LEAST_S = 0.05
HEARTBEAT_MOST_S = 600.0


class DialerOwner(Protocol):
    """What a line asks of the agent around it."""

    @property
    def identity(self) -> Identity:
        """Who this device is, at this moment."""
        ...

    @property
    def incarnation(self) -> str:
        """Which process of this device it is."""
        ...

    def dialer_opened(self, dialer: Dialer) -> None: ...

    def dialer_beat(self, dialer: Dialer, now_s: float) -> None: ...

    async def dialer_received(self, dialer: Dialer, message: Message, size_bytes: int) -> None: ...

    def dialer_payload_limit(self, dialer: Dialer, message: Message) -> int: ...

    def dialer_payload_buffer(self, dialer: Dialer, message: Message, size_bytes: int) -> memoryview | None: ...

    def heartbeat_s(self, peer: str) -> float: ...

    def connect_timeout_s(self, peer: str) -> float: ...


class Dialer:
    """A listener (see ``transport.base``) on the two streams of a link."""

    def __init__(self, switch: DialerOwner, *, peer: str, role: str, endpoint: str) -> None:
        self._switch = switch
        self.peer = peer
        self._role = role
        self.endpoint = endpoint
        self._sessions: dict[Lane, Session] = {}
        self.link: GrpcLink | None = None
        #: Set while no control stream is open.
        self.hung_up = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return Lane.CONTROL in self._sessions

    async def connect_once(self) -> str:
        """Hold both streams until either ends; returns why."""
        self.link = GrpcLink(
            self._switch.identity,
            server_node=self.peer,
            server_role=self._role,
            endpoint=self.endpoint,
            incarnation=self._switch.incarnation,
        )
        beating = asyncio.create_task(self._beat())
        try:
            return await self.link.run(self, connect_timeout_s=self._switch.connect_timeout_s(self.peer))
        except ShoalError as error:
            return str(error)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            self.link = None

    async def _beat(self) -> None:
        """Heartbeats, on time."""
        while True:
            await asyncio.sleep(self._switch.heartbeat_s(self.peer))
            if self.is_open:
                self._switch.dialer_beat(self, time.monotonic())

    def post(self, message: Message) -> None:
        """Say this, if there is a stream for it. Without one nobody hears it, and the roles know."""
        session = self._sessions.get(lane_of(message))
        if session is not None:
            session.post(message)

    def hang_up(self, reason: str) -> None:
        for session in list(self._sessions.values()):
            session.close(reason)

    # Its streams ----------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._sessions[session.lane] = session
        if session.lane is Lane.CONTROL:
            self.hung_up.clear()
            self._switch.dialer_opened(self)

    def closed(self, session: Session, reason: str) -> None:
        self._sessions.pop(session.lane, None)
        if session.lane is Lane.CONTROL:
            self.hung_up.set()

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        if isinstance(message, Welcome):
            _check_pace(message)
        await self._switch.dialer_received(self, message, size_bytes)

    def payload_limit(self, session: Session, message: Message) -> int:
        return self._switch.dialer_payload_limit(self, message)

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return self._switch.dialer_payload_buffer(self, message, size_bytes)


def _check_pace(welcome: Welcome) -> None:
    every_s, lost_after_s = welcome.heartbeat_s, welcome.lost_after_s
    if not HEARTBEAT_LEAST_S <= every_s <= HEARTBEAT_MOST_S:
        raise PeerViolation(f"asks for a heartbeat every {every_s:g} s")
    if lost_after_s < every_s:
        # No answer could be in time: it would be given up and dialled again without an end.
        raise PeerViolation(f"wants to be given up after {lost_after_s:g} s, before a heartbeat of {every_s:g} s")
