"""DCL's mode: shuffles, orders, outer products; bit for bit, and its figures corrected."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks import offload_outer as outer
from benchmarks.offload_layer_shuffle import dynamic_layer_shuffle, shuffle_task, static_layer_shuffle
from benchmarks.offload_order import chained_orders, dynamic_layer_order, static_layer_order, sum_in_order
from shoal.errors import Misuse
from shoal.offload.kinds import execute
from shoal.offload.shuffle import permutation, shuffle_left, shuffle_right, unshuffle

SEED = b"a seed"
#: MNIST's first layer: a, b, c.
LAYER = (60_000, 784, 128)


def sides() -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    return chance.random((20, 30), dtype=np.float32), chance.standard_normal((30, 7), dtype=np.float32)


def test_a_permutation_is_the_same_everywhere() -> None:
    # Philox's bits under a key by SHA-256: pinned, since two versions must agree.
    assert permutation(SEED, "rows", 8).tolist() == [1, 7, 0, 2, 6, 3, 4, 5]
    assert sorted(permutation(SEED, "rows", 1000).tolist()) == list(range(1000))
    assert permutation(SEED, "rows", 1000).tolist() != permutation(SEED, "columns", 1000).tolist()


def test_static_is_the_same_again_and_dynamic_is_not() -> None:
    shape = {"rows": 50, "inner": 60, "columns": 70}
    first = static_layer_shuffle(SEED, layer=1, **shape)
    assert first.rows.tolist() == static_layer_shuffle(SEED, layer=1, **shape).rows.tolist()
    assert first.rows.tolist() != static_layer_shuffle(SEED, layer=2, **shape).rows.tolist()
    dynamic = [dynamic_layer_shuffle(SEED, layer=1, computation=number, **shape) for number in (0, 1, 0)]
    assert dynamic[0].rows.tolist() != dynamic[1].rows.tolist()
    assert dynamic[0].rows.tolist() == dynamic[2].rows.tolist()
    tasks = [static_layer_shuffle(SEED, layer=1, task=task, **shape) for task in (0, 1)]
    assert tasks[0].rows.tolist() != tasks[1].rows.tolist()
    assert tasks[0].inner.tolist() == tasks[1].inner.tolist()


@pytest.mark.parametrize("apart", [False, True])
def test_distributed_equals_centralised_bit_for_bit(apart: bool) -> None:
    left, right = sides()
    order = dynamic_layer_order(SEED, layer=0, computation=3, size=30)
    parts = {}
    for feature in range(30):
        shuffle = static_layer_shuffle(SEED, layer=0, rows=20, inner=30, columns=7, task=feature if apart else None)
        column, row = shuffle_task(*outer.task(left, right, feature), shuffle)
        parts[feature] = unshuffle(execute(column, row), shuffle)
    distributed = sum_in_order(parts, order)
    assert distributed.tobytes() == outer.at_home(left, right, order).tobytes()
    np.testing.assert_allclose(distributed, left @ right, rtol=1e-4, atol=1e-5)
    # And another order is other bits: that is why there is one.
    other = static_layer_order(SEED, layer=0, size=30)
    assert outer.at_home(left, right, other).tobytes() != distributed.tobytes()


def test_a_shuffled_product_is_the_product() -> None:
    left, right = sides()
    shuffle = static_layer_shuffle(SEED, layer=0, rows=20, inner=30, columns=7)
    found = unshuffle(shuffle_left(left, shuffle) @ shuffle_right(right, shuffle), shuffle)
    np.testing.assert_allclose(found, left @ right, rtol=1e-4, atol=1e-5)
    # A histogram is not hidden.
    assert sorted(shuffle_left(left, shuffle).reshape(-1)) == sorted(left.reshape(-1))


def test_links_of_a_chain_differ_and_repeat() -> None:
    first = [order.tolist() for order in islice(chained_orders(SEED, layer=0, size=40), 3)]
    again = [order.tolist() for order in islice(chained_orders(SEED, layer=0, size=40), 3)]
    assert first == again
    assert len({tuple(order) for order in first}) == 3


def test_an_order_names_each_part_once() -> None:
    parts = [np.zeros(2, np.float32)] * 3
    for order in ([0, 1], [0, 1, 1], [0, 1, 3]):
        with pytest.raises(Misuse, match="each"):
            sum_in_order(parts, np.array(order))
    left, right = sides()
    with pytest.raises(Misuse, match="each"):
        outer.at_home(left, right, np.arange(29))


def test_table_41_corrected() -> None:
    a, b, c = LAYER
    nodes = {"schedulers": 10, "executors_each": 10}
    # D(ab + bc) = 4·(60000·784 + 784·128); D·acb = 4·60000·128·784.
    assert outer.issued_bytes(a, b, c) == 188_561_408
    assert outer.returned_bytes(a, b, c) == 24_084_480_000
    assert outer.issued(a, b, c, **nodes).scheduler == pytest.approx(18_856_140.8)
    assert outer.issued(a, b, c, **nodes).executor == pytest.approx(1_885_614.08)
    assert outer.returned(a, b, c, **nodes).executor == pytest.approx(240_844_800)
    # What is printed: 3.07 GB by (4.4) to (4.6), 24.58 GB in the table, by 8 outer products for each of 100.
    assert outer.returned_as_printed_bytes(a, c, **nodes) == 3_072_000_000
    assert outer.returned_in_table_bytes(a, b, c, **nodes) == 24_576_000_000


def test_the_analyst_sums_half_of_the_layer() -> None:
    # 783·60000·128 of 2·60000·784·128.
    assert outer.analyst_share(*LAYER) == pytest.approx(0.4994, abs=5e-5)
    assert outer.executor_operations(*LAYER) * 2 == outer.layer_operations(*LAYER)
