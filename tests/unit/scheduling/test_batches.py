import hashlib

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.scheduling.batches import batch_count, batch_indices, epoch_order, mix, splitmix64


def test_splitmix64_matches_its_published_stream():
    # The reference implementation (Vigna, splitmix64.c) seeded with 0.
    gamma = 0x9E3779B97F4A7C15
    stream = [splitmix64(step * gamma % 2**64) for step in range(3)]
    assert stream == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_literal_orders():
    assert epoch_order(10, seed=0, epoch=0).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert epoch_order(10, seed=0, epoch=1).tolist() == [9, 0, 6, 7, 4, 3, 2, 1, 8, 5]
    assert epoch_order(10, seed=7, epoch=3).tolist() == [7, 2, 0, 9, 5, 3, 4, 8, 6, 1]
    assert mix(7, 3) == 0x6BAA78681A99F995
    whole = epoch_order(60_000, seed=1, epoch=2).astype("<i8").tobytes()
    assert hashlib.sha256(whole).hexdigest() == "219d4aa3787f2ca538c7a70254dd7621304292c449c579699a3d2472126d9267"


def test_the_vectorised_keys_are_the_scalar_ones():
    base = mix(7, 3)
    keys = [splitmix64((base + index * 0x9E3779B97F4A7C15) % 2**64) for index in range(100)]
    assert epoch_order(100, seed=7, epoch=3).tolist() == sorted(range(100), key=keys.__getitem__)


def test_mix_tells_its_arguments_apart():
    assert len({mix(0, 1), mix(1, 0), mix(0), mix(0, 0), mix(-1), mix(2**64)}) == 5  # 2**64 wraps to 0
    assert mix(2**64) == mix(0)


def test_an_order_is_dtype_int64_and_empty_for_an_empty_set():
    assert epoch_order(0, seed=1, epoch=1).tolist() == []
    assert epoch_order(3, seed=1, epoch=1).dtype == np.int64


def test_the_last_batch_is_short_and_kept():
    order = epoch_order(10, seed=0, epoch=0)
    assert [batch_count(n, 4) for n in (0, 1, 4, 5, 10)] == [0, 1, 1, 2, 3]
    assert [batch_indices(order, batch, 4).tolist() for batch in range(3)] == [
        [0, 7, 8, 2],
        [5, 9, 4, 6],
        [3, 1],
    ]


@pytest.mark.parametrize("batch", [-1, 3])
def test_a_batch_that_is_not_there(batch):
    with pytest.raises(Misuse, match="the epoch has 3"):
        batch_indices(np.arange(10), batch, 4)


@pytest.mark.parametrize("numbers", [(-1, 4), (10, 0)])
def test_absurd_counts(numbers):
    with pytest.raises(Misuse):
        batch_count(*numbers)
    with pytest.raises(Misuse):
        epoch_order(-1, seed=0, epoch=0)
