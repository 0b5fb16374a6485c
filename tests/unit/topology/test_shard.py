"""Who leads which share of the parameters."""

from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.predict import shard as predict_shard
from shoal.topology.predict import star as predict_star
from shoal.topology.shard import phases_s, water_fill

PERNET_BYTES = 720_967 * 4
FAST_BYTES_PER_S = 100e6 / 8


def node(name: str, rate: float, *, down: float | None = None, medium: str = "") -> ClusterNode:
    return ClusterNode(
        name=name, up_bytes_per_s=rate, down_bytes_per_s=rate if down is None else down, compute_s=1.0, medium=medium
    )


def test_equal_links_lead_equal_shares() -> None:
    shares = water_fill([node(f"w{i}", 4.0) for i in range(4)], model_bytes=8)
    assert shares.shares == pytest.approx((0.25,) * 4)
    # 2 (n-1)/n S/b = 2 · 3/4 · 8/4.
    assert shares.sync_s == pytest.approx(3.0)
    assert shares.reason == "4 of 4 nodes lead 25.0 % of the model each"


def test_the_table_of_sharded_batches_at_100_mbit() -> None:
    # l + (n-1)/n S/B + S/B with l = 1 s, since in the second half the leader gets every share as well.
    for count, expected_s in ((4, 1.404), (8, 1.433), (12, 1.442), (16, 1.447)):
        workers = tuple(node(f"w{i:02}", FAST_BYTES_PER_S) for i in range(count))
        cluster = Cluster(leader=node("home", FAST_BYTES_PER_S), workers=workers)
        assert predict_shard(cluster, model_bytes=PERNET_BYTES).batch_s == pytest.approx(expected_s, abs=0.0005)


def test_the_closed_form() -> None:
    # t* = max(S/b_min, 2(n-1)S/Σb): of rates 2, 3, 5 and S = 6, max(3, 24/10) = 3; the slowest only sends.
    shares = water_fill([node("a", 2.0), node("b", 3.0), node("c", 5.0)], model_bytes=6)
    assert shares.sync_s == pytest.approx(3.0)
    # b and c fill up alone: (3t/6 - 1) + (5t/6 - 1) = 1, t = 9/4: x = 1/8, 7/8.
    assert shares.shares == pytest.approx((0.0, 0.125, 0.875))
    assert "a leads nothing, and still finishes last: 3.00 s" in shares.reason
    # Of 4, 5, 6, max(6/4, 24/15) = 1.6: all take part.
    shares = water_fill([node("a", 4.0), node("b", 5.0), node("c", 6.0)], model_bytes=6)
    assert shares.sync_s == pytest.approx(1.6)
    assert shares.shares == pytest.approx((4 * 1.6 / 6 - 1, 5 * 1.6 / 6 - 1, 6 * 1.6 / 6 - 1))


def test_the_narrower_direction_counts() -> None:
    one = water_fill([node("a", 4.0), node("b", 5.0, down=50.0), node("c", 60.0, down=6.0)], model_bytes=6)
    other = water_fill([node("a", 4.0), node("b", 5.0), node("c", 6.0)], model_bytes=6)
    assert one.shares == other.shares


def test_alone_nothing_is_sent_and_two_lead_a_half_each() -> None:
    assert water_fill([node("a", 1.0)], model_bytes=6).sync_s == 0.0
    two = water_fill([node("a", 1.0), node("b", 3.0)], model_bytes=6)
    assert two.shares == (0.5, 0.5)
    assert two.sync_s == 6.0


def test_a_node_that_does_not_train_takes_load_off_the_others() -> None:
    workers = [node(f"w{i}", 4.0) for i in range(4)]
    alone = water_fill(workers, model_bytes=8)
    helped = water_fill(workers, model_bytes=8, only_lead=[node("home", 40.0)])
    assert helped.nodes[-1] == "home"
    assert helped.sync_s < alone.sync_s
    # A worker sends its own update at least.
    assert helped.sync_s >= 8 / 4


def test_the_halves_one_after_the_other() -> None:
    workers = [node("a", 4.0), node("b", 5.0), node("c", 6.0)]
    equal = [1 / 3] * 3
    # Summing: a sends 2/3 of 6 and receives its third twice, 4 bytes at rate 4; giving back alike.
    assert phases_s(workers, equal, model_bytes=6) == pytest.approx((1.0, 1.0))
    with pytest.raises(Misuse, match="2 shares for 3 nodes"):
        phases_s(workers, [0.5, 0.5], model_bytes=6)


def test_who_hears_every_share_in_the_second_half_holds_up_those_who_send_it() -> None:
    workers = [node("a", 4.0), node("b", 5.0), node("c", 6.0)]
    wide, narrow = node("home", 60.0), node("home", 3.0)
    # Giving back: a sends its third to b, to c and to the leader, 6 bytes at rate 4.
    assert phases_s(workers, [1 / 3] * 3, model_bytes=6, observer=wide) == pytest.approx((1.0, 1.5))
    # Or all three wait for the link of the leader: 6 bytes at rate 3.
    assert phases_s(workers, [1 / 3] * 3, model_bytes=6, observer=narrow) == pytest.approx((1.0, 2.0))


def test_on_shared_air_shards_are_slower_than_a_star() -> None:
    workers = tuple(node(f"w{i:02}", FAST_BYTES_PER_S, medium="ap") for i in range(8))
    # The air carries 2(n-1)S, twice: 28 S/B, however it is shared.
    for shares in ([1 / 8] * 8, [0.5, 0.5, *[0.0] * 6], [1.0, *[0.0] * 7]):
        both_s = sum(phases_s(workers, shares, model_bytes=FAST_BYTES_PER_S))
        assert both_s == pytest.approx(28.0)
    cluster = Cluster(leader=node("home", FAST_BYTES_PER_S), workers=workers)
    sharded_s = predict_shard(cluster, model_bytes=PERNET_BYTES).batch_s
    assert sharded_s > 1.4 * predict_star(cluster, model_bytes=PERNET_BYTES).batch_s


def test_nobody_and_nothing_have_no_shares() -> None:
    with pytest.raises(Misuse, match="nobody trains"):
        water_fill([], model_bytes=6)
    with pytest.raises(Misuse, match="model_bytes is"):
        water_fill([node("a", 1.0)], model_bytes=0)


def test_shares_of_others_are_refused() -> None:
    workers = (node("a", 1.0), node("b", 1.0))
    cluster = Cluster(leader=node("home", 1.0), workers=workers)
    others = water_fill([node("c", 1.0), node("d", 1.0)], model_bytes=6)
    with pytest.raises(Misuse, match="other nodes"):
        predict_shard(cluster, model_bytes=6, shares=others)
