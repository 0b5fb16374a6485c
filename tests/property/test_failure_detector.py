"""Membership against the plain rule, which looks at everyone each time: whatever happens, both say the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.roles.events import Liveness, PeerChanged
from shoal.roles.node.failure_detector import FailureDetector, Patience

ALIVE, SUSPECT, LOST = Liveness.ALIVE, Liveness.SUSPECT, Liveness.LOST

PATIENCES = (
    Patience(),
    # Sessions break and nobody minds: silence alone decides.
    Patience(suspect_after_s=1.0, lost_after_s=3.0, reconnect_s=60.0),
    # Odd on purpose: who is silent is lost before anyone suspects it.
    Patience(suspect_after_s=4.0, lost_after_s=2.0, reconnect_s=3.0),
)


@dataclass
class Peer:
    heard_s: float
    state: Liveness = LOST
    closed_s: float | None = None
    reason: str = ""
    incarnation: str = ""
    every_s: float = 1.0
    hurried_s: float = float("-inf")


@dataclass
class Plain:
    """The rule itself, at the cost of a look at every peer."""

    patience: Patience
    peers: dict[str, Peer] = field(default_factory=dict)

    def heard(self, node: str, now_s: float, incarnation: str) -> list[PeerChanged]:
        peer = self.peers.setdefault(node, Peer(now_s))
        changes = []
        if incarnation and peer.incarnation not in ("", incarnation):
            changes = self.left(node, "restarted")
        peer.incarnation = incarnation or peer.incarnation
        silent_s, before = now_s - peer.heard_s, peer.state
        peer.heard_s, peer.closed_s = now_s, None
        if before is ALIVE:
            return changes
        reason = f"back after {silent_s:.1f} s of silence" if before is SUSPECT else "connected"
        return [*changes, self.change(node, ALIVE, reason)]

    def closed(self, node: str, now_s: float, reason: str) -> list[PeerChanged]:
        peer = self.peers.get(node)
        if peer is None or peer.state is LOST:
            return []
        peer.closed_s, peer.reason = now_s, reason
        if peer.state is SUSPECT:
            return []
        told = f"{reason}; waiting {self.patience.reconnect_s:g} s for it to return"
        return [replace(self.change(node, SUSPECT, reason), reason=told)]

    def left(self, node: str, reason: str) -> list[PeerChanged]:
        peer = self.peers.get(node)
        if peer is None or peer.state is LOST:
            return []
        return [replace(self.change(node, LOST, reason), is_certain=True)]

    def expect(self, node: str, every_s: float, now_s: float) -> None:
        peer = self.peers[node]
        if every_s < peer.every_s:
            peer.hurried_s = now_s
        peer.every_s = every_s

    def check(self, now_s: float) -> list[PeerChanged]:
        changes = []
        for node, peer in sorted(self.peers.items()):
            silent_s, counted_s = now_s - peer.heard_s, now_s - max(peer.heard_s, peer.hurried_s)
            more_s = 2.0 * (peer.every_s - self.patience.heartbeat_s)
            if peer.state is LOST:
                continue
            if peer.closed_s is not None and now_s - peer.closed_s >= self.patience.reconnect_s:
                gone = f"{peer.reason}, no reconnect within {self.patience.reconnect_s:g} s"
                changes.append(self.change(node, LOST, gone))
            elif counted_s >= self.patience.lost_after_s + more_s:
                changes.append(self.change(node, LOST, f"silent for {silent_s:.1f} s"))
            elif counted_s >= self.patience.suspect_after_s + more_s and peer.state is ALIVE:
                changes.append(self.change(node, SUSPECT, f"silent for {silent_s:.1f} s"))
        return changes

    def change(self, node: str, state: Liveness, reason: str) -> PeerChanged:
        self.peers[node].state, self.peers[node].reason = state, reason
        return PeerChanged(node=node, state=state, reason=reason)


#: (seconds since the step before, what happens, to whom, as which process). Half seconds meet the limits exactly.
STEPS = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.5, 0.5, 1.0, 1.0, 5.0)) | st.floats(0.0, 2.0),
        st.sampled_from(("heard", "heard", "closed", "check", "check", "left", "fewer", "more")),
        st.sampled_from(("a", "b", "c")),
        st.sampled_from(("", "", "first", "second")),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=400)
@given(patience=st.sampled_from(PATIENCES), steps=STEPS)
def test_who_is_alive_is_what_the_plain_rule_says(patience: Patience, steps: list[tuple[float, str, str, str]]) -> None:
    members, plain, now_s = FailureDetector(patience), Plain(patience), 0.0
    for node in ("c", "a", "b"):
        assert members.on_heard(node, now_s) == plain.heard(node, now_s, "")
    for number, (after_s, what, node, incarnation) in enumerate(steps):
        now_s += after_s
        match what:
            case "heard":
                changes = members.on_heard(node, now_s, incarnation=incarnation or None)
                assert changes == plain.heard(node, now_s, incarnation)
            case "closed":
                changes = members.on_closed(node, now_s, reason=f"break {number}")
                assert changes == plain.closed(node, now_s, f"break {number}")
            case "left":
                assert members.on_left(node, reason="left") == plain.left(node, "left")
            case "fewer" | "more":
                every_s = 3.0 if what == "fewer" else 1.0
                members.expect(node, every_s, now_s)
                plain.expect(node, every_s, now_s)
            case "check":
                assert members.check(now_s) == plain.check(now_s)
        for name, peer in plain.peers.items():
            assert members.state(name) is peer.state
            assert members.heard_ago_s(name, now_s) == now_s - peer.heard_s
