"""One side of a session that this node dialled."""

from __future__ import annotations

import pytest

from shoal.roles.node.dial_state import BACKOFF_S, TWICE_BACKOFF_S, WELCOME_TIMEOUT_S, DialState, redial_s
from shoal.roles.node.doorway import TWICE
from shoal.wire.messages import Facts, Heartbeat, Hello, Leads

FACTS = Facts(host="pi.local")


@pytest.fixture
def liaison() -> DialState:
    return DialState(node="pi", incarnation="7", peer="the manager")


def welcome(liaison: DialState) -> None:
    liaison.on_welcome(heartbeat_s=2.0, lost_after_s=10.0)


def test_it_says_who_it_is_and_what_it_leads(liaison: DialState) -> None:
    leads = (Leads(job="digits", term=3, endpoint="pi:7071"),)
    hello = Hello(node="pi", incarnation="7", facts=FACTS, leads=leads)
    assert liaison.greet(FACTS, 0.0, leads=leads) == hello
    assert not liaison.welcomed


def test_it_is_silent_before_it_is_welcomed_and_gives_up_after_a_while(liaison: DialState) -> None:
    liaison.greet(FACTS, 100.0)
    assert liaison.beat(100.0) == (None, None)
    assert liaison.beat(100.0 + WELCOME_TIMEOUT_S - 0.1) == (None, None)
    assert liaison.beat(100.0 + WELCOME_TIMEOUT_S) == (None, "the manager did not welcome this node within 15 s")


def test_heartbeats_tell_how_the_node_is(liaison: DialState) -> None:
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    assert liaison.heartbeat_s == 2.0
    beat, hang_up = liaison.beat(2.0, load=0.5, memory_free_mb=300, link_bytes_per_s=1e6)
    assert beat == Heartbeat(seq=1, load=0.5, memory_free_mb=300, link_bytes_per_s=1e6)
    assert hang_up is None


def test_a_peer_that_stops_answering_is_given_up(liaison: DialState) -> None:
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    # 10 s of silence at 2 s a heartbeat: five may stay unanswered, the sixth may not.
    assert [liaison.beat(0.0)[1] for _ in range(5)] == [None] * 5
    liaison.on_answered(3)
    liaison.on_answered(1)
    assert [liaison.beat(0.0)[1] for _ in range(3)] == [None] * 3, "an old answer takes nothing back"
    assert liaison.beat(0.0)[1] == "the manager has not answered for 10 s"


def test_a_new_session_begins_to_count_anew(liaison: DialState) -> None:
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    for _ in range(6):
        liaison.beat(0.0)
    liaison.on_closed()
    assert not liaison.welcomed
    liaison.greet(FACTS, 50.0)
    assert liaison.beat(50.0) == (None, None), "it has to be welcomed again"
    welcome(liaison)
    beat, hang_up = liaison.beat(52.0)
    assert beat is not None
    assert (beat.seq, hang_up) == (1, None)


def test_attempts_in_vain_are_counted_until_one_is_welcomed(liaison: DialState) -> None:
    for attempt in (1, 2, 3):
        liaison.on_closed()
        assert liaison.attempts == attempt
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    liaison.on_closed()
    assert liaison.attempts == 0


def test_waits_grow_to_a_limit_and_differ_between_devices(liaison: DialState) -> None:
    waits_s = []
    for _ in range(20):
        waits_s.append(liaison.backoff_s())
        liaison.on_closed()
    bases_s = [*BACKOFF_S, *[BACKOFF_S[-1]] * 14]
    assert all(0.75 * base_s <= wait_s <= 1.25 * base_s for wait_s, base_s in zip(waits_s, bases_s, strict=True))
    devices = [DialState(node=f"pi-{number}", incarnation="1", peer="the manager") for number in range(50)]
    assert len({device.backoff_s() for device in devices}) > 30, "they must not all come at once"


# How often the peer wants heartbeats --------------------------------------------------------------------------------


def paced(liaison: DialState, next_s: float) -> DialState:
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    liaison.beat(0.0, load=0.5, memory_free_mb=800, link_bytes_per_s=1e6, is_idle=True)
    liaison.on_answered(1, next_s=next_s)
    return liaison


def test_the_peer_says_with_each_answer_how_often_it_wants_them(liaison: DialState) -> None:
    liaison.greet(FACTS, 0.0)
    welcome(liaison)
    liaison.beat(2.0)
    assert not liaison.on_answered(1, next_s=30.0)
    assert liaison.heartbeat_s == 30.0
    assert liaison.on_answered(0, next_s=2.0), "the next one at once"
    assert liaison.heartbeat_s == 2.0
    assert not liaison.on_answered(1, next_s=10.0)
    assert liaison.on_answered(1), "a peer of the release before says nothing: as its welcome said"
    assert liaison.heartbeat_s == 2.0


def test_a_peer_that_wants_few_heartbeats_is_waited_for_longer(liaison: DialState) -> None:
    paced(liaison, 12.0)
    # 10 + 2 * (12 - 2) seconds: two may stay unanswered.
    assert [liaison.beat(0.0)[1] for _ in range(2)] == [None] * 2
    assert liaison.beat(0.0)[1] == "the manager has not answered for 30 s"


def test_heartbeats_that_wait_when_fewer_are_wanted_count_as_they_were_sent(liaison: DialState) -> None:
    paced(liaison, 2.0)
    for _ in range(3):
        liaison.beat(0.0)
    liaison.on_answered(1, next_s=60.0)
    assert liaison.beat(0.0)[1] is None, "three of 2 s and one of 60, where 126 s may pass"


def test_what_the_peer_knows_is_left_out(liaison: DialState) -> None:
    paced(liaison, 2.0)
    same = liaison.beat(2.0, load=0.7, memory_free_mb=750, link_bytes_per_s=1.1e6, is_idle=True)[0]
    assert same == Heartbeat(seq=2, is_idle=True, is_same=True)
    for news in ({"load": 0.8}, {"memory_free_mb": 600}, {"link_bytes_per_s": 2e6}, {"is_idle": False}):
        state = {"load": 0.5, "memory_free_mb": 800, "link_bytes_per_s": 1e6, "is_idle": True}
        fresh = DialState(node="pi", incarnation="7", peer="the manager")
        paced(fresh, 2.0)
        assert fresh.beat(2.0, **{**state, **news})[0] == Heartbeat(seq=2, **{**state, **news})
        assert fresh.beat(4.0, **{**state, **news})[0] == Heartbeat(
            seq=3, is_idle=news.get("is_idle", True), is_same=True
        )


def test_a_peer_that_may_not_know_the_short_heartbeat_hears_all_of_it(liaison: DialState) -> None:
    paced(liaison, 0.0)
    assert liaison.beat(2.0, load=0.5)[0] == Heartbeat(seq=2, load=0.5)
    liaison.on_answered(2, next_s=5.0)
    liaison.on_closed()
    liaison.greet(FACTS, 9.0)
    welcome(liaison)
    assert liaison.beat(9.0, load=0.5)[0] == Heartbeat(seq=1, load=0.5), "a new session may be to another release"


# A fleet that comes back ------------------------------------------------------------------------------------------


def waits(node: str, attempts: int, *, devices: int) -> float:
    state = DialState(node=node, incarnation="7", peer="the manager")
    state.greet(FACTS, 0.0)
    state.on_welcome(heartbeat_s=1.0, lost_after_s=8.0, redial_s=redial_s(devices))
    for _ in range(attempts + 1):
        state.on_closed("gone")
    assert state.attempts == attempts
    return state.backoff_s()


def test_few_devices_dial_as_ever() -> None:
    assert redial_s(300) == 0.0
    assert all(waits(f"d{n}", 9, devices=300) <= 1.25 * BACKOFF_S[-1] for n in range(50))


def test_the_first_attempt_is_at_once_however_many_there_are() -> None:
    assert max(waits(f"d{n}", 0, devices=100_000) for n in range(200)) <= 1.25 * BACKOFF_S[0]


def test_many_devices_spread_their_attempts_and_ever_more() -> None:
    """10,000 devices: 200 a second at first, so 50 s; then twice as long, up to ten minutes."""
    assert redial_s(10_000) == 50.0
    for attempts, span_s in ((1, 50.0), (2, 100.0), (4, 400.0), (5, 600.0), (12, 600.0)):
        drawn = sorted(waits(f"d{n}", attempts, devices=10_000) for n in range(400))
        assert drawn[-1] <= span_s
        # Even over the whole of it: each quarter has about a quarter of them.
        for share in (0.25, 0.5, 0.75):
            assert drawn[int(400 * share)] == pytest.approx(span_s * share, abs=0.1 * span_s)
    assert redial_s(10_000_000) == 600.0


def test_a_second_device_of_one_name_waits_as_it_did() -> None:
    state = DialState(node="pi", incarnation="7", peer="the manager")
    state.greet(FACTS, 0.0)
    state.on_welcome(heartbeat_s=1.0, lost_after_s=8.0, redial_s=1.0)
    state.on_closed(f"{TWICE} pi")
    state.on_closed(f"{TWICE} pi")
    assert 0.75 * TWICE_BACKOFF_S[1] <= state.backoff_s() <= 1.25 * TWICE_BACKOFF_S[1]


def test_a_new_session_begins_with_the_interval_of_the_welcome() -> None:
    """A device that waited with few heartbeats is not silent for that long when it is back."""
    state = DialState(node="pi", incarnation="1", peer="home")
    state.greet(Facts(), 0.0)
    state.on_welcome(heartbeat_s=2.0, lost_after_s=8.0)
    state.on_answered(1, next_s=60.0)
    assert state.heartbeat_s == 60.0
    state.on_closed()
    assert state.heartbeat_s == 2.0
