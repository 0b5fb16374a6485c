"""How long a batch takes in each shape, against EDDL's formulas and figures and against the simulator."""

from __future__ import annotations

import math

import pytest

from benchmarks import eddl_star
from papers.eddl.formulas import star_at_once_s, star_in_turn_s, tree_at_once_s
from shoal.errors import Misuse
from shoal.net.shared_budget import TURN_HOLD_S
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.predict import (
    HOLD_S,
    shard,
    star,
    tree,
)
from shoal.topology.split import Group, Tree, split

PERNET_BYTES = 720_967 * 4


def bytes_per_s(mbit: float) -> float:
    return mbit * 1e6 / 8


def node(name: str, mbit: float, *, compute_s: float = 1.0, latency_s: float = 0.0, medium: str = "") -> ClusterNode:
    rate = bytes_per_s(mbit)
    return ClusterNode(
        name=name,
        up_bytes_per_s=rate,
        down_bytes_per_s=rate,
        compute_s=compute_s,
        latency_s=latency_s,
        medium=medium,
    )


def even(count: int, mbit: float = 100.0, *, leads: bool = False, latency_s: float = 0.0, medium: str = "") -> Cluster:
    workers = tuple(node(f"w{i:02}", mbit, latency_s=latency_s, medium=medium) for i in range(count))
    return Cluster(leader=workers[0] if leads else node("home", mbit, latency_s=latency_s), workers=workers)


def test_the_turn_is_held_as_long_as_the_transport_holds_it() -> None:
    assert HOLD_S == TURN_HOLD_S


@pytest.mark.parametrize("mbit", eddl_star.RATES_MBIT)
def test_a_star_sent_at_once_is_eddls_formula(mbit: float) -> None:
    for count in eddl_star.WORKERS:
        told = star(even(count, mbit), model_bytes=PERNET_BYTES, hold_s=0.0)
        assert told.batch_s == pytest.approx(eddl_star.formula_s(count, mbit))
        assert told.batch_s == pytest.approx(
            star_at_once_s(count, compute_s=1.0, model_bytes=PERNET_BYTES, bytes_per_s=bytes_per_s(mbit))
        )
        assert told.sync_s == pytest.approx(told.batch_s - 1.0)


def test_a_star_sent_strictly_in_turn() -> None:
    for count in (1, 2, 7, 16):
        told = star(even(count), model_bytes=PERNET_BYTES, hold_s=math.inf)
        expected_s = star_in_turn_s(count, compute_s=1.0, model_bytes=PERNET_BYTES, bytes_per_s=bytes_per_s(100))
        assert told.batch_s == pytest.approx(expected_s)


@pytest.mark.parametrize(("mbit", "count"), [(100.0, 2), (100.0, 6), (1000.0, 6)])
def test_shoals_star_is_what_the_deployed_roles_take_in_the_simulator(mbit: float, count: int) -> None:
    simulated_s = eddl_star.simulated_s(count, mbit, turn_hold_s=TURN_HOLD_S)
    told = star(even(count, mbit, latency_s=0.0005), model_bytes=PERNET_BYTES)
    assert told.batch_s == pytest.approx(simulated_s, rel=0.02)


def test_eddls_share_of_synchronisation_with_16_workers() -> None:
    # EDDL §6.1: 0.88 at 100 Mb/s, 0.38 at 1000 Mb/s, which a training of 1.0 to 1.2 s gives.
    slow = star(even(16, 100.0), model_bytes=PERNET_BYTES, hold_s=0.0)
    assert slow.sync_s / slow.batch_s == pytest.approx(0.88, abs=0.005)
    fast = star(even(16, 1000.0), model_bytes=PERNET_BYTES, hold_s=0.0)
    assert fast.sync_s / fast.batch_s == pytest.approx(0.38, abs=0.05)


@pytest.mark.parametrize(
    ("count", "aggregators", "expected_s"), [(4, 2, 1.92), (8, 2, 2.85), (12, 3, 3.31), (16, 4, 3.77)]
)
def test_eddls_trees(count: int, aggregators: int, expected_s: float) -> None:
    # The topologies of EDDL §6.5 with synchronous updates above; seconds as derived from its set-up, l = 1 s.
    cluster = even(count, leads=True)
    shape = split(cluster, aggregators=aggregators)
    told = tree(cluster, shape, model_bytes=PERNET_BYTES, hold_s=0.0)
    formula_s = tree_at_once_s(
        count, aggregators=aggregators, compute_s=1.0, model_bytes=PERNET_BYTES, bytes_per_s=bytes_per_s(100)
    )
    assert told.batch_s == pytest.approx(formula_s)
    assert told.batch_s == pytest.approx(expected_s, abs=0.01)


def test_a_leader_that_does_not_work_serves_one_aggregator_more() -> None:
    # l + 2(g + n/g - 1)S/B = 1 + 14 · 0.2307.
    cluster = even(16)
    told = tree(cluster, split(cluster), model_bytes=PERNET_BYTES, hold_s=0.0)
    assert told.batch_s == pytest.approx(1 + 14 * PERNET_BYTES / bytes_per_s(100))
    assert told.detail == "1-4-16, sync above: 4 aggregators with up to 3 workers each"


def test_without_waiting_for_each_other_aggregators_are_faster() -> None:
    cluster = even(16)
    shape = split(cluster)
    sync = tree(cluster, shape, model_bytes=PERNET_BYTES, hold_s=0.0)
    free = tree(cluster, shape, model_bytes=PERNET_BYTES, hold_s=0.0, above="async")
    # A group alone: a model each way above, three below.
    assert free.batch_s == pytest.approx(1 + 8 * PERNET_BYTES / bytes_per_s(100))
    assert free.batch_s < sync.batch_s


def test_without_waiting_the_leaders_link_still_limits() -> None:
    workers = tuple(node(f"w{i:02}", 1000.0, compute_s=0.01) for i in range(16))
    cluster = Cluster(leader=node("home", 10.0), workers=workers)
    told = tree(cluster, split(cluster, aggregators=8), model_bytes=PERNET_BYTES, above="async")
    assert told.batch_s == pytest.approx(8 * PERNET_BYTES / bytes_per_s(10))


def test_a_slow_group_holds_up_only_itself_where_nobody_waits_above() -> None:
    workers = tuple(node(f"w{i:02}", 100.0, compute_s=9.0 if i >= 6 else 1.0) for i in range(8))
    cluster = Cluster(leader=node("home", 100.0), workers=workers)
    together = split(cluster, aggregators=2, like_speeds_together=True)
    sync = tree(cluster, together, model_bytes=PERNET_BYTES)
    free = tree(cluster, together, model_bytes=PERNET_BYTES, above="async")
    assert sync.batch_s > 9.0
    assert free.batch_s < 6.0


def test_on_shared_air_a_tree_is_slower_than_a_star() -> None:
    cluster = even(16, medium="ap")
    shape = split(cluster)
    star_s = star(cluster, model_bytes=PERNET_BYTES).batch_s
    # The star has the air all the time, 2nS/B, but for the training of the first and the last.
    assert star_s == pytest.approx(32 * PERNET_BYTES / bytes_per_s(100), rel=0.1)
    for above in ("sync", "async"):
        assert tree(cluster, shape, model_bytes=PERNET_BYTES, above=above).batch_s > 1.3 * star_s


def test_a_slow_trainer_is_waited_for_in_every_shape() -> None:
    workers = (*(node(f"w{i}", 1000.0) for i in range(3)), node("slow", 1000.0, compute_s=7.0))
    cluster = Cluster(leader=node("home", 1000.0), workers=workers)
    for told in (
        star(cluster, model_bytes=PERNET_BYTES),
        tree(cluster, split(cluster), model_bytes=PERNET_BYTES),
        shard(cluster, model_bytes=PERNET_BYTES),
    ):
        assert 7.0 < told.batch_s < 7.3
        assert told.sync_s == pytest.approx(told.batch_s - 7.0)


def test_delay_is_paid_on_each_way() -> None:
    near, far = even(4), even(4, latency_s=0.1)
    for shape, ways in (("star", 2), ("tree", 4), ("shard", 2)):
        near_s, far_s = (
            {
                "star": star(cluster, model_bytes=PERNET_BYTES, hold_s=0.0),
                "tree": tree(cluster, split(cluster), model_bytes=PERNET_BYTES, hold_s=0.0),
                "shard": shard(cluster, model_bytes=PERNET_BYTES),
            }[shape].batch_s
            for cluster in (near, far)
        )
        assert far_s - near_s == pytest.approx(ways * 0.2), shape


def test_a_tree_of_others_is_refused() -> None:
    with pytest.raises(Misuse, match="must name every worker"):
        tree(even(2), Tree(groups=(Group(aggregator="w00", members=()),), reason=""), model_bytes=1)
    with pytest.raises(Misuse, match="sync or async"):
        tree(even(2), split(even(2)), model_bytes=1, above="gossip")
