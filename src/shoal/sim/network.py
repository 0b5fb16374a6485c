"""Moves messages of a given size between nodes in virtual time, as TCP flows over links with queues.

A message goes over the sender's link, then over the receiver's; each is a server that serves its flows in turn. Latency
is charged once per message, when its last byte has passed both. Small messages are one packet among many, and do not
delay others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from shoal.errors import Misuse
from shoal.sim.kernel import Kernel
from shoal.sim.rates import TransferRate
from shoal.sim.rng import Rng, Stream

#: The largest message that does not queue behind other flows.
SMALL_BYTES = 4096
#: A larger message is cut into at most this many equal pieces ...
PIECES_MAX = 32
#: ... of at least about this size.
PIECE_BYTES = 16 * 1024
#: Pieces of one flow that are queued or under way: more would pile up before a slow receiver and starve others.
WINDOW = 4
#: The shortest wait of a Linux sender before it sends again: TCP turns loss into delay.
RETRANSMIT_S = 0.2
#: The time of a message from a node to itself.
LOOPBACK_S = 0.0001
#: The size in a call for a message that left, not one that arrived.
_NO_MESSAGE = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessLink:
    """How a node is connected."""

    up: TransferRate
    down: TransferRate
    #: This node's share of the one-way delay.
    latency_s: float = 0.0005
    #: The largest random delay in addition, drawn for each message.
    jitter_s: float = 0.0
    #: The share of pieces that are lost and sent again.
    loss: float = 0.0
    #: The shared medium it is on, such as an access point. Empty if it has its own link.
    medium: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf or not 0 <= self.jitter_s < math.inf:
            raise Misuse(f"latency {self.latency_s} s and jitter {self.jitter_s} s must be 0 or more, and finite")
        _check_share(self.loss)


def _check_share(loss: float) -> None:
    if not 0 <= loss < 1:
        raise Misuse(f"a loss is a share below 1, not {loss}: to let nothing pass, use a partition")


def pieces_of(size_bytes: int) -> int:
    """Return into how many equal pieces a message is cut."""
    return max(1, math.ceil(size_bytes / max(PIECE_BYTES, size_bytes / PIECES_MAX)))


_CutKind = Literal["side", "apart", "mute", "deaf"]


class _Node:
    """One node's end of the network, with the effects of faults."""

    __slots__ = (
        "_jitter",
        "_losses",
        "_rng",
        "apart",
        "deaf",
        "down",
        "down_server",
        "extra_s",
        "is_chancy",
        "jitter_s",
        "latency_s",
        "line",
        "loss",
        "loss_override",
        "mute",
        "name",
        "received_bytes",
        "sent_bytes",
        "side",
        "slowness",
        "up",
        "up_server",
    )

    def __init__(self, name: str, line: AccessLink, rng: Rng) -> None:
        self.name = name
        self._rng = rng
        self._jitter: Stream | None = None
        self._losses: Stream | None = None
        self.up_server: _Server | None = None
        self.down_server: _Server | None = None
        self.sent_bytes = 0
        self.received_bytes = 0
        #: One bit per partition that it is inside of: two nodes reach each other if they are on the same side of all.
        self.side = 0
        #: One bit for each group of nodes that it is in that cannot reach one another.
        self.apart = 0
        #: One bit for each fault that stops all messages from it, or all messages to it.
        self.mute = 0
        self.deaf = 0
        self.slowness = 1.0
        self.extra_s = 0.0
        self.loss_override: float | None = None
        self.connect(line)

    def connect(self, line: AccessLink) -> None:
        self.line = line
        # Copied from the link because every heartbeat of 100,000 devices reads them.
        self.up, self.down, self.jitter_s = line.up, line.down, line.jitter_s
        self.refresh()

    def refresh(self) -> None:
        """Update derived values after a change of the link or of a fault."""
        self.latency_s = self.line.latency_s + self.extra_s
        self.loss = self.line.loss if self.loss_override is None else self.loss_override
        self.is_chancy = self.loss > 0 or self.jitter_s > 0

    def draw_jitter_s(self) -> float:
        if not self.jitter_s:
            return 0.0
        if self._jitter is None:
            self._jitter = self._rng.stream("jitter", self.name)
        return self.jitter_s * self._jitter.random()

    def loses(self) -> bool:
        if not self.loss:
            return False
        if self._losses is None:
            self._losses = self._rng.stream("loss", self.name)
        return self._losses.happens(self.loss)

    def draw_holdup_s(self) -> float:
        """Draw the random delay of a small message."""
        holdup_s = self.draw_jitter_s()
        if self.loss:
            while self.loses():
                holdup_s += RETRANSMIT_S
        return holdup_s


class _Message:
    """A message in pieces of equal size, so that a piece needs no object."""

    __slots__ = ("args", "arrived", "left", "piece_bytes", "size_bytes", "undelivered", "unsent", "unstarted")

    def __init__(
        self,
        size_bytes: int,
        arrived: Callable[..., object],
        args: tuple[object, ...],
        left: Callable[[], object] | None,
    ) -> None:
        self.size_bytes = size_bytes
        self.arrived = arrived
        self.args = args
        self.left = left
        pieces = pieces_of(size_bytes)
        self.piece_bytes = size_bytes / pieces
        #: Pieces that did not yet enter the window, pass the first link, pass the second.
        self.unstarted = self.unsent = self.undelivered = pieces


class _Server:
    """A link or a medium: one piece at a time, the flows that wait in turn.

    Next is the flow whose piece has the fewest bytes of its own flow ahead of it (start-time fair queueing, Goyal et
    al. 1996). If pieces have one size, this is one piece each in turn; if not, flows still share evenly.
    """

    __slots__ = ("_begun_bytes", "_is_busy", "_kernel", "_number", "_turns")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        #: By bytes, then by arrival. A list, because an empty deque is large and there may be 200,000 links.
        self._turns: list[tuple[float, int, _Hop]] = []
        self._number = 0
        self._is_busy = False
        #: Where the piece in service begins. A flow that joins begins here too, and gets no credit for earlier time.
        self._begun_bytes = 0.0

    def join(self, hop: _Hop) -> None:
        if hop.server is not self:
            hop.server, hop.begin_bytes = self, self._begun_bytes
        elif hop.begin_bytes < self._begun_bytes:
            hop.begin_bytes = self._begun_bytes
        if self._is_busy:
            self._number += 1
            heappush(self._turns, (hop.begin_bytes, self._number, hop))
        else:
            # Busy from now on, because a hop with several pieces joins again while its first is begun.
            self._is_busy = True
            if not self._begin(hop):
                self._is_busy = False

    def _begin(self, hop: _Hop) -> bool:
        self._begun_bytes = hop.begin_bytes
        message = hop.take()
        if message is None:
            return False
        kernel = self._kernel
        kernel.at(hop.finish_s(message.piece_bytes, kernel.now_s), self._served, hop, message)
        return True

    def _served(self, hop: _Hop, message: _Message) -> None:
        bulk = hop.flow._bulk
        if bulk is not None:
            # This call may make a flow join this server, which is still busy then and must keep the order of the queue.
            bulk.passed(hop, message)
        self._go_on()

    def _go_on(self) -> None:
        turns = self._turns
        while turns:
            if self._begin(heappop(turns)[2]):
                return
        self._is_busy = False


class _Hop:
    """One flow's place at one link: the pieces that wait there."""

    __slots__ = ("begin_bytes", "flow", "is_queued", "is_up", "node", "pieces", "server")

    def __init__(self, flow: Flow, node: _Node, *, is_up: bool) -> None:
        self.flow = flow
        self.node = node
        self.is_up = is_up
        self.is_queued = False
        #: Its place among the flows of the server it queued at last.
        self.server: _Server | None = None
        self.begin_bytes = 0.0
        #: Never longer than the window.
        self.pieces: list[_Message] = []

    def finish_s(self, size_bytes: float, start_s: float) -> float:
        node = self.node
        return (node.up if self.is_up else node.down).finish_s(size_bytes * node.slowness, start_s)

    def add(self, message: _Message) -> None:
        self.pieces.append(message)
        if not self.is_queued:
            self.queue()

    def queue(self) -> None:
        # Looked up for every turn: the node may have got another link in the meantime.
        self.is_queued = True
        self.flow._network._server(self.node, is_up=self.is_up).join(self)

    def take(self) -> _Message | None:
        """Return the next piece, and queue those behind it at the end."""
        self.is_queued = False
        pieces = self.pieces
        if not pieces:
            return None
        if not self.flow._is_open():
            self.flow._stall()
            return None
        message = pieces.pop(0)
        self.begin_bytes += message.piece_bytes
        if pieces:
            self.queue()
        return message


class _Bulk:
    """A flow's messages in pieces. Lives from the first such message to the end of the last."""

    __slots__ = ("first", "flow", "going", "second", "under_way", "waiting")

    def __init__(self, flow: Flow, sender: _Node, receiver: _Node) -> None:
        self.flow = flow
        self.first = _Hop(flow, sender, is_up=True)
        self.second = _Hop(flow, receiver, is_up=False)
        #: Messages with pieces that did not enter the window yet, and all that did not arrive yet.
        self.waiting: deque[_Message] = deque()
        self.going: deque[_Message] = deque()
        self.under_way = 0

    def add(self, message: _Message) -> None:
        self.waiting.append(message)
        self.going.append(message)
        self._fill_window()

    def _fill_window(self) -> None:
        while self.waiting and self.under_way < WINDOW:
            message = self.waiting[0]
            message.unstarted -= 1
            if not message.unstarted:
                self.waiting.popleft()
            self.under_way += 1
            self.first.add(message)

    def passed(self, hop: _Hop, message: _Message) -> None:
        """Handle a piece that has passed a link, unless it is lost or a partition began while it was on its way."""
        flow = self.flow
        if not flow._is_open():
            hop.pieces.insert(0, message)
            flow._stall()
        elif hop.node.loss and hop.node.loses():
            if hop is self.second:
                message.unsent += 1
            flow._kernel.after(RETRANSMIT_S, self._send_again, message)
        elif hop is self.first:
            self.second.add(message)
            message.unsent -= 1
            if not message.unsent and message.left is not None:
                # Once only, even if a piece is lost further on and leaves again.
                left, message.left = message.left, None
                left()
        else:
            self._delivered(message)

    def _send_again(self, message: _Message) -> None:
        if not self.flow._is_cut:
            self.first.add(message)

    def _delivered(self, message: _Message) -> None:
        going = self.going
        message.undelivered -= 1
        self.under_way -= 1
        self._fill_window()
        # A message is not delivered before the messages ahead of it, and a piece of those may be lost.
        while going and not going[0].undelivered:
            self.flow._complete(going.popleft())
        if not going:
            self.flow._bulk = None

    def resume(self) -> None:
        for hop in (self.first, self.second):
            if hop.pieces and not hop.is_queued:
                hop.queue()

    def drop(self) -> None:
        for pieces in (self.waiting, self.going, self.first.pieces, self.second.pieces):
            pieces.clear()


class Flow:
    """One direction of one connection: messages arrive in the order they were sent."""

    __slots__ = ("_bulk", "_is_cut", "_kernel", "_last_s", "_network", "_parked", "_receiver", "_sender")

    def __init__(self, network: Network, kernel: Kernel, sender: _Node, receiver: _Node) -> None:
        self._network = network
        self._kernel = kernel
        self._sender = sender
        self._receiver = receiver
        self._is_cut = False
        #: The latest arrival that is scheduled: nothing arrives before it.
        self._last_s = 0.0
        self._bulk: _Bulk | None = None
        #: Arrivals that a partition holds up, in order: (size or _NO_MESSAGE, function, arguments).
        self._parked: deque[tuple[int, Callable[..., object], tuple[object, ...]]] | None = None

    def send(
        self,
        size_bytes: int,
        arrived: Callable[..., object],
        *args: object,
        left: Callable[[], object] | None = None,
    ) -> None:
        """Send a message. Calls ``arrived(*args)`` when all of it has arrived, and ``left()`` when all of it has passed
        the sender's link."""
        if size_bytes > SMALL_BYTES or self._bulk is not None:
            self._send_bulk(_Message(size_bytes, arrived, args, left))
            return
        if size_bytes < 0:
            raise Misuse(f"a message of {size_bytes} bytes cannot be sent: give its size on the wire")
        kernel, sender, receiver = self._kernel, self._sender, self._receiver
        left_s = sender.up.finish_s(size_bytes * sender.slowness, kernel.now_s)
        when_s = receiver.down.finish_s(size_bytes * receiver.slowness, left_s) + sender.latency_s + receiver.latency_s
        if sender.is_chancy:
            when_s += sender.draw_holdup_s()
        if receiver.is_chancy:
            when_s += receiver.draw_holdup_s()
        if when_s < self._last_s:
            when_s = self._last_s
        else:
            self._last_s = when_s
        if left is not None:
            kernel.at(left_s, self._arrive, _NO_MESSAGE, left, ())
        kernel.at(when_s, self._arrive, size_bytes, arrived, args)

    def cut(self) -> None:
        """Stop the flow: nothing arrives or leaves any more, and nothing is called."""
        self._is_cut = True
        self._parked = None
        if self._bulk is not None:
            self._bulk.drop()
            self._bulk = None
        self._network._forget(self)

    def _is_open(self) -> bool:
        """Return whether its two ends reach each other now."""
        sender, receiver = self._sender, self._receiver
        return sender.side == receiver.side and not (sender.apart & receiver.apart or sender.mute or receiver.deaf)

    def _complete(self, message: _Message) -> None:
        """Add the latency to a message whose pieces have all passed both links."""
        sender, receiver = self._sender, self._receiver
        when_s = self._kernel.now_s + sender.latency_s + receiver.latency_s
        when_s += sender.draw_jitter_s() + receiver.draw_jitter_s()
        self._last_s = max(self._last_s, when_s)
        self._kernel.at(self._last_s, self._arrive, message.size_bytes, message.arrived, message.args)

    def _stall(self) -> None:
        """Note that the flow is held up. It is tried again when a partition heals."""
        self._network._remember(self)

    def _resume(self) -> None:
        """Continue after a partition healed and its ends reach each other."""
        if self._bulk is not None:
            self._bulk.resume()
        if self._parked is not None:
            # TCP has sent it again by now. Later messages take as long, so they do not arrive first.
            self._kernel.after(self._sender.latency_s + self._receiver.latency_s, self._release)

    def _send_bulk(self, message: _Message) -> None:
        if message.size_bytes < 0:
            raise Misuse(f"a message of {message.size_bytes} bytes cannot be sent: give its size on the wire")
        if self._is_cut:
            return
        if self._bulk is None:
            self._bulk = _Bulk(self, self._sender, self._receiver)
        self._bulk.add(message)

    def _arrive(self, size_bytes: int, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self._is_cut:
            return
        sender, receiver = self._sender, self._receiver
        is_apart = sender.side != receiver.side or sender.apart & receiver.apart
        if self._parked is not None or is_apart or sender.mute or receiver.deaf:
            self._park(size_bytes, call, args)
            return
        if size_bytes > 0:
            sender.sent_bytes += size_bytes
            receiver.received_bytes += size_bytes
        call(*args)

    def _park(self, size_bytes: int, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self._parked is None:
            self._parked = deque()
            self._stall()
        self._parked.append((size_bytes, call, args))

    def _release(self) -> None:
        while self._parked:
            if not self._is_open():
                self._stall()
                return
            size_bytes, call, args = self._parked.popleft()
            if size_bytes > 0:
                self._sender.sent_bytes += size_bytes
                self._receiver.received_bytes += size_bytes
            call(*args)
        self._parked = None


class Loopback(Flow):
    """A flow of a node to itself: no link, no partition, and nothing on any wire."""

    __slots__ = ()

    def send(
        self,
        size_bytes: int,
        arrived: Callable[..., object],
        *args: object,
        left: Callable[[], object] | None = None,
    ) -> None:
        if left is not None:
            self._kernel.after(LOOPBACK_S, self._arrive, _NO_MESSAGE, left, ())
        self._kernel.after(LOOPBACK_S, self._arrive, _NO_MESSAGE, arrived, args)

    def _is_open(self) -> bool:
        return True

    def _arrive(self, size_bytes: int, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if not self._is_cut:
            call(*args)


class LinkCut:
    """An active partition, a group whose members are kept apart, or nodes that cannot send, or cannot receive."""

    __slots__ = ("_bit", "_kind", "_network", "_nodes")

    def __init__(self, network: Network, nodes: list[_Node], bit: int, kind: _CutKind) -> None:
        self._network = network
        self._nodes = nodes
        self._bit = bit
        #: The attribute of a node that holds its bit.
        self._kind = kind
        for node in nodes:
            setattr(node, kind, getattr(node, kind) | bit)

    def heal(self) -> None:
        """End it. Flows that it held up continue, unless another partition holds them. Healing twice has no effect."""
        bit, self._bit = self._bit, 0
        if bit:
            for node in self._nodes:
                setattr(node, self._kind, getattr(node, self._kind) ^ bit)
            self._network._healed(bit)


class Network:
    """All nodes and what connects them."""

    __slots__ = ("_kernel", "_media", "_nodes", "_rng", "_sides", "_stalled")

    def __init__(self, kernel: Kernel, rng: Rng) -> None:
        self._kernel = kernel
        self._rng = rng
        self._nodes: dict[str, _Node] = {}
        self._media: dict[str, _Server] = {}
        #: The bits of the active partitions.
        self._sides = 0
        #: Flows that wait for a partition to heal; a dict, because it keeps their order.
        self._stalled: dict[Flow, None] = {}

    def attach(self, node: str, line: AccessLink) -> None:
        """Connect a node, or move it to another link. Its flows, its counters and its faults stay."""
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = _Node(node, line, self._rng)
        else:
            known.connect(line)

    def flow(self, sender: str, receiver: str) -> Flow:
        return Flow(self, self._kernel, self._node(sender), self._node(receiver))

    def loopback(self, node: str) -> Loopback:
        """Return a flow of a node to itself."""
        return Loopback(self, self._kernel, self._node(node), self._node(node))

    def sent_bytes(self, node: str) -> int:
        """Return the bytes of a node's messages that arrived."""
        return self._node(node).sent_bytes

    def received_bytes(self, node: str) -> int:
        return self._node(node).received_bytes

    def partition(self, nodes: Iterable[str]) -> LinkCut:
        """Let nothing pass between these nodes and the rest from now on, without notice. Nothing is lost by it."""
        return self._cut(nodes, "side")

    def apart(self, nodes: Iterable[str]) -> LinkCut:
        """Let nothing pass between any two of these nodes from now on, without notice. All others reach them."""
        return self._cut(nodes, "apart")

    def one_way(self, nodes: Iterable[str], *, is_mute: bool) -> LinkCut:
        """Let nothing that these nodes send arrive from now on or, if not ``is_mute``, nothing that is sent to them."""
        return self._cut(nodes, "mute" if is_mute else "deaf")

    def _cut(self, nodes: Iterable[str], kind: _CutKind) -> LinkCut:
        """Make a cut of these nodes, each once, with the lowest bit that no active one uses."""
        inside = [self._node(node) for node in dict.fromkeys(nodes)]
        bit = ~self._sides & (self._sides + 1)
        self._sides |= bit
        return LinkCut(self, inside, bit, kind)

    def reachable(self, a: str, b: str) -> bool:
        """Whether two nodes receive each other's messages: else neither can open a connection."""
        one, other = self._node(a), self._node(b)
        if one is other:
            return True
        is_one_way = one.mute | one.deaf | other.mute | other.deaf
        return one.side == other.side and not one.apart & other.apart and not is_one_way

    def is_ordinary(self, node: str) -> bool:
        """Whether no fault is active on this node's link."""
        known = self._node(node)
        is_cut = known.side or known.apart or known.mute or known.deaf
        return not is_cut and known.slowness == 1.0 and not known.extra_s and known.loss_override is None

    def slow_link(self, node: str, factor: float) -> None:
        """Divide a node's rates; 1 undoes it. Does not slow a piece that is on its way."""
        if not 0 < factor < math.inf:
            raise Misuse(f"a link cannot be {factor} times slower: give a factor above 0")
        self._node(node).slowness = factor

    def delay(self, node: str, extra_s: float) -> None:
        """Add to a node's latency; 0 undoes it."""
        if not 0 <= extra_s < math.inf:
            raise Misuse(f"a message cannot take {extra_s} s more: give 0 or more")
        known = self._node(node)
        known.extra_s = extra_s
        known.refresh()

    def lose(self, node: str, share: float | None) -> None:
        """Set the share of pieces that a node's link loses; None restores the link's own."""
        if share is not None:
            _check_share(share)
        known = self._node(node)
        known.loss_override = share
        known.refresh()

    def _server(self, node: _Node, *, is_up: bool) -> _Server:
        """Return the server of a node's pieces, made when first needed: in a large network most nodes never queue."""
        medium = node.line.medium
        if medium:
            # One server for all stations and both directions: they share airtime, and a station's rate determines how
            # much of it a piece takes. Turns go by pieces, not by time, so a slow station slows all the others: the
            # anomaly of 802.11 (Heusse et al. 2003). A piece between two stations takes airtime twice.
            server = self._media.get(medium)
            if server is None:
                server = self._media[medium] = _Server(self._kernel)
            return server
        if is_up:
            if node.up_server is None:
                node.up_server = _Server(self._kernel)
            return node.up_server
        if node.down_server is None:
            node.down_server = _Server(self._kernel)
        return node.down_server

    def _remember(self, flow: Flow) -> None:
        """Remember a flow that is held up."""
        self._stalled[flow] = None

    def _forget(self, flow: Flow) -> None:
        self._stalled.pop(flow, None)

    def _healed(self, bit: int) -> None:
        self._sides ^= bit
        for flow in [flow for flow in self._stalled if flow._is_open()]:
            del self._stalled[flow]
            flow._resume()

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            raise Misuse(f"{name} is not on the network: attach it first")
        return node
