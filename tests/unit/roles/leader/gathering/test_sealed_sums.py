"""Which members the sums of aggregators are of: all parts of one set, or they are of no use."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.roles.leader.gathering.sealed_sums import GroupSums, WordsSum, counted
from shoal.wire.messages import ReduceResult

TYPE = np.dtype("<u4")


def a_sum(*leases: int) -> WordsSum:
    return WordsSum(frozenset(leases), np.zeros(1, dtype=TYPE))


def test_in_a_tree_each_sum_stands_for_itself() -> None:
    hops = {1: ("x",), 2: ("x",), 3: ("y",), 4: ("z",)}
    whole, used = counted(hops, {"x": a_sum(1, 2), "y": a_sum(3)})
    assert whole == {1, 2, 3}
    assert set(used) == {"x", "y"}


def test_in_a_shard_every_part_is_of_the_same_members_or_none_is_used() -> None:
    hops = dict.fromkeys((1, 2, 3), ("x", "y"))
    assert counted(hops, {"x": a_sum(1, 2, 3), "y": a_sum(1, 2, 3)})[0] == {1, 2, 3}
    # One part lacks a piece: no word of it can be taken out of the other part again.
    assert counted(hops, {"x": a_sum(1, 2, 3), "y": a_sum(1, 2)}) == (frozenset(), {})
    assert counted(hops, {"x": a_sum(1, 2, 3)}) == (frozenset(), {})
    # Both lack the same one: then it is not in the sum.
    assert counted(hops, {"x": a_sum(1, 2), "y": a_sum(1, 2)})[0] == {1, 2}


def result(leases: tuple[int, ...], **tensors: np.ndarray) -> ReduceResult:
    return ReduceResult(job="job", term=1, formation=1, version=2, leases=leases, group=4, tensors=tensors)


def sums() -> GroupSums:
    parts = {"x": slice(0, 2), "y": slice(2, 3)}
    made = GroupSums(1, parts, {1: ("x", "y"), 2: ("x", "y")})
    assert made.ask([1, 2], now_s=5.0) == {"x": (1, 2), "y": (1, 2)}
    return made


@pytest.mark.parametrize(
    "told",
    [
        result(()),
        result((1, 3), words=np.zeros(2, dtype=TYPE)),
        result((1, 1), words=np.zeros(2, dtype=TYPE)),
        result((1, 2), words=np.zeros(3, dtype=TYPE)),
        result((1, 2), words=np.zeros(2, dtype="<u2")),
        result((1, 2), mean=np.zeros(2, dtype=np.float32)),
        result((1, 2), words=np.zeros(2, dtype=TYPE), mean=np.zeros(2, dtype=np.float32)),
    ],
)
def test_what_is_no_sum_that_was_asked_for_is_refused(told: ReduceResult) -> None:
    with pytest.raises(PeerViolation):
        sums().on_reduce_result("x", told, TYPE)


def test_parts_are_added_where_they_belong() -> None:
    made, total = sums(), np.array([1, 1, 1], dtype=TYPE)
    made.on_reduce_result("x", result((1, 2), words=np.array([10, 20], dtype=TYPE)), TYPE)
    assert made.awaited == ["y"]
    made.on_reduce_result("y", result((1, 2), words=np.array([30], dtype=TYPE)), TYPE)
    assert made.awaited == []
    assert made.settle(total) == {1, 2}
    assert total.tolist() == [11, 21, 31]


def test_it_says_whose_words_an_aggregator_lacks_that_answered() -> None:
    made = sums()
    made.on_reduce_result("x", result((1,), words=np.array([10, 20], dtype=TYPE)), TYPE)
    made.lost.add("y")
    assert made.lacking == {2}


def test_a_part_that_does_not_come_spoils_the_others_and_not_what_came_straight() -> None:
    made, total = sums(), np.array([1, 1, 1], dtype=TYPE)
    made.on_reduce_result("x", result((1, 2), words=np.array([10, 20], dtype=TYPE)), TYPE)
    made.lost.add("y")
    assert made.settle(total) == frozenset()
    assert total.tolist() == [1, 1, 1]
