"""X.509 as pure functions over PEM and DER. The only file that imports `cryptography`; knows no files and no sockets.

It costs an agent about 10 MB, so others import this module inside the function that needs it.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.identity import chain
from shoal.identity.names import RemoteIdentity, remote_from_uris, server_name
from shoal.wire.limits import ENROL_MESSAGE_MAX_BYTES

#: Every certificate is valid from this time on: a board without a battery clock starts in 1970, and must connect before
#: it can learn the time. This weakens nothing: an authority did not exist before its cluster did.
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)

#: How many points P-256 has (SEC 2, §2.4.2).
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class KeyPair(NamedTuple):
    """A private key and what belongs to it: a request, or a certificate."""

    key_pem: bytes
    pem: bytes


def new_authority(
    cluster: str, *, valid_days: int, now_s: float, secret: bytes = b"", delegates: bool = False
) -> KeyPair:
    """Make a self-signed authority that may sign members. If it ``delegates``, it may also sign managers' authorities,
    which sign members and no further authorities.

    With a secret, its key is derived from that: everyone who knows the secret has the same authority, with different
    certificates, and trusts the members that any of them signs.
    """
    key = _key_of(secret) if secret else ec.generate_private_key(ec.SECP256R1())
    name = _name(common=f"{cluster} authority", role="authority", cluster=cluster)
    until = _moment(now_s) + timedelta(days=valid_days)
    unsigned = _unsigned_authority(name, name, key, until=until, path_length=1 if delegates else 0)
    return KeyPair(_private_pem(key), unsigned.sign(key, SHA256()).public_bytes(Encoding.PEM))


def manager_authority(root: KeyPair, *, cluster: str, name: str, valid_days: float, now_s: float) -> KeyPair:
    """Make an authority of one manager, certified by the cluster's. It may sign members, and no further authorities."""
    if not valid_days > 0:
        raise Misuse(f"valid_days is {valid_days}; an authority must be valid for more than 0 days")
    root_key, above = _authority(root)
    if not _constraints(above).path_length:
        raise Misuse(
            "the authority of this cluster may only sign members, because an earlier release made it: its managers"
            " share it. Managers of a new cluster can have their own authorities"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(common=f"{name} authority", role="authority", cluster=cluster)
    until = min(_moment(now_s) + timedelta(days=valid_days), above.not_valid_after_utc)
    unsigned = _unsigned_authority(subject, above.subject, key, until=until, path_length=0)
    made = unsigned.add_extension(_authority_identifier(above), critical=False).sign(root_key, SHA256())
    return KeyPair(_private_pem(key), made.public_bytes(Encoding.PEM))


def _unsigned_authority(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, until: datetime, path_length: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ALWAYS)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_of(secret: bytes) -> ec.EllipticCurvePrivateKey:
    # 64 bytes taken modulo the order of the curve: its 32 would favour some keys.
    wide = HKDF(algorithm=SHA256(), length=64, salt=None, info=b"shoal flock authority").derive(secret)
    return ec.derive_private_key(int.from_bytes(wide) % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def new_request(wanted: str) -> KeyPair:
    """A fresh P-256 key and its signing request. gRPC's BoringSSL refuses Ed25519 servers by default."""
    key = ec.generate_private_key(ec.SECP256R1())
    return KeyPair(_private_pem(key), _signing_request(wanted, key))


def request_again(node: str, key_pem: bytes) -> bytes:
    """A signing request for a key that was certified before. Its signature proves that we still hold the key."""
    key = load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Corrupt("this device's key is not an elliptic curve key: join the cluster again")
    return _signing_request(node, key)


def requested_key_sha256(csr_pem: bytes) -> str:
    """The hash of the public key that a request is for, once it proved to be signed with it."""
    return _key_sha256(_public_key_of(csr_pem))


def _signing_request(wanted: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM)


def issue(
    authority: KeyPair,
    csr_pem: bytes,
    peer: RemoteIdentity,
    *,
    serves: bool,
    hosts: Sequence[str],
    valid_days: float,
    now_s: float,
) -> bytes:
    """Certify the request's public key as `peer`. Nothing else that the request says is used."""
    if not valid_days > 0:
        raise Misuse(f"valid_days is {valid_days}; a certificate must be valid for more than 0 days")
    if hosts and not serves:
        raise Misuse(f"{peer.node} does not serve, so its certificate names no hosts")
    public_key = _public_key_of(csr_pem)
    authority_key, root = _authority(authority)
    now = _moment(now_s)
    if root.not_valid_after_utc <= now:
        raise Misuse(
            "the authority has expired: check this machine's clock. A manager's own is issued again with `shoal"
            " authority issue`; if it is the cluster's, create a new cluster"
        )

    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if serves else []
    usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(peer.uri)]
    if serves:
        names.append(x509.DNSName(server_name(peer.node)))
    names.extend(_host(host) for host in hosts)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(common=peer.node, role=peer.role, cluster=peer.cluster))
        .issuer_name(root.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(ALWAYS)
        .not_valid_after(min(now + timedelta(days=valid_days), root.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_authority_identifier(root), critical=False)
        .sign(authority_key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


@functools.lru_cache(maxsize=4)
def _authority(pair: KeyPair) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """An authority that is read once: it signs for every device that joins."""
    key = load_pem_private_key(pair.key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Corrupt("the authority's key is not an elliptic curve key: restore its folder from a backup")
    return key, x509.load_pem_x509_certificate(pair.pem)


def authenticate(
    certificate_der: bytes, *, root_der: bytes, now_s: float | None, slack_s: float = 0.0
) -> RemoteIdentity:
    """Return the member that a certificate names, after checking that `root_der` signed it and that both are valid now.

    It may come with the certificate of a manager's own authority (`identity.chain`): then `root_der` must have signed
    that authority, and the authority the certificate. If `now_s` is None, all may have expired: a job's signature
    outlives its certificate (`identity.signing`). With `slack_s`, they may have expired at most that long ago.
    """
    certificate, *between = _parse_chain(certificate_der)
    root = _parse_der(root_der)
    if not _constraints(root).ca:
        raise PeerViolation(_NOT_DIRECTLY)
    issuer = root
    # Check each signature first: the rest of a certificate is read only once its issuer is known.
    for authority in between:
        _check_issued(authority, root)
        if not _constraints(root).path_length or _constraints(authority) != _SIGNS_MEMBERS:
            raise PeerViolation("the certificate comes from an authority that is no manager's")
        issuer = authority
    _check_issued(certificate, issuer)
    if _constraints(certificate).ca:
        raise PeerViolation(_NOT_DIRECTLY)
    if now_s is not None:
        _check_times(certificate, between, root, _moment(now_s), timedelta(seconds=slack_s))
    shown = tuple(hashlib.sha256(authority.public_bytes(Encoding.DER)).hexdigest() for authority in between)
    return replace(_peer(certificate), authorities=shown)


_SIGNS_MEMBERS = x509.BasicConstraints(ca=True, path_length=0)
_NOT_DIRECTLY = "the certificate does not come directly from the cluster's authority"


def _check_issued(certificate: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as error:
        raise PeerViolation("the certificate was not issued by the cluster's authority") from error


def _check_times(
    certificate: x509.Certificate,
    between: Sequence[x509.Certificate],
    root: x509.Certificate,
    now: datetime,
    slack: timedelta,
) -> None:
    authorities = [("cluster's authority", root), *(("manager's authority", each) for each in between)]
    for name, checked in (*authorities, ("certificate", certificate)):
        if not checked.not_valid_before_utc <= now <= checked.not_valid_after_utc + slack:
            raise PeerViolation(
                f"the {name} is valid from {checked.not_valid_before_utc:%Y-%m-%d} to"
                f" {checked.not_valid_after_utc:%Y-%m-%d} and this device's clock says {now:%Y-%m-%d}:"
                " set the clock, or renew the certificate"
            )


def signature(content: bytes, key_pem: bytes) -> bytes:
    """Sign as the owner of this key (ECDSA over SHA-256)."""
    key = load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Corrupt("this member's key is not an elliptic curve key: join the cluster again")
    return key.sign(content, ec.ECDSA(SHA256()))


def is_signed(content: bytes, signed: bytes, certificate_der: bytes) -> bool:
    """Whether the owner of a certificate signed this. Does not check who issued it: `authenticate` does."""
    certificate = _parse_chain(certificate_der)[0]
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError) as error:
        raise PeerViolation("the certificate's key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PeerViolation("the certificate's key is not ECDSA P-256")
    try:
        key.verify(signed, content, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def new_card_key() -> bytes:
    """Return a new private card key (`identity.cards`): Ed25519, since no TLS library has to take it."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def card_public(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def card_signature(content: bytes, private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(content)


def is_card_signed(content: bytes, signed: bytes, public: bytes) -> bool:
    """Whether the owner of this card key signed this."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signed, content)
    except (InvalidSignature, ValueError):
        return False
    return True


class IssuedCertificate(NamedTuple):
    """A registry's record of an issued certificate."""

    peer: RemoteIdentity
    key_sha256: str
    expires_s: float


class OwnAuthority(NamedTuple):
    """A registry's record of a manager's authority."""

    key_sha256: str
    expires_s: float


def own_authority(certificate_pem: bytes) -> OwnAuthority:
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return OwnAuthority(_key_sha256(certificate.public_key()), certificate.not_valid_after_utc.timestamp())


@functools.lru_cache(maxsize=4)
def issued(certificate_pem: bytes) -> IssuedCertificate:
    """Read a certificate of our own making: when it is recorded, and when it is handed out."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return IssuedCertificate(
        _peer(certificate), _key_sha256(certificate.public_key()), certificate.not_valid_after_utc.timestamp()
    )


def until_s(certificate_pem: bytes) -> float:
    """When a certificate ends, in seconds since 1970."""
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc.timestamp()


def _key_sha256(key: CertificatePublicKeyTypes) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def belongs_to(certificate_der: bytes, key_pem: bytes) -> bool:
    """Whether a certificate certifies this private key."""
    own = load_pem_private_key(key_pem, password=None)
    if not isinstance(own, ec.EllipticCurvePrivateKey):
        return False
    return _key_sha256(_parse_chain(certificate_der)[0].public_key()) == _key_sha256(own.public_key())


def encrypted(key_pem: bytes, password: str) -> bytes:
    """Return the private key, encrypted with this password."""
    key = load_pem_private_key(key_pem, password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))


def _public_key_of(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > ENROL_MESSAGE_MAX_BYTES:
        raise PeerViolation(f"a signing request of {len(csr_pem)} bytes is too large")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
    except Exception as error:  # the parser's own errors differ between releases; none may pass
        raise PeerViolation("the signing request cannot be read") from error
    # The kind is checked before the signature: verifying with a huge RSA key costs seconds.
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PeerViolation("the signing request's key is not ECDSA P-256")
    if not request.is_signature_valid:
        raise PeerViolation("the signing request is not signed by its own key")
    return key


#: The parser's errors for an extension that is missing, duplicated or of an unknown kind.
_BAD_EXTENSION = (
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    ValueError,
)


def _peer(certificate: x509.Certificate) -> RemoteIdentity:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except _BAD_EXTENSION as error:
        raise PeerViolation("the certificate carries no Shoal identity") from error
    return remote_from_uris(uris)


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except _BAD_EXTENSION as error:
        raise PeerViolation("the certificate does not say whether it is an authority") from error


def _parse_chain(der: bytes) -> list[x509.Certificate]:
    try:
        return [_parse_der(part) for part in chain.split_der(der)]
    except ValueError as error:
        raise PeerViolation("the certificate cannot be read") from error


def _parse_der(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except Exception as error:  # as above: whatever the parser dislikes, the peer sent it
        raise PeerViolation("the certificate cannot be read") from error


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host):
        raise Misuse(f"{host!r} is neither an address nor a host name in lower case")
    # NODE.shoal is how clients recognise NODE: as an extra host it would let one member pose as another.
    if host == "shoal" or host.endswith(".shoal"):
        raise Misuse(f"{host!r} cannot be a host name: names under .shoal belong to nodes")
    return x509.DNSName(host)


def _name(*, common: str, role: str, cluster: str) -> x509.Name:
    parts = (
        (NameOID.ORGANIZATION_NAME, cluster),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        (NameOID.COMMON_NAME, common[:64]),  # X.520 allows 64 characters
    )
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_identifier(root: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _moment(now_s: float) -> datetime:
    return datetime.fromtimestamp(now_s, UTC)
