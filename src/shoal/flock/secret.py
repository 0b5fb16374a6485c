"""The secret that the peers of a flock share, and the identities derived from it. There is no enrolment.

A device with the secret can be any peer, so peers trust each other; the secret keeps strangers out. It is random: the
flock's name on the network is derived from it, so a secret that a person chose could be guessed from the name.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Self

from shoal.errors import Misuse
from shoal.identity.identity import AUTHORITY_VALID_DAYS, Authority, Identity

SECRET_BYTES = 16
_CHECK_BYTES = 4
_PREFIX = "flock-"
#: Long enough for a training; nobody renews the certificate.
PEER_VALID_DAYS = 90.0


@dataclass(frozen=True, slots=True)
class FlockSecret:
    value: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form that ``text`` writes. Four bytes of a hash tell a typing error from another flock's secret."""
        plain = text.strip().lower()
        if not plain.startswith(_PREFIX):
            raise Misuse("a flock's secret begins with `flock-`. Make one with `shoal flock secret`")
        try:
            raw = base64.b32decode(plain.removeprefix(_PREFIX).upper())
        except ValueError:
            raw = b""
        value, check = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
        if len(value) != SECRET_BYTES or check != _check(value):
            raise Misuse("this flock secret is invalid: a letter is wrong or missing. Copy all of it")
        return cls(value)

    @property
    def text(self) -> str:
        return _PREFIX + base64.b32encode(self.value + _check(self.value)).decode("ascii").lower()

    @property
    def flock(self) -> str:
        """The name of the flock: the same for every device with the secret, and it does not reveal the secret."""
        return f"flock-{hashlib.sha256(b'shoal flock name' + self.value).hexdigest()[:16]}"

    def identities(self, node: str, *, now_s: float | None = None) -> tuple[Identity, Identity]:
        """Return this device's identity as a peer, and as the operator that signs its own work."""
        from shoal.identity import certificates

        moment_s = time.time() if now_s is None else now_s
        made = certificates.new_authority(
            self.flock, valid_days=AUTHORITY_VALID_DAYS, now_s=moment_s, secret=self.value
        )
        authority = Authority(cluster=self.flock, key_pem=made.key_pem, certificate_pem=made.pem)
        peer = authority.identity(node=node, role="node", valid_days=PEER_VALID_DAYS, now_s=moment_s)
        return peer, authority.identity(node=node, role="operator", valid_days=PEER_VALID_DAYS, now_s=moment_s)


def _check(value: bytes) -> bytes:
    return hashlib.sha256(b"shoal flock check" + value).digest()[:_CHECK_BYTES]
