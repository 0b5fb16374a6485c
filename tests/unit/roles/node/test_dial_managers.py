"""A device that knows several managers: it tries each before it waits, and stays with the one that answers."""

from __future__ import annotations

import pytest

from shoal.errors import PeerViolation
from shoal.roles.events import Received
from shoal.roles.node.device_router import DeviceRouter, Redial, Say
from shoal.roles.node.dial_state import BACKOFF_S, CONNECT_FIRST_S, SUCCESSOR_TURNS, SUCCESSOR_WAIT_S, DialState
from shoal.wire.messages import Dismiss, Facts, Leave, Welcome

MANAGERS = ("a:7070", "b:7070", "c:7070")


def dial_state(*managers: str) -> DialState:
    made = DialState(node="pi", incarnation="7", peer="the manager")
    made.know("a:7070", managers)
    return made


def welcome(state: DialState, *managers: str, redial_s: float = 0.0) -> None:
    state.greet(Facts(), 0.0)
    state.on_welcome(heartbeat_s=1.0, lost_after_s=8.0, redial_s=redial_s, managers=managers)


def failing(state: DialState, times: int) -> list[tuple[str, float]]:
    """Where it dials next and after how long, for so many attempts in vain."""
    tried = []
    for _ in range(times):
        state.on_closed("connection refused")
        tried.append((state.endpoint, state.backoff_s()))
    return tried


def test_all_addresses_are_tried_before_a_wait_and_then_again() -> None:
    state = dial_state(*MANAGERS)
    tried = failing(state, 7)
    assert [where for where, _ in tried] == ["b:7070", "c:7070", "a:7070", "b:7070", "c:7070", "a:7070", "b:7070"]
    waits = [wait_s for _, wait_s in tried]
    assert [wait_s for place, wait_s in enumerate(waits) if place % 3 != 2] == [BACKOFF_S[0]] * 5
    # After a turn, as after one attempt where there is one address.
    assert 0.75 * BACKOFF_S[1] <= waits[2] <= 1.25 * BACKOFF_S[1]
    assert state.connect_timeout_s() == 4 * CONNECT_FIRST_S


def test_it_waits_briefly_for_a_successor_and_longer_if_none_comes() -> None:
    state = dial_state("a:7070")
    waits = [wait_s for _, wait_s in failing(state, SUCCESSOR_TURNS + 1)]
    assert max(waits[:SUCCESSOR_TURNS]) <= 1.25 * SUCCESSOR_WAIT_S
    assert waits[-1] >= 0.75 * BACKOFF_S[-1]
    alone = dial_state()
    assert failing(alone, 9)[-1][1] >= 0.75 * BACKOFF_S[-1], "nobody takes over from a manager that is alone"


def test_it_begins_with_the_manager_that_answered() -> None:
    state = dial_state(*MANAGERS)
    failing(state, 1)
    welcome(state, "b:7070", "a:7070", "c:7070")
    state.on_closed("cut")
    assert state.endpoint == "b:7070"
    assert [where for where, _ in failing(state, 3)] == ["a:7070", "c:7070", "b:7070"]
    # What its file says of the same managers changes nothing.
    state.know("a:7070", MANAGERS)
    assert state.endpoint == "b:7070"


def test_behind_a_proxy_it_begins_with_the_manager_that_the_proxy_led_to() -> None:
    state = DialState(node="pi", incarnation="7", peer="the manager")
    state.know("proxy:7070")
    welcome(state, "b:7070", "proxy:7070", "a:7070")
    state.on_closed("cut")
    assert [state.endpoint, *(where for where, _ in failing(state, 2))] == ["b:7070", "proxy:7070", "a:7070"]


def test_a_manager_that_fell_silent_is_dialled_last() -> None:
    """It may be frozen: an attempt there takes as long as an attempt may."""
    state = dial_state(*MANAGERS)
    welcome(state, *MANAGERS)
    reason = None
    for second in range(10):
        _, reason = state.beat(float(second))
    assert reason is not None
    state.on_closed(reason)
    assert (state.endpoint, state.backoff_s()) == ("b:7070", BACKOFF_S[0])
    assert [where for where, _ in failing(state, 2)] == ["c:7070", "a:7070"]
    welcome(state, *MANAGERS)
    state.on_closed("cut")
    assert state.endpoint == "a:7070", "a session that breaks alone is back at once"


def test_a_large_fleet_tries_each_address_once_and_then_spreads_out() -> None:
    state = dial_state(*MANAGERS)
    welcome(state, *MANAGERS, redial_s=100.0)
    state.on_closed("cut")
    waits = [wait_s for _, wait_s in failing(state, 3)]
    assert waits[:2] == [BACKOFF_S[0]] * 2
    assert 0.0 <= waits[2] <= 100.0
    assert any(wait_s > 5.0 for _, wait_s in failing(state, 12))


def test_of_a_large_fleet_devices_without_work_wait_before_they_go_to_another_manager() -> None:
    """Its manager is gone: each attempt costs the managers that live, whatever comes of it."""
    state = dial_state(*MANAGERS)
    welcome(state, *MANAGERS, redial_s=1000.0)
    state.beat(1.0, is_idle=True)
    state.on_closed("cut")
    assert state.backoff_s() < 1.0, "a session that breaks alone is back at once"
    waits = [wait_s for _, wait_s in failing(state, 2)]
    assert min(waits) > 1.0
    assert max(waits) < 1000.0
    welcome(state, *MANAGERS, redial_s=1000.0)
    state.beat(1.0)
    state.on_closed("cut")
    assert [wait_s for _, wait_s in failing(state, 2)] == [BACKOFF_S[0]] * 2, "a manager waits for those that lead"


def test_devices_of_a_manager_that_is_gone_spread_over_the_others() -> None:
    seconds = []
    for number in range(300):
        state = DialState(node=f"pi-{number}", incarnation="7", peer="the manager")
        state.know("a:7070", MANAGERS)
        seconds += [where for where, _ in failing(state, 1)]
    assert set(seconds) == {"b:7070", "c:7070"}
    assert 100 < seconds.count("b:7070") < 200


def test_only_the_manager_says_where_managers_are() -> None:
    router = DeviceRouter(node="pi", incarnation="7", manager="manager")
    router.know_manager("a:7070", ())
    router.greet("manager", Facts(), 0.0)
    router.on_received(
        Received(sender="manager", message=Welcome(heartbeat_s=1.0, lost_after_s=8.0, managers=MANAGERS))
    )
    assert router.manager_endpoint == "a:7070"
    router.on_closed("manager")
    router.on_closed("manager")
    assert router.manager_endpoint == "b:7070"


@pytest.mark.parametrize("managers", [("a",), ("a:7070 ",), tuple(f"m{n}:7070" for n in range(9))])
def test_addresses_that_cannot_be_are_refused(managers: tuple[str, ...]) -> None:
    with pytest.raises(PeerViolation, match="managers"):
        Welcome(heartbeat_s=1.0, lost_after_s=8.0, managers=managers)


# Sent to another manager ------------------------------------------------------------------------------------------


def test_a_device_goes_where_it_is_sent_and_else_back_to_the_turn() -> None:
    state = dial_state(*MANAGERS)
    welcome(state, *MANAGERS)
    state.refer("d:7070")
    state.on_closed("sent away")
    assert (state.endpoint, state.backoff_s()) == ("d:7070", BACKOFF_S[0])
    hello = state.greet(Facts(), 1.0, jobs=("digits",))
    assert (hello.jobs, hello.is_referred) == (("digits",), True)
    state.on_closed("connection refused")
    assert state.endpoint == "b:7070", "nobody answered there"
    assert not state.greet(Facts(), 2.0).is_referred
    state.refer("d:7070")
    state.on_closed("sent away")
    welcome(state, "d:7070", *MANAGERS)
    state.on_closed("cut")
    assert state.endpoint == "d:7070", "it was welcomed there"


def test_a_device_that_is_sent_on_and_on_waits_ever_longer_in_between() -> None:
    """A manager sends it to one that is dead, until that one's seat is ended."""
    state = dial_state(*MANAGERS)
    welcome(state, *MANAGERS, redial_s=100.0)
    state.on_closed("cut")
    waits = []
    for _ in range(30):
        state.greet(Facts(), 0.0)
        state.refer("d:7070")
        state.on_closed("sent away")
        state.on_closed("connection refused")
        waits.append(state.backoff_s())
    assert max(waits[10:]) > 5.0, "a fleet would storm the managers that live"


def test_only_where_there_are_several_managers_does_it_say_for_what_it_works() -> None:
    assert dial_state().greet(Facts(), 0.0, jobs=("digits",)).jobs == ()
    assert dial_state(*MANAGERS).greet(Facts(), 0.0, jobs=("digits",)).jobs == ("digits",)


def test_a_device_says_goodbye_to_the_manager_that_sends_it_away_once_it_was_welcomed() -> None:
    router = DeviceRouter(node="pi", incarnation="7", manager="manager")
    router.know_manager("a:7070", MANAGERS)
    away = Dismiss(job="", reason="another manager has work", endpoint="b:7070")
    router.greet("manager", Facts(), 0.0)
    assert router.on_received(Received(sender="manager", message=away)) == [
        Redial("manager", "dismissed: another manager has work")
    ], "a manager that takes over its job must not hear that it left"
    router.on_closed("manager")
    assert router.manager_endpoint == "b:7070"
    router.greet("manager", Facts(), 0.0)
    router.on_received(Received(sender="manager", message=Welcome(heartbeat_s=1.0, lost_after_s=8.0)))
    assert router.on_received(Received(sender="manager", message=away)) == [
        Say("manager", Leave(reason="another manager has work"))
    ]


def test_an_address_that_cannot_be_is_refused() -> None:
    with pytest.raises(PeerViolation, match="must be HOST:PORT"):
        Dismiss(job="", reason="", endpoint="nowhere")
