"""A connection of one node to another: two streams each way, and parallel downloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.sim.network import Flow, Network
from shoal.sim.process import Process
from shoal.sim.wire_size import WireSizer
from shoal.wire.messages import Lane, Message


class SessionEnd(Protocol):
    """Either end of a connection."""

    process: Process

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None: ...

    def closed(self, connection: Connection, reason: str) -> None: ...


class CalledEnd(SessionEnd, Protocol):
    def opened(self, connection: CalledSession) -> None: ...


class CalledSession(Protocol):
    """A session as the end that was dialled knows it, whatever drives the other end."""

    @property
    def node(self) -> str:
        """The node that dialled."""
        ...

    @property
    def incarnation(self) -> str:
        """The process that dialled."""
        ...

    @property
    def is_open(self) -> bool: ...

    def down(self, message: Message, left: Callable[[], object] | None = None) -> None:
        """Send from the called side; ``left`` is called when the message has left it."""
        ...

    def silence(self, process: Process) -> None:
        """This process lost its power: no further message leaves it, and no other node is told."""
        ...

    def cut(self, reason: str) -> None:
        """Break it. Both ends notice, if they live."""
        ...


class Connection:
    __slots__ = ("_downloads", "_flows", "_network", "_sizer", "called", "caller", "is_open")

    def __init__(self, network: Network, sizer: WireSizer, *, caller: SessionEnd, called: CalledEnd) -> None:
        self._network = network
        self._sizer = sizer
        #: The end that dialled, and the end that was dialled.
        self.caller = caller
        self.called = called
        self.is_open = True
        #: (lane, is it the way up?) -> that stream; made when first used.
        self._flows: dict[tuple[Lane, bool], Flow] = {}
        self._downloads: dict[Flow, Callable[[bool], object]] = {}

    @property
    def node(self) -> str:
        return self.caller.process.node

    @property
    def incarnation(self) -> str:
        return self.caller.process.incarnation

    def up(self, message: Message) -> tuple[Message, int]:
        """Send from the caller. Returns the message as the called side will read it, and its size."""
        read, size_bytes = self._sizer.pack(message)
        self._flow(message.rule.lane, is_up=True).send(size_bytes, self._arrive, self.called, read, size_bytes)
        return read, size_bytes

    def down(self, message: Message, left: Callable[[], object] | None = None) -> None:
        """Send from the called side; ``left`` is called when the message has left it."""
        read, size_bytes = self._sizer.pack(message)
        flow = self._flow(message.rule.lane, is_up=False)
        flow.send(size_bytes, self._arrive, self.caller, read, size_bytes, left=left)

    def download(self, size_bytes: int, done: Callable[[bool], object]) -> None:
        """Send bytes to the caller on a separate stream, and call ``done`` with whether all of them came."""
        flow = self._network.flow(self.called.process.node, self.caller.process.node)
        self._downloads[flow] = done
        flow.send(size_bytes, self._downloaded, flow)

    def _downloaded(self, flow: Flow) -> None:
        self.caller.process.now(self._downloads.pop(flow), True)

    def _flow(self, lane: Lane, *, is_up: bool) -> Flow:
        flow = self._flows.get((lane, is_up))
        if flow is None:
            flow = self._flows[lane, is_up] = self._new_flow(is_up=is_up)
            if not self.is_open:
                flow.cut()
        return flow

    def _new_flow(self, *, is_up: bool) -> Flow:
        caller, called = self.caller.process.node, self.called.process.node
        if caller == called:
            return self._network.loopback(caller)
        return self._network.flow(caller, called) if is_up else self._network.flow(called, caller)

    def _arrive(self, end: SessionEnd, message: Message, size_bytes: int) -> None:
        process = end.process
        if process.alive:
            process.now(end.received, self, message, size_bytes)
        elif process.machine.is_on:
            # No process listens, so the machine resets the connection. A machine without power sends nothing.
            self.cut("the connection was reset by the other side")

    def silence(self, process: Process) -> None:
        """This process lost its power: no further message leaves it, and no other node is told."""
        for (_, is_up), flow in self._flows.items():
            if (self.caller if is_up else self.called).process is process:
                flow.cut()

    def cut(self, reason: str, *, after_s: float = 0.001) -> None:
        """Break it. Both ends notice, if they live."""
        if not self.is_open:
            return
        self.is_open = False
        for flow in self._flows.values():
            flow.cut()
        for flow, done in self._downloads.items():
            flow.cut()
            self.caller.process.later(after_s, done, False)
        self._downloads.clear()
        for end in (self.caller, self.called):
            end.process.later(after_s, end.closed, self, reason)
