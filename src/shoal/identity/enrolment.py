"""How a device becomes a member: one TLS connection, in which the cluster proves its identity before the device does.

    manager → device    the certificate of the cluster's authority (DER), then that of the manager's own, if it has one
              device    checks it against the join line, and this connection's own certificate against it
    device  → manager   {secret, csr_pem, wanted, facts}
    manager → device    {certificate_pem, node, role, cluster, manager, port}   or   {refused}

A member whose certificate expired while it was offline comes the same way, with `{certificate, csr_pem}`: the hash of
that certificate, and a request signed with its key.

Every message is four bytes of length and then the content. Tokens are behind a Protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from shoal.errors import Misuse, PeerViolation, Refused, Unreachable
from shoal.identity import chain, health
from shoal.identity.enrolled import Enrolled
from shoal.identity.identity import Authority, Identity, certificate_sha256
from shoal.identity.join_code import JoinCode, endpoint
from shoal.identity.listening import listen
from shoal.identity.names import RemoteIdentity, check_name, is_name
from shoal.identity.reception import GOODBYE_S, Reception, close, drop, receive, send
from shoal.identity.tokens import ENROLLABLE_ROLES, Denial, Grant, Renewals, Tokens
from shoal.wire.limits import (
    ENROL_AUTHORITY_MAX_BYTES,
    ENROL_CONNECTIONS_MAX,
    ENROL_DEADLINE_S,
    ENROL_FACTS_MAX,
    ENROL_MESSAGE_MAX_BYTES,
    NAME_MAX_CHARS,
    REASON_MAX_CHARS,
)

__all__ = [
    "Denial",
    "Enrolled",
    "EnrolmentServer",
    "Grant",
    "JoinCode",
    "Newcomer",
    "Tokens",
    "WrongCluster",
    "enrol",
    "enrol_blocking",
    "return_lapsed",
]

log = logging.getLogger(__name__)

_NO_SECRET = "0" * 32


class WrongCluster(PeerViolation):
    """Who answered is not the cluster that the join line was made for. Nothing was sent to them."""


# The manager's side.


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """A device that just joined: its name and role, its address, and the facts that it reported."""

    node: str
    role: str
    address: str
    facts: Mapping[str, str]
    #: What it is about to be handed: `on_enrolled` records it first.
    certificate_pem: bytes = field(default=b"", repr=False, compare=False)


class EnrolmentServer:
    """Answers devices that hold a join line. The only service of a cluster that a stranger can speak to."""

    def __init__(
        self,
        authority: Authority,
        identity: Identity,
        tokens: Tokens,
        host: str,
        port: int,
        *,
        service_port: int,
        on_enrolled: Callable[[Newcomer], None] | None = None,
        renewals: Renewals | None = None,
        deadline_s: float = ENROL_DEADLINE_S,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        """`service_port` is where members reach the manager's gRPC; `on_enrolled` hears of each newcomer first.
        `trouble` says, in any thread, why a device that dials now would not be served, or nothing."""
        self._trouble = trouble
        self._renewals = renewals
        if identity.role != "manager":
            raise Misuse(f"devices join at a manager, and {identity.node} is {identity.role}")
        if identity.ca_pem != authority.certificate_pem:
            raise Misuse(f"{identity.node} is not a member of the cluster that this authority signs for")
        self._authority = authority
        self._identity = identity
        self._tokens = tokens
        self._host = host
        self._port = port
        self._service_port = service_port
        self._on_enrolled = on_enrolled
        self._deadline_s = deadline_s
        self._listener: socket.socket | None = None
        self._reception: Reception | None = None

    @property
    def port(self) -> int:
        """The port in use; with `port=0`, the one the system chose."""
        return self._port

    async def start(self) -> None:
        if self._listener is not None:
            raise Misuse("this enrolment server was started before: stop it first")
        self._listener = _listen(self._host, self._port)
        self._port = self._listener.getsockname()[1]
        self._reception = Reception(
            self._listener,
            _context(self._identity),
            greeting=self._authority.greeting,
            answer=self._answer,
            deadline_s=self._deadline_s,
            trouble=self._trouble,
        )
        await self._reception.start()

    def become(self, identity: Identity) -> None:
        """Show another certificate on every new connection."""
        self._identity = identity
        if self._reception is not None:
            # Another context: the one in use is read by another thread.
            self._reception.context = _context(identity)

    async def stop(self) -> None:
        """Stop accepting, and close every open connection."""
        if self._listener is None or self._reception is None:
            return
        await self._reception.stop()
        self._listener.close()
        self._listener = self._reception = None

    async def _answer(self, raw: bytes, address: str) -> tuple[bytes, str]:
        """Return the reply to a request, and the reason of a refusal, or an empty text if it is granted."""
        refusal = ""
        try:
            content = _json_object(raw)
            if "certificate" in content:
                reply = self._readmit(_Return.from_json(content), address)
            else:
                reply = self._admit(_Request.from_json(content), address)
        except (PeerViolation, Refused) as error:
            refusal = str(error)[:REASON_MAX_CHARS]
            reply = {"refused": refusal}
        return json.dumps(reply).encode(), refusal

    def _admit(self, request: _Request, address: str) -> dict[str, object]:
        # The secret is checked before the request is parsed: strangers do not reach the X.509 parser.
        now_s = time.time()
        decision = self._tokens.redeem(request.secret, wanted=request.wanted, now_s=now_s, facts=request.facts)
        if isinstance(decision, Denial):
            raise Refused(decision.reason)
        if decision.role not in ENROLLABLE_ROLES:
            raise Refused(f"nobody joins as {decision.role}")
        if decision.node == self._identity.node:
            raise Refused(f"{decision.node} is the manager's own name: choose another")
        certificate_pem = self._authority.issue(
            node=decision.node, role=decision.role, csr_pem=request.csr_pem.encode()
        )
        if self._on_enrolled is not None:
            newcomer = Newcomer(
                node=decision.node,
                role=decision.role,
                address=address,
                facts=request.facts,
                certificate_pem=certificate_pem,
            )
            self._on_enrolled(newcomer)
        log.info("%s joined as %s from %s", decision.node, decision.role, address)
        return self._reply(decision.node, decision.role, certificate_pem)

    def _readmit(self, request: _Return, address: str) -> dict[str, object]:
        if self._renewals is None:
            raise Refused("certificates are not renewed here: join again with a new line")
        # A caller reaches the X.509 parser only with the hash of a certificate that was issued here.
        decision = self._renewals.lapsed(request.certificate, now_s=time.time())
        if isinstance(decision, Denial):
            raise Refused(decision.reason)
        from shoal.identity import certificates

        csr_pem = request.csr_pem.encode()
        if certificates.requested_key_sha256(csr_pem) != decision.key_sha256:
            raise PeerViolation(f"does not hold the key of {decision.node}'s certificate")
        # Checked only after the key is proven: the hash of an old certificate is not secret, so it raises no alarm.
        if decision.superseded_s is not None:
            raise Refused(self._renewals.refuse_replaced(decision, address=address))
        certificate_pem = self._authority.issue(node=decision.node, role=decision.role, csr_pem=csr_pem)
        self._renewals.record(certificate_pem, now_s=time.time(), replaces=request.certificate)
        log.info("%s came back from %s: its certificate was renewed", decision.node, address)
        return self._reply(decision.node, decision.role, certificate_pem)

    def _reply(self, node: str, role: str, certificate_pem: bytes) -> dict[str, object]:
        from shoal.identity import certificates

        return {
            "certificate_pem": certificate_pem.decode("ascii"),
            "node": node,
            "role": role,
            "cluster": self._authority.cluster,
            "manager": self._identity.node,
            "port": self._service_port,
            "issued_s": time.time(),
            "expires_s": certificates.issued(certificate_pem).expires_s,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    secret: str = field(repr=False)
    csr_pem: str
    wanted: str
    facts: Mapping[str, str]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        secret, csr_pem, wanted, facts = (content.get(name) for name in ("secret", "csr_pem", "wanted", "facts"))
        if not (isinstance(secret, str) and isinstance(csr_pem, str) and isinstance(wanted, str)):
            raise PeerViolation("the request lacks a secret, a signing request or a name")
        if not (secret.isascii() and csr_pem.isascii()):
            raise PeerViolation("the secret or the signing request is not ASCII")
        if not is_name(wanted):
            raise PeerViolation(f"{wanted[:80]!r} cannot be the name of a node: use 1 to 63 of a-z, 0-9 and -")
        if not isinstance(facts, dict) or not _are_facts(facts):
            raise PeerViolation(
                f"facts are at most {ENROL_FACTS_MAX} names and texts of up to {NAME_MAX_CHARS} printable characters"
            )
        return cls(secret=secret, csr_pem=csr_pem, wanted=wanted, facts=facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Return:
    certificate: str
    csr_pem: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        certificate, csr_pem = content.get("certificate"), content.get("csr_pem")
        if not (isinstance(certificate, str) and isinstance(csr_pem, str) and csr_pem.isascii()):
            raise PeerViolation("the request lacks the hash of a certificate or a signing request")
        return cls(certificate=certificate, csr_pem=csr_pem)


def _are_facts(facts: Mapping[Any, Any]) -> bool:
    # Printable, because facts end up on an operator's terminal, where an escape sequence is a command.
    return len(facts) <= ENROL_FACTS_MAX and all(
        isinstance(text, str) and text.isprintable() and len(text) <= NAME_MAX_CHARS
        for fact in facts.items()
        for text in fact
    )


# The device's side.


async def enrol(
    code: JoinCode,
    *,
    wanted: str,
    facts: Mapping[str, str] | None = None,
    timeout_s: float = ENROL_DEADLINE_S,
) -> Enrolled:
    """Join the cluster that the line was made for, as `wanted` if that name is free.

    Raises Unreachable, WrongCluster (nothing was sent), Refused (with the manager's reason) or PeerViolation.
    """
    from shoal.identity import certificates

    check_name("node", wanted)
    if not _are_facts(facts or {}):
        raise Misuse(
            f"facts are at most {ENROL_FACTS_MAX} names and texts of up to {NAME_MAX_CHARS} printable characters"
        )
    # Made before connecting: on a small board the import and the key would eat the manager's deadline.
    request = certificates.new_request(wanted)
    content = {
        "secret": code.secret,
        "csr_pem": request.pem.decode(),
        "wanted": wanted,
        "facts": dict(facts or {}),
    }
    message = json.dumps(content).encode()
    if len(message) > ENROL_MESSAGE_MAX_BYTES:
        raise Misuse(f"the facts are too long: a request has at most {ENROL_MESSAGE_MAX_BYTES} bytes")
    return await _converse(code, message, request.key_pem, timeout_s)


async def return_lapsed(member: Enrolled, *, timeout_s: float = ENROL_DEADLINE_S) -> Enrolled:
    """Renew the certificate of a member that expired while it was offline, with the same key.

    Raises as `enrol` does. The cluster proves its identity by the authority that the member trusts.
    """
    from shoal.identity import certificates

    identity = member.identity
    if not member.enrol_endpoint:
        raise Misuse("this device does not know where it joined: join again with a new line and --anew")
    host, _, port = member.enrol_endpoint.rpartition(":")
    believed = hashlib.sha256(ssl.PEM_cert_to_DER_cert(identity.ca_pem.decode("ascii"))).digest()
    # A line without a secret: none is needed, and none is told.
    door = JoinCode(host=host.strip("[]"), port=int(port), ca_sha256=believed, secret=_NO_SECRET)
    content = {
        "certificate": certificate_sha256(identity.certificate_pem),
        "csr_pem": certificates.request_again(identity.node, identity.key_pem).decode(),
    }
    back = await _converse(door, json.dumps(content).encode(), identity.key_pem, timeout_s)
    if (back.identity.node, back.identity.role) != (identity.node, identity.role):
        raise PeerViolation(f"came back as {back.identity.node}, not as {identity.node}", peer=door.endpoint)
    return replace(back, managers=member.managers)


async def _converse(code: JoinCode, message: bytes, key_pem: bytes, timeout_s: float) -> Enrolled:
    try:
        async with asyncio.timeout(timeout_s):
            manager, authority_der, reply = await _ask(code, message)
    except TimeoutError as error:
        raise Unreachable(
            f"{code.endpoint} did not answer within {timeout_s:g} s: is `shoal up` running there?"
        ) from error
    except ssl.SSLError as error:
        raise Unreachable(
            f"TLS with {code.endpoint} failed ({error.reason}): is this a Shoal manager's join port?"
        ) from error
    except OSError as error:
        raise Unreachable(
            f"cannot reach {code.endpoint} ({error.strerror or error}): is `shoal up` running there,"
            " is this device on its network, does a firewall stop the port?"
        ) from error
    except EOFError as error:
        raise Unreachable(f"{code.endpoint} closed the connection before it had answered: try again") from error
    return _enrolled(code, key_pem, manager, authority_der, _json_object(reply))


def enrol_blocking(
    code: JoinCode,
    *,
    wanted: str,
    facts: Mapping[str, str] | None = None,
    timeout_s: float = ENROL_DEADLINE_S,
) -> Enrolled:
    """`enrol`, for callers without an event loop."""
    return asyncio.run(enrol(code, wanted=wanted, facts=facts, timeout_s=timeout_s))


async def _ask(code: JoinCode, message: bytes) -> tuple[RemoteIdentity, bytes, bytes]:
    """Return the manager's proven identity, its authority, and its reply. `message` is sent only after the proof."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No authority is known yet. TLS proves that the peer holds its certificate's key; _recognise does the rest.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        code.host, code.port, ssl=context, ssl_shutdown_timeout=GOODBYE_S, limit=ENROL_MESSAGE_MAX_BYTES
    )
    try:
        authority_der, own_der = greeted(await receive(reader, max_bytes=ENROL_AUTHORITY_MAX_BYTES))
        certificate_der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        manager = _recognise(code, authority_der, certificate_der + own_der)
        await send(writer, message)
        reply = await receive(reader, max_bytes=ENROL_MESSAGE_MAX_BYTES)
        await close(writer)
        return manager, authority_der, reply
    finally:
        drop(writer)


def greeted(greeting: bytes) -> tuple[bytes, bytes]:
    """Return the cluster's authority in a greeting, and the manager's own if it has one. Neither is checked yet."""
    try:
        authority_der, *own_der = chain.split_der(greeting)
    except ValueError:
        return greeting, b""  # no line pins it
    return authority_der, b"".join(own_der)


def _recognise(code: JoinCode, authority_der: bytes, certificate_der: bytes) -> RemoteIdentity:
    """The manager behind this very connection, if it belongs to the cluster that the join line was made for."""
    from shoal.identity import certificates

    if not code.pins(authority_der):
        raise WrongCluster(
            "this is not the cluster the join line was made for: someone may be in the middle,"
            " or the cluster was created again. Nothing was sent. Ask the manager for a new line",
            peer=code.endpoint,
        )
    try:
        peer = certificates.authenticate(certificate_der, root_der=authority_der, now_s=time.time())
    except PeerViolation as error:
        raise WrongCluster(
            f"this address does not prove to be the manager's: {error.reason}", peer=code.endpoint
        ) from error
    if peer.role != "manager":
        raise WrongCluster(
            f"{peer.node} answers as if it were the manager, and is {peer.role}: someone may be in the middle",
            peer=code.endpoint,
        )
    return peer


def _enrolled(
    code: JoinCode, key_pem: bytes, manager: RemoteIdentity, authority_der: bytes, reply: Mapping[str, Any]
) -> Enrolled:
    from shoal.identity import certificates

    if isinstance(reason := reply.get("refused"), str):
        raise Refused(reason[:REASON_MAX_CHARS])
    certificate_pem, port = reply.get("certificate_pem"), reply.get("port")
    if not isinstance(certificate_pem, str) or type(port) is not int or not 1 <= port <= 65535:
        raise PeerViolation("the reply lacks a certificate or a port", peer=code.endpoint)
    try:
        certificate_der = chain.der_of(certificate_pem)
    except ValueError as error:
        raise PeerViolation("the certificate in the reply cannot be read", peer=code.endpoint) from error
    member = certificates.authenticate(certificate_der, root_der=authority_der, now_s=time.time())
    if not certificates.belongs_to(certificate_der, key_pem):
        raise PeerViolation("the certificate in the reply is for another key", peer=code.endpoint)
    claimed = tuple(reply.get(name) for name in ("node", "role", "cluster", "manager"))
    if claimed != (member.node, member.role, manager.cluster, manager.node) or member.cluster != manager.cluster:
        raise PeerViolation("the reply differs from its certificate", peer=code.endpoint)
    identity = Identity(
        node=member.node,
        role=member.role,
        cluster=member.cluster,
        key_pem=key_pem,
        certificate_pem=certificate_pem.encode("ascii"),
        ca_pem=ssl.DER_cert_to_PEM_cert(authority_der).encode("ascii"),
        issued_s=_time(reply.get("issued_s")),
        expires_s=_time(reply.get("expires_s")),
    )
    return Enrolled(
        identity=identity,
        manager_node=manager.node,
        manager_endpoint=endpoint(code.host, port),
        enrol_endpoint=code.endpoint,
    )


def _time(told: object) -> float:
    """A time that a manager told, if it did."""
    return float(told) if isinstance(told, int | float) and 0 <= told < 1e11 else 0.0


# Bytes and sockets, for both sides.


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PeerViolation("the message is not JSON") from error
    if not isinstance(content, dict):
        raise PeerViolation("the message is not a JSON object")
    return content


def _context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS context with which a manager receives strangers."""
    from shoal.identity import certificates

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody resumes: a device joins once
    context.set_alpn_protocols([health.ALPN])
    # The standard library reads keys from files only. This one is encrypted, in case we die before it is gone.
    password = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile(prefix="shoal-") as file:  # created with mode 0600
        file.write(certificates.encrypted(identity.key_pem, password) + identity.certificate_pem)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = listen(host, port, backlog=ENROL_CONNECTIONS_MAX)
    except OSError as error:
        raise Misuse(
            f"cannot listen on {endpoint(host, port)} ({error.strerror}): choose another address or port"
        ) from error
    listener.setblocking(False)
    return listener
