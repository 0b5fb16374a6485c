"""A returning crowd is spread out."""

from __future__ import annotations

import math
from collections import Counter
from heapq import heapify, heapreplace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.scheduling.steering import LATE_S, TURN_LEASES, Steering
from shoal.sim.rng import Stream

draws = st.floats(0, 1, exclude_max=True)


def test_a_slot_is_a_second_or_longer_with_whole_places() -> None:
    assert (Steering(per_s=4.0).places, Steering(per_s=4.0).slot_s) == (4, 1.0)
    assert (Steering(per_s=2.5).places, Steering(per_s=2.5).slot_s) == (2, 0.8)
    assert (Steering(per_s=0.1).places, Steering(per_s=0.1).slot_s) == (1, 10.0)


def test_uninvited_ones_take_what_the_slot_has_left() -> None:
    steering = Steering(per_s=2.0)
    assert [steering.arrives(name, now_s=5.0) for name in "abc"] == [True, True, False]
    assert steering.arrives("c", now_s=6.0)


def test_an_appointment_holds_its_place() -> None:
    steering = Steering(per_s=1.0)
    assert steering.appoint("a", now_s=0.5, draw=0.25) == 0.75
    assert not steering.arrives("b", now_s=1.1), "that place is a's"
    assert steering.arrives("a", now_s=1.25)
    assert not steering.arrives("a", now_s=1.3), "once"


def test_a_place_is_kept_however_long_nobody_comes() -> None:
    steering = Steering(per_s=1.0, soonest_s=100.0)
    wait_s = steering.appoint("a", now_s=0.0, draw=0.5)
    assert wait_s >= 100.0
    assert not steering.arrives("b", now_s=float(int(wait_s)))
    assert steering.arrives("a", now_s=wait_s)


def test_a_little_late_is_welcome_and_far_too_early_is_not() -> None:
    steering = Steering(per_s=0.1)
    assert steering.arrives("first", now_s=0.0)
    wait_s = steering.appoint("a", now_s=0.0, draw=0.5)
    assert wait_s == 15.0
    assert not steering.arrives("a", now_s=5.0)
    assert steering.appoint("a", now_s=5.0, draw=0.9) == 10.0, "the same appointment, however often it asks"
    steering.appoint("b", now_s=5.0, draw=0.0)
    assert steering.arrives("a", now_s=15.0 + LATE_S)


def test_a_crowd_that_was_held_up_is_not_let_in_at_once() -> None:
    """All had appointments, and the link to all of them was broken until long after."""
    steering = Steering(per_s=2.0)
    for number in range(20):
        steering.appoint(str(number), now_s=0.0, draw=0.5)
    assert sum(steering.arrives(str(number), now_s=10.0 + 2 * LATE_S) for number in range(20)) == 2


def test_nobody_is_asked_back_sooner_than_wanted() -> None:
    steering = Steering(per_s=10.0, soonest_s=60.0)
    assert all(steering.appoint(str(number), now_s=3.0, draw=0.0) >= 60.0 for number in range(50))
    assert steering.arrives("uninvited", now_s=3.5), "what lies before that stays free for others"


def test_when_all_is_taken_nobody_waits_for_ever() -> None:
    steering = Steering(per_s=1.0, longest_s=10.0)
    waits_s = [steering.appoint(str(number), now_s=0.0, draw=0.5) for number in range(100)]
    assert max(waits_s) <= 10.0


def test_who_was_not_given_a_place_has_taken_none() -> None:
    """A crowd far larger than a day came and went: who comes after it need not wait for its end."""
    steering = Steering(per_s=1.0, longest_s=20.0, lap_s=2.0)
    for number in range(1000):
        steering.appoint(str(number), now_s=0.0, draw=0.0)
    waits_s = [steering.appoint(f"{number} later", now_s=40.0, draw=0.0) for number in range(4)]
    assert waits_s == [0.0, 1.0, 2.0, 4.0], "a turn begins at 44"


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=300), st.floats(0.3, 50.0), st.floats(0, 1e5))
@settings(max_examples=80)
def test_a_crowd_returns_at_the_pace(drawn: list[float], per_s: float, now_s: float) -> None:
    steering = Steering(per_s=per_s, lap_s=1e6)
    came_s = sorted(now_s + steering.appoint(str(number), now_s=now_s, draw=draw) for number, draw in enumerate(drawn))
    # No window of a slot's length meets more than two slots.
    slots = Counter(math.floor(at_s / steering.slot_s + 1e-9) for at_s in came_s)
    assert sum(slots.values()) == len(drawn)
    assert sum(max(0, count - steering.places) for count in slots.values()) <= 2, "but for rounding at an edge"
    assert came_s[0] >= now_s
    assert came_s[-1] - now_s <= len(drawn) / per_s + 3 * steering.slot_s, "and it does not take longer than it must"


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.floats(0, 2), draws), max_size=200), st.floats(0.5, 5.0)
)
@settings(max_examples=80)
def test_uninvited_and_appointed_together_keep_the_pace(
    steps: list[tuple[bool, int, float, float]], per_s: float
) -> None:
    """Who is told to come does; others come as they like. No slot serves more than its places, but for an edge."""
    steering, now_s = Steering(per_s=per_s), 0.0
    due: list[tuple[float, str]] = []
    served: Counter[int] = Counter()
    for is_new, number, passed_s, draw in steps:
        end_s = now_s + passed_s
        while due and min(due)[0] <= end_s:
            at_s, name = min(due)
            due.remove((at_s, name))
            assert steering.arrives(name, now_s=at_s), "an appointment is kept"
            served[math.floor(at_s / steering.slot_s)] += 1
        now_s = end_s
        name = f"{number}" if is_new else f"{number} again"
        if any(name == waiting for _, waiting in due):
            continue
        if steering.arrives(name, now_s=now_s):
            served[math.floor(now_s / steering.slot_s)] += 1
        else:
            due.append((now_s + steering.appoint(name, now_s=now_s, draw=draw), name))
    assert all(count <= steering.places + 1 for count in served.values())


def test_a_place_is_kept_for_who_was_lent_work() -> None:
    steering = Steering(per_s=1.0, lap_s=10.0)
    assert steering.arrives("a", now_s=0.0)
    steering.lends("a", now_s=0.0)
    # Its own place is that of second 10. Beyond, a turn begins every ninth second.
    waits_s = [steering.appoint(str(number), now_s=0.0, draw=0.0) for number in range(11)]
    assert waits_s == [*range(1, 10), 17.0, 26.0]
    assert steering.arrives("a", now_s=10.5), "in the slot that was left out"
    assert not steering.arrives("a", now_s=10.6), "once"


def test_it_has_its_turn_and_then_others_have_theirs() -> None:
    steering = Steering(per_s=1.0, lap_s=10.0)
    served, now_s = 0, 0.0
    while steering.arrives("a", now_s=now_s):
        steering.lends("a", now_s=now_s)
        served += 1
        for number in range(12):
            steering.appoint(f"{served} {number}", now_s=now_s, draw=0.0)
        now_s += 10.0
    assert served == TURN_LEASES


def test_nobody_waits_for_nobody() -> None:
    steering = Steering(per_s=1.0, lap_s=10.0)
    for turn in range(5 * TURN_LEASES):
        assert steering.arrives("a", now_s=10.0 * turn)
        steering.lends("a", now_s=10.0 * turn)


def test_who_was_away_for_long_is_not_expected_any_more() -> None:
    steering = Steering(per_s=2.0, lap_s=10.0)
    for number in range(20):
        steering.arrives(str(number), now_s=number / 2)
        steering.lends(str(number), now_s=number / 2)
    assert sum(steering.arrives(str(number), now_s=1000.0) for number in range(20)) == 2


def test_how_long_a_lease_is_out_is_learned() -> None:
    steering = Steering(per_s=9.0, lap_s=30.0)
    for turn in range(200):
        assert steering.arrives("a", now_s=5.0 * turn)
        steering.lends("a", now_s=5.0 * turn)
    waits_s = [steering.appoint(str(number), now_s=1000.0, draw=0.0) for number in range(100)]
    # All places of the next five seconds, but for what was kept; then one a second.
    assert 40 <= sum(wait_s < 5.5 for wait_s in waits_s) <= 55
    assert waits_s[-1] - waits_s[-2] == pytest.approx(1.0)


@given(st.floats(2.0, 6.0), st.floats(1.2, 4.0), st.floats(5.0, 40.0), st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_more_devices_than_it_can_serve_ask_no_more_often_than_it_aims_at(
    per_s: float, crowd: float, lease_s: float, seed: int
) -> None:
    """Each device asks, works, asks again; all begin at once. However many they are, the leader is asked as often as it
    aims at, and nearly all that can be served is."""
    stream = Stream(seed)
    steering = Steering(per_s=per_s)
    heap = [(stream.random(), number) for number in range(math.ceil(crowd * per_s * lease_s))]
    heapify(heap)
    # By then a lease's length is known, and the turns of those who began together have drifted apart.
    settled_s, asked, lent = 12 * max(lease_s, 30.0), 0, 0
    end_s = settled_s + 20 * lease_s
    while heap[0][0] < end_s:
        now_s, number = heap[0]
        asked += now_s >= settled_s
        if steering.arrives(str(number), now_s=now_s):
            steering.lends(str(number), now_s=now_s)
            lent += now_s >= settled_s
            wait_s = stream.lognormal(lease_s, 0.2)
        else:
            wait_s = steering.appoint(str(number), now_s=now_s, draw=stream.random())
        heapreplace(heap, (now_s + wait_s, number))
    aimed = per_s * (end_s - settled_s)
    assert asked <= 1.15 * aimed
    assert lent >= 0.75 * aimed


@pytest.mark.parametrize(
    "wrong", [{"per_s": 0.0}, {"per_s": math.inf}, {"per_s": 1.0, "soonest_s": 9.0, "longest_s": 1.0}]
)
def test_a_pace_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Misuse, match="pace steering"):
        Steering(**wrong)


def test_a_lease_is_out_for_some_time() -> None:
    with pytest.raises(Misuse, match="more than 0 s"):
        Steering(per_s=1.0, lap_s=0.0)


def test_a_draw_is_below_one() -> None:
    with pytest.raises(Misuse, match=r"\[0, 1\)"):
        Steering(per_s=1.0).appoint("a", now_s=0.0, draw=1.0)
