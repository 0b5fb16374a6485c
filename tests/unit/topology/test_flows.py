"""When transfers that share links are done. Sizes and rates are small numbers: the times can be read off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.topology.cluster import ClusterNode
from shoal.topology.flows import FlowTransfer, fair_rates, finish_times_s


def nodes(**rates: tuple[float, float]) -> dict[str, ClusterNode]:
    return {
        name: ClusterNode(name=name, up_bytes_per_s=up, down_bytes_per_s=down) for name, (up, down) in rates.items()
    }


def send(source: str, target: str, size: float = 10.0, *after: int, wait_s: float = 0.0) -> FlowTransfer:
    return FlowTransfer(source=source, target=target, size_bytes=size, after=after, wait_s=wait_s)


def test_one_transfer_is_as_fast_as_its_narrowest_link() -> None:
    assert finish_times_s([send("a", "b")], nodes(a=(5, 5), b=(5, 2)), hold_s=0.0) == pytest.approx([5.0])


def test_two_at_once_share_the_link_and_end_together() -> None:
    both = [send("a", "b"), send("a", "c")]
    assert finish_times_s(both, nodes(a=(5, 5), b=(9, 9), c=(9, 9)), hold_s=0.0) == pytest.approx([4.0, 4.0])


def test_in_turn_the_first_is_done_in_half_the_time() -> None:
    both = [send("a", "b"), send("a", "c")]
    assert finish_times_s(both, nodes(a=(5, 5), b=(9, 9), c=(9, 9)), hold_s=math.inf) == pytest.approx([2.0, 4.0])


def test_a_turn_is_passed_on_after_a_moment() -> None:
    both = [send("a", "b"), send("a", "c")]
    # 1 s alone (5 of 10 bytes), then both at 2.5: the first ends at 3, the second has 5 left and ends at 4.
    assert finish_times_s(both, nodes(a=(5, 5), b=(9, 9), c=(9, 9)), hold_s=1.0) == pytest.approx([3.0, 4.0])


def test_what_a_slow_receiver_cannot_take_others_get() -> None:
    both = [send("a", "slow"), send("a", "b")]
    # 1 of 5 goes to the slow one, 4 to the other.
    assert finish_times_s(both, nodes(a=(5, 5), slow=(1, 1), b=(9, 9)), hold_s=0.0) == pytest.approx([10.0, 2.5])


def test_both_directions_of_a_link_are_free_of_each_other() -> None:
    both = [send("a", "b"), send("b", "a")]
    assert finish_times_s(both, nodes(a=(5, 5), b=(5, 5)), hold_s=0.0) == pytest.approx([2.0, 2.0])


def test_on_shared_air_between_two_stations_every_byte_is_there_twice() -> None:
    air = {n: ClusterNode(name=n, up_bytes_per_s=5, down_bytes_per_s=5, medium="ap") for n in ("a", "b")}
    wired = nodes(home=(50, 50))
    assert finish_times_s([send("a", "b")], air, hold_s=0.0) == pytest.approx([4.0])
    assert finish_times_s([send("a", "home")], air | wired, hold_s=0.0) == pytest.approx([2.0])
    # There and back share it.
    assert finish_times_s([send("a", "home"), send("home", "b")], air | wired, hold_s=0.0) == pytest.approx([4.0, 4.0])


def test_work_is_a_wait_and_comes_after_what_it_needs() -> None:
    plan = [send("a", "b"), send("b", "b", 0.0, 0, wait_s=3.0), send("b", "a", 10.0, 1)]
    assert finish_times_s(plan, nodes(a=(5, 5), b=(5, 5)), hold_s=0.0) == pytest.approx([2.0, 5.0, 7.0])


def test_the_delay_of_the_way_is_both_ends() -> None:
    a = ClusterNode(name="a", up_bytes_per_s=5, down_bytes_per_s=5, latency_s=0.25)
    b = ClusterNode(name="b", up_bytes_per_s=5, down_bytes_per_s=5, latency_s=0.5)
    assert finish_times_s([send("a", "b")], {"a": a, "b": b}, hold_s=0.0) == pytest.approx([2.75])


def test_nothing_waits_for_what_comes_later() -> None:
    with pytest.raises(Misuse, match="not before it"):
        finish_times_s([send("a", "b", 1.0, 0)], nodes(a=(1, 1), b=(1, 1)), hold_s=0.0)


def test_fair_rates_fill_one_link_after_the_other() -> None:
    # Link 0 carries 6 (cost 1/6 s a byte) and has three transfers; the first also has link 1, which carries 1.
    links = np.array([[0, 1], [0, 2], [0, 2]])
    costs = np.array([[1 / 6, 1.0], [1 / 6, 1 / 100], [1 / 6, 1 / 100]])
    assert fair_rates(links, costs, links_count=3) == pytest.approx([1.0, 2.5, 2.5])
