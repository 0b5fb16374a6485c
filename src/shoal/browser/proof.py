"""A tab's proof of identity: a certificate of the cluster, and a signature over a fresh challenge.

It replaces mutual TLS, for which a page cannot use a key that it cannot read. The signed text names the origin, so that
a signature for one listener is invalid at another, and the verb, so that it opens only one stream.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import PeerViolation
from shoal.identity import chain
from shoal.identity.identity import certificate_sha256
from shoal.identity.names import RemoteIdentity

#: The signed text begins with this: the key signs certificate requests too, and neither may pass for the other.
FORM = "shoal tab 1"
CHALLENGE_BYTES = 32
#: A certificate has about 1,100 bytes of PEM, and comes with that of a manager's own authority.
ANSWER_MAX_BYTES = 8 << 10
#: Streams that a tab may open. It may neither operate nor store.
VERBS = ("Control", "Work", "Fetch")

_SECRET_MAX_CHARS = 64
_INCARNATION_MAX_CHARS = 64


def new_challenge() -> str:
    return secrets.token_urlsafe(CHALLENGE_BYTES)


def signed_text(*, origin: str, verb: str, incarnation: str, challenge: str) -> bytes:
    return "\n".join((FORM, origin, verb, incarnation, challenge)).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class TabProof:
    """A tab's answer to a challenge."""

    certificate_pem: str
    signature: bytes
    verb: str
    incarnation: str

    @classmethod
    def read(cls, text: str) -> TabProof:
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            raise PeerViolation("the answer to the challenge is not JSON") from None
        match plain:
            case {
                "certificate_pem": str(pem),
                "signature": str(signature),
                "verb": str(verb),
                "incarnation": str(incarnation),
                **rest,
            } if not rest:
                pass
            case _:
                raise PeerViolation(
                    "the answer to the challenge must have only certificate_pem, signature, verb and incarnation"
                )
        if verb not in VERBS:
            raise PeerViolation(f"a tab may not call {verb[:40]!r}")
        if not (pem.isascii() and 0 < len(incarnation) <= _INCARNATION_MAX_CHARS and incarnation.isalnum()):
            raise PeerViolation(
                "the answer to the challenge has a certificate that is not ASCII, or an incarnation that is not 1 to"
                f" {_INCARNATION_MAX_CHARS} letters and digits"
            )
        try:
            signed = base64.b64decode(signature, validate=True)
        except ValueError:
            raise PeerViolation("the signature is not base64") from None
        return cls(certificate_pem=pem, signature=signed, verb=verb, incarnation=incarnation)


def proven(
    answer: TabProof, *, ca_pem: bytes, origin: str, challenge: str, now_s: float | None = None
) -> RemoteIdentity:
    """Return the member that gave this answer to a challenge at this origin. Raises PeerViolation with the reason."""
    from shoal.identity import certificates

    peer, der = _of_browser(answer.certificate_pem, ca_pem=ca_pem, now_s=time.time() if now_s is None else now_s)
    text = signed_text(origin=origin, verb=answer.verb, incarnation=answer.incarnation, challenge=challenge)
    if not certificates.is_signed(text, answer.signature, der):
        raise PeerViolation("the challenge is not signed with the key of this certificate", peer=peer.node)
    return replace(
        peer, certificate=certificate_sha256(answer.certificate_pem.encode()), incarnation=answer.incarnation
    )


def _of_browser(pem: str, *, ca_pem: bytes, now_s: float) -> tuple[RemoteIdentity, bytes]:
    """Return the browser whose certificate this is, and its bytes. Raises PeerViolation if it is not a member."""
    from shoal.identity import certificates

    der = _der(pem)
    peer = certificates.authenticate(der, root_der=_der(ca_pem.decode("ascii")), now_s=now_s)
    if peer.role != "browser":
        raise PeerViolation(f"the listener for tabs does not admit the role {peer.role}", peer=peer.node)
    return peer, der


def _der(pem: str) -> bytes:
    try:
        return chain.der_of(pem)
    except ValueError:
        raise PeerViolation("the certificate cannot be read") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """A tab asks to join: its one-time secret, the name that it would like, and a request for its key."""

    secret: str
    wanted: str
    csr_pem: str

    @classmethod
    def read(cls, raw: bytes) -> Joining:
        try:
            plain: Any = json.loads(raw)
        except (ValueError, RecursionError):
            raise PeerViolation("the request to join is not JSON") from None
        match plain:
            case {"secret": str(secret), "wanted": str(wanted), "csr_pem": str(csr_pem), **rest} if not rest:
                if secret.isascii() and csr_pem.isascii() and len(secret) <= _SECRET_MAX_CHARS:
                    return cls(secret=secret, wanted=wanted, csr_pem=csr_pem)
        raise PeerViolation("the request to join must have secret, wanted and csr_pem, and no more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """A browser asks why it was invited. It shows the secret of its invitation, or the certificate that it
    got when it joined. Only it and the manager saw either, and neither lets anyone in who cannot do more."""

    secret: str = ""
    certificate_pem: str = ""

    @classmethod
    def read(cls, raw: bytes) -> Visitor:
        try:
            plain: Any = json.loads(raw)
        except (ValueError, RecursionError):
            raise PeerViolation("the question is not JSON") from None
        match plain:
            case {"secret": str(secret), **rest} if not rest and secret.isascii() and len(secret) <= _SECRET_MAX_CHARS:
                return cls(secret=secret)
            case {"certificate_pem": str(pem), **rest} if not rest and pem.isascii():
                return cls(certificate_pem=pem)
        raise PeerViolation("the question must have secret or certificate_pem, and no more")

    def member(self, *, ca_pem: bytes) -> RemoteIdentity:
        """Return the member whose certificate this is. Raises PeerViolation with the reason."""
        peer, _ = _of_browser(self.certificate_pem, ca_pem=ca_pem, now_s=time.time())
        return replace(peer, certificate=certificate_sha256(self.certificate_pem.encode()))
