"""A sum in the memory of its first two updates: what a partial comes to, bit for bit, and no memory beside them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.learning.paired_sum import BLOCK, PairedSum
from shoal.learning.partial import Partial

#: Two blocks, and a rest.
SIZE = 2 * BLOCK + 5


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.sampled_from([1.0, 1.0, 3.0, 16.0]), min_size=1, max_size=6),
    scales=st.lists(st.sampled_from([1.0, 0.3]), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_it_gives_the_mean_of_a_partial_bit_for_bit(weights: list[float], scales: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    partial, paired = Partial(SIZE), PairedSum(SIZE)
    for weight, scale in zip(weights, scales, strict=False):
        # Magnitudes far apart: a sum in float32 would differ.
        update = (rng.standard_normal(SIZE) * 10.0 ** rng.integers(-6, 6, SIZE)).astype(np.float32)
        partial.add(update, weight=weight, scale=scale)
        paired.add(update.copy(), weight=weight, scale=scale)
    assert (paired.weight, paired.count) == (partial.weight, partial.count)
    mean, spare = paired.take_mean()
    assert mean.tobytes() == partial.mean().tobytes()
    assert (spare is None) == (len(weights) == 1)
    assert paired.count == 0


def test_it_takes_no_memory_of_the_model_s_size() -> None:
    size = 64 * BLOCK
    updates = [np.full(size, number, np.float32) for number in (1, 2, 6)]
    paired = PairedSum(size)
    tracemalloc.start()
    try:
        for update in updates:
            paired.add(update, weight=1)
        mean, spare = paired.take_mean()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < updates[0].nbytes / 8
    assert np.shares_memory(mean, updates[0])
    assert spare is not None
    assert np.shares_memory(spare, updates[1])
    assert mean.tolist() == [3.0] * size


def test_an_update_that_may_not_be_written_to_is_copied() -> None:
    update = np.ones(3, np.float32)
    update.flags.writeable = False
    paired = PairedSum(3)
    paired.add(update, weight=1)
    paired.add(np.full(3, 3, np.float32), weight=1)
    assert paired.take_mean()[0].tolist() == [2.0] * 3
    assert update.tolist() == [1.0] * 3


def test_it_refuses_what_cannot_be_summed() -> None:
    paired = PairedSum(3)
    with pytest.raises(Misuse, match="into a sum of 3"):
        paired.add(np.ones(4, np.float32), weight=1)
    with pytest.raises(Misuse, match="weighs more than nothing"):
        paired.add(np.ones(3, np.float32), weight=0)
    with pytest.raises(Misuse, match="no updates"):
        paired.take_mean()
