"""Schedules played offline, the best of all, and how early one can end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.chain_bound import lower_bound_s, lower_bound_unequal_s
from benchmarks.chain_exact import exact_equal, exact_schedule
from benchmarks.chain_links import EqualLinks, TableLinks
from benchmarks.chain_schedule import (
    Energy,
    follow,
    play,
    ring,
    ring_pairs,
    spent_variance,
    tree,
    tree_levels,
)
from shoal.errors import Misuse
from shoal.flock.pairing.ahead import LookAhead
from shoal.flock.pairing.exact import exact
from shoal.flock.pairing.links import Links
from shoal.flock.pairing.pairs import EarliestTwo, Holder, Pair

ONE_S = EqualLinks(each_s=1.0)


def devices(*ready_s: float) -> list[Holder]:
    return [Holder(name=f"d{place}", ready_s=each) for place, each in enumerate(ready_s)]


def test_four_at_once_take_two_merges_and_a_late_one_is_left_for_last() -> None:
    assert play(EarliestTwo(), devices(0, 0, 0, 0), links=ONE_S).makespan_s == 2.0
    late = play(EarliestTwo(), devices(0, 5, 0, 0), links=ONE_S)
    # Three are one by second 2; the fourth is ready at 5.
    assert late.makespan_s == 6.0
    assert [(merge.begin_s, merge.end_s) for merge in late.merges] == [(0.0, 1.0), (1.0, 2.0), (5.0, 6.0)]
    assert "d1" in late.pairs[-1]


def test_one_device_is_done_when_it_is_ready() -> None:
    for schedule in (
        play(EarliestTwo(), devices(3), links=ONE_S),
        tree(devices(3), links=ONE_S),
        ring(devices(3), links=ONE_S, returns=True),
        exact_schedule(devices(3), links=ONE_S),
    ):
        assert (schedule.makespan_s, schedule.root, schedule.merges) == (3.0, "d0", ())


def test_who_pays_what() -> None:
    energy = Energy(send_watts=3.0, receive_watts=2.0, add_joules=0.5)
    begun = [Holder(name="a", ready_s=0.0, spent_joules=10.0), Holder(name="b", ready_s=0.0, spent_joules=1.0)]
    schedule = play(EarliestTwo(), begun, links=EqualLinks(each_s=4.0), energy=energy)
    assert schedule.root == "b"
    assert schedule.spent_joules == {"a": 10.0 + 12.0, "b": 1.0 + 8.5}
    assert spent_variance(schedule) == pytest.approx(((22 - 15.75) ** 2 + (9.5 - 15.75) ** 2) / 2)


def test_two_hundred_rounds_share_the_energy() -> None:
    spent = dict.fromkeys([f"d{place}" for place in range(8)], 0.0)
    for _ in range(200):
        standing = [Holder(name=name, ready_s=0.0, spent_joules=joules) for name, joules in spent.items()]
        schedule = play(EarliestTwo(), standing, links=ONE_S)
        spent = dict(schedule.spent_joules)
    # Each merge is two joules: 7 a round, 14 x 200 / 8 a device. One more or less each remains.
    assert sum(spent.values()) == 2800.0
    assert spent_variance(schedule) <= 1.0


def test_the_tree_and_the_ring_by_hand() -> None:
    assert tree_levels("abcde") == [[("b", "a"), ("d", "c")], [("c", "a")], [("e", "a")]]
    assert ring_pairs("abc") == [("a", "b"), ("b", "c")]
    assert ring_pairs("abc", returns=True) == [("a", "b"), ("b", "c"), ("c", "a")]
    ready = devices(0, 0, 0, 5)
    assert tree(ready, links=ONE_S).makespan_s == 7.0
    assert ring(devices(5, 0, 0, 0), links=ONE_S).makespan_s == 8.0
    assert ring(devices(0, 0, 0, 5), links=ONE_S).makespan_s == 6.0
    assert ring(devices(0, 0, 0, 5), links=ONE_S, returns=True).makespan_s == 7.0
    assert tree(devices(0, 0, 0, 0, 0, 3, 0, 0), links=ONE_S).makespan_s == 6.0


def test_in_step_a_level_waits_for_the_one_before() -> None:
    names = [f"d{place}" for place in range(8)]
    seconds = np.ones((8, 8))
    seconds[7, 6] = 4.0
    links = TableLinks(names=names, seconds=seconds)
    begins = {merge.sender: merge.begin_s for merge in tree(devices(*[0.0] * 8), links=links).merges}
    in_step = {merge.sender: merge.begin_s for merge in tree(devices(*[0.0] * 8), links=links, in_step=True).merges}
    assert (begins["d2"], in_step["d2"]) == (1.0, 4.0)


def test_a_fixed_tree_costs_its_root_most() -> None:
    schedule = tree(devices(*[0.0] * 8), links=ONE_S)
    # Receives 3, 0, 1, 0, 2, 0, 1, 0 and all but the root send once: 3, 1, 2, 1, 3, 1, 2, 1.
    assert list(schedule.spent_joules.values()) == [3, 1, 2, 1, 3, 1, 2, 1]
    assert spent_variance(schedule) == pytest.approx(0.6875)


class Lazy:
    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        return None


class Confused:
    def next_pair(
        self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
    ) -> Pair | None:
        return Pair(sender="d0", receiver="nobody", reason="")


def test_rules_and_plans_that_cannot_be() -> None:
    with pytest.raises(Misuse, match="left 2 devices"):
        play(Lazy(), devices(0, 0), links=ONE_S)
    with pytest.raises(Misuse, match="two that are free"):
        play(Confused(), devices(0, 0), links=ONE_S)
    with pytest.raises(Misuse, match="same name"):
        play(EarliestTwo(), [*devices(0), *devices(1)], links=ONE_S)
    with pytest.raises(Misuse, match="never becomes ready"):
        play(EarliestTwo(), devices(0, float("inf")), links=ONE_S)
    with pytest.raises(Misuse, match="leaves out d2"):
        follow([("d0", "d1")], devices(0, 0, 0), links=ONE_S)
    with pytest.raises(Misuse, match="d0 has sent before"):
        follow([("d0", "d1"), ("d0", "d2")], devices(0, 0, 0), links=ONE_S)
    with pytest.raises(Misuse, match="d0 has sent before"):
        follow([("d0", "d1"), ("d2", "d0"), ("d1", "d3")], devices(0, 0, 0, 0), links=ONE_S)
    with pytest.raises(Misuse):
        play(EarliestTwo(), [], links=ONE_S)


def test_a_rule_is_told_of_the_future_only_if_it_shall_be() -> None:
    heard: list[float] = []

    class Listening:
        def next_pair(
            self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
        ) -> Pair | None:
            heard.extend(each.ready_s for each in coming)
            return EarliestTwo().next_pair(free)

    play(Listening(), devices(0, 3), links=ONE_S)
    assert heard[0] == float("inf")
    heard.clear()
    play(Listening(), devices(0, 3), links=ONE_S, foretold=True)
    assert heard[0] == 3.0
    heard.clear()
    # A merge that is under way is always known to end.
    play(Listening(), devices(0, 0, 0.5), links=ONE_S)
    assert heard[:3] == [float("inf"), float("inf"), 1.0]


def test_a_rule_sees_what_a_merge_has_cost_and_what_it_brought() -> None:
    seen: dict[str, Holder] = {}

    class Watching:
        def next_pair(
            self, free: Sequence[Holder], *, links: Links | None = None, coming: Sequence[Holder] = ()
        ) -> Pair | None:
            seen.update((each.name, each) for each in free)
            return EarliestTwo().next_pair(free)

    begun = [Holder(name="a", ready_s=0.0, weight=3.0), Holder(name="b", ready_s=0.0, spent_joules=1.0, weight=4.0)]
    play(Watching(), begun, links=EqualLinks(each_s=2.0))
    assert seen["a"] == Holder(name="a", ready_s=2.0, spent_joules=2.0, weight=7.0)


# The best of all -----------------------------------------------------------------------------------------


def test_the_best_for_three_by_hand() -> None:
    # From a to b 1, b to a 5, to and from c 2 and 3. Best: a → b (1), then b → c or c → b: (1) + 2.
    seconds = np.array([[0.0, 1.0, 2.0], [5.0, 0.0, 2.0], [3.0, 3.0, 0.0]])
    best = exact([0.0, 0.0, 0.0], merge_s=seconds)
    assert best.makespan_s == 3.0
    assert best.pairs == ((0, 1), (1, 2))
    # If a comes at 10, the others merge before: b → c until 2, then a → c 2, or a → b 1 after c → b until 3.
    best = exact([10.0, 0.0, 0.0], merge_s=seconds)
    assert (best.makespan_s, best.pairs) == (11.0, ((2, 1), (0, 1)))


def test_for_equal_merges_both_programs_agree() -> None:
    ready = [0.0, 3.5, 1.0, 0.25, 7.0, 2.0]
    one, other = exact_equal(ready, merge_s=2.0), exact(ready, merge_s=np.full((6, 6), 2.0))
    assert one.makespan_s == other.makespan_s
    for best in (one, other):
        pairs = [(f"d{sender}", f"d{receiver}") for sender, receiver in best.pairs]
        assert follow(pairs, devices(*ready), links=EqualLinks(each_s=2.0)).makespan_s == best.makespan_s


def test_the_best_of_all_is_for_few() -> None:
    with pytest.raises(Misuse, match="1 to 12"):
        exact_equal([0.0] * 13, merge_s=1.0)
    with pytest.raises(Misuse, match="one row and column"):
        exact([0.0, 1.0], merge_s=np.zeros((3, 3)))
    with pytest.raises(Misuse, match="when each device is ready"):
        exact_equal([0.0, float("inf")], merge_s=1.0)


def test_looking_ahead_with_everything_foretold_is_the_best() -> None:
    chance = np.random.default_rng(7)
    for count in (3, 5, 7):
        ready = devices(*chance.uniform(0, 4, count))
        links = TableLinks(names=[each.name for each in ready], seconds=chance.uniform(1, 4, (count, count)))
        # Nobody's energy is looked at, so nothing is given up for it.
        played = play(LookAhead(alike_share=0.0), ready, links=links, foretold=True)
        assert played.makespan_s == pytest.approx(exact_schedule(ready, links=links).makespan_s)


# The bound -----------------------------------------------------------------------------------------------


def test_the_bound_by_hand() -> None:
    assert lower_bound_s([0.0] * 8, merge_s=2.0) == pytest.approx(6.0)
    # log2(2^0 + 2^1 + 2^1) = log2 5.
    assert lower_bound_s([0.0, 1.0, 1.0], merge_s=1.0) == pytest.approx(2.321928)
    assert lower_bound_s([0.0, 1e9], merge_s=1e-3) == pytest.approx(1e9), "no overflow"
    assert lower_bound_s([4.0], merge_s=1.0) == 4.0
    assert lower_bound_s([4.0, 1.0], merge_s=0.0) == 4.0


def test_the_bound_for_links_that_differ() -> None:
    seconds = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 8.0], [9.0, 7.0, 0.0]])
    # c cannot be done before its shortest, 7 s; three of at least 1 s take log2 3.
    assert lower_bound_unequal_s([0.0, 0.0, 0.0], merge_s=seconds) == 7.0
    assert lower_bound_unequal_s([0.0, 0.0, 0.0], merge_s=np.ones((3, 3))) == pytest.approx(np.log2(3))
    assert lower_bound_unequal_s([2.0], merge_s=np.zeros((1, 1))) == 2.0


def test_bounds_that_cannot_be() -> None:
    with pytest.raises(Misuse):
        lower_bound_s([], merge_s=1.0)
    with pytest.raises(Misuse):
        lower_bound_s([0.0], merge_s=-1.0)
    with pytest.raises(Misuse):
        lower_bound_s([float("inf")], merge_s=1.0)
