"""Who is alive, as far as heartbeats tell. Pure state shared by both drivers; time is monotonic and an argument."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.roles.events import Liveness, PeerChanged


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
    closed_s: float | None = None
    reason: str = ""
    incarnation: str = ""


class Membership:
    """Turns heartbeats, sessions and silence into changes. Suspect is not dead."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._peers: dict[str, _Peer] = {}

    def heard(self, node: str, now_s: float, *, incarnation: str = "") -> list[PeerChanged]:
        """Any sign of life. A new incarnation is a new process: the one before is lost, and so is what it held."""
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(heard_s=now_s, state=Liveness.LOST)
        restarted = incarnation and peer.incarnation not in ("", incarnation)
        peer.incarnation = incarnation or peer.incarnation
        if restarted:
            return [*self.left(node, reason="restarted"), *self.heard(node, now_s)]
        silent_s = now_s - peer.heard_s
        peer.heard_s = now_s
        peer.closed_s = None
        if peer.state is Liveness.ALIVE:
            return []
        back = peer.state is Liveness.SUSPECT
        peer.state = Liveness.ALIVE
        peer.reason = f"back after {silent_s:.1f} s of silence" if back else "connected"
        return [PeerChanged(node=node, state=Liveness.ALIVE, reason=peer.reason)]

    def closed(self, node: str, now_s: float, *, reason: str) -> list[PeerChanged]:
        """Its session broke. It has a moment to come back under the same identity."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        peer.closed_s = now_s
        peer.reason = reason
        if peer.state is Liveness.SUSPECT:
            return []
        peer.state = Liveness.SUSPECT
        return [PeerChanged(node=node, state=Liveness.SUSPECT, reason=reason)]

    def left(self, node: str, *, reason: str) -> list[PeerChanged]:
        """It said goodbye."""
        peer = self._peers.get(node)
        if peer is None or peer.state is Liveness.LOST:
            return []
        peer.state, peer.reason = Liveness.LOST, reason
        return [PeerChanged(node=node, state=Liveness.LOST, reason=reason)]

    def check(self, now_s: float) -> list[PeerChanged]:
        """Call every heartbeat or so."""
        changes = []
        for node in sorted(self._peers):
            peer = self._peers[node]
            state, reason = self._judge(peer, now_s)
            if state is not peer.state:
                peer.state, peer.reason = state, reason
                changes.append(PeerChanged(node=node, state=state, reason=reason))
        return changes

    def state(self, node: str) -> Liveness:
        peer = self._peers.get(node)
        return peer.state if peer else Liveness.LOST

    def reason(self, node: str) -> str:
        peer = self._peers.get(node)
        return peer.reason if peer else "never connected since the manager started"

    def heard_ago_s(self, node: str, now_s: float) -> float:
        peer = self._peers.get(node)
        return now_s - peer.heard_s if peer else -1.0

    def _judge(self, peer: _Peer, now_s: float) -> tuple[Liveness, str]:
        if peer.state is Liveness.LOST:
            return peer.state, peer.reason
        silent_s = now_s - peer.heard_s
        if peer.closed_s is not None and now_s - peer.closed_s >= self._patience.reconnect_s:
            return Liveness.LOST, f"{peer.reason}; not back within {self._patience.reconnect_s:g} s"
        if silent_s >= self._patience.lost_after_s:
            return Liveness.LOST, f"silent for {silent_s:.1f} s"
        if silent_s >= self._patience.suspect_after_s:
            return Liveness.SUSPECT, f"silent for {silent_s:.1f} s"
        return peer.state, peer.reason
