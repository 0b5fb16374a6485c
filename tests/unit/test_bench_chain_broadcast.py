"""How the root gives the model back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.chain_broadcast import (
    binomial,
    compare,
    richest_first,
    rounds_needed,
    sends,
    soonest,
    told_s,
)
from benchmarks.chain_links import EqualLinks, TableLinks
from shoal.errors import Misuse
from shoal.flock.pairing.pairs import Holder
from shoal.topology.cluster import ClusterNode


def names(count: int) -> list[str]:
    return [f"d{place:02}" for place in range(count)]


def test_eight_are_told_in_three_rounds() -> None:
    assert binomial("r", "abcdefg") == [
        [("r", "a")],
        [("r", "b"), ("a", "c")],
        [("r", "d"), ("a", "e"), ("b", "f"), ("c", "g")],
    ]
    assert sends(binomial("r", "abcdefg")) == {"r": 3, "a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
def test_the_rounds_are_log2_and_everyone_is_told_once(count: int) -> None:
    others = names(count)[1:]
    rounds = binomial("d00", others)
    assert len(rounds) == rounds_needed(count) == math.ceil(math.log2(count))
    assert [receiver for one in rounds for _, receiver in one] == others
    told = told_s(rounds, links=EqualLinks(each_s=2.0))
    assert max(told.values(), default=0.0) == 2.0 * len(rounds)


def test_the_richest_hand_it_on_most() -> None:
    spent = {"a": 9.0, "b": 1.0, "c": 5.0, "d": 2.0, "e": 7.0, "f": 3.0, "g": 8.0, "r": 0.0}
    order = richest_first([Holder(name=name, ready_s=0.0, spent_joules=each) for name, each in spent.items()], root="r")
    assert order == ["b", "d", "f", "c", "e", "g", "a"]
    assert sends(binomial("r", order)) == {"r": 3, "b": 2, "d": 1, "f": 1}


def test_with_unequal_links_nobody_waits_for_a_round_to_end() -> None:
    # r → a takes 3; r then tells b in 1, while a tells c in 1.
    seconds = np.ones((4, 4))
    seconds[0, 1] = 3.0
    links = TableLinks(names=["r", "a", "b", "c"], seconds=seconds)
    assert told_s(binomial("r", "abc"), links=links) == {"a": 3.0, "b": 4.0, "c": 4.0}


def test_the_next_is_told_by_whoever_is_soonest() -> None:
    # r is slow to all but a: a tells everyone else.
    links = TableLinks(
        names=["r", "a", "b", "c"],
        seconds=np.array([[0, 1, 9, 9], [1, 0, 1, 1], [9, 1, 0, 9], [9, 1, 9, 0]], dtype=np.float64),
    )
    order = soonest("r", "abc", links=links)
    assert order == [[("r", "a")], [("a", "b")], [("a", "c")]]
    assert max(told_s(order, links=links).values()) == 3.0
    assert max(told_s(binomial("r", "abc"), links=links).values()) == 10.0


@pytest.mark.parametrize("count", [2, 5, 8, 13])
def test_on_equal_links_soonest_is_binomial(count: int) -> None:
    links, others = EqualLinks(each_s=1.0), names(count)[1:]
    plain = [send for one in binomial("d00", others) for send in one]
    assert [send for (send,) in soonest("d00", others, links=links)] == plain


def test_a_broadcast_that_cannot_be() -> None:
    with pytest.raises(Misuse):
        binomial("a", "abc")
    with pytest.raises(Misuse):
        binomial("a", "bcb")


def test_against_multicast_and_all_gather() -> None:
    # 8 nodes of 2 bytes a second, 8 bytes: a send takes 4 s. Binomial 3 x 4, one uplink 7 x 4; of shares each node
    # sends 7 eighths and receives as much: 7 x 1 byte.
    nodes = {name: ClusterNode(name=name, up_bytes_per_s=2.0, down_bytes_per_s=2.0) for name in names(8)}
    found = compare("d00", names(8)[1:], nodes=nodes, size_bytes=8.0)
    assert found.binomial_s == pytest.approx(12.0)
    assert found.multicast_s == pytest.approx(28.0)
    assert found.all_gather_s == pytest.approx(3.5)


def test_nobody_hands_on_what_it_does_not_have_yet() -> None:
    nodes = {name: ClusterNode(name=name, up_bytes_per_s=4.0, down_bytes_per_s=4.0) for name in "rab"}
    nodes["c"] = ClusterNode(name="c", up_bytes_per_s=4.0, down_bytes_per_s=1.0)
    # a has it after 2 s, and c takes 8 s to get it from there.
    assert compare("r", "abc", nodes=nodes, size_bytes=8.0).binomial_s == pytest.approx(10.0)


def test_on_shared_air_a_multicast_is_as_good() -> None:
    nodes = {name: ClusterNode(name=name, up_bytes_per_s=2.0, down_bytes_per_s=2.0, medium="air") for name in names(8)}
    found = compare("d00", names(8)[1:], nodes=nodes, size_bytes=8.0)
    # The air carries seven models, twice each: up to the access point and down.
    assert found.binomial_s == pytest.approx(found.multicast_s) == pytest.approx(56.0)
    assert found.all_gather_s == pytest.approx(56.0)


def test_alone_there_is_nobody_to_tell() -> None:
    nodes = {"a": ClusterNode(name="a", up_bytes_per_s=1.0, down_bytes_per_s=1.0)}
    found = compare("a", [], nodes=nodes, size_bytes=8.0)
    assert (found.binomial_s, found.multicast_s, found.all_gather_s) == (0.0, 0.0, 0.0)
