"""What is known of devices is refused if it makes no sense."""

from __future__ import annotations

import math

import pytest

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, ClusterNode


def node(
    name: str, *, up: float = 10.0, down: float = 10.0, compute_s: float = 0.0, latency_s: float = 0.0
) -> ClusterNode:
    return ClusterNode(name=name, up_bytes_per_s=up, down_bytes_per_s=down, compute_s=compute_s, latency_s=latency_s)


def test_a_link_that_carries_nothing_is_no_link() -> None:
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(Misuse, match="it must be positive"):
            node("a", up=rate)
        with pytest.raises(Misuse, match="it must be positive"):
            node("a", down=rate)


def test_time_does_not_run_backward() -> None:
    with pytest.raises(Misuse, match="0 or more"):
        node("a", compute_s=-1.0)
    with pytest.raises(Misuse, match="0 or more"):
        node("a", latency_s=math.inf)


def test_the_narrow_direction_decides() -> None:
    assert node("a", up=3.0, down=8.0).narrow_bytes_per_s == 3.0
    assert node("a", up=8.0, down=3.0).narrow_bytes_per_s == 3.0


def test_a_cluster_has_workers_with_names_of_their_own() -> None:
    with pytest.raises(Misuse, match="without workers"):
        Cluster(leader=node("home"), workers=())
    with pytest.raises(Misuse, match="same name"):
        Cluster(leader=node("home"), workers=(node("a"), node("a", up=1.0)))


def test_a_leader_may_be_one_of_the_workers() -> None:
    assert Cluster(leader=node("a"), workers=(node("a"), node("b"))).leader_works
    assert not Cluster(leader=node("home"), workers=(node("a"),)).leader_works
    with pytest.raises(Misuse, match="the two descriptions of it differ"):
        Cluster(leader=node("a"), workers=(node("a", up=1.0), node("b")))


def test_the_slowest_trainer_is_a_worker() -> None:
    cluster = Cluster(leader=node("home", compute_s=9.0), workers=(node("a", compute_s=1.0), node("b", compute_s=2.0)))
    assert cluster.slowest_s == 2.0
    assert list(cluster.nodes) == ["home", "a", "b"]
