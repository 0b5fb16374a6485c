"""Of two processes of one node, which is let in: its own place for the one that returns, and none for a copy."""

from __future__ import annotations

from shoal.roles.node.dial_state import TWICE_BACKOFF_S, DialState
from shoal.roles.node.doorway import TWICE, Caller, Door, Doorway, Knock
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.wire.messages import Facts

PATIENCE = Patience()


def caller(incarnation: str, address: str = "10.0.0.5") -> Caller:
    return Caller(node="pi1", incarnation=incarnation, address=address)


class Entrance:
    """A node that says hello and beats, at a doorway with its membership."""

    def __init__(self) -> None:
        self.membership = FailureDetector(PATIENCE)
        self.doorway = Doorway(self.membership)
        self.now_s = 0.0

    def enter(self, who: Caller) -> None:
        self.doorway.on_entered(who)
        self.membership.on_heard(who.node, self.now_s, incarnation=who.incarnation)

    def beat(self) -> None:
        self.now_s += PATIENCE.heartbeat_s
        self.membership.on_heard("pi1", self.now_s)

    def silence(self, seconds: float) -> None:
        self.now_s += seconds
        self.membership.check(self.now_s)

    def ask(self, knock: Knock) -> Door:
        return self.doorway.ask(knock)[0]


def test_the_first_comes_in() -> None:
    at = Entrance()
    assert at.ask(at.doorway.knock(caller("a"))) is Door.OPEN


def test_the_same_process_takes_its_own_place_at_once_however_alive_its_old_session_looks() -> None:
    at = Entrance()
    at.enter(caller("a"))
    at.beat()
    assert at.ask(at.doorway.knock(caller("a", address="10.0.0.77"))) is Door.OPEN


def test_a_copy_is_refused_once_the_first_is_heard_and_both_addresses_are_named() -> None:
    at = Entrance()
    at.enter(caller("a"))
    at.beat()
    knock = at.doorway.knock(caller("b", address="10.0.0.9"))
    assert at.ask(knock) is Door.WAIT
    at.beat()
    door, reason = at.doorway.ask(knock)
    assert door is Door.SHUT
    assert reason.startswith(f"{TWICE} pi1: 10.0.0.5 and 10.0.0.9; ")
    assert "`shoal join LINE --anew` on one of them" in reason


def test_a_device_that_restarted_waits_no_longer_than_it_takes_to_suspect_the_process_before() -> None:
    at = Entrance()
    at.enter(caller("a"))
    knock = at.doorway.knock(caller("b"))
    at.silence(PATIENCE.suspect_after_s / 2)
    assert at.ask(knock) is Door.WAIT
    at.silence(PATIENCE.suspect_after_s / 2)
    assert at.ask(knock) is Door.OPEN
    at.enter(caller("b"))
    at.beat()
    late = at.doorway.knock(caller("a"))
    at.beat()
    assert at.ask(late) is Door.SHUT, "it was taken for dead, and another has its place now"


def test_one_whose_session_broke_or_who_left_makes_room_at_once() -> None:
    at = Entrance()
    at.enter(caller("a"))
    at.membership.on_closed("pi1", at.now_s, reason="cut")
    assert at.ask(at.doorway.knock(caller("b"))) is Door.OPEN
    at.membership.on_left("pi1", reason="goodbye")
    assert at.ask(at.doorway.knock(caller("c"))) is Door.OPEN


def test_the_one_who_is_refused_waits_for_minutes_and_for_moments_after_anything_else() -> None:
    liaison = DialState(node="pi1", incarnation="b", peer="the manager")
    waits = []
    for _ in range(len(TWICE_BACKOFF_S) + 1):
        liaison.greet(Facts(), 0.0)
        liaison.on_closed(f"permission denied: {TWICE} pi1: here and there")
        waits.append(liaison.backoff_s())
    expected = [*TWICE_BACKOFF_S, TWICE_BACKOFF_S[-1]]
    assert all(0.75 * base_s <= wait_s <= 1.25 * base_s for wait_s, base_s in zip(waits, expected, strict=True))
    assert waits[-1] > 120.0
    liaison.on_closed("connection closed")
    assert liaison.backoff_s() < 10.0
