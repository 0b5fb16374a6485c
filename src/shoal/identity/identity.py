"""Who a member is, and the authority that says so. Loading an identity needs no `cryptography`; knows no sockets.

A member is recognised by one URI in its certificate, `shoal://CLUSTER/ROLE/NODE`. A client verifies a server by the
name `NODE.shoal` rather than by its address, so a moving IP changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.identity import chain
from shoal.identity.names import SERVING_ROLES, RemoteIdentity, check_name, remote_from_uris, server_name
from shoal.store.files import write_atomically
from shoal.wire.limits import IDENTITY_FILE_MAX_BYTES

if TYPE_CHECKING:
    import grpc

AUTHORITY_VALID_DAYS = 3650
#: Members renew theirs by themselves (see `net.renewal`), so a stolen one is soon of no use.
MEMBER_VALID_DAYS = 30.0

#: Key and certificate live in one file, so that a crash while renewing leaves the old pair or the new, never a mixture.
IDENTITY_FILE = "identity.json"
AUTHORITY_FILE = "authority.json"

#: Members that every cluster has: a manager's own authority is called something else.
RESERVED_NAMES = ("manager", "operator")


def remote_from_auth_context(auth: Mapping[str, Iterable[bytes]]) -> RemoteIdentity:
    """Return the caller in gRPC's `context.auth_context()`. gRPC has already verified its certificate."""
    if list(auth.get("transport_security_type", ())) != [b"ssl"]:
        raise PeerViolation("the connection is not authenticated by TLS")
    try:
        names = [name.decode("ascii") for name in auth.get("x509_subject_alternative_name", ())]
        common_names = [name.decode("ascii") for name in auth.get("x509_common_name", ())]
    except UnicodeDecodeError as error:
        raise PeerViolation("the certificate's names are not ASCII") from error
    peer = remote_from_uris(names)
    if common_names != [peer.node]:
        raise PeerViolation("the certificate's common name and identity disagree", peer=peer.node)
    shown = list(auth.get("x509_pem_cert", ()))
    if len(shown) != 1:
        return peer
    own = certificate_sha256(shown[0])
    try:
        authorities = chain.beside(own, list(auth.get("x509_pem_cert_chain", ())))
    except ValueError as error:
        raise PeerViolation("the certificate cannot be read") from error
    return replace(peer, certificate=own, authorities=authorities)


def address_of(caller: str) -> str:
    """Return only the address in gRPC's name of a peer: `ipv4:10.0.0.5:41242`, `ipv6:%5Bfe80::1%5D:41242`."""
    kind, _, where = urllib.parse.unquote(caller).partition(":")
    return where.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else caller


def certificate_sha256(pem: bytes) -> str:
    """Return the hash that identifies a certificate in a registry. It does not cover an authority's in the same PEM."""
    try:
        return chain.sha256(pem)
    except ValueError as error:
        raise PeerViolation("the certificate cannot be read") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A member's key and certificate, and the authority that it trusts."""

    node: str
    role: str
    cluster: str
    key_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    ca_pem: bytes = field(repr=False)
    #: The certificate's validity by the manager's clock, so that it need not be parsed. 0 if unknown.
    issued_s: float = 0.0
    expires_s: float = 0.0

    def __post_init__(self) -> None:
        RemoteIdentity(node=self.node, role=self.role, cluster=self.cluster)  # checks the names
        for pem in (self.key_pem, self.certificate_pem, self.ca_pem):
            if not pem.startswith(b"-----BEGIN "):
                raise Misuse("an identity's key and certificates are PEM")

    def save(self, folder: Path) -> None:
        """Replace the identity in `folder` atomically. Only this user can read it."""
        pems = {name: getattr(self, name).decode("ascii") for name in ("key_pem", "certificate_pem", "ca_pem")}
        times = {"issued_s": repr(self.issued_s), "expires_s": repr(self.expires_s)}
        save_private_json(
            folder / IDENTITY_FILE, {"node": self.node, "role": self.role, "cluster": self.cluster, **pems, **times}
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        fields = ("node", "role", "cluster", "key_pem", "certificate_pem", "ca_pem")
        times = ("issued_s", "expires_s")
        node, role, cluster, key, certificate, ca, issued, expires = load_private_json(
            folder / IDENTITY_FILE, fields, optional=times
        )
        try:
            return cls(
                node=node,
                role=role,
                cluster=cluster,
                key_pem=key.encode("ascii"),
                certificate_pem=certificate.encode("ascii"),
                ca_pem=ca.encode("ascii"),
                issued_s=float(issued or 0),
                expires_s=float(expires or 0),
            )
        except (Misuse, ValueError) as error:
            raise Corrupt(f"{folder / IDENTITY_FILE} is damaged ({error}): join the cluster again") from error


class Authority:
    """What signs members: a cluster's certificate authority, or one of a manager's own that it certified.

    Its key can make any member's certificate, so it never leaves the manager.
    """

    def __init__(
        self, *, cluster: str, key_pem: bytes, certificate_pem: bytes, name: str = "", own_pem: bytes = b""
    ) -> None:
        """``certificate_pem`` is that of the cluster's authority, which all members trust. ``name``, ``own_pem``: of a
        manager's own; empty, where this is the cluster's."""
        check_name("cluster", cluster)
        if name:
            check_name("manager", name)
        if bool(name) != bool(own_pem):
            raise Misuse("an authority of a manager has a name and a certificate")
        self.cluster = cluster
        self.name = name
        self.own_pem = own_pem
        #: How long the certificates are valid that it issues.
        self.member_days = MEMBER_VALID_DAYS
        self.certificate_pem = certificate_pem
        self._key_pem = key_pem

    @classmethod
    def create(cls, folder: Path, cluster_name: str, *, now_s: float | None = None) -> Self:
        """Make a new cluster's authority. Refuses to replace one: every member would be locked out."""
        from shoal.identity import certificates

        check_name("cluster", cluster_name)
        path = folder / AUTHORITY_FILE
        if path.exists():
            raise Misuse(f"{path} already holds a cluster: load it, or choose another folder")
        made = certificates.new_authority(
            cluster_name, valid_days=AUTHORITY_VALID_DAYS, now_s=_now(now_s), delegates=True
        )
        authority = cls(cluster=cluster_name, key_pem=made.key_pem, certificate_pem=made.pem)
        authority.save(path)
        return authority

    def save(self, path: Path) -> None:
        own = {"name": self.name, "own_pem": self.own_pem.decode("ascii")} if self.name else {}
        pems = {"key_pem": self._key_pem.decode("ascii"), "certificate_pem": self.certificate_pem.decode("ascii")}
        save_private_json(path, {"cluster": self.cluster, **pems, **own})

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / AUTHORITY_FILE
        cluster, key, certificate, name, own = load_private_json(
            path, ("cluster", "key_pem", "certificate_pem"), optional=("name", "own_pem")
        )
        try:
            loaded = cls(
                cluster=cluster,
                key_pem=key.encode("ascii"),
                certificate_pem=certificate.encode("ascii"),
                name=name,
                own_pem=own.encode("ascii"),
            )
            _ = loaded.greeting
        except (Misuse, ValueError) as error:
            raise Corrupt(f"{path} is damaged ({error}): restore it from a backup") from error
        return loaded

    @property
    def certificate_der(self) -> bytes:
        return chain.der(self.certificate_pem)

    @property
    def fingerprint(self) -> bytes:
        """sha256 of the certificate of the cluster's authority: what a join line pins."""
        import hashlib

        return hashlib.sha256(self.certificate_der).digest()

    @property
    def greeting(self) -> bytes:
        """The first message to a joining device: the cluster's authority, then the manager's own if it has one."""
        return self.certificate_der + (chain.der_of(self.own_pem) if self.own_pem else b"")

    @property
    def until_s(self) -> float:
        """When it expires, in seconds since 1970. The certificates that it issues are void from then on."""
        from shoal.identity import certificates

        return min(certificates.until_s(pem) for pem in (self.certificate_pem, self.own_pem) if pem)

    @property
    def own_sha256(self) -> str:
        """The hash of the manager's own authority. Empty if this is the cluster's."""
        return chain.sha256(self.own_pem) if self.own_pem else ""

    def for_manager(self, name: str, *, valid_days: float, now_s: float | None = None) -> Self:
        """Make a new authority for a manager, which members of this cluster trust as they trust this one."""
        from shoal.identity import certificates

        check_name("manager", name)
        if name in RESERVED_NAMES:
            raise Misuse(f"{name!r} names something else in every cluster: choose another name")
        if self.name:
            raise Misuse(f"this is the authority of the manager {self.name}: only that of the cluster makes others")
        pair = certificates.KeyPair(self._key_pem, self.certificate_pem)
        made = certificates.manager_authority(
            pair, cluster=self.cluster, name=name, valid_days=valid_days, now_s=_now(now_s)
        )
        return type(self)(
            cluster=self.cluster,
            key_pem=made.key_pem,
            certificate_pem=self.certificate_pem,
            name=name,
            own_pem=made.pem,
        )

    def issue(
        self,
        *,
        node: str,
        role: str,
        csr_pem: bytes,
        hosts: Sequence[str] = (),
        valid_days: float | None = None,
        now_s: float | None = None,
    ) -> bytes:
        """A certificate (PEM) for the request's public key, and behind it the manager's own authority, if it has one.

        The subject is ours to decide, not the request's.
        """
        from shoal.identity import certificates

        issued = certificates.issue(
            certificates.KeyPair(self._key_pem, self.own_pem or self.certificate_pem),
            csr_pem,
            RemoteIdentity(node=node, role=role, cluster=self.cluster),
            serves=role in SERVING_ROLES,
            hosts=hosts,
            valid_days=self.member_days if valid_days is None else valid_days,
            now_s=_now(now_s),
        )
        return issued + self.own_pem

    def identity(
        self,
        *,
        node: str,
        role: str,
        hosts: Sequence[str] = (),
        valid_days: float | None = None,
        now_s: float | None = None,
    ) -> Identity:
        """A key made here and its certificate: for the manager itself and for operators on its machine."""
        from shoal.identity import certificates

        check_name("node", node)
        issued_s = _now(now_s)
        request = certificates.new_request(node)
        certificate_pem = self.issue(
            node=node, role=role, csr_pem=request.pem, hosts=hosts, valid_days=valid_days, now_s=issued_s
        )
        return Identity(
            node=node,
            role=role,
            cluster=self.cluster,
            key_pem=request.key_pem,
            certificate_pem=certificate_pem,
            ca_pem=self.certificate_pem,
            issued_s=issued_s,
            expires_s=certificates.issued(certificate_pem).expires_s,
        )


def renewable_server_credentials(current: Callable[[], Identity]) -> grpc.ServerCredentials:
    """Serve members of the same cluster only. `current` gives the identity to serve as, is asked again for each
    connection, and in any thread."""
    import grpc

    shown = current()

    def configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
        pair = (identity.key_pem, identity.certificate_pem)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=identity.ca_pem)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if (now := current()) is shown:
            return None
        shown = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(configuration(shown), renewed, require_client_authentication=True)


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Call as this member. Pass `channel_options` too: the server is known by its name, not by its address."""
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=identity.ca_pem,
        private_key=identity.key_pem,
        certificate_chain=identity.certificate_pem,
    )


def channel_options(server_node: str) -> list[tuple[str, str]]:
    """The channel option that makes a client accept `server_node`, and nobody else, wherever it is."""
    check_name("node", server_node)
    return [("grpc.ssl_target_name_override", server_name(server_node))]


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[bool]:
    """Whether this program alone may change the identity in `folder`, for as long as this lasts."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "identity.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def save_private_json(path: Path, content: Mapping[str, str]) -> None:
    """Write a file that only this user can read, durably. After a crash it is the complete old or new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    text = json.dumps(content, indent=2)
    write_atomically(path, lambda file: file.write(text.encode()))


def load_private_json(path: Path, fields: Sequence[str], *, optional: Sequence[str] = ()) -> list[str]:
    """The named texts of a file that `save_private_json` wrote, in order; then those that an older one may lack."""
    try:
        with path.open("rb") as file:
            raw = file.read(IDENTITY_FILE_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise Misuse(f"there is no {path}: join a cluster with `shoal join`, or start one with `shoal up`") from error
    try:
        if len(raw) > IDENTITY_FILE_MAX_BYTES:
            raise ValueError("it is too large")
        content: Any = json.loads(raw)
        values = [content[name] for name in fields] + [content.get(name, "") for name in optional]
        if not all(isinstance(value, str) for value in values):
            raise ValueError("a field is not text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} is damaged ({error!r}): restore it from a backup, or join the cluster again") from error
    return values


def _now(now_s: float | None) -> float:
    return time.time() if now_s is None else now_s
