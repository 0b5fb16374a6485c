"""Who a tab is: a certificate of the cluster, and a signature over a challenge that was never used before.

In place of TLS with certificates on both sides, which a page cannot have with a key that it cannot read. What is signed
names the origin, so that a signature made for one door is of no use at another, and the verb, so that it opens one
stream. Pure: bytes in, an identity out; knows no sockets.
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

#: What is signed begins so: the key signs certificate requests too, and neither may pass for the other.
FORM = "shoal tab 1"
CHALLENGE_BYTES = 32
#: A certificate has about 1,100 bytes of PEM, and comes with that of a manager's own authority.
ANSWER_MAX_BYTES = 8 << 10
#: Streams that a tab opens. To operate or to store is not among them.
VERBS = ("Control", "Work", "Fetch")

_INCARNATION_MAX_CHARS = 64


def new_challenge() -> str:
    return secrets.token_urlsafe(CHALLENGE_BYTES)


def signed_text(*, origin: str, verb: str, incarnation: str, challenge: str) -> bytes:
    return "\n".join((FORM, origin, verb, incarnation, challenge)).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class TabProof:
    """What a tab says to a challenge."""

    certificate_pem: str
    signature: bytes
    verb: str
    incarnation: str

    @classmethod
    def read(cls, text: str) -> TabProof:
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            raise PeerViolation("an answer to the challenge that is not JSON") from None
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
                raise PeerViolation("an answer to the challenge that lacks a part, or has one too many")
        if verb not in VERBS:
            raise PeerViolation(f"a tab may not call {verb[:40]!r}")
        if not (pem.isascii() and 0 < len(incarnation) <= _INCARNATION_MAX_CHARS and incarnation.isalnum()):
            raise PeerViolation("an answer to the challenge that cannot be")
        try:
            signed = base64.b64decode(signature, validate=True)
        except ValueError:
            raise PeerViolation("a signature that is not base64") from None
        return cls(certificate_pem=pem, signature=signed, verb=verb, incarnation=incarnation)


def proven(
    answer: TabProof, *, ca_pem: bytes, origin: str, challenge: str, now_s: float | None = None
) -> RemoteIdentity:
    """The member that gave this answer to this challenge, here. Raises PeerViolation with the reason."""
    from shoal.identity import certificates

    der = _der(answer.certificate_pem)
    moment_s = time.time() if now_s is None else now_s
    peer = certificates.authenticate(der, root_der=_der(ca_pem.decode("ascii")), now_s=moment_s)
    if peer.role != "browser":
        raise PeerViolation(f"a {peer.role} does not come in by the door for tabs", peer=peer.node)
    text = signed_text(origin=origin, verb=answer.verb, incarnation=answer.incarnation, challenge=challenge)
    if not certificates.is_signed(text, answer.signature, der):
        raise PeerViolation("the challenge is not signed with the key of this certificate", peer=peer.node)
    return replace(
        peer, certificate=certificate_sha256(answer.certificate_pem.encode()), incarnation=answer.incarnation
    )


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
            raise PeerViolation("a request to join that is not JSON") from None
        match plain:
            case {"secret": str(secret), "wanted": str(wanted), "csr_pem": str(csr_pem), **rest} if not rest:
                if secret.isascii() and csr_pem.isascii() and len(secret) <= 64:
                    return cls(secret=secret, wanted=wanted, csr_pem=csr_pem)
        raise PeerViolation("a request to join that lacks a part, or has one too many")
