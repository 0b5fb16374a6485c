"""A device's connection to the manager's node: two streams each way, and downloads beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal.sim.network import Flow, Network
from shoal.sim.parcels import Parcels
from shoal.sim.process import Process
from shoal.wire.lanes import Lane, lane_of
from shoal.wire.messages import Message


class End(Protocol):
    """What both ends do."""

    process: Process

    def received(self, connection: Connection, message: Message, size_bytes: int) -> None: ...

    def closed(self, connection: Connection, reason: str) -> None: ...


class HomeEnd(End, Protocol):
    def opened(self, connection: Connection) -> None: ...


class Connection:
    __slots__ = ("_downloads", "_flows", "_network", "_parcels", "agent", "home", "is_open")

    def __init__(self, network: Network, parcels: Parcels, *, agent: End, home: HomeEnd) -> None:
        self._network = network
        self._parcels = parcels
        self.agent = agent
        self.home = home
        self.is_open = True
        #: (lane, is it the way up?) -> that stream; made when first used.
        self._flows: dict[tuple[Lane, bool], Flow] = {}
        self._downloads: dict[Flow, Callable[[bool], object]] = {}

    def up(self, message: Message) -> tuple[Message, int]:
        """From the device. Returns what is on its way, as the other side will read it, and its size."""
        read, size_bytes = self._parcels.pack(message)
        self._flow(lane_of(message), is_up=True).send(size_bytes, self._arrive, self.home, read, size_bytes)
        return read, size_bytes

    def down(self, message: Message, left: Callable[[], object] | None = None) -> None:
        """From the manager's node; ``left`` is called when it is out."""
        read, size_bytes = self._parcels.pack(message)
        flow = self._flow(lane_of(message), is_up=False)
        flow.send(size_bytes, self._arrive, self.agent, read, size_bytes, left=left)

    def download(self, size_bytes: int, done: Callable[[bool], object]) -> None:
        """On a stream of its own; ``done`` hears whether all of it came."""
        flow = self._network.flow(self.home.process.node, self.agent.process.node)
        self._downloads[flow] = done
        flow.send(size_bytes, self._downloaded, flow)

    def _downloaded(self, flow: Flow) -> None:
        self.agent.process.now(self._downloads.pop(flow), True)

    def _flow(self, lane: Lane, *, is_up: bool) -> Flow:
        flow = self._flows.get((lane, is_up))
        if flow is None:
            sender, receiver = (self.agent, self.home) if is_up else (self.home, self.agent)
            flow = self._flows[lane, is_up] = self._network.flow(sender.process.node, receiver.process.node)
            if not self.is_open:
                flow.cut()
        return flow

    def _arrive(self, end: End, message: Message, size_bytes: int) -> None:
        process = end.process
        if process.alive:
            process.now(end.received, self, message, size_bytes)
        elif process.machine.is_on:
            # Nobody listens any more, and the machine says so. One without power says nothing.
            self.cut("the connection was reset by the other side")

    def silence(self) -> None:
        """The device lost its power: nothing more of what it says leaves it, and nobody is told."""
        for (_, is_up), flow in self._flows.items():
            if is_up:
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
            self.agent.process.later(after_s, done, False)
        self._downloads.clear()
        for end in (self.agent, self.home):
            end.process.later(after_s, end.closed, self, reason)
