"""Who a member is: names, files on disk, and what a certificate says."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from member_of import remote_of

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.identity import certificates
from shoal.identity.identity import (
    AUTHORITY_FILE,
    IDENTITY_FILE,
    Authority,
    Identity,
    channel_options,
    remote_from_auth_context,
)
from shoal.identity.names import RemoteIdentity, remote_from_uris
from shoal.store.files import DiskFull

DAY_S = 86400.0
NOW_S = 1_900_000_000.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), "pond", now_s=NOW_S)


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


def context_of(*names: str, common: str = "pi-4") -> dict[str, list[bytes]]:
    return {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [common.encode()],
        "x509_subject_alternative_name": [name.encode() for name in names],
    }


# On disk


def test_an_identity_survives_the_disk(authority: Authority, tmp_path: Path) -> None:
    identity = authority.identity(node="pi-4", role="node", now_s=NOW_S)
    identity.save(tmp_path / "me")
    assert Identity.load(tmp_path / "me") == identity


def test_keys_are_for_this_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Authority.create(tmp_path, "pond").identity(node="pi-4", role="node").save(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {AUTHORITY_FILE: 0o600, IDENTITY_FILE: 0o600}


def test_a_key_is_not_printed(authority: Authority) -> None:
    assert "PRIVATE" not in repr(authority.identity(node="pi-4", role="node", now_s=NOW_S))


def test_a_save_that_fails_leaves_the_old_identity(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = authority.identity(node="pi-4", role="node", now_s=NOW_S)
    old.save(tmp_path)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(DiskFull, match="free space on it, then try again"):
        authority.identity(node="pi-4", role="node", now_s=NOW_S).save(tmp_path)
    assert Identity.load(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY_FILE]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"node": 1}', b"\xff", b"[" * 60_000, b" " * 70_000])
def test_a_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / IDENTITY_FILE).write_bytes(content)
    (tmp_path / AUTHORITY_FILE).write_bytes(content)
    with pytest.raises(Corrupt, match=IDENTITY_FILE):
        Identity.load(tmp_path)
    with pytest.raises(Corrupt, match=AUTHORITY_FILE):
        Authority.load(tmp_path)


def test_a_missing_identity_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="shoal join"):
        Identity.load(tmp_path)


def test_an_authority_survives_the_disk_and_is_never_replaced(tmp_path: Path) -> None:
    made = Authority.create(tmp_path, "pond")
    with pytest.raises(Misuse, match="already holds a cluster"):
        Authority.create(tmp_path, "pond")
    loaded = Authority.load(tmp_path)
    assert (loaded.cluster, loaded.fingerprint) == ("pond", made.fingerprint)
    certificate = loaded.identity(node="hub", role="manager").certificate_pem
    peer = certificates.authenticate(der(certificate), root_der=made.certificate_der, now_s=time.time())
    assert peer == RemoteIdentity(node="hub", role="manager", cluster="pond")


def test_loading_an_identity_needs_no_cryptography(authority: Authority, tmp_path: Path) -> None:
    authority.identity(node="pi-4", role="node", now_s=NOW_S).save(tmp_path)
    program = (
        "import pathlib, sys\n"
        "from shoal.identity.identity import Identity, channel_credentials, renewable_server_credentials\n"
        "import shoal.identity.enrolment\n"
        "identity = Identity.load(pathlib.Path(sys.argv[1]))\n"
        "channel_credentials(identity), renewable_server_credentials(lambda: identity)\n"
        "print(identity.node, 'cryptography' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == ["pi-4", "False"]


# What is issued


def test_the_authority_signs_members_and_authorities_that_sign_no_others(authority: Authority) -> None:
    root = x509.load_der_x509_certificate(authority.certificate_der)
    constraints = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 1)
    assert authority.fingerprint == hashlib.sha256(authority.certificate_der).digest()


@pytest.mark.parametrize(("role", "serves"), [("manager", True), ("node", True), ("operator", False)])
def test_a_certificate_says_who_and_what_for(authority: Authority, role: str, serves: bool) -> None:
    hosts = ("192.168.1.10", "fd00::1", "hub.example.org") if serves else ()
    identity = authority.identity(node="hub", role=role, hosts=hosts, now_s=NOW_S)
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem)

    subject = [
        certificate.subject.get_attributes_for_oid(oid)[0].value
        for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME)
    ]
    assert subject == ["hub", role, "pond"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"shoal://pond/{role}/hub"]
    assert names.get_values_for_type(x509.DNSName) == (["hub.shoal", "hub.example.org"] if serves else [])
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == list(hosts[:2])
    usages = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    expected = {ExtendedKeyUsageOID.CLIENT_AUTH} | ({ExtendedKeyUsageOID.SERVER_AUTH} if serves else set())
    assert usages == expected
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert remote_of(identity.certificate_pem) == RemoteIdentity(node="hub", role=role, cluster="pond")


def test_only_the_key_of_a_request_is_used(authority: Authority) -> None:
    request = certificates.new_request("manager-i-wish")
    pem = authority.issue(node="pi-4", role="node", csr_pem=request.pem, now_s=NOW_S)
    assert remote_of(pem).node == "pi-4"
    assert b"manager-i-wish" not in der(pem)
    assert certificates.belongs_to(der(pem), request.key_pem)
    assert not certificates.belongs_to(der(pem), certificates.new_request("other").key_pem)


def test_a_request_signed_by_another_key_is_refused(authority: Authority) -> None:
    raw = bytearray(x509.load_pem_x509_csr(certificates.new_request("pi-4").pem).public_bytes(Encoding.DER))
    raw[-1] ^= 1  # the last byte of the signature
    forged = x509.load_der_x509_csr(bytes(raw)).public_bytes(Encoding.PEM)
    with pytest.raises(PeerViolation, match="not signed by its own key"):
        authority.issue(node="pi-4", role="node", csr_pem=forged)


def test_a_request_of_another_kind_of_key_is_refused(authority: Authority) -> None:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for request in (
        builder.sign(ed25519.Ed25519PrivateKey.generate(), None),
        builder.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
    ):
        with pytest.raises(PeerViolation, match="P-256"):
            authority.issue(node="pi-4", role="node", csr_pem=request.public_bytes(Encoding.PEM))


@pytest.mark.parametrize("garbage", [b"", b"hello", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", b"x" * 20_000])
def test_a_garbage_request_is_the_peers_fault(authority: Authority, garbage: bytes) -> None:
    with pytest.raises(PeerViolation):
        authority.issue(node="pi-4", role="node", csr_pem=garbage)


@pytest.mark.parametrize(
    "name", ["", "-pi", "Pi", "pi 4", "pi.4", "../etc", "pi\n", "pi\0", "ä", "x" * 64, "x" * 10_000]
)
def test_bad_names_are_refused_everywhere(authority: Authority, name: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse):
        authority.identity(node=name, role="node")
    with pytest.raises(Misuse):
        authority.identity(node="pi", role=name)
    with pytest.raises(Misuse):
        Authority.create(tmp_path, name)
    with pytest.raises(Misuse):
        channel_options(name)


def test_the_longest_name_works(authority: Authority) -> None:
    node = "a" + "-" * 62
    assert remote_of(authority.identity(node=node, role="node", now_s=NOW_S).certificate_pem).node == node


def test_no_host_may_look_like_a_node(authority: Authority) -> None:
    for host in ("hub.shoal", "shoal", "Hub.shoal", "*.shoal", "a b"):
        with pytest.raises(Misuse):
            authority.identity(node="pi-4", role="node", hosts=(host,))


def test_an_operator_serves_nothing(authority: Authority) -> None:
    with pytest.raises(Misuse, match="does not serve"):
        authority.identity(node="ann", role="operator", hosts=("10.0.0.1",))


# Who is believed


def test_a_certificate_is_believed_until_its_end_also_by_a_clock_that_was_never_set(authority: Authority) -> None:
    identity = authority.identity(node="pi-4", role="node", valid_days=10, now_s=NOW_S)
    certificate, root = der(identity.certificate_pem), authority.certificate_der
    for moment_s in (0.0, NOW_S - 400 * DAY_S, NOW_S, NOW_S + 9.9 * DAY_S):
        assert certificates.authenticate(certificate, root_der=root, now_s=moment_s).node == "pi-4"
    with pytest.raises(PeerViolation, match="clock"):
        certificates.authenticate(certificate, root_der=root, now_s=NOW_S + 10.1 * DAY_S)


def test_a_member_never_outlives_its_authority(authority: Authority) -> None:
    identity = authority.identity(node="pi-4", role="node", valid_days=100_000, now_s=NOW_S)
    member = x509.load_pem_x509_certificate(identity.certificate_pem)
    root = x509.load_der_x509_certificate(authority.certificate_der)
    assert member.not_valid_after_utc == root.not_valid_after_utc


def test_an_expired_authority_signs_nothing(authority: Authority) -> None:
    with pytest.raises(Misuse, match="expired"):
        authority.identity(node="pi-4", role="node", now_s=NOW_S + 3651 * DAY_S)


def test_another_authority_of_the_same_name_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    impostor = Authority.create(tmp_path, "pond", now_s=NOW_S).identity(node="hub", role="manager", now_s=NOW_S)
    with pytest.raises(PeerViolation, match="not issued by"):
        certificates.authenticate(der(impostor.certificate_pem), root_der=authority.certificate_der, now_s=NOW_S)


def test_a_member_is_no_authority_and_an_authority_no_member(authority: Authority) -> None:
    member = der(authority.identity(node="pi-4", role="node", now_s=NOW_S).certificate_pem)
    for certificate, root in ((member, member), (authority.certificate_der, authority.certificate_der)):
        with pytest.raises(PeerViolation, match="directly"):
            certificates.authenticate(certificate, root_der=root, now_s=NOW_S)


def test_garbage_is_no_certificate(authority: Authority) -> None:
    with pytest.raises(PeerViolation):
        certificates.authenticate(b"garbage", root_der=authority.certificate_der, now_s=NOW_S)
    with pytest.raises(PeerViolation):
        remote_of(b"garbage")
    with pytest.raises(PeerViolation, match="no Shoal identity"):
        remote_of(authority.certificate_pem)


# Who is calling


def test_the_caller_is_read_from_the_context() -> None:
    auth = context_of("10.0.0.7", "shoal://pond/node/pi-4", "pi-4.shoal")
    assert remote_from_auth_context(auth) == RemoteIdentity(node="pi-4", role="node", cluster="pond")


@pytest.mark.parametrize(
    "auth",
    [
        pytest.param({}, id="empty"),
        pytest.param(context_of("shoal://pond/node/pi-4") | {"transport_security_type": [b"insecure"]}, id="no TLS"),
        pytest.param(context_of(), id="no names"),
        pytest.param(context_of("pi-4.shoal", "https://pond/node/pi-4"), id="no identity"),
        pytest.param(context_of("shoal://pond/node/pi-4", "shoal://pond/manager/hub"), id="two identities"),
        pytest.param(context_of("shoal://pond/node/pi-4", "shoal://pond/node/pi-4"), id="the same twice"),
        pytest.param(context_of("shoal://pond/node/pi-4", "SHOAL:x"), id="a second, odd one"),
        pytest.param(context_of("shoal://pond/node/pi-4", common="hub"), id="another common name"),
        pytest.param(context_of("shoal://pond/node/pi-4") | {"x509_common_name": []}, id="no common name"),
        pytest.param(context_of("shoal://pond/node/pi-ä"), id="not ASCII"),
    ],
)
def test_a_doubtful_caller_is_refused(auth: dict[str, list[bytes]]) -> None:
    with pytest.raises(PeerViolation):
        remote_from_auth_context(auth)


@pytest.mark.parametrize(
    "uri",
    [
        "shoal:",
        "shoal://",
        "shoal://pond/node",
        "shoal://pond/node/",
        "shoal://pond/node/pi-4/",
        "shoal://pond/node/pi-4/x",
        "shoal://pond/node/../pi-4",
        "shoal://pond/root/pi-4",
        "shoal://pond/node/pi-4\n",
        "shoal://pond/node/pi-4?x",
        "SHOAL://pond/node/pi-4",
        "shoal://Pond/node/pi-4",
    ],
)
def test_a_malformed_identity_is_refused(uri: str) -> None:
    with pytest.raises(PeerViolation):
        remote_from_uris([uri])
