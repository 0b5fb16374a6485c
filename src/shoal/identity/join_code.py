"""The line that a person copies to a device: where the cluster is, how to recognise it, and a secret.

    shoal://HOST:PORT/CODE      CODE = base32(first 160 bits of sha256(authority) · 128-bit secret · crc32)

A line of an operator that devices are to pin has the operator's card key (`identity.cards`) before the checksum. 40
bytes fill 64 base32 characters exactly, and 75 bytes 120, so a code has one spelling. The checksum covers the host and
the port too.
A CRC finds every error within 32 neighbouring bits: one wrong character or two swapped neighbours never pass.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import Self

from shoal.errors import Misuse
from shoal.identity.cards import KEY_BYTES, WRITTEN_BYTES, read_key, written_key
from shoal.wire.limits import JOIN_LINE_MAX_CHARS

PINNED_BYTES = 20
SECRET_BYTES = 16
_SHA256_BYTES = 32
_CHECKSUM_BYTES = 4
_CODE_CHARS = (PINNED_BYTES + SECRET_BYTES + _CHECKSUM_BYTES) * 8 // 5
_LONG_CODE_CHARS = (PINNED_BYTES + SECRET_BYTES + WRITTEN_BYTES + _CHECKSUM_BYTES) * 8 // 5

_SCHEME = "shoal://"
_LINE = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^/:\[\]]+):(?P<port>[0-9]{1,5})(?:/(?P<code>.*))?")
_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?")
_SECRET = re.compile(r"[0-9a-f]{32}")
_NOT_IN_CODE = re.compile(r"[^a-z2-7]")


def new_secret() -> str:
    """128 bits from the system's generator, as the text that is sent and redeemed."""
    import secrets

    return secrets.token_hex(SECRET_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinCode:
    """A join line, parsed. `ca_sha256` may be given whole; the 160 bits that the line carries are kept."""

    host: str
    port: int
    ca_sha256: bytes
    secret: str = field(repr=False)
    #: The operator's card key that a device is to pin, or nothing.
    operator_key: bytes = b""

    def __post_init__(self) -> None:
        if len(self.ca_sha256) not in (PINNED_BYTES, _SHA256_BYTES):
            raise Misuse(f"the authority's hash has 32 bytes (or the first {PINNED_BYTES}), not {len(self.ca_sha256)}")
        if not _SECRET.fullmatch(self.secret):
            raise Misuse("a join secret is 32 hexadecimal characters in lower case: make one with new_secret()")
        if len(self.operator_key) not in (0, KEY_BYTES):
            raise Misuse(f"an operator's card key has {KEY_BYTES} bytes, not {len(self.operator_key)}")
        if not 1 <= self.port <= 65535:
            raise Misuse(f"{self.port} is not a port: ports run from 1 to 65535")
        object.__setattr__(self, "host", canonical_host(self.host))
        object.__setattr__(self, "ca_sha256", self.ca_sha256[:PINNED_BYTES])

    def __str__(self) -> str:
        body = self.ca_sha256 + bytes.fromhex(self.secret)
        if self.operator_key:
            body += written_key(self.operator_key)
        code = base64.b32encode(body + _checksum(self.endpoint, body)).decode("ascii").lower()
        return f"{_SCHEME}{self.endpoint}/{code}"

    @property
    def endpoint(self) -> str:
        return endpoint(self.host, self.port)

    def pins(self, authority_der: bytes) -> bool:
        """Whether this authority's certificate is the one the line was made for."""
        import hashlib
        import hmac

        return hmac.compare_digest(hashlib.sha256(authority_der).digest()[:PINNED_BYTES], self.ca_sha256)

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line as a person pasted it. Says what is wrong with it before anything is connected."""
        text = line.strip()
        if len(text) > JOIN_LINE_MAX_CHARS:
            raise Misuse("this is too long to be a join line: copy the line that starts with shoal:// and nothing else")
        text = text.lower()
        if not text.startswith(_SCHEME):
            raise Misuse("a join line starts with shoal:// : copy all of the line that `shoal up` printed")
        parts = _LINE.fullmatch(text.removeprefix(_SCHEME))
        if parts is None:
            raise Misuse("a join line reads shoal://HOST:PORT/CODE, and this one does not: copy all of it again")
        code = parts["code"] or ""
        if wrong := _NOT_IN_CODE.search(code):
            raise Misuse(f"{wrong[0]!r} never occurs in a join code (it uses a-z and 2-7): copy the line again")
        if len(code) not in (_CODE_CHARS, _LONG_CODE_CHARS):
            raise Misuse(_why_not_as_long(len(code)))
        raw = base64.b32decode(code.upper())
        body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
        host, port = parts["host"].strip("[]"), int(parts["port"])
        secret, key = body[PINNED_BYTES : PINNED_BYTES + SECRET_BYTES], body[PINNED_BYTES + SECRET_BYTES :]
        parsed = cls(host=host, port=port, ca_sha256=body[:PINNED_BYTES], secret=secret.hex())
        if _checksum(parsed.endpoint, body) != checksum:
            raise Misuse(
                "a character of this line is wrong, in the address or in the code: copy it again."
                " To use another address, ask the manager for a line with that address"
            )
        return replace(parsed, operator_key=read_key(key)) if key else parsed


def _why_not_as_long(chars: int) -> str:
    if chars < _CODE_CHARS:
        return f"this line looks cut off ({chars} of {_CODE_CHARS} characters): copy all of it"
    if chars <= (_CODE_CHARS + _LONG_CODE_CHARS) // 2 or chars > _LONG_CODE_CHARS:
        most = _LONG_CODE_CHARS if chars > _LONG_CODE_CHARS else _CODE_CHARS
        return f"this line has {chars - most} characters too many at its end: copy it again"
    return f"this line looks cut off ({chars} of {_LONG_CODE_CHARS} characters): copy all of it"


def endpoint(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_endpoint(where: str) -> tuple[str, int]:
    """The host and port of HOST:PORT."""
    host, _, port = where.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _checksum(where: str, body: bytes) -> bytes:
    return zlib.crc32(where.encode("ascii") + b"/" + body).to_bytes(_CHECKSUM_BYTES, "big")


def canonical_host(host: str) -> str:
    """One spelling for each host, because the checksum covers it."""
    if ":" in host:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError as error:
            raise Misuse(f"{host[:80]!r} is not an IPv6 address") from error
        if address.scope_id is not None:
            raise Misuse(f"{host[:80]!r} means something on one machine only: leave out what follows the %")
        # Releases of Python spell a mapped address differently, and the checksum must not.
        return str(address.ipv4_mapped or address)
    host = host.lower()
    if not _HOST_NAME.fullmatch(host):
        raise Misuse(f"{host[:80]!r} is not a host name or an address")
    return host
