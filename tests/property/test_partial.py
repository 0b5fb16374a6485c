"""Merging partials is associative and commutative: any order, any tree, the same mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.partial import Partial

SIZE = 3

values = st.floats(-1e6, 1e6, width=32)
updates = st.lists(
    st.tuples(st.tuples(*[values] * SIZE), st.integers(1, 1000)),
    min_size=1,
    max_size=12,
)


def leaf(update: tuple[float, ...], weight: int) -> Partial:
    partial = Partial(SIZE)
    partial.add(np.array(update, dtype=np.float32), weight=weight)
    return partial


def expected(given_updates: list[tuple[tuple[float, ...], int]]) -> np.ndarray:
    rows = np.array([update for update, _ in given_updates], dtype=np.float32).astype(np.float64)
    return np.average(rows, axis=0, weights=[weight for _, weight in given_updates])


def close(mean: np.ndarray, truth: np.ndarray) -> None:
    # Half a unit in the last place of float32, and of float64 for values as large as these.
    np.testing.assert_allclose(mean, truth, rtol=1e-6, atol=1e-6)


@given(updates)
def test_a_star_gives_the_weighted_mean(given_updates: list[tuple[tuple[float, ...], int]]) -> None:
    partial = Partial(SIZE)
    for update, weight in given_updates:
        partial.add(np.array(update, dtype=np.float32), weight=weight)
    close(partial.mean(), expected(given_updates))
    assert partial.count == len(given_updates)
    assert partial.weight == sum(weight for _, weight in given_updates)


@given(updates, st.data())
def test_any_order_and_any_tree_gives_the_same(
    given_updates: list[tuple[tuple[float, ...], int]], data: st.DataObject
) -> None:
    forest = [leaf(update, weight) for update, weight in data.draw(st.permutations(given_updates))]
    while len(forest) > 1:
        # Any two partials meet, in either direction.
        taken = forest.pop(data.draw(st.integers(0, len(forest) - 1)))
        forest[data.draw(st.integers(0, len(forest) - 1))].merge(taken)
    (root,) = forest
    close(root.mean(), expected(given_updates))
    assert root.count == len(given_updates)


@given(updates, st.integers(0, 12), st.booleans())
def test_a_partial_used_before_gives_the_same_as_a_new_one(
    given_updates: list[tuple[tuple[float, ...], int]], cut: int, merged: bool
) -> None:
    partial = Partial(SIZE)
    for update, weight in given_updates[:cut]:
        partial.add(np.array(update, dtype=np.float32), weight=weight)
    partial.clear()
    for update, weight in given_updates:
        if merged:
            partial.merge(leaf(update, weight))
        else:
            partial.add(np.array(update, dtype=np.float32), weight=weight)
    close(partial.mean(), expected(given_updates))
