"""A tab proves who it is: what is signed, and every way in which an answer is of no use."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import pytest

from shoal.browser.proof import Joining, TabProof, Visitor, new_challenge, proven, signed_text
from shoal.errors import PeerViolation
from shoal.identity import certificates
from shoal.identity.identity import Authority, Identity

ORIGIN = "https://shoal.example:7075"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path, "pond")


def answered(tab: Identity, fresh: str, /, **changed: str) -> TabProof:
    said = {"origin": ORIGIN, "verb": "Work", "incarnation": "a1", "challenge": fresh} | changed
    signature = certificates.signature(signed_text(**said), tab.key_pem)
    return TabProof(certificate_pem=tab.certificate_pem.decode(), signature=signature, verb="Work", incarnation="a1")


def test_a_signed_challenge_names_the_member(authority: Authority) -> None:
    tab, challenge = authority.identity(node="tab", role="browser"), new_challenge()
    peer = proven(answered(tab, challenge), ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)
    assert (peer.node, peer.role, peer.cluster, peer.incarnation) == ("tab", "browser", "pond", "a1")
    assert len(peer.certificate) == 64


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("origin", "https://evil.example"),
        ("verb", "Control"),
        ("incarnation", "b2"),
        ("challenge", "of yesterday"),
    ],
)
def test_a_signature_for_another_door_stream_process_or_challenge_is_of_no_use(
    authority: Authority, changed: str, value: str
) -> None:
    tab, challenge = authority.identity(node="tab", role="browser"), new_challenge()
    answer = answered(tab, challenge, **{changed: value})
    with pytest.raises(PeerViolation, match="not signed with the key"):
        proven(answer, ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)


@pytest.mark.parametrize("role", ["node", "operator", "manager"])
def test_other_members_do_not_come_in_by_this_door(authority: Authority, role: str) -> None:
    challenge = new_challenge()
    answer = answered(authority.identity(node="pi", role=role), challenge)
    with pytest.raises(PeerViolation, match=f"does not admit the role {role}"):
        proven(answer, ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)


def test_a_certificate_of_another_authority_or_of_last_year_is_refused(authority: Authority, tmp_path: Path) -> None:
    challenge = new_challenge()
    other = Authority.create(tmp_path / "other", "pond").identity(node="tab", role="browser")
    with pytest.raises(PeerViolation, match="not issued by the cluster's authority"):
        proven(answered(other, challenge), ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)
    old = authority.identity(node="tab", role="browser", valid_days=1, now_s=1_700_000_000)
    with pytest.raises(PeerViolation, match="is valid from"):
        proven(answered(old, challenge), ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)


def test_a_key_that_is_not_the_certificates_proves_nothing(authority: Authority) -> None:
    tab, challenge = authority.identity(node="tab", role="browser"), new_challenge()
    thief = dataclasses.replace(tab, key_pem=authority.identity(node="thief", role="browser").key_pem)
    with pytest.raises(PeerViolation, match="not signed with the key"):
        proven(answered(thief, challenge), ca_pem=authority.certificate_pem, origin=ORIGIN, challenge=challenge)


WHOLE = {"certificate_pem": "x", "signature": base64.b64encode(b"s").decode(), "verb": "Work", "incarnation": "a1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{" * 2000,
        json.dumps({**WHOLE, "verb": "Operate"}),
        json.dumps({**WHOLE, "verb": "Store"}),
        json.dumps({**WHOLE, "signature": "é"}),
        json.dumps({**WHOLE, "incarnation": ""}),
        json.dumps({**WHOLE, "incarnation": "x" * 65}),
        json.dumps({**WHOLE, "incarnation": "a\nb"}),
        json.dumps({**WHOLE, "more": 1}),
        json.dumps({**WHOLE, "certificate_pem": 7}),
        json.dumps({name: WHOLE[name] for name in ("verb", "signature")}),
    ],
)
def test_answers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(PeerViolation):
        TabProof.read(text)


def test_a_whole_answer_is_read() -> None:
    assert TabProof.read(json.dumps(WHOLE)).signature == b"s"


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff", b'{"secret": "a", "wanted": "b", "csr_pem": "c", "d": 1}'])
def test_requests_to_join_that_cannot_be_are_refused(raw: bytes) -> None:
    with pytest.raises(PeerViolation):
        Joining.read(raw)


def test_a_visitor_shows_an_invitation_or_the_certificate_of_a_browser(authority: Authority) -> None:
    assert Visitor.read(b'{"secret": "abc"}').secret == "abc"
    tab = authority.identity(node="tab", role="browser")
    shown = Visitor.read(json.dumps({"certificate_pem": tab.certificate_pem.decode()}).encode())
    peer = shown.member(ca_pem=authority.certificate_pem)
    assert (peer.node, peer.role, len(peer.certificate)) == ("tab", "browser", 64)
    agent = Visitor(certificate_pem=authority.identity(node="pi", role="node").certificate_pem.decode())
    with pytest.raises(PeerViolation, match="does not admit the role node"):
        agent.member(ca_pem=authority.certificate_pem)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"secret": 3}',
        b'{"secret": "a", "certificate_pem": "b"}',
        b'{"secret": "' + b"x" * 65 + b'"}',
        '{"secret": "é"}'.encode(),
        b"[" * 100_000,
    ],
)
def test_a_question_that_is_no_visitors_is_refused(raw: bytes) -> None:
    with pytest.raises(PeerViolation, match="the question"):
        Visitor.read(raw)


def test_a_certificate_of_another_cluster_is_no_members(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "lake").identity(node="tab", role="browser")
    with pytest.raises(PeerViolation):
        Visitor(certificate_pem=other.certificate_pem.decode()).member(ca_pem=authority.certificate_pem)
    with pytest.raises(PeerViolation, match="cannot be read"):
        Visitor(certificate_pem="nothing").member(ca_pem=authority.certificate_pem)
