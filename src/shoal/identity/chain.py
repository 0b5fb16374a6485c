"""A certificate and the authority between it and the cluster's, one after the other. Needs no `cryptography`.

A manager may sign with an authority of its own, which the cluster's authority certified. A node that knows only the
cluster's is shown both certificates: as PEM texts in a row, or as DER, which says itself where it ends.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

#: A member's certificate, and that of its manager's own authority.
CHAIN_MAX = 2

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n")


_HEAD, _TAIL = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_LINE_CHARS = 64


def der(pem_text: bytes | str) -> bytes:
    """Return one certificate as DER. Raises ValueError.

    `ssl` does the same, but would load OpenSSL into every idle agent, whose connections are gRPC's.
    """
    text = pem_text.decode("ascii") if isinstance(pem_text, bytes) else pem_text
    if not text.startswith(_HEAD) or not text.rstrip().endswith(_TAIL):
        raise ValueError("this is not one certificate in PEM")
    return base64.decodebytes(text.rstrip()[len(_HEAD) : -len(_TAIL)].encode("ascii"))


def pem(certificate_der: bytes) -> str:
    """Return one certificate as PEM."""
    text = base64.standard_b64encode(certificate_der).decode("ascii")
    lines = [text[at : at + _LINE_CHARS] for at in range(0, len(text), _LINE_CHARS)]
    return "\n".join([_HEAD, *lines, _TAIL]) + "\n"


def split_pem(chain_pem: str) -> list[str]:
    """The certificates of a chain, and nothing beside them. Raises ValueError."""
    found = _PEM.findall(chain_pem)
    if not 1 <= len(found) <= CHAIN_MAX or "".join(found) != chain_pem:
        raise ValueError(f"a chain is 1 to {CHAIN_MAX} certificates and nothing beside them")
    return found


def der_of(chain_pem: bytes | str) -> bytes:
    """A chain as DER. Raises ValueError."""
    text = chain_pem.decode("ascii") if isinstance(chain_pem, bytes) else chain_pem
    return b"".join(map(der, split_pem(text)))


def split_der(chain_der: bytes) -> list[bytes]:
    """The certificates of a chain. Raises ValueError."""
    found: list[bytes] = []
    rest = chain_der
    while rest and len(found) < CHAIN_MAX:
        size = _size(rest)
        found.append(rest[:size])
        rest = rest[size:]
    if rest or not found:
        raise ValueError(f"a chain is 1 to {CHAIN_MAX} certificates and nothing beside them")
    return found


def _size(der: bytes) -> int:
    """Return the length of the DER sequence that begins here. In a certificate, two bytes state it."""
    if len(der) < 4 or der[:2] != b"\x30\x82":
        raise ValueError("this is not a certificate")
    size = 4 + int.from_bytes(der[2:4])
    if size > len(der):
        raise ValueError("the certificate is truncated")
    return size


def sha256(chain_pem: bytes | str) -> str:
    """Return the hash of a chain's first certificate, which identifies it. Raises ValueError."""
    return _sha256(split_der(der_of(chain_pem))[0])


def beside(own_sha256: str, shown: Sequence[bytes]) -> tuple[str, ...]:
    """The hashes of what a TLS peer showed beside its own certificate, in whatever order. Raises ValueError.

    gRPC lists a server's own certificate among these, and not a client's.
    """
    pems = b"".join(shown).decode("ascii", "replace").split("-----END CERTIFICATE-----")
    texts = [f"{pem.strip()}\n-----END CERTIFICATE-----\n" for pem in pems if "BEGIN CERTIFICATE" in pem]
    found = (_sha256(der(text)) for text in texts)
    return tuple(each for each in found if each != own_sha256)


def _sha256(data: bytes) -> str:
    # Imported here, as in all that an idle agent loads: it brings OpenSSL's 3 MB, and the agent hashes nothing.
    import hashlib

    return hashlib.sha256(data).hexdigest()
