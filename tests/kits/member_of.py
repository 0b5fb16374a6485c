"""The member that a certificate names."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from shoal.errors import PeerViolation
from shoal.identity.certificates import _parse_der, _peer
from shoal.identity.names import RemoteIdentity


def remote_of(certificate_pem: bytes) -> RemoteIdentity:
    """Return the member that a certificate names. Does not check who signed it."""
    return _peer(_parse_der(_der(certificate_pem)))


def _der(pem: bytes) -> bytes:
    try:
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    except ValueError as error:
        raise PeerViolation("the certificate cannot be read") from error
