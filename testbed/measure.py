"""What links really carry: TCP from some devices to others, measured where it arrives. Knows networks, not Shoal."""

from __future__ import annotations

import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from testbed.commands import NoNamespaces
from testbed.namespaces import Network
from testbed.sockets import connection_from, listener_in

_CONNECT_TIMEOUT_S = 10.0
_PIECE = memoryview(bytes(1 << 16))

#: A sender's kernel takes in more than a slow link carries in seconds. A small store keeps arrivals steady.
_STORE_BYTES = 1 << 17
_URGENT = -15
#: Closed is closed: what was not sent by then would be in the way of the next transfer.
_FORGET_THE_REST = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One TCP connection, and what of it arrived, payload alone."""

    sender: str
    receiver: str
    mbps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One kind of traffic: what its narrowest link should carry, and what arrived."""

    key: str
    what: str
    asked_mbps: float
    flows_mbps: tuple[float, ...]

    @property
    def mbps(self) -> float:
        return sum(self.flows_mbps)

    def as_json(self) -> dict[str, float]:
        return {
            "asked_mbps": self.asked_mbps,
            "measured_mbps": round(self.mbps, 2),
            "least_flow_mbps": round(min(self.flows_mbps), 2),
            "most_flow_mbps": round(max(self.flows_mbps), 2),
        }


def measure_all(
    network: Network, *, up_mbps: float | None, down_mbps: float | None, shared_mbps: float | None, seconds: float
) -> list[Measured]:
    """One to one both ways, one to all the others, all the others to one, and each to the next: devices all alike."""
    if len(network.devices) < 2:
        raise NoNamespaces("what links carry is measured between devices: it takes two at least")
    first, second, *more = network.devices
    others = [second, *more]
    ring = list(zip(network.devices, (*others, first), strict=True))
    up, down, shared = (math.inf if rate is None else rate for rate in (up_mbps, down_mbps, shared_mbps))
    many = len(others)
    cases = [
        ("one_to_one", f"{first} to {second}", [(first, second)], min(up, down)),
        ("and_back", f"{second} to {first}", [(second, first)], min(up, down)),
        ("one_to_many", f"{first} to {many} others", [(first, other) for other in others], min(up, many * down)),
        ("many_to_one", f"{many} others to {first}", [(other, first) for other in others], min(many * up, down)),
        ("ring", "each to the next, at once", ring, len(ring) * min(up, down)),
    ]
    rows = []
    for key, what, pairs, links_mbps in cases:
        asked_mbps = min(links_mbps, shared)
        if asked_mbps == math.inf:
            raise NoNamespaces("without --up-mbps, --down-mbps or --shared-mbps there is nothing to compare with")
        flows = transfer(network, pairs, seconds=seconds)
        rows.append(Measured(key=key, what=what, asked_mbps=asked_mbps, flows_mbps=tuple(flow.mbps for flow in flows)))
    return rows


def transfer(network: Network, pairs: Sequence[tuple[str, str]], *, seconds: float, warm_s: float = 0.5) -> list[Flow]:
    """Send over all these pairs at once. The first moments do not count: buckets are full, and TCP feels its way."""
    with ExitStack() as stack:
        senders, receivers = [], []
        for sender, receiver in pairs:
            outgoing, incoming = _connected(network, sender, receiver)
            senders.append(stack.enter_context(outgoing))
            receivers.append(stack.enter_context(incoming))
        arrived = _pump(senders, receivers, seconds=seconds, warm_s=warm_s)
    return [
        Flow(sender=sender, receiver=receiver, mbps=mbps)
        for (sender, receiver), mbps in zip(pairs, arrived, strict=True)
    ]


def _connected(network: Network, sender: str, receiver: str) -> tuple[socket.socket, socket.socket]:
    with listener_in(network.namespace_of(receiver), network.address_of(receiver)) as listener:
        listener.settimeout(_CONNECT_TIMEOUT_S)
        to = (network.address_of(receiver), int(listener.getsockname()[1]))
        try:
            outgoing = connection_from(network.namespace_of(sender), to, timeout_s=_CONNECT_TIMEOUT_S)
            incoming, _ = listener.accept()
        except OSError as error:
            raise NoNamespaces(
                f"{sender} does not reach {receiver} over the bridge ({error}): does this machine's firewall look into "
                "bridges? then: sysctl net.bridge.bridge-nf-call-iptables=0"
            ) from None
    outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STORE_BYTES)
    for end in (outgoing, incoming):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_THE_REST)
    return outgoing, incoming


def _pump(
    senders: Sequence[socket.socket], receivers: Sequence[socket.socket], *, seconds: float, warm_s: float
) -> list[float]:
    """Mb/s that each receiver got, between the end of the warm-up and the end."""
    with _ahead_of_others():
        return _pumped(senders, receivers, seconds=seconds, warm_s=warm_s)


@contextmanager
def _ahead_of_others() -> Iterator[None]:
    """It is the link that is measured, not how long this process waits for a processor."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, _URGENT)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


def _pumped(
    senders: Sequence[socket.socket], receivers: Sequence[socket.socket], *, seconds: float, warm_s: float
) -> list[float]:
    arrived_bytes = [0] * len(receivers)
    buffer = bytearray(1 << 18)
    with selectors.DefaultSelector() as selector:
        for sender in senders:
            sender.setblocking(False)
            selector.register(sender, selectors.EVENT_WRITE, -1)
        for number, receiver in enumerate(receivers):
            receiver.setblocking(False)
            selector.register(receiver, selectors.EVENT_READ, number)
        began_s = time.monotonic()
        counted_from_s, before_bytes = 0.0, list(arrived_bytes)
        while (now_s := time.monotonic()) < began_s + warm_s + seconds:
            if not counted_from_s and now_s >= began_s + warm_s:
                counted_from_s, before_bytes = now_s, list(arrived_bytes)
            for key, _ in selector.select(0.05):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if key.data < 0:
                    ready.send(_PIECE)
                else:
                    arrived_bytes[key.data] += ready.recv_into(buffer)
    took_s = now_s - counted_from_s
    return [8e-6 * (after - before) / took_s for after, before in zip(arrived_bytes, before_bytes, strict=True)]
