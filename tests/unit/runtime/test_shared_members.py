"""Two managers that are awake: what one does about a member counts at the other, before that member comes in there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.errors import Misuse
from shoal.identity.identity import Authority, certificate_sha256
from shoal.identity.names import RemoteIdentity
from shoal.identity.tokens import Denial, Grant, Lapsed
from shoal.net.access import ShutOut
from shoal.runtime.member_register import MemberRegister
from shoal.store.base import Away, Parameters, Row
from shoal.store.registry import Registry
from shoal.store.seat import FencedDatabase, Seats
from shoal.store.sqlite import SqliteDatabase
from shoal.wire.messages import ApproveNode, DrainNode, RevokeNode, UndrainNode

pytestmark = pytest.mark.timeout(60)


class Counting(SqliteDatabase):
    """Counts what is read."""

    def __init__(self, path: Path) -> None:
        self.reads: list[str] = []
        self.is_away = False
        super().__init__(path)

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        if self.is_away:
            raise Away("cut")
        self.reads.append(query)
        return super().rows(query, parameters)


@dataclass
class Site:
    database: Counting
    registry: Registry
    roll: MemberRegister

    def meets(self, peer: RemoteIdentity) -> str:
        """What a server asks when it calls."""
        asyncio.run(self.roll.meet(peer))
        role = self.roll.role_now(peer)
        self.roll.check_key(peer, "Control")
        return role

    def news(self) -> dict[str, str]:
        return {node.node: node.state for node in asyncio.run(self.roll.catch_up())}


def site(path: Path, name: str) -> Site:
    database = Counting(path)
    tenure = Seats(database).open(name)
    registry = Registry(FencedDatabase(database, tenure), holder=name)
    return Site(database, registry, MemberRegister(registry))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "pond")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    east, west = (site(tmp_path / "registry.db", name) for name in ("east", "west"))
    east.registry.add_token(secret="s", role="node", uses=99, now_s=time.time())
    yield east, west
    for each in (east, west):
        each.database.close()


def certified(at: Site, authority: Authority, name: str) -> RemoteIdentity:
    pem = authority.identity(node=name, role="node").certificate_pem
    at.roll.record(pem, now_s=time.time())
    return RemoteIdentity(node=name, role="node", cluster="pond", certificate=certificate_sha256(pem))


def joined(at: Site, authority: Authority, name: str) -> RemoteIdentity:
    granted = at.roll.redeem("s", wanted=name, now_s=time.time())
    assert isinstance(granted, Grant), granted
    return certified(at, authority, granted.node)


def test_a_member_of_one_is_a_member_of_the_other(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    pi = joined(east, authority, "pi")
    assert west.meets(pi) == "node"
    assert west.news() == {"pi": "enrolled"}
    assert west.news() == {}, "it is told once"
    assert east.news() == {}, "its own manager knows"


def test_what_one_decides_counts_at_the_other(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    pi = joined(east, authority, "pi")
    west.meets(pi)
    west.news()
    east.roll.answer(DrainNode(node="pi"), by="ann")
    assert west.news() == {"pi": "drained"}
    assert west.roll.held() == {"pi": "drained"}
    east.roll.answer(UndrainNode(node="pi"), by="ann")
    assert west.news() == {"pi": "enrolled"}
    east.roll.answer(RevokeNode(node="pi", reason="sold"), by="ann")
    with pytest.raises(ShutOut, match="sold"):
        west.meets(pi)
    assert west.news() == {"pi": "revoked"}, "it was found out with the call, and its sessions are still to be ended"
    east.roll.approves_newcomers = True
    east.registry.add_token(secret="again", role="node", uses=1, now_s=time.time() + 1)
    granted = east.roll.redeem("again", wanted="pi", now_s=time.time())
    assert isinstance(granted, Grant)
    assert granted.node == "pi"
    back = certified(east, authority, "pi")
    assert west.meets(back) == "pending"
    east.roll.answer(ApproveNode(node="pi"), by="ann")
    assert west.meets(back) == "node"
    with pytest.raises(ShutOut):
        west.meets(pi)
    west.registry.forget_node("pi", now_s=time.time())
    with pytest.raises(ShutOut):
        east.meets(back)
    assert [node.is_forgotten for node in asyncio.run(east.roll.catch_up()) if node.node == "pi"] == [1]


def test_a_key_that_was_replaced_at_one_is_void_at_the_other(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    old = joined(east, authority, "pi")
    assert west.meets(old) == "node"
    west.news()
    new = certified(west, authority, "pi")
    asyncio.run(west.roll.let_in(new, "Control"))
    east.roll.on_alarm = lambda _: None
    with pytest.raises(ShutOut, match="replaced"):
        east.meets(old)
    assert east.meets(new) == "node"
    assert east.news() == west.news() == {}, "how it stands is as before"


def test_a_lapsed_member_of_one_comes_back_at_the_other(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    pi = joined(east, authority, "pi")
    assert isinstance(west.roll.lapsed(pi.certificate, now_s=time.time()), Lapsed)
    east.roll.answer(RevokeNode(node="pi"), by="ann")
    assert isinstance(west.roll.lapsed(pi.certificate, now_s=time.time()), Denial)
    assert west.news() == {"pi": "revoked"}


def test_members_go_with_an_authority_that_was_revoked_elsewhere(
    two: tuple[Site, Site], authority: Authority, tmp_path: Path
) -> None:
    east, west = two
    own = authority.for_manager("south", valid_days=9)
    east.roll.sign_with(own)
    pem = own.identity(node="pi", role="node").certificate_pem
    east.roll.redeem("s", wanted="pi", now_s=time.time())
    east.roll.record(pem, now_s=time.time())
    pi = RemoteIdentity(
        node="pi",
        role="node",
        cluster="pond",
        certificate=certificate_sha256(pem),
        authorities=(own.own_sha256,),
    )
    assert west.meets(pi) == "node", "it heard of the authority too"
    west.news()
    third = site(tmp_path / "registry.db", "third")
    third.roll.answer(RevokeNode(node="south", reason="stolen"), by="ann")
    third.database.close()
    assert west.news() == {"pi": "revoked", "south": "revoked"}
    with pytest.raises(ShutOut, match="south, whose authority was revoked"):
        west.meets(pi)


def test_a_name_that_a_device_has_elsewhere_is_no_managers(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    joined(east, authority, "south")
    with pytest.raises(Misuse, match="called south already"):
        west.roll.sign_with(authority.for_manager("south", valid_days=9))
    member = west.registry.node("south")
    assert member is not None
    assert member.role == "node"


def test_a_call_costs_one_read_and_many_calls_share_it(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    pi = joined(east, authority, "pi")
    west.meets(pi)
    west.database.reads.clear()
    west.meets(pi)
    assert len(west.database.reads) == 1
    assert "counters" in west.database.reads[0]
    west.database.reads.clear()

    async def storm() -> None:
        await asyncio.gather(*(west.roll.meet(pi) for _ in range(500)))

    asyncio.run(storm())
    assert len(west.database.reads) <= 2


def test_a_call_that_begins_after_a_change_knows_of_it(two: tuple[Site, Site], authority: Authority) -> None:
    """It does not share a read that began before."""
    east, west = two
    pi = joined(east, authority, "pi")
    west.meets(pi)

    async def story() -> None:
        early = asyncio.create_task(west.roll.meet(pi))
        await asyncio.sleep(0)
        east.roll.answer(RevokeNode(node="pi"), by="ann")
        await west.roll.meet(pi)
        with pytest.raises(ShutOut):
            west.roll.role_now(pi)
        await early

    asyncio.run(story())


def test_while_the_store_is_away_what_is_known_decides(two: tuple[Site, Site], authority: Authority) -> None:
    east, west = two
    pi = joined(east, authority, "pi")
    west.meets(pi)
    west.database.is_away = True
    assert west.meets(pi) == "node"
    with pytest.raises(Away):
        west.news()


def test_a_manager_that_is_alone_reads_nothing(tmp_path: Path, authority: Authority) -> None:
    database = Counting(tmp_path / "registry.db")
    registry = Registry(database)
    alone = Site(database, registry, MemberRegister(registry))
    registry.add_token(secret="s", role="node", uses=9, now_s=time.time())
    pi = joined(alone, authority, "pi")
    database.reads.clear()
    assert alone.meets(pi) == "node"
    assert alone.news() == {}
    assert database.reads == []
    database.close()
