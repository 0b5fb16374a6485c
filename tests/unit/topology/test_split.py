"""Who leads whom in a tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.split import Group, Tree, aggregators_about, split


def node(name: str, rate: float = 10.0, *, compute_s: float = 1.0, medium: str = "") -> ClusterNode:
    return ClusterNode(name=name, up_bytes_per_s=rate, down_bytes_per_s=rate, compute_s=compute_s, medium=medium)


def cluster(count: int, *, leader: float = 10.0) -> Cluster:
    return Cluster(leader=node("home", leader), workers=tuple(node(f"w{i:02}") for i in range(count)))


def test_about_the_root_of_the_workers() -> None:
    assert [aggregators_about(cluster(n)) for n in (1, 4, 9, 16, 64)] == [1, 2, 3, 4, 8]


def test_a_wider_leader_has_more_aggregators_and_a_narrower_one_fewer() -> None:
    # √(16 · 4) and √(16 / 4).
    assert aggregators_about(cluster(16, leader=40.0)) == 8
    assert aggregators_about(cluster(16, leader=2.5)) == 2
    assert aggregators_about(cluster(16, leader=1e9)) == 16


def test_everyone_is_in_one_group_and_groups_are_even() -> None:
    tree = split(cluster(16))
    assert tree.notation == "1-4-16"
    assert [len(group.members) for group in tree.groups] == [3, 3, 3, 3]
    named = [name for group in tree.groups for name in (group.aggregator, *group.members)]
    assert sorted(named) == [f"w{i:02}" for i in range(16)]
    assert tree.reason == ("4 aggregators (about √16 of the workers), those with the best links: w00, w01, w02, w03")


def test_the_best_links_lead() -> None:
    workers = (node("a", 1.0), node("b", 5.0), node("c", 3.0), node("d", 4.0))
    tree = split(Cluster(leader=node("home"), workers=workers), aggregators=2)
    assert [group.aggregator for group in tree.groups] == ["b", "d"]


def test_a_wider_aggregator_serves_more() -> None:
    workers = (node("wide", 30.0), node("plain", 10.0), *(node(f"w{i}", 1.0) for i in range(8)))
    tree = split(Cluster(leader=node("home"), workers=workers), aggregators=2)
    assert [(group.aggregator, len(group.members)) for group in tree.groups] == [("wide", 6), ("plain", 2)]


def test_a_leader_that_works_leads_a_group_and_who_is_on_air_leads_last() -> None:
    workers = (node("a", 2.0), node("air", 50.0, medium="ap"), node("b", 3.0), node("c", 4.0))
    tree = split(Cluster(leader=workers[0], workers=workers), aggregators=3)
    assert [group.aggregator for group in tree.groups] == ["a", "c", "b"]


def test_slow_ones_are_spread_or_put_together() -> None:
    slow = {"w05", "w06", "w07"}
    workers = tuple(node(f"w{i:02}", compute_s=4.0 if f"w{i:02}" in slow else 1.0) for i in range(8))
    together = split(Cluster(leader=node("home"), workers=workers), aggregators=2, like_speeds_together=True)
    assert together.groups[1] == Group(aggregator="w01", members=("w05", "w06", "w07"))
    spread = split(Cluster(leader=node("home"), workers=workers), aggregators=2)
    assert sorted(len(slow & set(group.members)) for group in spread.groups) == [1, 2]


def test_there_are_not_more_aggregators_than_workers() -> None:
    for count in (0, 5):
        with pytest.raises(Misuse, match="each also works"):
            split(cluster(4), aggregators=count)


def test_a_group_may_be_an_aggregator_alone() -> None:
    tree = split(cluster(2), aggregators=2)
    assert tree == Tree(
        groups=(Group(aggregator="w00", members=()), Group(aggregator="w01", members=())), reason=tree.reason
    )
    assert tree.notation == "1-2-2"


def with_hubs(count: int, *rates: float, leader: float = 10.0) -> Cluster:
    hubs = tuple(node(f"h{i}", rate, compute_s=0.0) for i, rate in enumerate(rates))
    return replace(cluster(count, leader=leader), hubs=hubs)


def test_hubs_lead_before_workers_and_every_worker_is_under_one() -> None:
    tree = split(with_hubs(16, 10.0, 10.0))
    assert [(group.aggregator, group.is_hub, len(group.members)) for group in tree.groups] == [
        ("h0", True, 8),
        ("h1", True, 8),
    ]
    assert (tree.workers, tree.hubs, tree.notation) == (16, 2, "1-2-16")
    assert tree.reason == "2 aggregators (hubs), those with the best links: h0, h1"


def test_hubs_on_wide_links_are_fewer_and_a_wider_one_serves_more() -> None:
    # √(16 · 10 / 160) = 1: one hub has handed the model on before a second would have it.
    assert aggregators_about(with_hubs(16, 160.0, 160.0, 160.0)) == 1
    tree = split(with_hubs(16, 30.0, 10.0), aggregators=2)
    assert [(group.aggregator, len(group.members)) for group in tree.groups] == [("h0", 12), ("h1", 4)]


def test_where_more_are_asked_for_than_there_are_hubs_workers_are_the_rest() -> None:
    tree = split(with_hubs(8, 10.0), aggregators=3)
    assert [(group.aggregator, group.is_hub) for group in tree.groups] == [("h0", True), ("w00", False), ("w01", False)]
    assert tree.workers == 8
    assert "1 of them hubs" in tree.reason


def test_a_hub_too_narrow_for_a_worker_sums_up_nothing() -> None:
    tree = split(with_hubs(3, 100.0, 0.1), aggregators=2)
    assert [group.aggregator for group in tree.groups] == ["h0"]


def test_without_hubs_a_tree_is_what_it_was() -> None:
    assert split(with_hubs(16)) == split(cluster(16))
