"""Whose signature makes a job one that devices run, and that no part of the job can change after it."""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Misuse, PeerViolation
from shoal.identity import certificates
from shoal.identity.identity import Authority, Identity
from shoal.identity.signing import (
    FORM,
    SIGNATURE_MAX_CHARS,
    SIGNER_PEM_MAX_CHARS,
    check,
    sign,
    signed_bytes,
)
from shoal.plan import Plan, Until
from shoal.wire.encoding import decode_envelope, encode_envelope, from_json, to_json
from shoal.wire.messages import Assign, Dataset, JobSpec, is_sha256

DAY_S = 86400.0
NOW_S = 1_900_000_000.0
SHA = "ab" * 32
#: What no signature is over.
SIGNATURES = {"signature", "signer_pem", "card_signature"}

SPEC = JobSpec(
    job="digits-1",
    name="digits",
    entry="task:Digits",
    kwargs_json='{"width": 32}',
    bundle=SHA,
    initial="cd" * 32,
    train=Dataset(manifest="ef" * 32, examples=100),
    test=Dataset(manifest="01" * 32, examples=10),
    plan=Plan(until=Until(accuracy=0.5, epochs=3)),
    graphs="23" * 32,
)


@dataclasses.dataclass(frozen=True)
class Pond:
    """A cluster, some of its members, and another cluster of the same name."""

    authority: Authority
    ann: Identity
    bob: Identity
    pi: Identity
    hub: Identity
    elsewhere: Authority
    stranger: Identity

    def check(self, spec: JobSpec, *, now_s: float | None = NOW_S) -> str:
        return check(spec, ca_pem=self.pi.ca_pem, cluster="pond", now_s=now_s)


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Pond:
    authority = Authority.create(tmp_path_factory.mktemp("pond"), "pond", now_s=NOW_S)
    elsewhere = Authority.create(tmp_path_factory.mktemp("elsewhere"), "pond", now_s=NOW_S)
    return Pond(
        authority=authority,
        ann=authority.identity(node="ann", role="operator", now_s=NOW_S),
        bob=authority.identity(node="bob", role="operator", now_s=NOW_S),
        pi=authority.identity(node="pi", role="node", now_s=NOW_S),
        hub=authority.identity(node="hub", role="manager", now_s=NOW_S),
        elsewhere=elsewhere,
        stranger=elsewhere.identity(node="ann", role="operator", now_s=NOW_S),
    )


def signed_as(spec: JobSpec, key_pem: bytes, certificate_pem: bytes, *, content: bytes | None = None) -> JobSpec:
    """What anyone can write who holds this key, whatever our own code would sign."""
    made = certificates.signature(signed_bytes(spec) if content is None else content, key_pem)
    return replace(spec, signature=base64.b64encode(made).decode(), signer_pem=certificate_pem.decode())


# What is good


def test_an_operator_signs_and_is_named(pond: Pond) -> None:
    signed = sign(SPEC, pond.ann)
    assert replace(signed, signature="", signer_pem="") == SPEC
    assert pond.check(signed) == "ann"
    assert pond.check(sign(signed, pond.bob)) == "bob"


def test_a_signature_survives_the_wire_and_the_registry(pond: Pond) -> None:
    stored = from_json(JobSpec, json.loads(json.dumps(to_json(sign(SPEC, pond.ann)))))
    assign = Assign(job=SPEC.job, role="worker", term=1, leader="hub", spec=stored)
    received, _ = decode_envelope(encode_envelope(assign))
    assert isinstance(received, Assign)
    assert pond.check(received.spec) == "ann"


def test_numbers_may_be_written_as_people_write_them(pond: Pond) -> None:
    """1 is 1.0 once it crossed the wire: the signature is over what arrives."""
    plan = Plan(learning_rate=1, weight_decay=-0.0, lease_s=60, until=Until(seconds=90))
    signed = sign(replace(SPEC, plan=plan), pond.ann)
    received, _ = decode_envelope(encode_envelope(Assign(job="a", role="worker", term=1, leader="hub", spec=signed)))
    assert isinstance(received, Assign)
    assert pond.check(signed) == pond.check(received.spec) == "ann"


def test_what_is_signed_has_one_form() -> None:
    content = signed_bytes(replace(SPEC, name="zähler"))
    assert content.startswith(FORM)
    body = content.removeprefix(FORM)
    plain = json.loads(body)
    assert from_json(JobSpec, plain) == replace(SPEC, name="zähler"), "nothing is left out but defaults"
    assert json.dumps(dict(reversed(plain.items())), sort_keys=True, separators=(",", ":")).encode("ascii") == body
    assert signed_bytes(replace(SPEC, name="zähler", signature="a", signer_pem="b", card_signature="c")) == content


def test_a_field_of_a_later_release_changes_nothing_until_it_is_used() -> None:
    later = dataclasses.make_dataclass("JobSpec", [("later", int, 0)], bases=(JobSpec,), frozen=True, kw_only=True)
    given = {f.name: getattr(SPEC, f.name) for f in dataclasses.fields(SPEC)}
    assert signed_bytes(later(**given)) == signed_bytes(SPEC)
    assert signed_bytes(later(**given, later=1)) != signed_bytes(SPEC)


def test_a_job_outlives_the_certificate_of_its_signer(pond: Pond) -> None:
    """A manager says when it is; a device does not ask."""
    signed = sign(SPEC, pond.ann)
    assert pond.check(signed, now_s=NOW_S + 29 * DAY_S) == "ann"
    with pytest.raises(PeerViolation, match=r"signer is not known: the certificate is valid from 1970-01-01 to"):
        pond.check(signed, now_s=NOW_S + 31 * DAY_S)
    assert pond.check(signed, now_s=None) == "ann"


# What was changed


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every plain value inside a job, but for its signature."""
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from leaves(inner, (*path, field.name))
        elif field.name not in SIGNATURES:
            yield (*path, field.name)


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = getattr(value, name)
    return value


def with_leaf(value: Any, path: tuple[str, ...], leaf: Any) -> Any:
    """The same with another value there, whatever its class would say to it."""
    changed = copy.copy(value)
    inner = leaf if len(path) == 1 else with_leaf(getattr(value, path[0]), path[1:], leaf)
    object.__setattr__(changed, path[0], inner)
    return changed


def slightly_other(leaf: Any) -> Any:
    match leaf:
        case None:
            return 0.5
        case str() if is_sha256(leaf):
            return leaf[:-1] + ("0" if leaf[-1] != "0" else "1")
        case str():
            return leaf + "x"
        case float():
            return math.nextafter(leaf, math.inf)
        case tuple():
            return (*leaf, SHA)
    return leaf + 1


PATHS = sorted(leaves(SPEC))


def test_the_paths_lead_everywhere() -> None:
    assert {path[0] for path in PATHS} == {f.name for f in dataclasses.fields(JobSpec)} - SIGNATURES
    assert {path[1] for path in PATHS if path[0] == "plan"} == {f.name for f in dataclasses.fields(Plan)}
    assert {path[2] for path in PATHS if path[:2] == ("plan", "until")} == {f.name for f in dataclasses.fields(Until)}
    assert {path[1] for path in PATHS if path[0] == "train"} == {"manifest", "examples"}


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_every_field_is_covered(path: tuple[str, ...], pond: Pond) -> None:
    signed = sign(SPEC, pond.ann)
    changed = with_leaf(signed, path, slightly_other(at(signed, path)))
    with pytest.raises(PeerViolation, match="the job is not what ann signed"):
        pond.check(changed, now_s=None)
    assert pond.check(with_leaf(changed, path, at(signed, path)), now_s=None) == "ann"


TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=20)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)


def values_like(leaf: Any) -> st.SearchStrategy[Any]:
    match leaf:
        case str() if is_sha256(leaf):
            return HASHES
        case str():
            return TEXTS
        case int():
            return st.integers(1, 1 << 24)
        case tuple():
            return st.lists(HASHES, max_size=3).map(tuple)
    return st.none() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150)
@given(drawn=st.data())
def test_any_single_change_breaks_it(drawn: st.DataObject, pond: Pond) -> None:
    """Two jobs that differ are told apart; and one that does not is good."""
    path = drawn.draw(st.sampled_from(PATHS))
    signed = sign(SPEC, pond.ann)
    old, strategy = at(signed, path), values_like(at(signed, path))
    if path == ("job",):
        strategy = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)
    new = drawn.draw(strategy)
    changed = with_leaf(signed, path, new)
    if new == old and str(new) == str(old):
        assert pond.check(changed) == "ann"
    else:
        with pytest.raises(PeerViolation, match="the job is not what ann signed"):
            pond.check(changed)


@settings(max_examples=60)
@given(one=TEXTS, other=TEXTS)
def test_words_cannot_move_from_one_field_to_the_next(one: str, other: str) -> None:
    whole = signed_bytes(replace(SPEC, name=one + other, entry=""))
    assert (signed_bytes(replace(SPEC, name=one, entry=other)) == whole) == (other == "")


# Who signed


def test_only_operators_sign(pond: Pond) -> None:
    for identity in (pond.pi, pond.hub):
        with pytest.raises(Misuse, match="a job is signed by an operator"):
            sign(SPEC, identity)
        forged = signed_as(SPEC, identity.key_pem, identity.certificate_pem)
        with pytest.raises(PeerViolation, match=rf"signed by {identity.node}|/{identity.node}, who is not an operator"):
            pond.check(forged)


def test_an_operator_of_another_cluster_is_none_of_ours(pond: Pond) -> None:
    foreign = sign(SPEC, pond.stranger)
    assert check(foreign, ca_pem=pond.stranger.ca_pem, cluster="pond", now_s=NOW_S) == "ann"
    for now_s in (NOW_S, None):
        with pytest.raises(PeerViolation, match="was not issued by the cluster's authority"):
            pond.check(foreign, now_s=now_s)
    with pytest.raises(PeerViolation, match="who is not an operator of lake"):
        check(sign(SPEC, pond.ann), ca_pem=pond.ann.ca_pem, cluster="lake", now_s=NOW_S)


def test_a_certificate_needs_its_own_key(pond: Pond) -> None:
    with pytest.raises(PeerViolation, match="not what bob signed"):
        pond.check(replace(sign(SPEC, pond.ann), signer_pem=pond.bob.certificate_pem.decode()))


def test_the_authority_itself_is_no_signer(pond: Pond) -> None:
    forged = signed_as(SPEC, pond.authority._key_pem, pond.authority.certificate_pem)
    with pytest.raises(PeerViolation, match="does not come directly from the cluster's authority"):
        pond.check(forged)


def test_a_certificate_that_signs_itself_is_refused(pond: Pond) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    own = issued_by(key, key.public_key())
    pem = certificates._private_pem(key)
    with pytest.raises(PeerViolation, match="was not issued by the cluster's authority"):
        pond.check(signed_as(SPEC, pem, own))


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())])
def test_keys_are_of_the_kind_we_certify(key: Any, pond: Pond) -> None:
    """Our authority certifies no others: such a certificate would be someone else's work with its key."""
    root_key = load_pem_private_key(pond.authority._key_pem, password=None)
    pem = issued_by(root_key, key.public_key(), issuer=x509.load_der_x509_certificate(pond.authority.certificate_der))
    signed = sign(SPEC, pond.ann)
    with pytest.raises(PeerViolation, match="key is not ECDSA P-256"):
        pond.check(replace(signed, signer_pem=pem.decode()))


def issued_by(key: Any, public_key: Any, *, issuer: x509.Certificate | None = None) -> bytes:
    """A certificate for an operator called eve, made without the rules of ours."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "eve")])
    alternative = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("shoal://pond/operator/eve")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer else name)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(certificates.ALWAYS)
        .not_valid_after(datetime.fromtimestamp(NOW_S, UTC) + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def test_what_a_key_signs_for_other_ends_is_no_job(pond: Pond) -> None:
    body = signed_bytes(SPEC).removeprefix(FORM)
    for content in (body, b"shoal job 1\n" + body, b""):
        with pytest.raises(PeerViolation, match="not what ann signed"):
            pond.check(signed_as(SPEC, pond.ann.key_pem, pond.ann.certificate_pem, content=content))


# What is no signature at all


def test_a_job_without_a_signature_says_what_to_do(pond: Pond) -> None:
    signed = sign(SPEC, pond.ann)
    for bare in (SPEC, replace(signed, signature=""), replace(signed, signer_pem="")):
        with pytest.raises(PeerViolation, match="not signed by an operator: submit it again with `shoal train`"):
            pond.check(bare, now_s=None)


def test_what_is_too_long_is_not_parsed(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = sign(SPEC, pond.ann)
    assert len(signed.signature) <= SIGNATURE_MAX_CHARS
    assert len(signed.signer_pem) <= SIGNER_PEM_MAX_CHARS

    def parsed(_: bytes) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(certificates, "_parse_der", parsed)
    long_pem = signed.signer_pem + "\n" * (SIGNER_PEM_MAX_CHARS + 1 - len(signed.signer_pem))
    for oversize in (
        replace(signed, signature="A" * (SIGNATURE_MAX_CHARS + 4)),
        replace(signed, signer_pem=long_pem),
        # What no constructor would let pass.
        with_leaf(signed, ("signature",), "A" * 1_000_000),
        with_leaf(signed, ("signer_pem",), "A" * 10_000_000),
    ):
        with pytest.raises(PeerViolation, match="too long"):
            pond.check(oversize, now_s=None)


@pytest.mark.parametrize("text", ["x", "====", "ä", "A A=", "AAAA\n", "\ud800", "-" * 90, "AAAA", "MAYCAQACAQA="])
def test_a_signature_of_nonsense_is_refused(text: str, pond: Pond) -> None:
    with pytest.raises(PeerViolation, match=r"cannot be read|not what ann signed"):
        pond.check(replace(sign(SPEC, pond.ann), signature=text), now_s=None)


def test_no_bit_of_a_signature_may_change(pond: Pond) -> None:
    signed = sign(SPEC, pond.ann)
    made = base64.b64decode(signed.signature)
    for place in range(len(made) * 8):
        changed = bytearray(made)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(PeerViolation, match="not what ann signed"):
            pond.check(replace(signed, signature=base64.b64encode(changed).decode()), now_s=None)


HEAD, FOOT = "-----BEGIN CERTIFICATE-----\n", "\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("text", ["x", HEAD, HEAD + FOOT, HEAD + "AAAA" + FOOT, HEAD + "ä" + FOOT, "\ud800", "{}"])
def test_a_certificate_of_nonsense_is_refused(text: str, pond: Pond) -> None:
    with pytest.raises(PeerViolation, match="cannot be read"):
        pond.check(replace(sign(SPEC, pond.ann), signer_pem=text), now_s=None)


def test_two_certificates_are_not_one(pond: Pond) -> None:
    both = (pond.ann.certificate_pem + pond.bob.certificate_pem).decode()
    assert len(both) <= SIGNER_PEM_MAX_CHARS
    with pytest.raises(PeerViolation, match="no manager's"):
        pond.check(replace(sign(SPEC, pond.ann), signer_pem=both), now_s=None)


def test_an_agent_that_has_no_job_does_not_pay_for_it() -> None:
    program = "import sys, shoal.runtime.agent, shoal.identity.signing; print('cryptography' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False"]
