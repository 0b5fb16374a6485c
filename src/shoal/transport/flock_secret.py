"""The secret that the mates of a flock share, and who they are by it. No manager, no enrolment; knows no sockets.

Whoever has it can be any mate, so they trust each other: it keeps strangers out. It is drawn, never thought up: its
name on the network is made of it, and what a person can think up can be guessed from that.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from dataclasses import dataclass, field
from typing import Self

from shoal.errors import Misuse
from shoal.transport.identity import AUTHORITY_VALID_DAYS, Authority, Identity

SECRET_BYTES = 16
_CHECK_BYTES = 4
_PREFIX = "flock-"
#: Long enough for a training; nobody renews it.
MATE_VALID_DAYS = 90.0


@dataclass(frozen=True, slots=True)
class FlockSecret:
    value: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """As ``text`` writes it. A slip of the pen is told from another flock by four bytes of its hash."""
        plain = text.strip().lower()
        if not plain.startswith(_PREFIX):
            raise Misuse("a flock's secret begins with `flock-`: make one with `shoal flock secret`")
        try:
            raw = base64.b32decode(plain.removeprefix(_PREFIX).upper())
        except ValueError:
            raw = b""
        value, check = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
        if len(value) != SECRET_BYTES or check != _check(value):
            raise Misuse("this is no flock's secret: a letter is wrong or missing; copy it whole")
        return cls(value)

    @property
    def text(self) -> str:
        return _PREFIX + base64.b32encode(self.value + _check(self.value)).decode("ascii").lower()

    @property
    def flock(self) -> str:
        """The name of the flock: tells nothing of the secret, and is the same for all who have it."""
        return f"flock-{hashlib.sha256(b'shoal flock name' + self.value).hexdigest()[:16]}"

    def identities(self, node: str, *, now_s: float | None = None) -> tuple[Identity, Identity]:
        """This device as a mate; and as the operator of its own work, since it is asked by nobody else."""
        from shoal.transport import certificates

        moment_s = time.time() if now_s is None else now_s
        made = certificates.new_authority(
            self.flock, valid_days=AUTHORITY_VALID_DAYS, now_s=moment_s, secret=self.value
        )
        authority = Authority(cluster=self.flock, key_pem=made.key_pem, certificate_pem=made.pem)
        mate = authority.identity(node=node, role="node", valid_days=MATE_VALID_DAYS, now_s=moment_s)
        return mate, authority.identity(node=node, role="operator", valid_days=MATE_VALID_DAYS, now_s=moment_s)


def _check(value: bytes) -> bytes:
    return hashlib.sha256(b"shoal flock check" + value).digest()[:_CHECK_BYTES]
