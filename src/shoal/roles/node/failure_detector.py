"""Which peers are alive, by their heartbeats. Pure state shared by both drivers; monotonic time is an argument.

Peers are queued by the time of their next check, so that a check visits only peers whose time has come. A sign of life
does not change the queue: a peer that sent one meanwhile is put back when its old time comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from shoal.roles.events import Liveness, PeerChanged

#: Compared for every sign of life, up to 100,000 times a second: looking a member up in its enum is slow.
_ALIVE = Liveness.ALIVE

#: Why a process is lost whose node connects with a new one.
RESTARTED = "restarted"

#: How the reason begins of a peer that is lost by its silence, and what that of a cut one contains: programs count by
#: these why devices are lost.
SILENT, NO_RECONNECT = "silent for", "no reconnect within"

#: A dormant peer may come this much after its time: its clock may run slowly, and its first attempts fail.
OVERSLEPT_S = 900.0

#: How much early peers are checked: sums of seconds are not exact, and the decision depends on their differences.
_EARLY_S = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """After how much silence a peer is suspect, and lost."""

    heartbeat_s: float = 1.0
    suspect_after_s: float = 3.0
    lost_after_s: float = 8.0
    #: A broken session is usually back at once; a dead process never is.
    reconnect_s: float = 1.5


def longer_after_s(after_s: float, *, heartbeat_s: float, every_s: float) -> float:
    """Convert a limit on silence from heartbeats every ``heartbeat_s`` to heartbeats every ``every_s``.

    With any interval, one heartbeat may be missing and the next one late; the time beyond these stays the same."""
    return after_s + 2.0 * (every_s - heartbeat_s)


@dataclass(slots=True)
class _Peer:
    heard_s: float
    state: Liveness
    #: The interval at which it was told to send heartbeats.
    every_s: float
    #: Silence before this moment does not count: it was then told to send more heartbeats, or this process stood still.
    hurried_s: float = -math.inf
    #: When and why its session broke, while it has none.
    closed_s: float | None = None
    closed_why: str = ""
    #: When to check it next, or infinity if it is lost.
    look_s: float = math.inf
    #: The process it runs in, or `None` if it has not sent a hello.
    incarnation: str | None = None
    #: While it is dormant: when it comes again.
    back_s: float = math.inf


class FailureDetector:
    """Turns heartbeats, sessions and silence into changes of peers' state. A suspect peer is not dead."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._peers: dict[str, _Peer] = {}
        #: (time of the check, peer). An entry is valid if its time is that of the peer.
        self._looks: list[tuple[float, str]] = []
        #: Peers that are not lost.
        self.present = 0

    def on_heard(self, node: str, now_s: float, *, incarnation: str | None = None) -> list[PeerChanged]:
        """Note a sign of life. A new incarnation is a new process: the old one is lost, with everything it held."""
        peer = self._peers.get(node)
        if peer is not None and peer.state is _ALIVE and (incarnation is None or incarnation == peer.incarnation):
            peer.heard_s = now_s
            return []
        return self._on_news(node, now_s, incarnation)

    def _on_news(self, node: str, now_s: float, incarnation: str | None) -> list[PeerChanged]:
        """Note a sign of life that may change the peer's state."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(now_s, Liveness.LOST, self._patience.heartbeat_s)
        restarted = incarnation is not None and peer.incarnation not in (None, incarnation)
        peer.incarnation = incarnation or peer.incarnation
        ended = self.on_left(node, reason=RESTARTED) if restarted else []
        silent_s, before = now_s - peer.heard_s, peer.state
        peer.heard_s, peer.closed_s = now_s, None
        if before is Liveness.ALIVE:
            return ended
        if before.is_gone:
            self.present += 1
        peer.state = Liveness.ALIVE
        reason = f"back after {silent_s:.1f} s of silence" if before is Liveness.SUSPECT else "connected"
        if before is Liveness.DORMANT:
            reason = f"checked in after {silent_s:.0f} s"
        self._look_in_time(node, peer)
        return [*ended, PeerChanged(node=node, state=Liveness.ALIVE, reason=reason)]

    def on_closed(self, node: str, now_s: float, *, reason: str) -> list[PeerChanged]:
        """Note that the session of a peer broke. It has a moment to come back under the same identity."""
        peer = self._peers.get(node)
        if peer is None or peer.state.is_gone:
            return []
        peer.closed_s, peer.closed_why = now_s, reason
        self._look_in_time(node, peer)
        if peer.state is Liveness.SUSPECT:
            return []
        peer.state = Liveness.SUSPECT
        told = f"{reason}; waiting {self._patience.reconnect_s:g} s for it to return"
        return [PeerChanged(node=node, state=Liveness.SUSPECT, reason=told)]

    def on_left(self, node: str, *, reason: str) -> list[PeerChanged]:
        """Note that a peer said goodbye, or that an operator revoked it."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        return [self._lose(node, peer, reason, is_certain=True)]

    def on_rests(self, node: str, now_s: float, *, come_s: float) -> list[PeerChanged]:
        """Note that a peer without work hangs up and comes again after ``come_s``. It holds no lease."""
        peer = self._peers.get(node)
        if peer is None or peer.state.is_gone:
            return []
        reason = f"comes again in {come_s:.0f} s"
        peer.state, peer.closed_s = Liveness.DORMANT, None
        peer.heard_s, peer.back_s = now_s, now_s + come_s
        self.present -= 1
        self._look_in_time(node, peer)
        return [PeerChanged(node=node, state=peer.state, reason=reason)]

    def expect(self, node: str, every_s: float, now_s: float) -> None:
        """Expect a heartbeat every ``every_s`` from now on, as the peer was told.

        A peer that is told a shorter interval sends one at once: its silence counts from now on."""
        peer = self._peers.get(node)
        if peer is None or peer.every_s == every_s:
            return
        if every_s < peer.every_s:
            peer.hurried_s = now_s
        peer.every_s = every_s
        if not peer.state.is_gone:
            self._look_in_time(node, peer)

    def every_s(self, node: str) -> float:
        """Return the interval at which this peer was told to send heartbeats."""
        peer = self._peers.get(node)
        return peer.every_s if peer else self._patience.heartbeat_s

    def pass_over(self, unheard_s: float, now_s: float) -> None:
        """Do not count the time for which this process stood still as silence of its peers.

        They may have sent messages all the while, and could not reconnect.
        """
        for peer in self._peers.values():
            if peer.state is Liveness.DORMANT:
                peer.back_s += unheard_s
            elif peer.state is not Liveness.LOST:
                peer.hurried_s = min(max(peer.heard_s, peer.hurried_s) + unheard_s, now_s)
                if peer.closed_s is not None:
                    peer.closed_s = min(peer.closed_s + unheard_s, now_s)

    def check(self, now_s: float) -> list[PeerChanged]:
        """Find peers that have been silent for too long. To be called every heartbeat or so."""
        changes, looked_at = [], []
        while self._looks and self._looks[0][0] <= now_s:
            look_s, node = heappop(self._looks)
            peer = self._peers[node]
            if look_s != peer.look_s:
                continue
            peer.look_s = math.inf
            change = self._judged(node, peer, now_s)
            if change is not None:
                changes.append(change)
            if peer.state is not Liveness.LOST:
                looked_at.append((node, peer))
        # Only after all were checked: a peer whose time has not quite come would be checked again and again.
        for node, peer in looked_at:
            self._look_in_time(node, peer)
        return sorted(changes, key=lambda change: change.node)

    def state(self, node: str) -> Liveness:
        peer = self._peers.get(node)
        return peer.state if peer else Liveness.LOST

    def heard_s(self, node: str) -> float | None:
        """Return when a peer last sent something, or None if never."""
        peer = self._peers.get(node)
        return peer.heard_s if peer else None

    def heard_ago_s(self, node: str, now_s: float) -> float | None:
        peer = self._peers.get(node)
        return now_s - peer.heard_s if peer else None

    # One peer ---------------------------------------------------------------------------------------------

    def _judged(self, node: str, peer: _Peer, now_s: float) -> PeerChanged | None:
        """Return the new state of a peer by its silence, or None if it has not changed."""
        patience = self._patience
        if peer.state is Liveness.DORMANT:
            late_s = now_s - peer.back_s
            return self._lose(node, peer, f"overslept by {late_s:.0f} s") if late_s >= OVERSLEPT_S else None
        if peer.closed_s is not None and now_s - peer.closed_s >= patience.reconnect_s:
            return self._lose(node, peer, f"{peer.closed_why}, {NO_RECONNECT} {patience.reconnect_s:g} s")
        counted_s = now_s - max(peer.heard_s, peer.hurried_s)
        told = f"{SILENT} {now_s - peer.heard_s:.1f} s"
        if counted_s >= self._longer(patience.lost_after_s, peer):
            return self._lose(node, peer, told)
        if peer.state is Liveness.ALIVE and counted_s >= self._longer(patience.suspect_after_s, peer):
            peer.state = Liveness.SUSPECT
            return PeerChanged(node=node, state=peer.state, reason=told)
        return None

    def _look_in_time(self, node: str, peer: _Peer) -> None:
        """Schedule the next check of a peer, no later than its state may change."""
        patience = self._patience
        if peer.state is Liveness.DORMANT:
            peer.look_s = peer.back_s + OVERSLEPT_S - _EARLY_S
            heappush(self._looks, (peer.look_s, node))
            return
        after_s = self._longer(patience.lost_after_s, peer)
        if peer.state is Liveness.ALIVE:
            after_s = min(after_s, self._longer(patience.suspect_after_s, peer))
        look_s = max(peer.heard_s, peer.hurried_s) + after_s
        if peer.closed_s is not None:
            look_s = min(look_s, peer.closed_s + patience.reconnect_s)
        look_s -= _EARLY_S
        if look_s < peer.look_s:
            peer.look_s = look_s
            heappush(self._looks, (look_s, node))

    def _longer(self, after_s: float, peer: _Peer) -> float:
        return longer_after_s(after_s, heartbeat_s=self._patience.heartbeat_s, every_s=peer.every_s)

    def _lose(self, node: str, peer: _Peer, reason: str, *, is_certain: bool = False) -> PeerChanged:
        self.present -= peer.state is not Liveness.DORMANT
        peer.state, peer.closed_s, peer.look_s = Liveness.LOST, None, math.inf
        return PeerChanged(node=node, state=Liveness.LOST, reason=reason, is_certain=is_certain)
