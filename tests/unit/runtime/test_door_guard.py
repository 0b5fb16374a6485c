"""A device's stream opens if no other process of its name is there; a second one is refused and reported."""

from __future__ import annotations

import asyncio

import pytest

from shoal.identity.names import RemoteIdentity
from shoal.roles.events import Received
from shoal.roles.node.doorway import Caller
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import Delivery, HostRouter
from shoal.runtime import door_guard
from shoal.runtime.door_guard import DoorGuard
from shoal.wire.messages import Hello

pytestmark = pytest.mark.timeout(60)


def peer(incarnation: str, *, role: str = "node") -> RemoteIdentity:
    return RemoteIdentity(node="pi", role=role, cluster="c", incarnation=incarnation, address=f"10.0.0.{incarnation}")


class Home:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door_guard, "LOOK_EVERY_S", 0.001)
        self.router = HostRouter(node="manager", patience=Patience())
        self.carried: list[list[Delivery]] = []
        self.alarms: list[tuple[str, str, str]] = []
        self.guard = DoorGuard(
            self.router,
            carry=lambda decided: self.carried.append(list(decided)),
            alarm=lambda *told: self.alarms.append(told),
        )

    def hears(self, incarnation: str, now_s: float) -> None:
        """The process that is connected sends something."""
        self.router.doorway.on_entered(Caller(node="pi", incarnation=incarnation, address=f"10.0.0.{incarnation}"))
        self.router.on_received(Received(sender="pi", message=Hello(node="pi", incarnation=incarnation)), now_s)


def test_the_first_process_and_others_than_devices_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(monkeypatch)
    assert asyncio.run(home.guard.why_not(peer("1"), "Control")) == ""
    home.hears("1", 0.0)
    assert asyncio.run(home.guard.why_not(peer("2", role="operator"), "Control")) == ""
    assert asyncio.run(home.guard.why_not(peer("2"), "Fetch")) == ""
    assert home.alarms == []


def test_a_second_process_waits_for_a_word_of_the_first_and_is_refused_then(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(monkeypatch)
    home.hears("1", 0.0)

    async def story() -> str:
        asking = asyncio.create_task(home.guard.why_not(peer("2"), "Control"))
        await asyncio.sleep(0.02)
        assert not asking.done()
        home.hears("1", 1.0)
        async with asyncio.timeout(30):
            return await asking

    reason = asyncio.run(story())
    assert reason.startswith("two devices use the identity of pi: 10.0.0.1 and 10.0.0.2")
    assert home.alarms == [("pi", "10.0.0.2", reason)]
    assert len(home.carried) == 1, "the first process was asked for a sign of life"
