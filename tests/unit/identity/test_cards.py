"""Cards: only the operator whose key a device pinned can make somebody a member, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.identity import certificates
from shoal.identity.card_files import (
    CARD_KEY_FILE,
    PINNED_FILE,
    card_key_of,
    make_card_key,
    pin_operator,
    pinned_operator,
    unpin_operator,
)
from shoal.identity.cards import (
    CARD_BYTES,
    SLACK_S,
    CardKey,
    card_until_s,
    check_card,
    key_text,
    make_card,
    parse_key,
)
from shoal.identity.identity import Authority
from shoal.identity.join_code import JoinCode, new_secret
from shoal.identity.signing import check, check_on_device, sign, signed_bytes
from shoal.plan import Plan
from shoal.wire.messages import Dataset, JobSpec

DAY_S = 86400.0
NOW_S = 1_900_000_000.0

OPERATOR, DEVICE = CardKey.new(), CardKey.new()
CARD = make_card(OPERATOR, cluster="pond", node="pi", key=DEVICE.public, until_s=int(NOW_S + 90 * DAY_S))


def checked(
    card: bytes, *, cluster: str = "pond", node: str = "pi", pinned: bytes = OPERATOR.public, after_s: float = 0.0
) -> bytes:
    return check_card(card, cluster=cluster, node=node, pinned=pinned, now_s=NOW_S + after_s)


def test_a_card_names_the_key_of_its_device() -> None:
    assert checked(CARD) == DEVICE.public
    assert len(CARD) == CARD_BYTES == 104
    assert card_until_s(CARD) == NOW_S + 90 * DAY_S
    assert card_until_s(b"") == card_until_s(CARD[:-1]) == 0


def test_a_card_ends_and_clocks_may_differ_by_a_week() -> None:
    assert checked(CARD, after_s=90 * DAY_S + SLACK_S)
    with pytest.raises(PeerViolation, match=r"its card was valid until 20\d\d-\d\d-\d\d: approve the device again"):
        checked(CARD, after_s=90 * DAY_S + SLACK_S + 1)


@pytest.mark.parametrize(
    "what", [{"cluster": "lake"}, {"node": "pi-2"}, {"pinned": CardKey.new().public}, {"pinned": b""}]
)
def test_a_card_is_for_one_node_of_one_cluster_by_one_operator(what: dict[str, str | bytes]) -> None:
    with pytest.raises(PeerViolation, match="not one that the operator whose key is pinned here signed for it"):
        checked(CARD, **what)  # type: ignore[arg-type]


def test_no_bit_of_a_card_can_change() -> None:
    for at in range(0, CARD_BYTES, 7):
        changed = bytearray(CARD)
        changed[at] ^= 1
        with pytest.raises(PeerViolation):
            checked(bytes(changed))


@pytest.mark.parametrize("card", [b"", CARD[:-1], CARD + b"\0"])
def test_what_is_not_a_card_is_refused(card: bytes) -> None:
    with pytest.raises(PeerViolation, match=r"it has no card|its card has 10[35] bytes, not 104"):
        checked(card)


def test_a_managers_own_operator_makes_no_card(tmp_path: Path) -> None:
    """A manager can certify an operator. What that one's certificate key signs, or its card key, is no card here."""
    authority = Authority.create(tmp_path, "pond", now_s=NOW_S)
    minted = authority.identity(node="ann", role="operator", now_s=NOW_S)
    forged = CardKey.new()
    with pytest.raises(PeerViolation, match="pinned here"):
        checked(make_card(forged, cluster="pond", node="pi", key=DEVICE.public, until_s=int(NOW_S + DAY_S)))
    by_certificate = certificates.signature(CARD[:-64], minted.key_pem)[:64]
    with pytest.raises(PeerViolation):
        checked(CARD[:-64] + by_certificate.ljust(64, b"\0"))


# Keys as people copy them --------------------------------------------------------------------------------------------


def test_a_key_is_copied_in_groups_and_a_wrong_character_is_found() -> None:
    text = key_text(DEVICE.public)
    assert [len(group) for group in text.split("-")] == [4] * 14
    assert parse_key(text) == parse_key(text.upper()) == parse_key(text.replace("-", "")) == DEVICE.public
    wrong = ("b" if text[0] == "a" else "a") + text[1:]
    with pytest.raises(Misuse, match="a character of this key is wrong"):
        parse_key(wrong)
    for what in (text[:-1], text + "a", "", "none", "1" * 56, "ä" * 56):
        with pytest.raises(Misuse, match="14 groups of 4"):
            parse_key(what)


def test_a_card_key_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    assert card_key_of(tmp_path) is None
    made = make_card_key(tmp_path)
    assert make_card_key(tmp_path) == card_key_of(tmp_path) == made
    assert (tmp_path / CARD_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert made.private.hex() not in repr(made)
    (tmp_path / CARD_KEY_FILE).write_text('{"private": "00", "public": "zz"}')
    with pytest.raises(Corrupt, match="is damaged"):
        card_key_of(tmp_path)


def test_a_pinned_key_changes_only_by_an_act_on_the_device(tmp_path: Path) -> None:
    other = CardKey.new().public
    assert pinned_operator(tmp_path) == b""
    pin_operator(tmp_path, OPERATOR.public, may_change=False)
    pin_operator(tmp_path, OPERATOR.public, may_change=False)
    with pytest.raises(Misuse, match=r"pinned another operator's key.*run `shoal join --operator-key"):
        pin_operator(tmp_path, other, may_change=False)
    assert pinned_operator(tmp_path) == OPERATOR.public
    pin_operator(tmp_path, other, may_change=True)
    assert pinned_operator(tmp_path) == other
    unpin_operator(tmp_path)
    unpin_operator(tmp_path)
    assert not (tmp_path / PINNED_FILE).exists()
    assert pinned_operator(tmp_path) == b""


def test_a_join_line_carries_the_key_to_pin() -> None:
    plain = JoinCode(host="10.0.0.1", port=7071, ca_sha256=bytes(range(32)), secret=new_secret())
    line = str(replace(plain, operator_key=OPERATOR.public))
    assert JoinCode.parse(line).operator_key == OPERATOR.public
    assert JoinCode.parse(line).secret == plain.secret
    assert JoinCode.parse(str(plain)).operator_key == b""
    assert len(line) - len(str(plain)) == 56
    # The checksum of the line covers the key, too: no other key can be put in its place by one character.
    for at in range(len(str(plain)), len(line), 5):
        wrong = line[:at] + ("b" if line[at] == "a" else "a") + line[at + 1 :]
        with pytest.raises(Misuse, match="is wrong"):
            JoinCode.parse(wrong)
    with pytest.raises(Misuse, match=r"cut off \(119 of 120 characters\)"):
        JoinCode.parse(line[:-1])
    with pytest.raises(Misuse, match="1 characters too many"):
        JoinCode.parse(line + "a")
    with pytest.raises(Misuse, match="has 32 bytes"):
        replace(plain, operator_key=b"short")


# Jobs ----------------------------------------------------------------------------------------------------------------

SPEC = JobSpec(
    job="digits-1",
    name="digits",
    entry="task:Digits",
    bundle="ab" * 32,
    initial="cd" * 32,
    train=Dataset(),
    test=Dataset(),
    plan=Plan(trust="sealed(8, members=20)", data="local", workers_min=8, workers_max=20),
)


def test_a_device_runs_only_the_jobs_of_the_operator_it_pinned(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "pond", now_s=NOW_S)
    ann = authority.identity(node="ann", role="operator", now_s=NOW_S)
    signed = sign(SPEC, ann, OPERATOR)

    def check_pinned(spec: JobSpec) -> None:
        assert check_on_device(spec, ca_pem=ann.ca_pem, cluster="pond", pinned=OPERATOR.public) == "ann"

    check_pinned(signed)
    assert signed_bytes(signed) == signed_bytes(replace(signed, card_signature=""))
    assert check(signed, ca_pem=ann.ca_pem, cluster="pond", now_s=NOW_S) == "ann"
    # The manager makes itself an operator, and signs as it likes: with no card key, or with another one.
    for made in (sign(SPEC, ann), sign(SPEC, ann, CardKey.new()), replace(signed, card_signature="?")):
        assert check(made, ca_pem=ann.ca_pem, cluster="pond", now_s=NOW_S) == "ann"
        with pytest.raises(PeerViolation, match="not signed with the operator's key that this device pinned"):
            check_pinned(made)
    # Nor can it change what the operator signed, such as how many members there are.
    fewer = sign(replace(signed, plan=replace(signed.plan, trust="sealed(8, members=8)")), ann)
    with pytest.raises(PeerViolation, match="pinned"):
        check_pinned(replace(fewer, card_signature=signed.card_signature))


def test_a_device_that_pinned_nobody_has_no_signed_members(tmp_path: Path) -> None:
    ann = Authority.create(tmp_path, "pond", now_s=NOW_S).identity(node="ann", role="operator", now_s=NOW_S)

    def check_unpinned(spec: JobSpec) -> str:
        return check_on_device(sign(spec, ann), ca_pem=ann.ca_pem, cluster="pond", pinned=b"")

    with pytest.raises(
        PeerViolation, match="Run `shoal join --operator-key KEY` on it, with the key that `shoal nodes"
    ):
        check_unpinned(SPEC)
    assert check_unpinned(replace(SPEC, plan=replace(SPEC.plan, trust="sealed(8)"))) == "ann"
