"""Who is alive, as far as heartbeats tell. Pure state shared by both drivers; time is monotonic and an argument.

Peers stand in line by when they were last heard, so a check looks only at those whose time has come.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from shoal.roles.events import Liveness, PeerChanged

#: Looked up for every sign of life, of which there may be 100,000 a second: an enum is slow to ask.
_ALIVE = Liveness.ALIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long silence is borne."""

    heartbeat_s: float = 1.0
    suspect_after_s: float = 3.0
    lost_after_s: float = 8.0
    #: A broken session is usually back at once; a dead process never is.
    reconnect_s: float = 1.5


@dataclass(slots=True)
class _Peer:
    heard_s: float
    state: Liveness
    closed_s: float = 0.0
    reason: str = ""
    incarnation: str = ""


class Membership:
    """Turns heartbeats, sessions and silence into changes. Suspect is not dead."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._peers: dict[str, _Peer] = {}
        #: Those not silent for long, and those who are, each by when they were heard. A lost peer is in neither.
        self._speaking: OrderedDict[str, _Peer] = OrderedDict()
        self._silent: OrderedDict[str, _Peer] = OrderedDict()
        #: Those without a session, by when it broke. They are suspect, and in one of the lines above as well.
        self._closed: OrderedDict[str, _Peer] = OrderedDict()

    def heard(self, node: str, now_s: float, *, incarnation: str = "") -> list[PeerChanged]:
        """Any sign of life. A new incarnation is a new process: the one before is lost, and so is what it held."""
        peer = self._peers.get(node)
        if peer is not None and peer.state is _ALIVE and (not incarnation or incarnation == peer.incarnation):
            peer.heard_s = now_s
            self._speaking.move_to_end(node)
            return []
        return self._noticed(node, now_s, incarnation)

    def _noticed(self, node: str, now_s: float, incarnation: str) -> list[PeerChanged]:
        """A sign of life that may change something."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(heard_s=now_s, state=Liveness.LOST)
        restarted = incarnation and peer.incarnation not in ("", incarnation)
        peer.incarnation = incarnation or peer.incarnation
        ended = self.left(node, reason="restarted") if restarted else []
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

    def closed(self, node: str, now_s: float, *, reason: str) -> list[PeerChanged]:
        """Its session broke. It has a moment to come back under the same identity."""
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

    def left(self, node: str, *, reason: str) -> list[PeerChanged]:
        """It said goodbye."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        return [replace(self._lost(node, peer, reason), is_certain=True)]

    def check(self, now_s: float) -> list[PeerChanged]:
        """Call every heartbeat or so."""
        changes = [*self._not_back(now_s), *self._silent_too_long(now_s), *self._newly_silent(now_s)]
        return sorted(changes, key=lambda change: change.node)

    def state(self, node: str) -> Liveness:
        peer = self._peers.get(node)
        return peer.state if peer else Liveness.LOST

    def reason(self, node: str) -> str:
        peer = self._peers.get(node)
        return peer.reason if peer else "never connected since the manager started"

    def heard_s(self, node: str) -> float:
        """When it was last heard."""
        peer = self._peers.get(node)
        return peer.heard_s if peer else -1.0

    def heard_ago_s(self, node: str, now_s: float) -> float:
        peer = self._peers.get(node)
        return now_s - peer.heard_s if peer else -1.0

    # Each takes from the front of one line for as long as someone's time has come. ----------------------

    def _not_back(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._closed:
            node, peer = next(iter(self._closed.items()))
            if now_s - peer.closed_s < self._patience.reconnect_s:
                break
            reason = f"{peer.reason}; not back within {self._patience.reconnect_s:g} s"
            changes.append(self._lost(node, peer, reason))
        return changes

    def _silent_too_long(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._silent:
            node, peer = next(iter(self._silent.items()))
            silent_s = now_s - peer.heard_s
            if silent_s < self._patience.lost_after_s:
                break
            changes.append(self._lost(node, peer, f"silent for {silent_s:.1f} s"))
        return changes

    def _newly_silent(self, now_s: float) -> list[PeerChanged]:
        changes = []
        while self._speaking:
            node, peer = next(iter(self._speaking.items()))
            silent_s = now_s - peer.heard_s
            if silent_s >= self._patience.lost_after_s:
                changes.append(self._lost(node, peer, f"silent for {silent_s:.1f} s"))
            elif silent_s >= self._patience.suspect_after_s:
                self._silent[node] = self._speaking.pop(node)
                if peer.state is Liveness.ALIVE:
                    peer.state, peer.reason = Liveness.SUSPECT, f"silent for {silent_s:.1f} s"
                    changes.append(PeerChanged(node=node, state=peer.state, reason=peer.reason))
            else:
                break
        return changes

    def _lost(self, node: str, peer: _Peer, reason: str) -> PeerChanged:
        self._forget(node)
        peer.state, peer.reason = Liveness.LOST, reason
        return PeerChanged(node=node, state=Liveness.LOST, reason=reason)

    def _forget(self, node: str) -> None:
        """Out of every line."""
        for line in (self._speaking, self._silent, self._closed):
            line.pop(node, None)
