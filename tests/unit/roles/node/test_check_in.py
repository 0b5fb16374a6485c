"""Check in, do not stay: what a device and its manager's node do when there is no work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.errors import PeerViolation
from shoal.roles.actions import Send
from shoal.roles.events import Asked, Event, Heard, Liveness, PeerChanged, Received, Started
from shoal.roles.manager.manager import LINGERS_S, STAYED_S, Manager
from shoal.roles.node.device_router import DeviceRouter, Say
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HangUp, HostRouter, ToManager
from shoal.wire.messages import Assign, Facts, Heartbeat, Hello, JobSpec, Leave, Message, Progress, Submit, Welcome

COME = Welcome(heartbeat_s=1.0, lost_after_s=8.0, come_s=3600.0)


def device() -> DeviceRouter:
    router = DeviceRouter(node="pi", incarnation="1", manager="home")
    router.greet("home", Facts(), 0.0)
    return router


# The device ----------------------------------------------------------------------------------------------


def test_a_device_without_work_says_goodbye_and_dials_when_it_was_told_to() -> None:
    router = device()
    leave = Leave(reason="there is no work", come_s=3600.0)
    assert router.on_received(Received(sender="home", message=COME)) == [Say("home", leave)]
    router.on_closed("home", reason="it said goodbye")
    assert router.is_sent_away
    assert router.backoff_s("home") == 3600.0


def test_a_device_that_came_in_vain_tries_again_soon() -> None:
    router = device()
    router.on_received(Received(sender="home", message=COME))
    router.on_closed("home")
    router.on_closed("home", reason="it does not answer")
    assert not router.is_sent_away
    assert router.backoff_s("home") < 5.0


def test_a_device_with_work_stays(make_spec: Callable[..., JobSpec]) -> None:
    router = device()
    assign = Assign(job="digits", term=1, role="worker", leader="home", spec=make_spec())
    router.on_received(Received(sender="home", message=assign))
    router.on_received(Received(sender="home", message=COME))
    assert not router.is_sent_away


def test_a_device_that_leads_or_lends_stays() -> None:
    router = device()
    assert router.on_received(Received(sender="home", message=COME), hosts=True) == []
    assert not router.is_sent_away


def test_no_device_is_told_to_come_never() -> None:
    for come_s in (-1.0, float("inf"), float("nan"), 8 * 86400.0):
        with pytest.raises(PeerViolation):
            Welcome(heartbeat_s=1.0, lost_after_s=8.0, come_s=come_s)
        with pytest.raises(PeerViolation):
            Leave(reason="", come_s=come_s)


# The manager's node --------------------------------------------------------------------------------------


def test_the_managers_node_hangs_up_and_reports_it_dormant() -> None:
    router = HostRouter(node="home", patience=Patience())
    router.on_received(Received(sender="pi", message=Hello(node="pi", incarnation="1")), 0.0)
    leave = Received(sender="pi", message=Leave(reason="there is no work", come_s=60.0))
    deliveries = router.on_received(leave, 1.0)
    changed = [each.event for each in deliveries if isinstance(each, ToManager)]
    assert changed == [PeerChanged(node="pi", state=Liveness.DORMANT, reason="comes again in 60 s")]
    assert HangUp("pi", "it said goodbye") in deliveries


# The manager ---------------------------------------------------------------------------------------------


class Office:
    def __init__(self, check_in_s: float) -> None:
        self.manager = Manager(node="home", patience=Patience(), check_in_s=check_in_s)
        self.sent: list[tuple[str, Message]] = []
        self.happens(Started(), 0.0)

    def happens(self, event: Event, now_s: float) -> None:
        actions = self.manager.handle(event, now_s)
        self.sent = [(action.to, action.message) for action in actions if isinstance(action, Send)]

    def hello(self, node: str, now_s: float) -> None:
        hello = Hello(node=node, incarnation="1", facts=Facts(host=node, torch="2"))
        self.happens(Received(sender=node, message=hello), now_s)

    def beat(self, node: str, now_s: float, *, is_idle: bool = True) -> None:
        self.happens(Heard(beats=((node, now_s, Heartbeat(seq=1, is_idle=is_idle)),)), now_s)

    def come_s(self, node: str) -> float:
        return sum(said.come_s for to, said in self.sent if to == node and isinstance(said, Welcome))


def test_by_default_devices_stay() -> None:
    office = Office(0.0)
    office.hello("pi", 1.0)
    assert office.come_s("pi") == 0
    office.beat("pi", 100.0)
    assert office.sent == []


def test_a_device_that_checks_in_is_sent_away_if_there_is_no_work_and_given_it_if_there_is(
    make_spec: Callable[..., JobSpec],
) -> None:
    office = Office(600.0)
    office.hello("pi", 1.0)
    assert 599.0 <= office.come_s("pi") <= 602.0
    office.happens(PeerChanged(node="pi", state=Liveness.DORMANT, reason="comes again"), 1.1)
    office.happens(Asked(question=1, message=Submit(spec=make_spec())), 2.0)
    assert not any(isinstance(said, Assign) for to, said in office.sent if to == "pi")
    office.happens(PeerChanged(node="pi", state=Liveness.ALIVE, reason="checked in"), 601.0)
    assert not any(isinstance(said, Assign) for to, said in office.sent if to == "pi")
    office.hello("pi", 601.0)
    assert [type(said) for to, said in office.sent if to == "pi"] == [Assign, Welcome]
    assert office.come_s("pi") == 0


def test_a_device_that_stays_although_it_was_sent_away_is_given_work(make_spec: Callable[..., JobSpec]) -> None:
    office = Office(600.0)
    office.hello("pi", 1.0)
    office.happens(Asked(question=1, message=Submit(spec=make_spec())), 2.0)
    office.beat("pi", 2.0 + STAYED_S)
    assert [type(said) for to, said in office.sent if to == "pi"] == [Assign]


def test_a_device_that_had_work_stays_for_a_while(make_spec: Callable[..., JobSpec]) -> None:
    office = Office(600.0)
    office.happens(Asked(question=1, message=Submit(spec=make_spec())), 0.5)
    office.hello("pi", 1.0)
    office.beat("pi", 2.0, is_idle=False)
    done = Progress(job="digits", term=1, state="finished", reason="done")
    office.happens(Received(sender="home", message=done), 3.0)
    office.beat("pi", 4.0)
    assert office.come_s("pi") == 0
    office.beat("pi", 2.5 + LINGERS_S)
    assert office.come_s("pi") > 0


def test_a_crowd_is_spread() -> None:
    office = Office(600.0)
    times = []
    for number in range(200):
        office.hello(f"pi-{number}", 1.0)
        times.append(office.come_s(f"pi-{number}"))
    assert max(times) - min(times) > 2.0
