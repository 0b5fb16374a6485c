"""Which keys of a roster a device takes: of members whose certificates are valid, and that the operator signed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.identity.cards import CardKey, make_card
from shoal.identity.identity import Authority, Identity
from shoal.runtime.seal_keys import GOOD_FOR_S, SealKeys, SignedMembers
from shoal.wire.encoding import decode_envelope, encode_envelope
from shoal.wire.messages import MemberKey, SealKey, SealRoster

DAY_S = 86400.0
NOW_S = 1_900_000_000.0
OPERATOR = CardKey.new()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pond"), "pond", now_s=NOW_S - 800 * DAY_S)


def member(authority: Authority, node: str, *, ago_days: float = 0.0, role: str = "node") -> Identity:
    return authority.identity(node=node, role=role, now_s=NOW_S - ago_days * DAY_S)


def keys(identity: Identity, *, signer: CardKey | None = OPERATOR, node: str = "", days: float = 90.0) -> SealKeys:
    """Those of a device with a card of this operator, if one signed it."""
    own, until_s = CardKey.new(), int(NOW_S + days * DAY_S)
    card = (
        make_card(signer, cluster="pond", node=node or identity.node, key=own.public, until_s=until_s)
        if signer
        else b""
    )
    return SealKeys(identity, "job-1", signed=SignedMembers(card=card, card_key=own, pinned=OPERATOR.public))


def roster(*made: MemberKey) -> SealRoster:
    return SealRoster(job="job-1", term=7, roster=1, keys=made)


def test_members_whose_certificates_ran_out_are_refused_by_name(authority: Authority) -> None:
    old_manager = authority.for_manager("old-manager", valid_days=90, now_s=NOW_S - 800 * DAY_S)
    victim = SealKeys(member(authority, "victim"), "job-1")
    others = {
        "ex-member": member(authority, "ex-member", ago_days=800),
        "sybil-1": member(old_manager, "sybil-1", ago_days=799),
        # 30 days from 35 days ago: it ran out within the week that clocks may differ by.
        "late": member(authority, "late", ago_days=35),
        "fresh": member(authority, "fresh"),
    }
    made = [SealKeys(identity, "job-1").make(7) for identity in others.values()]
    bad = victim.check(roster(*made), now_s=NOW_S)
    assert sorted(bad) == ["ex-member", "sybil-1"]
    assert "the certificate is valid from 1970-01-01 to" in bad["ex-member"]
    assert "the manager's authority is valid" in bad["sybil-1"]
    # A board without a clock cannot tell: it takes what was ever issued, as before.
    assert victim.check(roster(*made), now_s=0.0) == {}


def test_a_key_that_was_good_is_looked_at_again_after_a_day(authority: Authority) -> None:
    victim, made = SealKeys(member(authority, "victim"), "job-1"), SealKeys(member(authority, "pi"), "job-1").make(7)
    assert victim.check(roster(made), now_s=NOW_S + 37 * DAY_S - 1) == {}
    assert victim.check(roster(made), now_s=NOW_S + 37 * DAY_S + 1) == {}
    assert list(victim.check(roster(made), now_s=NOW_S + 37 * DAY_S + GOOD_FOR_S)) == ["pi"]


def test_only_devices_that_the_pinned_operator_signed_are_members(authority: Authority) -> None:
    victim = keys(member(authority, "victim"))
    good = keys(member(authority, "good")).make(7)
    assert victim.check(roster(good), now_s=NOW_S) == {}
    refused = {
        "unsigned": keys(member(authority, "unsigned"), signer=None),
        # The manager minted the device, and an operator that signs for it.
        "sybil": keys(member(authority, "sybil"), signer=CardKey.new()),
        "expired": keys(member(authority, "expired"), days=-8),
        "other-node": keys(member(authority, "other-node"), node="good"),
        "plain": SealKeys(member(authority, "plain"), "job-1"),
    }
    made = {node: each.make(7) for node, each in refused.items()}
    # A card is no secret. Who has another's does not have the key that it names.
    thief = member(authority, "good")
    made["good"] = replace(SealKeys(thief, "job-1").make(7), card=good.card, card_signature=good.card_signature)
    bad = victim.check(roster(*made.values()), now_s=NOW_S)
    assert sorted(bad) == sorted(made)
    assert "it has no card" in bad["unsigned"]
    assert "it has no card" in bad["plain"]
    assert "pinned here" in bad["sybil"]
    assert "was valid until" in bad["expired"]
    assert "pinned here" in bad["other-node"]
    assert bad["good"] == "it is not signed with the key that its card names"


def test_a_card_outlives_the_certificates_of_its_device(authority: Authority) -> None:
    """A renewed certificate has another key (net.renewal). The card names the card key, which stays."""
    own = CardKey.new()
    card = make_card(OPERATOR, cluster="pond", node="pi", key=own.public, until_s=int(NOW_S + 90 * DAY_S))
    signed = SignedMembers(card=card, card_key=own, pinned=OPERATOR.public)
    before, after = member(authority, "pi", ago_days=20), member(authority, "pi")
    assert before.key_pem != after.key_pem
    victim = keys(member(authority, "victim"))
    for identity in (before, after):
        made = SealKeys(identity, "job-1", signed=signed).make(7)
        assert victim.check(roster(made), now_s=NOW_S) == {}


def test_a_key_with_a_card_crosses_the_wire(authority: Authority) -> None:
    made = keys(member(authority, "pi")).make(7)
    message = SealKey(job="job-1", term=7, key=made)
    assert decode_envelope(encode_envelope(message))[0] == message
    bare = replace(made, card=b"", card_signature=b"")
    # 104 bytes of a card and 64 of a signature, and where each begins.
    assert len(encode_envelope(message)) - len(encode_envelope(replace(message, key=bare))) <= 176
