"""Who may call what: role x verb, in one place, deny by default."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.transport.identity import Peer

#: The verbs of the contract's service and the roles that may call them.
MAY_CALL: dict[str, frozenset[str]] = {
    "Control": frozenset({"node"}),
    "Work": frozenset({"node"}),
    "Fetch": frozenset({"node", "operator"}),
    "Operate": frozenset({"operator"}),
    "Store": frozenset({"operator"}),
}


def check_access(peer: Peer, verb: str, *, cluster: str) -> None:
    """Raise unless this peer may call this verb of this cluster."""
    if peer.cluster != cluster:
        raise PeerViolation(f"belongs to cluster {peer.cluster}, not {cluster}", peer=peer.node)
    if peer.role not in MAY_CALL.get(verb, frozenset()):
        raise PeerViolation(f"a {peer.role} may not call {verb}", peer=peer.node)
