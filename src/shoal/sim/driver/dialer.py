"""One peer of a simulated device: dials it again and again and sends heartbeats, until the device drops it.

The device router decides what to send and when to hang up.
"""

from __future__ import annotations

from typing import Protocol

from shoal.sim.driver.connection import Connection
from shoal.sim.process import Process
from shoal.wire.messages import Message


class SimDialerOwner(Protocol):
    """The interface of an agent to its dialers."""

    process: Process

    def reach(self, dialer: SimDialer) -> tuple[Connection | None, float]:
        """Return a connection to the dialer's peer, or None, and how long the attempt takes."""
        ...

    def dialer_opened(self, dialer: SimDialer) -> None: ...

    def line_failed(self, dialer: SimDialer, reason: str) -> None:
        """Note that a connection could not be made, or ended."""
        ...

    def heard(self, dialer: SimDialer, message: Message, size_bytes: int) -> None: ...

    def beat(self, dialer: SimDialer) -> None: ...

    def heartbeat_s(self, peer: str) -> float: ...

    def backoff_s(self, peer: str) -> float: ...

    def dials_again(self, dialer: SimDialer, wait_s: float) -> None:
        """Note that a dialer dials again after this time."""
        ...


class SimDialer:
    __slots__ = ("_beats", "_device", "_is_parted", "connection", "endpoint", "peer", "process")

    def __init__(self, device: SimDialerOwner, peer: str, endpoint: str = "") -> None:
        self._device = device
        self.process = device.process
        self.peer = peer
        #: The address of the peer. Empty if it has a fixed one.
        self.endpoint = endpoint
        self.connection: Connection | None = None
        self._beats = 0
        self._is_parted = False

    def dial(self) -> None:
        if self._is_parted:
            return
        connection, after_s = self._device.reach(self)
        if connection is not None:
            self.process.later(after_s, self._opened, connection)
        else:
            self.process.later(after_s, self._failed, "it does not answer")

    def _opened(self, connection: Connection) -> None:
        if self._is_parted:
            return
        called = connection.called
        if not called.process.alive:
            self._failed("nobody listens there")
            return
        self.connection = connection
        called.process.now(called.opened, connection)
        self._beats += 1
        self._device.dialer_opened(self)
        if self.connection is connection:
            self.process.later(self._device.heartbeat_s(self.peer), self._beat, self._beats)

    def goes_on(self, connection: Connection, *, beat_in_s: float) -> None:
        """Take over a session that another driver held."""
        self.connection = connection
        self._beats += 1
        self.process.later(beat_in_s, self._beat, self._beats)

    def _failed(self, reason: str) -> None:
        if self._is_parted:
            return
        self._device.line_failed(self, reason)
        if not self._is_parted:
            wait_s = self._device.backoff_s(self.peer)
            self.process.later(wait_s, self.dial)
            self._device.dials_again(self, wait_s)

    def _beat(self, number: int) -> None:
        """Send a heartbeat, if the connection that this one is for still exists."""
        if number != self._beats or self.connection is None:
            return
        self._device.beat(self)
        if self.connection is not None:
            self.process.later(self._device.heartbeat_s(self.peer), self._beat, number)

    def beat_now(self) -> None:
        """Send a heartbeat before its time, and the next one an interval later."""
        if self.connection is not None:
            self._beats += 1
            self._beat(self._beats)

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None:
        if self.connection is connection:
            self._device.heard(self, message, size_bytes)

    def closed(self, connection: Connection, reason: str) -> None:
        if self.connection is connection:
            self.connection = None
            self._failed(reason)

    def hang_up(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.cut(reason)

    def part(self, reason: str) -> None:
        """End the session, and do not dial again."""
        self._is_parted = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.cut(reason)
