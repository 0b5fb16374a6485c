"""Who merges next, and who of the two sends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.chain_links import EqualLinks, NodeLinks, TableLinks
from shoal.errors import Misuse
from shoal.flock.pairing.ahead import DEVICES_PLANNED, LookAhead
from shoal.flock.pairing.links import table_s
from shoal.flock.pairing.pairs import EarliestTwo, Holder, Pair, directed, earliest_two
from shoal.topology.cluster import ClusterNode

EARLIEST = EarliestTwo()


def at(name: str, ready_s: float, spent: float = 0.0) -> Holder:
    return Holder(name=name, ready_s=ready_s, spent_joules=spent)


def who(pair: Pair | None) -> tuple[str, str]:
    assert pair is not None
    return pair.sender, pair.receiver


def test_one_alone_waits() -> None:
    assert EARLIEST.next_pair([]) is None
    assert EARLIEST.next_pair([at("a", 1.0)], coming=[at("b", 2.0)]) is None


def test_the_two_that_were_free_first_wherever_they_stand_in_the_list() -> None:
    free = [at("a", 5.0), at("b", 2.0), at("c", 9.0), at("d", 1.0)]
    assert {each.name for each in earliest_two(free)} == {"b", "d"}
    assert {each.name for each in earliest_two(free[::-1])} == {"b", "d"}


def test_who_has_spent_more_sends() -> None:
    pair = EARLIEST.next_pair([at("a", 1.0, 3.0), at("b", 2.0, 7.0)])
    assert who(pair) == ("b", "a")
    assert pair is not None
    assert pair.reason == "b has spent more: 7 J against 3 J"
    assert who(EARLIEST.next_pair([at("a", 1.0, 8.0), at("b", 2.0, 7.0)])) == ("a", "b")


def test_who_has_spent_the_same_sends_by_name() -> None:
    pair = EARLIEST.next_pair([at("b", 1.0, 3.0), at("a", 2.0, 3.0)])
    assert who(pair) == ("a", "b")
    assert pair is not None
    assert "by name" in pair.reason


def test_of_several_free_at_once_the_least_spent_meets_the_most_spent() -> None:
    free = [at("a", 1.0, 5.0), at("b", 1.0, 2.0), at("c", 1.0, 9.0), at("d", 1.0, 4.0), at("e", 0.5, 0.0)]
    assert who(EARLIEST.next_pair(free[:4])) == ("c", "b")
    # e was first, alone; of those after it, the one furthest from it.
    assert who(EARLIEST.next_pair(free)) == ("c", "e")


def test_equal_links_leave_it_to_the_energy() -> None:
    free = [at("a", 1.0, 3.0), at("b", 2.0, 7.0)]
    assert who(EARLIEST.next_pair(free, links=EqualLinks(each_s=2.0))) == ("b", "a")


def test_where_links_differ_the_better_placed_goes_on() -> None:
    # a → b takes 1 s, b → a 3 s: a sends, though b has spent more.
    links = TableLinks(names=["a", "b"], seconds=np.array([[0.0, 1.0], [3.0, 0.0]]))
    pair = directed(at("a", 0.0, 1.0), at("b", 0.0, 9.0), links=links)
    assert who(pair) == ("a", "b")
    assert pair.reason == "b has the faster links for its next merge: 1 s against 3 s"


def test_a_small_difference_does_not_stand_against_energy() -> None:
    links = TableLinks(names=["a", "b"], seconds=np.array([[0.0, 1.0], [1.04, 0.0]]))
    assert who(directed(at("a", 0.0, 1.0), at("b", 0.0, 9.0), links=links)) == ("b", "a")


def test_the_slow_device_retires_for_the_sake_of_the_next_merge() -> None:
    # Between a and b it takes the same both ways; c, who is still to come, is far from a.
    seconds = np.array([[0.0, 2.0, 4.0], [2.0, 0.0, 1.0], [4.0, 1.0, 0.0]])
    links = TableLinks(names=["a", "b", "c"], seconds=seconds)
    free = [at("a", 0.0), at("b", 0.0, 9.0)]
    assert who(EARLIEST.next_pair(free, links=links)) == ("b", "a"), "of c nothing is known"
    assert who(EARLIEST.next_pair(free, links=links, coming=[at("c", math.inf)])) == ("a", "b")


def test_links_from_nodes() -> None:
    nodes = {
        "a": ClusterNode(name="a", up_bytes_per_s=10.0, down_bytes_per_s=100.0, latency_s=0.25),
        "b": ClusterNode(name="b", up_bytes_per_s=50.0, down_bytes_per_s=20.0, latency_s=0.5),
    }
    links = NodeLinks(nodes=nodes, size_bytes=100.0, add_s=1.0)
    # 100 bytes at min(10, 20) a second, 0.75 s of delay, 1 s of adding; back at min(50, 100).
    assert links.merge_s("a", "b") == pytest.approx(11.75)
    assert links.merge_s("b", "a") == pytest.approx(3.75)
    assert table_s(["b", "a"], links) == pytest.approx(np.array([[0.0, 3.75], [11.75, 0.0]]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"ready_s": math.nan},
        {"spent_joules": -1.0},
        {"spent_joules": math.inf},
        {"weight": 0.0},
    ],
)
def test_a_standing_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        Holder(**({"name": "a", "ready_s": 0.0} | wrong))  # type: ignore[arg-type]


def test_links_that_cannot_be() -> None:
    with pytest.raises(Misuse):
        EqualLinks(each_s=-1.0)
    with pytest.raises(Misuse):
        TableLinks(names=["a", "b"], seconds=np.zeros((3, 3)))
    with pytest.raises(Misuse):
        TableLinks(names=["a"], seconds=np.array([[math.inf]]))


# Looking ahead -------------------------------------------------------------------------------------------

FAR = TableLinks(
    # c is 4 s from everyone but d; all others are 1 s apart.
    names=["a", "b", "c", "d"],
    seconds=np.array([[0, 1, 4, 1], [1, 0, 4, 1], [4, 4, 0, 1], [1, 1, 1, 0]], dtype=np.float64),
)


def test_a_plan_pairs_those_that_suit_each_other() -> None:
    ahead = LookAhead()
    free = [at("a", 0.0), at("b", 0.0), at("c", 0.0), at("d", 0.0)]
    first = ahead.next_pair(free, links=FAR)
    second = ahead.next_pair([each for each in free if each.name not in who(first)], links=FAR, coming=[])
    assert {frozenset(who(first)), frozenset(who(second))} == {frozenset("ab"), frozenset("cd")}
    assert first is not None
    assert first.reason.startswith("begins the best plan for 4 devices, 2 s after")


def test_a_plan_waits_for_one_that_is_foretold() -> None:
    # d comes in half a second and is 1 s from everyone: a and b merge, c waits for d, rather than for 4 s with one.
    ahead = LookAhead()
    assert ahead.next_pair([at("a", 0.0), at("c", 0.0)], links=FAR, coming=[at("d", 0.5)]) is None


def test_nobody_waits_for_one_that_may_never_come() -> None:
    ahead = LookAhead()
    free = [at("a", 0.0), at("c", 0.0)]
    assert ahead.next_pair(free, links=FAR, coming=[at("d", math.inf)]) is not None
    # While b is under way in a merge, a guess may make them wait: they are asked again when it is done.
    assert ahead.next_pair(free, links=FAR, coming=[at("d", math.inf), at("b", 0.5)]) is None
    # One that was foretold and is late is not waited for either.
    assert ahead.next_pair([at("a", 0.0), at("c", 9.0)], links=FAR, coming=[at("d", 0.5)]) is not None


def test_on_equal_links_it_is_the_earliest_two() -> None:
    free = [at("a", 1.0, 3.0), at("b", 2.0, 7.0), at("c", 4.0, 0.0)]
    for links in (None, EqualLinks(each_s=1.0)):
        assert LookAhead().next_pair(free, links=links) == EARLIEST.next_pair(free, links=links)


def test_so_many_devices_are_not_planned_for() -> None:
    names = [f"d{place:03}" for place in range(DEVICES_PLANNED + 1)]
    seconds = np.random.default_rng(1).uniform(1, 4, (len(names), len(names)))
    links = TableLinks(names=names, seconds=seconds)
    free = [at(name, float(place)) for place, name in enumerate(names)]
    assert LookAhead().next_pair(free, links=links) == EARLIEST.next_pair(free, links=links)


def test_fairness_costs_a_plan_no_more_than_its_share() -> None:
    # 2 % longer one way than the other: who has spent more sends; 20 % longer: it does not.
    for longer, expected in ((1.02, ("b", "a")), (1.2, ("a", "b"))):
        seconds = np.array([[0.0, 1.0, 2.0], [longer, 0.0, 2.0], [2.0, 2.0, 0.0]])
        links = TableLinks(names=["a", "b", "c"], seconds=seconds)
        coming = [at("c", 0.9, 50.0)]
        assert who(LookAhead().next_pair([at("a", 0.0), at("b", 0.0, 99.0)], links=links, coming=coming)) == expected


def test_a_window_that_cannot_be() -> None:
    for window in (1, 13):
        with pytest.raises(Misuse):
            LookAhead(window=window)
