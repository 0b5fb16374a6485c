"""Which peers are alive, as far as heartbeats tell. Pure state shared by both drivers; time is monotonic, an argument.

Peers are queued by when they were last heard, so that a check looks only at peers whose time has come.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from shoal.roles.events import Liveness, PeerChanged

#: Compared for every sign of life, up to 100,000 times a second: looking a member up in its enum is slow.
_ALIVE = Liveness.ALIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """After how much silence a peer is suspect, and lost."""

    heartbeat_s: float = 1.0
    suspect_after_s: float = 3.0
    lost_after_s: float = 8.0
    #: A broken session is usually back at once; a dead process never is.
    reconnect_s: float = 1.5


@dataclass(slots=True)
class _Peer:
    heard_s: float
    state: Liveness
    #: When its session broke, while it is in the queue of peers without one.
    closed_s: float = 0.0
    #: Why it is in this state.
    reason: str | None = None
    #: The process it runs in; None: it has not said hello.
    incarnation: str | None = None


class FailureDetector:
    """Turns heartbeats, sessions and silence into changes of peers' state. A suspect peer is not dead."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._peers: dict[str, _Peer] = {}
        #: Peers heard lately, and peers silent for long, each by when they were heard. A lost peer is in neither queue.
        self._speaking: OrderedDict[str, _Peer] = OrderedDict()
        self._silent: OrderedDict[str, _Peer] = OrderedDict()
        #: Peers without a session, by when it broke. They are suspect, and in one of the queues above as well.
        self._closed: OrderedDict[str, _Peer] = OrderedDict()

    def on_heard(self, node: str, now_s: float, *, incarnation: str | None = None) -> list[PeerChanged]:
        """Any sign of life. A new incarnation is a new process: the process before is lost, with everything it held."""
        peer = self._peers.get(node)
        if peer is not None and peer.state is _ALIVE and (incarnation is None or incarnation == peer.incarnation):
            peer.heard_s = now_s
            self._speaking.move_to_end(node)
            return []
        return self._on_news(node, now_s, incarnation)

    def _on_news(self, node: str, now_s: float, incarnation: str | None) -> list[PeerChanged]:
        """A sign of life that may change something."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(heard_s=now_s, state=Liveness.LOST)
        restarted = incarnation is not None and peer.incarnation not in (None, incarnation)
        peer.incarnation = incarnation or peer.incarnation
        ended = self.on_left(node, reason="restarted") if restarted else []
        silent_s = now_s - peer.heard_s
        self._forget(node)
        peer.heard_s = now_s
        self._speaking[node] = peer
        if peer.state is Liveness.ALIVE:
            return ended
        back = peer.state is Liveness.SUSPECT
        peer.state = Liveness.ALIVE
        peer.reason = f"back after {silent_s:.1f} s of silence" if back else "connected"
        return [*ended, PeerChanged(node=node, state=Liveness.ALIVE, reason=peer.reason)]

    def on_closed(self, node: str, now_s: float, *, reason: str) -> list[PeerChanged]:
        """The session of a peer broke. It has a moment to come back under the same identity."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        peer.closed_s = now_s
        peer.reason = reason
        self._closed[node] = peer
        self._closed.move_to_end(node)
        if peer.state is Liveness.SUSPECT:
            return []
        peer.state = Liveness.SUSPECT
        return [PeerChanged(node=node, state=Liveness.SUSPECT, reason=reason)]

    def on_left(self, node: str, *, reason: str) -> list[PeerChanged]:
        """A peer said goodbye, or an operator revoked it."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        return [replace(self._lose(node, peer, reason), is_certain=True)]

    def check(self, now_s: float) -> list[PeerChanged]:
        """Find peers that have been silent for too long. To be called every heartbeat or so."""
        changes = [*self._not_back(now_s), *self._silent_too_long(now_s), *self._newly_silent(now_s)]
        return sorted(changes, key=lambda change: change.node)

    def state(self, node: str) -> Liveness:
        peer = self._peers.get(node)
        return peer.state if peer else Liveness.LOST

    def reason(self, node: str) -> str:
        peer = self._peers.get(node)
        if peer is None or peer.reason is None:
            return "never connected since the manager started"
        return peer.reason

    def heard_s(self, node: str) -> float | None:
        """When it was last heard; None: never."""
        peer = self._peers.get(node)
        return peer.heard_s if peer else None

    def heard_ago_s(self, node: str, now_s: float) -> float | None:
        peer = self._peers.get(node)
        return now_s - peer.heard_s if peer else None

    # Each takes peers from the front of one queue whose time has come. -----------------------------------

    def _not_back(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._closed:
            node, peer = next(iter(self._closed.items()))
            if now_s - peer.closed_s < self._patience.reconnect_s:
                break
            reason = f"{peer.reason}; not back within {self._patience.reconnect_s:g} s"
            changes.append(self._lose(node, peer, reason))
        return changes

    def _silent_too_long(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._silent:
            node, peer = next(iter(self._silent.items()))
            silent_s = now_s - peer.heard_s
            if silent_s < self._patience.lost_after_s:
                break
            changes.append(self._lose(node, peer, f"silent for {silent_s:.1f} s"))
        return changes

    def _newly_silent(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._speaking:
            node, peer = next(iter(self._speaking.items()))
            silent_s = now_s - peer.heard_s
            if silent_s >= self._patience.lost_after_s:
                changes.append(self._lose(node, peer, f"silent for {silent_s:.1f} s"))
            elif silent_s >= self._patience.suspect_after_s:
                self._silent[node] = self._speaking.pop(node)
                if peer.state is Liveness.ALIVE:
                    peer.state, peer.reason = Liveness.SUSPECT, f"silent for {silent_s:.1f} s"
                    changes.append(PeerChanged(node=node, state=peer.state, reason=peer.reason))
            else:
                break
        return changes

    def _lose(self, node: str, peer: _Peer, reason: str) -> PeerChanged:
        self._forget(node)
        peer.state, peer.reason = Liveness.LOST, reason
        return PeerChanged(node=node, state=Liveness.LOST, reason=reason)

    def _forget(self, node: str) -> None:
        """Take the peer out of every queue."""
        for queue in (self._speaking, self._silent, self._closed):
            queue.pop(node, None)
