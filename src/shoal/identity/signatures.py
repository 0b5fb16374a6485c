"""Whether the signatures of a job hold. Run as ``python -m shoal.identity.signatures``, it reads a question from
standard input and prints the verdict: then the memory that `cryptography` takes is given back.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from shoal.errors import PeerViolation
from shoal.identity.names import RemoteIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class SignaturesAsked:
    """All that the signatures of a job are checked with."""

    #: What was signed.
    content: bytes
    signature: bytes
    #: The signer's certificate, and that of its manager's own authority if it has one.
    certificate_der: bytes
    #: The cluster's authority.
    root_der: bytes
    #: None if certificates may have expired.
    now_s: float | None
    #: The signature by a card key, and the one that this device pinned, or nothing if it pinned none.
    card_signature: bytes = b""
    pinned: bytes = b""

    def to_json(self) -> bytes:
        plain = {name: base64.b64encode(getattr(self, name)).decode("ascii") for name in _BYTES}
        return json.dumps(plain | {"now_s": self.now_s}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        plain = json.loads(text)
        return cls(now_s=plain["now_s"], **{name: base64.b64decode(plain[name], validate=True) for name in _BYTES})


_BYTES = ("content", "signature", "certificate_der", "root_der", "card_signature", "pinned")


@dataclass(frozen=True, kw_only=True, slots=True)
class SignaturesFound:
    """Who signed, and which signatures hold."""

    #: None if it is no member of the cluster, for the reason in ``refusal``.
    signer: RemoteIdentity | None = None
    refusal: str = ""
    is_whole: bool = False
    is_card_signed: bool = False

    def to_json(self) -> str:
        signer = self.signer
        names = {"node": signer.node, "role": signer.role, "cluster": signer.cluster} if signer is not None else None
        held = {"is_whole": self.is_whole, "is_card_signed": self.is_card_signed}
        return json.dumps({"signer": names, "refusal": self.refusal, **held})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Raises ValueError, KeyError or TypeError if this is not what ``to_json`` writes."""
        plain = json.loads(text)
        return cls(
            signer=RemoteIdentity(**plain["signer"]) if plain["signer"] is not None else None,
            refusal=str(plain["refusal"]),
            is_whole=plain["is_whole"] is True,
            is_card_signed=plain["is_card_signed"] is True,
        )


#: Finds out in this process, or has another do it.
Checker: TypeAlias = Callable[[SignaturesAsked], SignaturesFound]


def verdict_of(question: SignaturesAsked) -> SignaturesFound:
    """Check in this process."""
    from shoal.identity import certificates

    content, certificate_der = question.content, question.certificate_der
    try:
        signer = certificates.authenticate(certificate_der, root_der=question.root_der, now_s=question.now_s)
        is_whole = certificates.is_signed(content, question.signature, certificate_der)
    except PeerViolation as error:
        return SignaturesFound(refusal=error.reason)
    is_card_signed = certificates.is_card_signed(content, question.card_signature, question.pinned)
    return SignaturesFound(signer=signer, is_whole=is_whole, is_card_signed=is_card_signed)


def main() -> None:
    print(verdict_of(SignaturesAsked.from_json(sys.stdin.buffer.read())).to_json())


if __name__ == "__main__":
    main()
