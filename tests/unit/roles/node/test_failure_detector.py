"""Who is alive: heartbeats, sessions and silence. Heartbeats every second, suspect after 3, lost after 8."""

from __future__ import annotations

import pytest

from shoal.roles.events import Liveness, PeerChanged
from shoal.roles.node.failure_detector import OVERSLEPT_S, FailureDetector, Patience

ALIVE, SUSPECT, LOST = Liveness.ALIVE, Liveness.SUSPECT, Liveness.LOST


@pytest.fixture
def members() -> FailureDetector:
    members = FailureDetector(Patience())
    members.on_heard("a", 0.0)
    return members


def one(changes: list[PeerChanged]) -> tuple[str, Liveness, str]:
    (change,) = changes
    return change.node, change.state, change.reason


def test_a_newcomer_is_alive_once() -> None:
    members = FailureDetector(Patience())
    assert members.state("a") is LOST
    assert members.heard_ago_s("a", 5.0) is None
    assert one(members.on_heard("a", 1.0)) == ("a", ALIVE, "connected")
    assert members.on_heard("a", 2.0) == []
    assert members.heard_ago_s("a", 5.0) == 3.0


def test_silence_makes_suspect_then_lost(members: FailureDetector) -> None:
    assert members.check(2.9) == []
    assert one(members.check(3.0)) == ("a", SUSPECT, "silent for 3.0 s")
    assert members.check(7.9) == []
    assert one(members.check(8.0)) == ("a", LOST, "silent for 8.0 s")
    assert members.check(100.0) == []


def test_a_suspect_who_speaks_is_alive_again(members: FailureDetector) -> None:
    members.check(4.0)
    assert one(members.on_heard("a", 4.5)) == ("a", ALIVE, "back after 4.5 s of silence")
    assert members.check(7.0) == []


def test_a_lost_one_who_returns_is_a_newcomer(members: FailureDetector) -> None:
    members.check(9.0)
    assert one(members.on_heard("a", 60.0)) == ("a", ALIVE, "connected")


def test_a_broken_session_has_a_moment_to_come_back(members: FailureDetector) -> None:
    told = "reset by peer; waiting 1.5 s for it to return"
    assert one(members.on_closed("a", 1.0, reason="reset by peer")) == ("a", SUSPECT, told)
    assert members.check(2.4) == []
    assert one(members.on_heard("a", 2.4))[1] is ALIVE
    assert members.check(4.0) == [], "the break is forgotten"


def test_a_dead_process_does_not_come_back(members: FailureDetector) -> None:
    members.on_closed("a", 1.0, reason="reset by peer")
    assert one(members.check(2.5)) == ("a", LOST, "reset by peer, no reconnect within 1.5 s")


def test_a_session_that_breaks_while_suspect_ends_the_wait(members: FailureDetector) -> None:
    members.check(3.0)
    assert members.on_closed("a", 4.0, reason="reset by peer") == []
    assert one(members.check(5.5))[1] is LOST


def test_who_says_goodbye_is_lost_at_once(members: FailureDetector) -> None:
    assert one(members.on_left("a", reason="left: shutting down")) == ("a", LOST, "left: shutting down")
    assert members.on_left("a", reason="again") == []
    assert members.on_closed("a", 1.0, reason="closed") == []
    assert members.state("a") is LOST


def test_a_new_process_is_not_the_old_one(members: FailureDetector) -> None:
    assert members.on_heard("a", 0.5, incarnation="first") == []
    assert members.on_heard("a", 0.6, incarnation="first") == [], "the same process on a new connection"
    changes = members.on_heard("a", 1.0, incarnation="second")
    assert [(change.state, change.reason) for change in changes] == [(LOST, "restarted"), (ALIVE, "connected")]
    assert members.on_heard("a", 1.5) == []


def test_nobody_changes_for_strangers() -> None:
    members = FailureDetector(Patience())
    assert members.on_closed("x", 1.0, reason="") == members.on_left("x", reason="") == members.check(9.0) == []


def test_changes_come_in_the_order_of_names() -> None:
    members = FailureDetector(Patience())
    for node in ("c", "a", "b"):
        members.on_heard(node, 0.0)
    assert [change.node for change in members.check(9.0)] == ["a", "b", "c"]


# Peers that were told to send fewer heartbeats: one may be missing, and the next one late ----------------------------


def test_a_peer_that_sends_fewer_heartbeats_is_waited_for_longer(members: FailureDetector) -> None:
    members.expect("a", 5.0, 0.0)
    assert members.every_s("a") == 5.0
    # 3 + 2 * (5 - 1) seconds, and 8 + 2 * (5 - 1).
    assert members.check(10.9) == []
    assert one(members.check(11.0)) == ("a", SUSPECT, "silent for 11.0 s")
    assert members.check(15.9) == []
    assert one(members.check(16.0)) == ("a", LOST, "silent for 16.0 s")


def test_a_break_of_its_session_is_noticed_as_fast(members: FailureDetector) -> None:
    members.expect("a", 60.0, 0.0)
    assert one(members.on_closed("a", 1.0, reason="reset")) == ("a", SUSPECT, "reset; waiting 1.5 s for it to return")
    assert one(members.check(2.5)) == ("a", LOST, "reset, no reconnect within 1.5 s")


def test_a_peer_that_is_to_send_more_of_them_is_judged_from_then_on(members: FailureDetector) -> None:
    members.expect("a", 60.0, 0.0)
    assert members.check(100.0) == []
    members.expect("a", 1.0, 100.0)
    assert members.check(102.9) == []
    assert one(members.check(103.0)) == ("a", SUSPECT, "silent for 103.0 s")
    assert one(members.check(108.0)) == ("a", LOST, "silent for 108.0 s")
    assert members.every_s("nobody") == 1.0


def test_peers_that_are_not_lost_are_counted(members: FailureDetector) -> None:
    members.on_heard("b", 0.0, incarnation="1")
    assert members.present == 2
    members.on_heard("b", 1.0, incarnation="2")
    assert members.present == 2, "a new process takes the place of the one before"
    members.on_left("b", reason="goodbye")
    members.on_left("b", reason="goodbye")
    assert members.present == 1
    members.check(100.0)
    assert members.present == 0


# Dormant --------------------------------------------------------------------------------------------------


def test_one_that_comes_again_is_dormant_and_not_missed(members: FailureDetector) -> None:
    assert one(members.on_rests("a", 10.0, come_s=100.0)) == ("a", Liveness.DORMANT, "comes again in 100 s")
    assert members.present == 0
    assert members.on_closed("a", 10.1, reason="it said goodbye") == []
    assert members.check(109.0 + OVERSLEPT_S) == []
    assert members.state("a") is Liveness.DORMANT


def test_one_that_overslept_is_lost(members: FailureDetector) -> None:
    members.on_rests("a", 10.0, come_s=100.0)
    assert one(members.check(110.0 + OVERSLEPT_S)) == ("a", LOST, "overslept by 900 s")
    assert members.present == 0


def test_one_that_checks_in_is_alive_and_judged_as_any_other(members: FailureDetector) -> None:
    members.on_rests("a", 10.0, come_s=100.0)
    assert one(members.on_heard("a", 110.0)) == ("a", ALIVE, "checked in after 100 s")
    assert members.present == 1
    assert one(members.check(113.0))[1] is SUSPECT
    assert one(members.check(118.0))[1] is LOST


def test_a_pause_of_our_own_is_nobodys_silence(members: FailureDetector) -> None:
    """It was stopped from 1.0 to 13.0, and looks before it reads what came meanwhile."""
    members.check(1.0)
    members.pass_over(10.5, 13.0)
    assert members.check(13.0) == []
    assert one(members.check(13.5)) == ("a", SUSPECT, "silent for 13.5 s")
    assert members.check(18.4) == []
    assert one(members.check(18.5))[1] is LOST


def test_a_break_before_a_pause_has_its_moment_after_it(members: FailureDetector) -> None:
    members.on_closed("a", 1.0, reason="reset")
    members.pass_over(10.5, 12.5)
    assert members.check(12.5) == []
    assert one(members.check(13.0))[1] is LOST


def test_a_peer_that_was_heard_since_is_judged_from_then_on(members: FailureDetector) -> None:
    members.on_heard("a", 13.0)
    members.pass_over(10.5, 13.0)
    assert members.check(15.9) == []
    assert one(members.check(16.0))[1] is SUSPECT


def test_a_dormant_peer_could_not_come_while_nobody_was_there(members: FailureDetector) -> None:
    members.on_rests("a", 0.0, come_s=10.0)
    members.pass_over(5000.0, 5001.0)
    assert members.check(5001.0) == []
    assert members.check(5009.0 + OVERSLEPT_S) == []
    assert one(members.check(5010.0 + OVERSLEPT_S))[1] is LOST
