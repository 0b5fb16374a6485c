"""What a manager does when a member is drained, approved or revoked: here, or at another manager of the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.roles.events import MemberHeld
from shoal.runtime.manager_memory import ManagerMemory
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.standings import Standings
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import NodeRow
from shoal.wire.messages import AskTokens, Done, DrainNode, RevokeNode, TokenList, UndrainNode

pytestmark = pytest.mark.timeout(60)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "registry.db")
        self.register = MemberRegister(self.registry)
        self.register.reserve("pi", "node", now_s=1.0)
        #: In the order in which things happen.
        self.told: list[tuple[str, str]] = []
        self.noted: list[tuple[str, str, str]] = []
        self.events: list[MemberHeld] = []
        self.standings = Standings(
            self.register,
            ManagerMemory(None, self.registry, self.register),
            tell=self._tell,
            disconnect=lambda name, reason: self.told.append(("disconnect", name)),
            note=lambda *told: self.noted.append(told),
        )

    def _tell(self, event: MemberHeld) -> None:
        self.told.append((event.hold or "free", event.node))
        self.events.append(event)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_drained_member_is_held_until_it_is_undrained(desk: Desk) -> None:
    done = asyncio.run(desk.standings.carry_out(DrainNode(node="pi", reason="new disk"), by="ann"))
    assert isinstance(done, Done)
    assert (desk.events[0].hold, "new disk" in desk.events[0].reason) == ("drained", True)
    asyncio.run(desk.standings.carry_out(UndrainNode(node="pi"), by="ann"))
    assert desk.told == [("drained", "pi"), ("free", "pi")]


def test_a_revoked_member_is_disconnected_before_roles_hear_of_it(desk: Desk) -> None:
    asyncio.run(desk.standings.carry_out(RevokeNode(node="pi", reason="stolen"), by="ann"))
    assert desk.told == [("disconnect", "pi"), ("revoked", "pi")]
    [(job, kind, reason)] = desk.noted
    assert (job, kind) == ("", "device.revoked")
    assert reason.startswith("pi was revoked on ")
    assert "stolen" in reason


def test_a_question_about_tokens_changes_nobody(desk: Desk) -> None:
    assert isinstance(asyncio.run(desk.standings.carry_out(AskTokens(), by="ann")), TokenList)
    desk.standings.apply("nobody")
    assert desk.told == []


def test_what_another_manager_decided_counts_here(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    news: list[NodeRow | ShoalError] = []

    async def catch_up() -> list[NodeRow]:
        found = [row for row in news if isinstance(row, NodeRow)]
        if len(found) < len(news):
            raise Away("cut")
        return found

    monkeypatch.setattr(desk.register, "catch_up", catch_up)
    news.append(Away("cut"))
    asyncio.run(desk.standings.catch_up())
    assert desk.told == []

    desk.registry.set_node_state("pi", "drained", reason="slow")
    row = desk.register.refresh("pi")
    assert row is not None
    news[:] = [row]
    asyncio.run(desk.standings.catch_up())
    assert desk.told == [("drained", "pi")]

    desk.registry.revoke_node("pi", now_s=2.0, reason="lost")
    row = desk.register.refresh("pi")
    assert row is not None
    news[:] = [row]
    asyncio.run(desk.standings.catch_up())
    assert desk.told[1:] == [("disconnect", "pi"), ("revoked", "pi")]
