"""The roll: lines to join with, made once and taken back; members, and how they are shut out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from member_of import remote_of

from shoal.errors import Misuse, Refused
from shoal.identity import certificates
from shoal.identity.identity import Authority, Identity, certificate_sha256
from shoal.identity.names import RemoteIdentity
from shoal.identity.tokens import Denial, Grant, Lapsed
from shoal.net.access import ShutOut
from shoal.runtime import own_labels
from shoal.runtime.member_register import (
    ALARM_EVERY_S,
    ALARMS_REMEMBERED,
    LABEL_MAX_CHARS,
    LAPSED_MAX_S,
    TOKEN_ID_CHARS,
    TOKEN_USES_MAX,
    TOKEN_VALID_MAX_S,
    MemberRegister,
)
from shoal.runtime.paths import Paths
from shoal.store.registry import Registry
from shoal.store.rows import Redeemed
from shoal.where import LABELS_MAX
from shoal.wire.limits import CERTIFICATES_KEPT_PER_NODE
from shoal.wire.messages import (
    ApproveNode,
    AskTokens,
    Done,
    DrainNode,
    LabelNode,
    MakeToken,
    NodeView,
    Renew,
    Renewed,
    RevokeNode,
    RevokeToken,
    TokenList,
    TokenMade,
    TokenView,
    UndrainNode,
)

#: Long after any test runs, and within what a token's clock may say.
LATER_S = 10 * 366 * 86400.0


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / "registry.db") as opened:
        yield opened


@pytest.fixture
def roll(registry: Registry) -> MemberRegister:
    roll = MemberRegister(registry)
    roll.open_to(lambda secret: f"line:{secret}")
    return roll


def made(roll: MemberRegister, **wanted: object) -> TokenMade:
    answer = roll.answer(MakeToken(**wanted), by="operator")  # type: ignore[arg-type]
    assert isinstance(answer, TokenMade)
    return answer


def secret_of(token: TokenMade) -> str:
    return token.join_line.removeprefix("line:")


def listed(roll: MemberRegister) -> tuple[TokenView, ...]:
    answer = roll.answer(AskTokens(), by="operator")
    assert isinstance(answer, TokenList)
    return answer.tokens


# Tokens -------------------------------------------------------------------------------------------


def test_a_token_is_told_once_and_then_only_its_id(roll: MemberRegister, registry: Registry) -> None:
    token = made(roll, role="operator", uses=3, valid_s=60.0, label="lab")
    (view,) = listed(roll)
    assert view == token.token
    assert (view.role, view.uses_left, view.label) == ("operator", 3, "lab")
    assert view.expires_s - view.made_s == pytest.approx(60.0)
    assert len(view.token) == TOKEN_ID_CHARS
    assert view.token not in secret_of(token)
    assert secret_of(token) not in repr(token)
    redeemed = registry.redeem_token(secret_of(token), "ann", view.made_s)
    assert redeemed == Redeemed(node="ann", role="operator")
    assert [token.uses_left for token in listed(roll)] == [2]


def test_a_revoked_token_lets_nobody_in_at_once(roll: MemberRegister, registry: Registry) -> None:
    kept, token = made(roll), made(roll)
    answer = roll.answer(RevokeToken(token=token.token.token), by="operator")
    assert answer == Done(
        reason=f"nobody joins with token {token.token.token} any more; devices that joined with it stay"
    )
    assert "revoked" in str(registry.redeem_token(secret_of(token), "pi", token.token.made_s))
    assert isinstance(registry.redeem_token(secret_of(kept), "pi", kept.token.made_s), Redeemed)
    assert [view.token for view in listed(roll)] == [kept.token.token]
    with pytest.raises(Refused, match="shoal token list"):
        roll.answer(RevokeToken(token=token.token.token), by="operator")


@pytest.mark.parametrize("wanted", ["", "a", "nothing-like-it", "%", "________"])
def test_no_token_is_revoked_by_a_name_that_is_not_its_own(roll: MemberRegister, wanted: str) -> None:
    made(roll)
    with pytest.raises(Refused, match="no token"):
        roll.answer(RevokeToken(token=wanted), by="operator")
    assert len(listed(roll)) == 1


def test_a_short_start_of_an_id_names_nothing(roll: MemberRegister) -> None:
    token = made(roll).token.token
    with pytest.raises(Refused):
        roll.answer(RevokeToken(token=token[:-1]), by="operator")
    assert len(listed(roll)) == 1


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"role": "manager"}, "node, browser, operator"),
        ({"role": ""}, "node, browser, operator"),
        ({"uses": 0}, "1 to 100,000"),
        ({"uses": TOKEN_USES_MAX + 1}, "1 to 100,000"),
        ({"valid_s": 0.0}, "hours"),
        ({"valid_s": -1.0}, "hours"),
        ({"valid_s": float("inf")}, "hours"),
        ({"valid_s": TOKEN_VALID_MAX_S + 1}, "hours"),
        ({"label": "x" * (LABEL_MAX_CHARS + 1)}, "label"),
        ({"label": "\x1b[2J"}, "label"),
    ],
)
def test_a_token_that_could_do_harm_is_not_made(roll: MemberRegister, wanted: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words):
        made(roll, **wanted)
    assert listed(roll) == ()


def test_no_token_before_there_is_a_door(registry: Registry) -> None:
    roll = MemberRegister(registry)
    with pytest.raises(Refused, match="still starting"):
        roll.answer(MakeToken(), by="operator")
    with pytest.raises(Misuse):
        roll.new_token(role="node", uses=1, valid_s=60.0, label="")
    assert registry.tokens() == []


def test_tokens_nobody_can_remember_are_not_kept(roll: MemberRegister, registry: Registry) -> None:
    now_s = made(roll).token.made_s
    for days in (40, 20):
        expired_s = now_s - days * 86400.0
        registry.add_token(secret=str(days), role="node", uses=1, now_s=expired_s - 1, expires_s=expired_s)
    registry.add_token(secret="for good", role="node", uses=1, now_s=now_s - LATER_S)
    made(roll)
    assert len(listed(roll)) == 4, "the one that expired 40 days ago is gone"
    assert len([view for view in listed(roll) if view.expires_s == 0.0]) == 1


# Members ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "pond")


def joined(
    roll: MemberRegister, authority: Authority, name: str, *, role: str = "node", token: TokenMade | None = None
) -> RemoteIdentity:
    """Somebody joins; as whom a server sees them."""
    token = token or made(roll, role=role)
    granted = roll.redeem(secret_of(token), wanted=name, now_s=token.token.made_s)
    assert isinstance(granted, Grant), granted
    return certified(roll, authority, granted.node, granted.role)


def certified(roll: MemberRegister, authority: Authority, node: str, role: str) -> RemoteIdentity:
    certificate_pem = authority.identity(node=node, role=role).certificate_pem
    roll.record(certificate_pem, now_s=time.time())
    return RemoteIdentity(node=node, role=role, cluster="pond", certificate=certificate_sha256(certificate_pem))


def revoke(roll: MemberRegister, node: str, reason: str = "", *, by: str = "operator") -> str:
    answer = roll.answer(RevokeNode(node=node, reason=reason), by=by)
    assert isinstance(answer, Done)
    roll.refresh(node)
    return answer.reason


def test_a_member_is_what_its_certificate_says(roll: MemberRegister, authority: Authority) -> None:
    assert roll.role_now(joined(roll, authority, "pi")) == "node"
    assert roll.role_now(joined(roll, authority, "ann", role="operator")) == "operator"


def test_a_stranger_with_a_good_certificate_is_shut_out(roll: MemberRegister) -> None:
    with pytest.raises(ShutOut, match="ghost: shut out: this cluster does not know it"):
        roll.role_now(RemoteIdentity(node="ghost", role="node", cluster="pond", certificate="0" * 64))


def test_a_revoked_member_is_shut_out_with_the_reason_and_others_are_not(
    roll: MemberRegister, authority: Authority
) -> None:
    thief, other = joined(roll, authority, "attic"), joined(roll, authority, "cellar")
    assert "attic is shut out; the line it joined with is void" in revoke(roll, "attic", "stolen")
    with pytest.raises(ShutOut, match=r"revoked on 20\d\d-\d\d-\d\d .* UTC \(by operator: stolen\): .*--anew"):
        roll.role_now(thief)
    assert roll.role_now(other) == "node"


def test_a_revocation_outlives_the_manager(roll: MemberRegister, registry: Registry, authority: Authority) -> None:
    thief = joined(roll, authority, "attic")
    revoke(roll, "attic")
    joined(roll, authority, "attic")
    back = MemberRegister(registry)
    with pytest.raises(ShutOut):
        back.role_now(thief)


def test_the_line_it_joined_with_is_void_with_it(roll: MemberRegister, authority: Authority) -> None:
    token = made(roll, uses=5)
    joined(roll, authority, "attic", token=token)
    revoke(roll, "attic")
    denied = roll.redeem(secret_of(token), wanted="attic-2", now_s=token.token.made_s)
    assert isinstance(denied, Denial)
    assert "revoked" in denied.reason


def test_its_name_comes_back_with_a_newer_token_only_and_its_certificate_never(
    roll: MemberRegister, authority: Authority
) -> None:
    older = made(roll, uses=9)
    thief = joined(roll, authority, "attic")
    revoke(roll, "attic")
    assert joined(roll, authority, "attic", token=older).node == "attic-2"
    owner = joined(roll, authority, "attic")
    assert owner.node == "attic"
    assert roll.role_now(owner) == "node"
    with pytest.raises(ShutOut, match="this certificate was revoked"):
        roll.role_now(thief)
    # Nor one that was issued before certificates were recorded.
    with pytest.raises(ShutOut):
        roll.role_now(RemoteIdentity(node="attic", role="node", cluster="pond", certificate="f" * 64))


def test_a_name_that_returns_in_another_role_does_not_take_the_old_role_along(
    roll: MemberRegister, authority: Authority
) -> None:
    joined(roll, authority, "ann", role="operator")
    revoke(roll, "ann")
    assert roll.role_now(joined(roll, authority, "ann", role="node")) == "node"
    # Recorded and not void, but of the other role: as a mistake of ours would leave it.
    with pytest.raises(ShutOut, match="it is node now and not operator"):
        roll.role_now(certified(roll, authority, "ann", "operator"))


def test_nobody_saws_off_the_branch_they_sit_on(roll: MemberRegister, authority: Authority) -> None:
    for name, role in (("manager", "manager"), ("operator", "operator")):
        roll.reserve(name, role, now_s=1.0)
        with pytest.raises(Refused, match="create a new cluster"):
            revoke(roll, name, by="ann")
    joined(roll, authority, "ann", role="operator")
    with pytest.raises(Refused, match="as another operator"):
        revoke(roll, "ann", by="ann")
    with pytest.raises(Refused, match="no member 'ghost'"):
        revoke(roll, "ghost")
    revoke(roll, "ann")
    with pytest.raises(Refused, match="ann was revoked on"):
        revoke(roll, "ann")


def test_a_reserved_name_is_not_given_to_a_device(roll: MemberRegister, authority: Authority) -> None:
    roll.reserve("manager", "manager", now_s=1.0)
    assert joined(roll, authority, "manager").node == "manager-2"


def test_people_see_who_is_shut_out(roll: MemberRegister, authority: Authority) -> None:
    for name in ("attic", "barn", "cellar"):
        joined(roll, authority, name)
    revoke(roll, "attic", "stolen")
    revoke(roll, "cellar")
    alive = NodeView(node="barn", state="alive"), NodeView(node="cellar", state="lost", job="digits")
    shown = roll.shown(alive)
    assert [(view.node, view.state, view.standing) for view in shown] == [
        ("attic", "lost", "revoked"),
        ("barn", "alive", ""),
        ("cellar", "lost", "revoked"),
    ]
    assert "stolen" in shown[0].reason
    assert shown[1] is alive[0]
    assert shown[2].job == "digits"


# Held back ----------------------------------------------------------------------------------------


def ask(roll: MemberRegister, command: ApproveNode | DrainNode | UndrainNode) -> str:
    answer = roll.answer(command, by="operator")
    assert isinstance(answer, Done)
    roll.refresh(command.node)
    return answer.reason


def test_newcomers_wait_where_they_are_to_be_approved(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    early = joined(roll, authority, "early")
    roll.approves_newcomers = True
    pi, ann = joined(roll, authority, "pi"), joined(roll, authority, "ann", role="operator")
    assert [roll.role_now(peer) for peer in (early, pi, ann)] == ["node", "pending", "pending"]
    assert roll.held() == MemberRegister(registry).held() == {"pi": "pending", "ann": "pending"}
    assert [(view.node, view.standing, view.reason) for view in roll.shown([])] == [
        ("ann", "pending", "waits to be approved: shoal nodes approve ann"),
        ("pi", "pending", "waits to be approved: shoal nodes approve pi"),
    ]
    assert ask(roll, ApproveNode(node="pi")) == "pi may work from now on"
    ask(roll, ApproveNode(node="ann"))
    assert [roll.role_now(peer) for peer in (pi, ann)] == ["node", "operator"]
    assert roll.held() == {}


def test_a_card_is_kept_shown_and_gone_with_its_device(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    joined(roll, authority, "pi")
    joined(roll, authority, "ann", role="operator")
    roll.approves_newcomers = True
    joined(roll, authority, "new")
    until_s = int(time.time()) + 90 * 86400
    card = bytes(32) + until_s.to_bytes(8, "big") + bytes(64)
    assert "may be in sealed groups with signed members until" in ask(roll, ApproveNode(node="pi", card=card))
    ask(roll, ApproveNode(node="new", card=card))
    assert roll.held() == {}
    assert roll.cards() == MemberRegister(registry).cards() == {"pi": card, "new": card}
    views = roll.shown([NodeView(node=node, state="alive") for node in ("new", "other")])
    assert [(view.node, view.state, view.card_until_s) for view in views] == [
        ("new", "alive", until_s),
        ("other", "alive", 0),
        ("pi", "lost", until_s),
    ]
    for node, sent, told in (
        ("ann", card, "ann is operator: only a device with an agent has a card"),
        ("pi", bytes(104), "this card has run out, or is not a card"),
        ("pi", b"x", "this card has run out, or is not a card"),
    ):
        with pytest.raises(Refused, match=told):
            ask(roll, ApproveNode(node=node, card=sent))
    revoke(roll, "pi")
    roll.refresh("pi")
    assert roll.cards() == {"new": card}
    with pytest.raises(Refused, match="revoked on"):
        ask(roll, ApproveNode(node="pi", card=card))


def test_a_drained_node_is_a_member_still(roll: MemberRegister, registry: Registry, authority: Authority) -> None:
    pi = joined(roll, authority, "pi")
    assert "finishes the lease it has" in ask(roll, DrainNode(node="pi", reason="update"))
    assert roll.role_now(pi) == "node"
    assert roll.held() == MemberRegister(registry).held() == {"pi": "drained"}
    (view,) = roll.shown([NodeView(node="pi", state="alive")])
    assert (view.state, view.standing, view.reason) == (
        "alive",
        "drained",
        "finishes its lease and gets no other: by operator: update",
    )
    ask(roll, UndrainNode(node="pi"))
    assert roll.held() == {}
    assert roll.shown([]) == ()


def test_what_makes_no_sense_is_refused_with_the_reason(roll: MemberRegister, authority: Authority) -> None:
    joined(roll, authority, "pi")
    joined(roll, authority, "ann", role="operator")
    joined(roll, authority, "gone")
    revoke(roll, "gone")
    roll.approves_newcomers = True
    joined(roll, authority, "new")
    for command, words in (
        (ApproveNode(node="pi"), "pi is a member like any other"),
        (UndrainNode(node="pi"), "pi is a member like any other"),
        (DrainNode(node="new"), "new is not approved yet"),
        (DrainNode(node="ann"), "ann is operator and does not work"),
        (ApproveNode(node="gone"), "gone was revoked"),
        (UndrainNode(node="gone"), "gone was revoked"),
        (DrainNode(node="ghost"), "no member 'ghost'"),
    ):
        with pytest.raises(Refused, match=words):
            ask(roll, command)
    ask(roll, DrainNode(node="pi"))
    with pytest.raises(Refused, match="pi is drained already"):
        ask(roll, DrainNode(node="pi"))
    revoke(roll, "pi")
    assert roll.held() == {"new": "pending"}


# Renewal ------------------------------------------------------------------------------------------


def renew(roll: MemberRegister, peer: RemoteIdentity) -> Renewed:
    return roll.renew(peer, Renew(csr_pem=certificates.new_request("whoever").pem.decode()))


def test_a_member_has_a_new_certificate_under_its_own_name(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    pi = joined(roll, authority, "pi")
    with pytest.raises(Refused, match="still starting"):
        renew(roll, pi)
    roll.sign_with(authority)
    renewed = renew(roll, pi)
    assert remote_of(renewed.certificate_pem.encode()) == pi
    assert renewed.expires_s - renewed.issued_s == pytest.approx(30 * 86400, abs=2)
    assert [row.sha256 for row in registry.certificates("pi")] == [
        pi.certificate,
        certificate_sha256(renewed.certificate_pem.encode()),
    ]


def test_one_who_is_revoked_while_it_renews_gets_nothing_that_could_be_good_later(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    roll.sign_with(authority)
    thief = joined(roll, authority, "attic")
    revoke(roll, "attic")
    # It was let in, and the answer was being made: as a thread that comes too late.
    with pytest.raises(Misuse, match="attic was revoked"):
        renew(roll, thief)
    joined(roll, authority, "attic")
    with pytest.raises(Misuse, match="attic was revoked"):
        renew(roll, thief)
    with pytest.raises(Misuse, match="attic was revoked"):
        renew(roll, replace(thief, certificate="f" * 64))
    assert len(registry.certificates("attic")) == 2


def test_of_many_certificates_the_newest_are_kept(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    roll.sign_with(authority)
    pi, other = joined(roll, authority, "pi"), joined(roll, authority, "other")
    for _ in range(CERTIFICATES_KEPT_PER_NODE + 5):
        last = renew(roll, pi)
    kept = [row.sha256 for row in registry.certificates("pi")]
    assert len(kept) == CERTIFICATES_KEPT_PER_NODE
    assert kept[-1] == certificate_sha256(last.certificate_pem.encode())
    assert [row.sha256 for row in registry.certificates("other")] == [other.certificate]


def test_who_may_come_back_after_the_end_of_a_certificate(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    pi = joined(roll, authority, "pi")
    (row,) = registry.certificates("pi")
    late_s = row.expires_s + LAPSED_MAX_S
    back = Lapsed(node="pi", role="node", key_sha256=row.key_sha256)
    assert roll.lapsed(pi.certificate, now_s=row.expires_s - 1) == roll.lapsed(pi.certificate, now_s=late_s) == back
    for certificate, now_s, words in (
        (pi.certificate, late_s + 1, "over 180 days ago: ask for a new line"),
        ("f" * 64, late_s, "not known here"),
        ("", late_s, "not known here"),
    ):
        denied = roll.lapsed(certificate, now_s=now_s)
        assert isinstance(denied, Denial)
        assert words in denied.reason
    revoke(roll, "pi", "sold")
    denied = roll.lapsed(pi.certificate, now_s=late_s)
    assert isinstance(denied, Denial)
    assert denied.reason.startswith("shut out: revoked on")
    joined(roll, authority, "pi")
    assert isinstance(roll.lapsed(pi.certificate, now_s=late_s), Denial), "the name is back, this certificate is not"


# Keys that were replaced --------------------------------------------------------------------------


def successor(roll: MemberRegister, peer: RemoteIdentity) -> RemoteIdentity:
    """The same member with the certificate that it renews to."""
    certificate_pem = renew(roll, peer).certificate_pem.encode()
    return replace(peer, certificate=certificate_sha256(certificate_pem))


def use(roll: MemberRegister, peer: RemoteIdentity) -> None:
    roll.check_key(peer, "Control")
    asyncio.run(roll.let_in(peer, "Control"))


def alarms_of(roll: MemberRegister) -> list[str]:
    told: list[str] = []
    roll.on_alarm = told.append
    return told


def test_a_key_is_void_once_its_successor_is_used_and_not_before(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    roll.sign_with(authority)
    told = alarms_of(roll)
    first = joined(roll, authority, "pi")
    use(roll, first)
    lost, second = successor(roll, first), successor(roll, first)
    use(roll, first)
    use(roll, second)
    assert not told
    for old in (first, lost):
        with pytest.raises(ShutOut, match=r"shut out: the key of this certificate was replaced on 20.*--anew"):
            roll.check_key(replace(old, address="10.0.0.9"), "Renew")
        with pytest.raises(Misuse, match="was replaced"):
            renew(roll, old)
        lapsed = roll.lapsed(old.certificate, now_s=time.time())
        assert isinstance(lapsed, Lapsed)
        assert lapsed.superseded_s is not None
        assert roll.refuse_replaced(lapsed, address="10.0.0.8").startswith("shut out: the key of this certificate")
    assert [words.partition(" (")[0].partition(" was used ")[2] for words in told] == ["from 10.0.0.9", "from 10.0.0.8"]
    assert all("`shoal nodes revoke pi`" in words for words in told)
    use(roll, second)
    again = MemberRegister(registry)
    again.check_key(second, "Control")
    with pytest.raises(ShutOut):
        again.check_key(first, "Control")


def test_a_certificate_that_is_not_kept_any_more_is_an_old_one(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    roll.sign_with(authority)
    now = oldest = joined(roll, authority, "pi")
    for _ in range(CERTIFICATES_KEPT_PER_NODE + 1):
        use(roll, now)
        now = successor(roll, now)
    assert registry.certificate(oldest.certificate) is None
    with pytest.raises(ShutOut, match="was replaced by a newer one"):
        MemberRegister(registry).check_key(oldest, "Control")


def test_a_device_that_never_gets_its_new_certificates_is_not_forgotten(
    roll: MemberRegister, registry: Registry, authority: Authority
) -> None:
    roll.sign_with(authority)
    pi = joined(roll, authority, "pi")
    use(roll, pi)
    for _ in range(CERTIFICATES_KEPT_PER_NODE + 5):
        renew(roll, pi)
    use(MemberRegister(registry), pi)
    assert isinstance(MemberRegister(registry).lapsed(pi.certificate, now_s=time.time()), Lapsed)


def test_alarms_are_counted_and_told_once_in_a_while(roll: MemberRegister, monkeypatch: pytest.MonkeyPatch) -> None:
    told = alarms_of(roll)
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(50):
        roll.alarm("pi", "10.0.0.9", "beware")
    roll.alarm("pi", "10.0.0.8", "beware")
    assert told == ["beware", "beware"]
    now_s += ALARM_EVERY_S
    roll.alarm("pi", "10.0.0.9", "beware")
    assert told[2] == "beware (49 more such attempts since the last alarm)"
    for number in range(2 * ALARMS_REMEMBERED):
        roll.alarm("pi", str(number), "beware")
    assert len(roll._alarms) == ALARMS_REMEMBERED


def test_a_forgotten_member_is_not_listed_and_its_old_certificate_is_never_good_again(
    roll: MemberRegister, registry: Registry, tmp_path: Path
) -> None:
    authority = Authority.create(tmp_path / "authority", "home")

    def member() -> RemoteIdentity:
        pem = authority.identity(node="pi", role="node").certificate_pem
        roll.record(pem, now_s=time.time())
        return RemoteIdentity(node="pi", role="node", cluster="home", certificate=certificate_sha256(pem))

    registry.add_token(secret="a" * 32, role="node", uses=5, now_s=1.0)
    assert isinstance(roll.redeem("a" * 32, wanted="pi", now_s=2.0), Grant)
    old = member()
    assert roll.role_now(old) == "node"
    assert registry.forget_node("pi", now_s=5.0)
    roll.refresh("pi")
    assert roll.shown([NodeView(node="pi", state="lost")]) == ()
    with pytest.raises(ShutOut):
        roll.role_now(old)
    with pytest.raises(Refused, match="there is no member"):
        roll.check_forget("pi")
    # The line that it joined with is others' too, and stays; the name is free for newer lines alone.
    assert roll.redeem("a" * 32, wanted="pi", now_s=6.0) == Grant(node="pi-2", role="node")
    registry.add_token(secret="b" * 32, role="node", uses=5, now_s=7.0)
    assert roll.redeem("b" * 32, wanted="pi", now_s=8.0) == Grant(node="pi", role="node")
    with pytest.raises(ShutOut):
        roll.role_now(old)
    assert roll.role_now(member()) == "node"
    assert [view.node for view in roll.shown([NodeView(node="pi", state="alive")])] == ["pi"]


def test_only_devices_are_forgotten_unless_they_were_revoked(roll: MemberRegister, registry: Registry) -> None:
    registry.upsert_node(node="ann", role="operator", facts_json="{}", state="enrolled", now_s=1.0)
    with pytest.raises(Refused, match="shoal nodes revoke ann"):
        roll.check_forget("ann")
    registry.revoke_node("ann", now_s=2.0, reason="left")
    roll.check_forget("ann")


# Authorities of managers' own --------------------------------------------------------------------------------


def peer_of(identity: Identity, authority: Authority) -> RemoteIdentity:
    """As TLS tells the manager who calls."""
    return RemoteIdentity(
        node=identity.node,
        role=identity.role,
        cluster=identity.cluster,
        certificate=certificate_sha256(identity.certificate_pem),
        authorities=(authority.own_sha256,) if authority.name else (),
    )


def joined_at(registry: Registry, authority: Authority, name: str) -> RemoteIdentity:
    """A device that joined where this manager ran the cluster."""
    manager = MemberRegister(registry)
    manager.sign_with(authority)
    manager.reserve(name, "node", now_s=time.time())
    device = authority.identity(node=name, role="node")
    manager.record(device.certificate_pem, now_s=time.time())
    return peer_of(device, authority)


def test_managers_accept_each_others_devices_until_an_authority_is_revoked(registry: Registry, tmp_path: Path) -> None:
    root = Authority.create(tmp_path / "root", "pond")
    east, west = (root.for_manager(name, valid_days=9) for name in ("east", "west"))
    of_east, of_root = joined_at(registry, east, "a"), joined_at(registry, root, "b")
    manager = MemberRegister(registry)
    manager.sign_with(west)
    for peer in (of_east, of_root):
        assert manager.role_now(peer) == "node"
        manager.check_key(peer, "Control")
    told = manager.answer(RevokeNode(node="east", reason="stolen"), by="ann")
    assert isinstance(told, Done)
    assert "1 members" in told.reason
    manager.refresh("east")
    assert [gone.node for gone in manager.shut_out_with("east")] == ["a"]
    assert manager.shut_out_with("east") == [], "it is told once"
    with pytest.raises(ShutOut, match="whose authority was revoked"):
        manager.role_now(of_east)
    # One that is known by its certificate alone, as where it lapsed.
    assert isinstance(manager.lapsed(of_east.certificate, now_s=time.time()), Denial)
    assert manager.role_now(of_root) == "node"
    again = MemberRegister(registry)
    with pytest.raises(ShutOut, match="whose authority was revoked"):
        again.role_now(of_east)
    with pytest.raises(Misuse, match="was revoked"):
        again.sign_with(east)


def test_a_certificate_that_a_thief_makes_with_a_revoked_authority_is_refused(
    registry: Registry, tmp_path: Path
) -> None:
    """It is in no registry: what TLS showed beside it gives it away, whatever name it has."""
    root = Authority.create(tmp_path / "root", "pond")
    east = root.for_manager("east", valid_days=9)
    joined_at(registry, east, "a")
    manager = MemberRegister(registry)
    manager.sign_with(root)
    manager.reserve("manager", "manager", now_s=time.time())
    forged = replace(
        peer_of(east.identity(node="manager", role="manager"), east), authorities=("junk", east.own_sha256)
    )
    with pytest.raises(ShutOut, match="never ran"):
        manager.role_now(forged)
    forged = replace(forged, authorities=(east.own_sha256,))
    assert manager.role_now(forged) == "manager", "until it is revoked"
    manager.answer(RevokeNode(node="east"), by="ann")
    manager.refresh("east")
    with pytest.raises(ShutOut, match="was revoked"):
        manager.role_now(forged)


def test_an_authority_that_never_ran_the_cluster_made_no_members(registry: Registry, tmp_path: Path) -> None:
    root = Authority.create(tmp_path / "root", "pond")
    unused = root.for_manager("unused", valid_days=9)
    manager = MemberRegister(registry)
    manager.sign_with(root)
    manager.reserve("pi", "node", now_s=time.time())
    with pytest.raises(ShutOut, match="never ran"):
        manager.role_now(peer_of(unused.identity(node="pi", role="node"), unused))


def test_a_manager_does_not_revoke_what_it_signs_with_nor_take_a_members_name(
    registry: Registry, tmp_path: Path
) -> None:
    root = Authority.create(tmp_path / "root", "pond")
    joined_at(registry, root, "pi")
    manager = MemberRegister(registry)
    with pytest.raises(Misuse, match="called pi already"):
        manager.sign_with(root.for_manager("pi", valid_days=9))
    manager.sign_with(root.for_manager("east", valid_days=9))
    with pytest.raises(Refused, match="at another manager"):
        manager.answer(RevokeNode(node="east"), by="ann")
    manager.reserve("manager", "manager", now_s=time.time())
    with pytest.raises(Refused, match="lives beside the cluster's key"):
        manager.answer(RevokeNode(node="manager"), by="ann")


def test_labels_of_several_commands_are_no_more_than_a_device_may_have(registry: Registry) -> None:
    registry.upsert_node(node="pi", role="node", facts_json="{}", state="enrolled", now_s=1.0)
    roll = MemberRegister(registry)
    roll.answer(LabelNode(node="pi", labels=tuple(f"one{number}=1" for number in range(LABELS_MAX))), by="operator")
    roll.refresh("pi")
    with pytest.raises(Refused, match=f"at most {LABELS_MAX}"):
        roll.answer(LabelNode(node="pi", labels=("room=3",)), by="operator")
    roll.answer(LabelNode(node="pi", labels=("one0=", "room=3")), by="operator")
    roll.refresh("pi")
    assert len(roll.labels()["pi"]) == LABELS_MAX


def test_a_device_does_not_remember_more_labels_than_it_may_have(tmp_path: Path) -> None:
    places = Paths(tmp_path)
    own_labels.remember(places, (f"one{number}=1" for number in range(LABELS_MAX)))
    with pytest.raises(Misuse, match=f"at most {LABELS_MAX}"):
        own_labels.remember(places, ("room=3",))
    assert len(own_labels.remembered(places)) == LABELS_MAX
