"""Mixing in windows: every example once an epoch, few shards a batch, the same on every device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.scheduling.batches import WINDOW_SHARDS, Indices, WindowShuffle, batch_count, window_shards

ROWS = st.lists(st.integers(0, 9), min_size=1, max_size=14)
SEEDS = st.integers(0, 2**32)


@given(ROWS, SEEDS, st.integers(0, 5), st.integers(1, 6))
def test_an_epoch_visits_every_example_once(rows, seed, epoch, window):
    order = window_order(rows, seed=seed, epoch=epoch, window=window)
    assert sorted(order.tolist()) == list(range(sum(rows)))
    assert order.dtype == np.int64


@given(ROWS, SEEDS, st.integers(0, 5), st.integers(1, 6), st.integers(1, 7))
def test_batches_are_the_order_cut_up_and_lie_in_the_shards_that_are_named(rows, seed, epoch, window, batch_size):
    shuffle = WindowShuffle(rows, seed=seed, window=window)
    batches = range(batch_count(sum(rows), batch_size))
    taken = [shuffle.batch(epoch, batch, batch_size).tolist() for batch in batches]
    assert list(itertools.chain(*taken)) == window_order(rows, seed=seed, epoch=epoch, window=window).tolist()
    homes = np.repeat(np.arange(len(rows)), rows)
    for batch, indices in zip(batches, taken, strict=True):
        assert set(shuffle.shards(epoch, [batch], batch_size)) == set(homes[indices].tolist())
    # In any order of asking: nothing that is kept from one question changes the answer to the next.
    for batch in reversed(batches):
        assert shuffle.batch(epoch, batch, batch_size).tolist() == taken[batch]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=14), SEEDS, st.integers(1, 6), st.integers(1, 7), st.data())
def test_the_shards_ahead_are_those_that_the_next_batches_need(rows, seed, window, batch_size, data):
    shuffle = WindowShuffle(rows, seed=seed, window=window)
    batches = batch_count(sum(rows), batch_size)
    batch = data.draw(st.integers(0, batches - 1))
    coming = list(shuffle.ahead(3, batch, batch_size))
    later = shuffle.shards(3, range(batch + 1, batches), batch_size)
    assert set(later) <= set(coming[: len(coming) - len(rows)])
    assert sorted(coming[-len(rows) :]) == list(range(len(rows))), "then the next epoch"
    if batch + 1 < batches:
        # The first that are named: within two windows of where the batch lies.
        assert set(shuffle.shards(3, [batch + 1], 1)) <= set(range(len(rows)))
        assert set(shuffle.shards(3, [batch + 1], batch_size)[:1]) <= set(coming[: 2 * window])


def test_a_window_mixes_its_shards_and_epochs_differ():
    rows = [100] * 12
    first, second = (window_order(rows, seed=7, epoch=epoch, window=3) for epoch in (0, 1))
    assert first.tolist() != second.tolist()
    homes = first // 100
    windows = [set(homes[start : start + 300].tolist()) for start in range(0, 1200, 300)]
    assert [len(window) for window in windows] == [3, 3, 3, 3]
    assert len(set().union(*windows)) == 12
    # Mixed: the first third of a window already holds rows of all three shards.
    assert len(set(homes[:100].tolist())) == 3
    # As it is on every device, whatever its numpy.
    assert window_order([3, 2, 4], seed=1, epoch=2, window=2).tolist() == GOLDEN


GOLDEN = [5, 7, 6, 0, 8, 1, 2, 4, 3]


@pytest.mark.parametrize(
    ("cache_bytes", "window"), [(0, WINDOW_SHARDS), (1, 1), (300, 1), (400, 2), (799, 3), (10**9, WINDOW_SHARDS)]
)
def test_two_windows_fit_in_what_a_device_keeps(cache_bytes, window):
    assert window_shards(cache_bytes=cache_bytes, shard_bytes=100) == window


def test_what_is_no_window():
    with pytest.raises(Misuse, match="at least one"):
        WindowShuffle([3], seed=0, window=0)
    with pytest.raises(Misuse, match="batch 2 does not exist: the epoch has 2 batches of 2"):
        WindowShuffle([3], seed=0, window=1).batch(0, 2, 2)


def window_order(rows: Sequence[int], *, seed: int, epoch: int, window: int) -> Indices:
    """Return the order in which an epoch visits the examples of shards with these rows, as ``WindowShuffle`` does."""
    return WindowShuffle(rows, seed=seed, window=window).indices(epoch, 0, sum(rows))
