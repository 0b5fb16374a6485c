"""When transfers that share links finish: a fluid model. Does not depend on what is sent, or on roles.

Concurrent transfers share links max-min fairly, about as long TCP flows do: all get the same rate until some link is
full, and then the others continue to grow. A transfer loads its sender's uplink and its receiver's downlink. A node on
a shared medium loads the medium with both of its directions instead, for the time that its own rate needs. So between
two stations of one access point every byte crosses the medium twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from shoal.errors import Misuse
from shoal.topology.cluster import ClusterNode

#: The share of a transfer or a link that rounding may leave.
_NOTHING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowTransfer:
    """Bytes from one node to another, to be sent once all of ``after`` are done and ``wait_s`` more has passed.

    A transfer from a node to itself takes only the wait. This represents work such as training.
    """

    source: str
    target: str
    size_bytes: float
    #: Indices in the list of transfers, all before its own.
    after: tuple[int, ...] = ()
    wait_s: float = 0.0


def finish_times_s(
    transfers: Sequence[FlowTransfer], nodes: Mapping[str, ClusterNode], *, hold_s: float
) -> list[float]:
    """Return when each transfer has arrived.

    A node sends one transfer at a time, but after ``hold_s`` the next one starts too and both continue together. 0
    means all at once; infinite means strictly one after the other.
    """
    return _Play(transfers, nodes, hold_s=hold_s).run()


class _Play:
    def __init__(self, transfers: Sequence[FlowTransfer], nodes: Mapping[str, ClusterNode], *, hold_s: float) -> None:
        self._transfers = transfers
        self._nodes = nodes
        self._hold_s = hold_s
        count = len(transfers)
        self._done_s = [math.inf] * count
        self._missing = [len(set(transfer.after)) for transfer in transfers]
        self._followers: list[list[int]] = [[] for _ in transfers]
        for place, transfer in enumerate(transfers):
            for before in sorted(set(transfer.after)):
                if not 0 <= before < place:
                    raise Misuse(f"transfer {place} waits for {before}, which is not before it")
                self._followers[before].append(place)
        self._sizes = np.array([float(transfer.size_bytes) for transfer in transfers])
        self._left = self._sizes.copy()
        self._links, self._costs = _routes(transfers, nodes)
        self._link_count = int(self._links.max(initial=0)) + 1
        #: (time, event, index). "ready": it may be sent; "turn": its turn is over; "arrived": after the delay of the
        #: route.
        self._events: list[tuple[float, int, str, int]] = []
        self._event_count = 0
        self._active: list[int] = []
        self._queues: dict[str, deque[int]] = {}
        #: Node -> the transfer that has its turn to send.
        self._turn: dict[str, int] = {}

    def run(self) -> list[float]:
        for place, transfer in enumerate(self._transfers):
            if not transfer.after:
                self._at(transfer.wait_s, "ready", place)
        now_s = 0.0
        while self._events or self._active:
            now_s = self._flow_on(now_s)
            while self._events and self._events[0][0] <= now_s:
                _, _, what, place = heappop(self._events)
                self._happen(what, place, now_s)
        return self._done_s

    def _flow_on(self, now_s: float) -> float:
        """Advance all active transfers until one is sent or the next event comes. Return when that is."""
        next_event_s = self._events[0][0] if self._events else math.inf
        if not self._active:
            return next_event_s
        active = np.array(self._active)
        rates = fair_rates(self._links[active], self._costs[active], links_count=self._link_count)
        out_s = now_s + self._left[active] / rates
        then_s = min(float(out_s.min()), next_event_s)
        self._left[active] -= rates * (then_s - now_s)
        # The first transfer to finish is finished by definition, whatever rounding leaves of it.
        is_out = (out_s <= then_s) | (self._left[active] <= _NOTHING * self._sizes[active])
        self._send_off([int(place) for place in active[is_out]], then_s)
        return then_s

    def _send_off(self, out: Sequence[int], now_s: float) -> None:
        """Record that the last bytes of these are sent: they arrive after the delay of the route."""
        for place in out:
            self._active.remove(place)
            transfer = self._transfers[place]
            delay_s = self._nodes[transfer.source].latency_s + self._nodes[transfer.target].latency_s
            self._at(now_s + delay_s, "arrived", place)
            self._pass_turn(place, now_s)

    def _happen(self, what: str, place: int, now_s: float) -> None:
        transfer = self._transfers[place]
        if what == "arrived":
            self._arrive(place, now_s)
        elif what == "turn":
            self._pass_turn(place, now_s)
        elif transfer.source == transfer.target or not transfer.size_bytes:
            self._arrive(place, now_s)
        else:
            self._queues.setdefault(transfer.source, deque()).append(place)
            if transfer.source not in self._turn:
                self._next_turn(transfer.source, now_s)

    def _arrive(self, place: int, now_s: float) -> None:
        self._done_s[place] = now_s
        for follower in self._followers[place]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._at(now_s + self._transfers[follower].wait_s, "ready", follower)

    def _pass_turn(self, place: int, now_s: float) -> None:
        source = self._transfers[place].source
        if self._turn.get(source) == place:
            del self._turn[source]
            self._next_turn(source, now_s)

    def _next_turn(self, source: str, now_s: float) -> None:
        queue = self._queues[source]
        while queue and source not in self._turn:
            place = queue.popleft()
            self._active.append(place)
            if self._hold_s > 0:
                self._turn[source] = place
                if self._hold_s < math.inf:
                    self._at(now_s + self._hold_s, "turn", place)

    def _at(self, when_s: float, what: str, place: int) -> None:
        self._event_count += 1
        heappush(self._events, (when_s, self._event_count, what, place))


def fair_rates(links: np.ndarray, costs: np.ndarray, *, links_count: int) -> np.ndarray:
    """Return max-min fair bytes per second. Transfer t keeps link ``links[t, k]`` busy for ``costs[t, k]`` s per byte.

    Progressive filling: all rates grow together until a link is full; transfers on it stop growing, the others
    continue.
    """
    rates = np.zeros(len(links))
    left = np.ones(links_count)
    growing = np.ones(len(links), dtype=bool)
    while growing.any():
        load = np.bincount(links[growing].ravel(), weights=costs[growing].ravel(), minlength=links_count)
        used = load > 0
        room = left[used] / load[used]
        grow = float(room.min())
        rates[growing] += grow
        left[used] -= grow * load[used]
        full = np.zeros(links_count, dtype=bool)
        # The link with the least room is full by definition, whatever rounding leaves.
        full[np.flatnonzero(used)[room <= grow * (1 + _NOTHING)]] = True
        growing &= ~(full[links] & (costs > 0)).any(axis=1)
    return rates


def _routes(transfers: Sequence[FlowTransfer], nodes: Mapping[str, ClusterNode]) -> tuple[np.ndarray, np.ndarray]:
    """Return the two links that each transfer loads, by number, and for how long a byte occupies each."""
    numbers: dict[tuple[str, str], int] = {}
    links = np.zeros((len(transfers), 2), dtype=np.int64)
    costs = np.zeros((len(transfers), 2))
    for place, transfer in enumerate(transfers):
        source, target = nodes[transfer.source], nodes[transfer.target]
        ways = ((source, "up", source.up_bytes_per_s), (target, "down", target.down_bytes_per_s))
        for side, (node, way, rate) in enumerate(ways):
            link = ("air", node.medium) if node.medium else (way, node.name)
            links[place, side] = numbers.setdefault(link, len(numbers))
            costs[place, side] = 1.0 / rate
    return links, costs
