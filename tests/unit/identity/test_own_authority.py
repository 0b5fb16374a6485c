"""An authority of a manager's own: certified by the cluster's, trusted by members that know only that one."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse, PeerViolation
from shoal.identity import certificates, chain
from shoal.identity.identity import AUTHORITY_FILE, Authority, Identity, certificate_sha256, remote_from_auth_context
from shoal.identity.names import RemoteIdentity
from shoal.identity.signing import check, sign
from tests.unit.identity.test_signing import SPEC

DAY_S = 86400.0
NOW_S = 1_900_000_000.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("root"), "pond", now_s=NOW_S)


@pytest.fixture(scope="module")
def east(root: Authority) -> Authority:
    return root.for_manager("east", valid_days=90, now_s=NOW_S)


def shown(identity: Identity) -> bytes:
    return chain.der_of(identity.certificate_pem)


def test_a_member_of_it_is_a_member_of_the_cluster(root: Authority, east: Authority) -> None:
    device = east.identity(node="pi", role="node", now_s=NOW_S)
    peer = certificates.authenticate(shown(device), root_der=root.certificate_der, now_s=NOW_S)
    assert peer == RemoteIdentity(node="pi", role="node", cluster="pond")
    assert peer.authorities == (east.own_sha256,)
    assert device.ca_pem == root.certificate_pem
    assert east.fingerprint == root.fingerprint, "a join line pins the cluster's"


def test_a_certificate_is_known_by_its_own_hash_and_not_by_its_chains(east: Authority) -> None:
    device = east.identity(node="pi", role="node", now_s=NOW_S)
    alone = chain.split_pem(device.certificate_pem.decode())[0]
    assert certificate_sha256(device.certificate_pem) == certificate_sha256(alone.encode())


@pytest.mark.parametrize("lists_own", [True, False])
def test_what_tls_shows_beside_a_certificate_is_found_in_any_order(
    root: Authority, east: Authority, lists_own: bool
) -> None:
    device = east.identity(node="pi", role="node", now_s=NOW_S)
    own, _ = chain.split_pem(device.certificate_pem.decode())
    listed = [*([own.encode()] if lists_own else []), root.certificate_pem + east.own_pem]
    context = {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [b"pi"],
        "x509_subject_alternative_name": [b"shoal://pond/node/pi"],
        "x509_pem_cert": [own.encode()],
        "x509_pem_cert_chain": [b"".join(listed)],
    }
    peer = remote_from_auth_context(context)
    assert peer.authorities == (root.fingerprint.hex(), east.own_sha256)
    assert peer.certificate == certificate_sha256(device.certificate_pem)


def test_without_the_authority_between_nothing_is_proven(root: Authority, east: Authority) -> None:
    alone = chain.split_der(shown(east.identity(node="pi", role="node", now_s=NOW_S)))[0]
    with pytest.raises(PeerViolation, match="not issued by"):
        certificates.authenticate(alone, root_der=root.certificate_der, now_s=NOW_S)


def test_one_of_another_cluster_is_refused(root: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path, "pond", now_s=NOW_S).for_manager("east", valid_days=90, now_s=NOW_S)
    device = other.identity(node="pi", role="node", now_s=NOW_S)
    with pytest.raises(PeerViolation, match="not issued by"):
        certificates.authenticate(shown(device), root_der=root.certificate_der, now_s=NOW_S)


def test_a_member_is_no_authority(root: Authority) -> None:
    """A device that signs a certificate with its own key makes nobody a member."""
    device = root.identity(node="pi", role="node", now_s=NOW_S)
    forged = certificates.issue(
        certificates.KeyPair(device.key_pem, device.certificate_pem),
        certificates.new_request("boss").pem,
        RemoteIdentity(node="boss", role="operator", cluster="pond"),
        serves=False,
        hosts=(),
        valid_days=1,
        now_s=NOW_S,
    )
    with pytest.raises(PeerViolation, match="no manager's"):
        certificates.authenticate(
            chain.der_of(forged) + chain.der_of(device.certificate_pem), root_der=root.certificate_der, now_s=NOW_S
        )


def test_an_authority_of_a_manager_makes_no_others(root: Authority, east: Authority) -> None:
    with pytest.raises(Misuse, match="only that of the cluster"):
        east.for_manager("west", valid_days=1, now_s=NOW_S)
    # Nor if somebody does it by hand: three are no chain, and the one in the middle may sign members alone.
    key = load_pem_private_key(east._key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    above = x509.load_pem_x509_certificate(east.own_pem)
    assert above.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    own = ec.generate_private_key(ec.SECP256R1())
    below = (
        x509.CertificateBuilder()
        .subject_name(above.subject)
        .issuer_name(above.subject)
        .public_key(own.public_key())
        .serial_number(7)
        .not_valid_before(certificates.ALWAYS)
        .not_valid_after(above.not_valid_after_utc - datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    device = shown(root.identity(node="pi", role="node", now_s=NOW_S))
    with pytest.raises(PeerViolation):
        certificates.authenticate(device + below, root_der=root.certificate_der, now_s=NOW_S)
    with pytest.raises(PeerViolation, match="cannot be read"):
        certificates.authenticate(
            device + below + chain.der_of(east.own_pem), root_der=root.certificate_der, now_s=NOW_S
        )


def test_a_root_of_an_earlier_release_delegates_nothing(root: Authority) -> None:
    """Its path length is 0: TLS would refuse the chain, and so do we."""
    made = certificates.new_authority("pond", valid_days=3650, now_s=NOW_S)
    old = Authority(cluster="pond", key_pem=made.key_pem, certificate_pem=made.pem)
    with pytest.raises(Misuse, match="earlier release"):
        old.for_manager("east", valid_days=1, now_s=NOW_S)


def test_what_it_issues_ends_with_it(root: Authority, east: Authority) -> None:
    short = root.for_manager("short", valid_days=3, now_s=NOW_S)
    device = short.identity(node="pi", role="node", valid_days=30, now_s=NOW_S)
    assert device.expires_s == NOW_S + 3 * DAY_S
    with pytest.raises(PeerViolation, match="manager's authority is valid"):
        certificates.authenticate(shown(device), root_der=root.certificate_der, now_s=NOW_S + 4 * DAY_S)
    with pytest.raises(Misuse, match="expired"):
        short.identity(node="pi", role="node", now_s=NOW_S + 4 * DAY_S)


@pytest.mark.parametrize("name", ["manager", "operator", "East", ""])
def test_it_has_a_name_of_its_own(root: Authority, name: str) -> None:
    with pytest.raises(Misuse):
        root.for_manager(name, valid_days=1, now_s=NOW_S)


def test_it_survives_the_disk_without_the_clusters_key(root: Authority, east: Authority, tmp_path: Path) -> None:
    east.save(tmp_path / AUTHORITY_FILE)
    found = Authority.load(tmp_path)
    assert (found.name, found.own_sha256, found.greeting) == (east.name, east.own_sha256, east.greeting)
    assert root._key_pem.decode() not in (tmp_path / AUTHORITY_FILE).read_text()
    device = found.identity(node="pi", role="node", now_s=NOW_S)
    assert certificates.authenticate(shown(device), root_der=root.certificate_der, now_s=NOW_S).node == "pi"


def test_an_operator_of_it_signs_jobs(root: Authority, east: Authority) -> None:
    operator = east.identity(node="ann", role="operator", now_s=NOW_S)
    signed = sign(SPEC, operator)
    assert check(signed, ca_pem=root.certificate_pem, cluster="pond", now_s=NOW_S) == "ann"


@given(st.binary(max_size=64), st.integers(0, 3))
def test_no_bytes_break_the_chain(noise: bytes, cut: int) -> None:
    whole = b"\x30\x82\x00\x05hello"
    assert chain.split_der(whole + whole) == [whole, whole]
    for broken in (whole[: -cut - 1], noise + whole, whole * 3, whole + noise):
        try:
            found = chain.split_der(broken)
        except ValueError:
            continue
        assert b"".join(found) == broken
        assert len(found) <= chain.CHAIN_MAX
