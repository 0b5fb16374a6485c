"""The names of members: a node's, a role's and a cluster's, and the URI that a certificate carries.

A module of its own because identities and certificates both name members, and would otherwise import each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.errors import Misuse, PeerViolation

ROLES = ("manager", "node", "browser", "operator")

#: Members that work. A tab of a browser works and does nothing else: it never leads, serves or operates.
DEVICE_ROLES = ("node", "browser")

#: Every node may be asked to lead, so every node may serve. An operator only calls.
SERVING_ROLES = ("manager", "node")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_URI = re.compile(r"shoal://(?P<cluster>[^/]+)/(?P<role>[^/]+)/(?P<node>[^/]+)")


def is_name(text: str) -> bool:
    """Whether this may name a node, a role or a cluster."""
    return _NAME.fullmatch(text) is not None


def check_name(kind: str, text: str) -> None:
    if not is_name(text):
        raise Misuse(
            f"{text[:80]!r} cannot be the name of a {kind}: use 1 to 63 of a-z, 0-9 and -,"
            " starting with a letter or a digit"
        )


def server_name(node: str) -> str:
    """The name a client expects of this node's certificate: the value of `grpc.ssl_target_name_override`."""
    return f"{node}.shoal"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteIdentity:
    """The member at the other end of a connection, as its certificate names it."""

    node: str
    role: str
    cluster: str
    #: The certificate's hash; empty where the member showed none.
    certificate: str = field(default="", compare=False)
    #: The hashes of what it showed beside its certificate: of the authority of the manager that issued it, if that has
    #: one of its own.
    authorities: tuple[str, ...] = field(default=(), compare=False)
    #: The address that it calls from; empty where that is not known.
    address: str = field(default="", compare=False)
    #: The process that calls, as the member says itself; empty where it does not.
    incarnation: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name("node", self.node)
        check_name("cluster", self.cluster)
        if self.role not in ROLES:
            raise Misuse(f"{self.role[:80]!r} is not a role: choose one of {', '.join(ROLES)}")

    @property
    def uri(self) -> str:
        return f"shoal://{self.cluster}/{self.role}/{self.node}"


def remote_from_uris(names: Iterable[str]) -> RemoteIdentity:
    """The one Shoal identity among these names. None, two, or a malformed one is the peer's fault."""
    found = [name for name in names if name.lower().startswith("shoal:")]
    if len(found) != 1:
        raise PeerViolation(f"the certificate carries {len(found)} Shoal identities, not one")
    parts = _URI.fullmatch(found[0])
    if parts is None:
        raise PeerViolation(f"the certificate's identity is malformed: {found[0][:200]!r}")
    try:
        return RemoteIdentity(node=parts["node"], role=parts["role"], cluster=parts["cluster"])
    except Misuse as error:
        raise PeerViolation(f"the certificate's identity is malformed: {error}") from error
