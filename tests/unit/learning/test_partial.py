"""The partial: a weighted sum and its weight."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.partial import Partial


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_the_mean_is_weighted_by_examples() -> None:
    partial = Partial(2)
    partial.add(vector(1, 10), weight=1)
    partial.add(vector(5, 20), weight=3)
    # (1·1 + 3·5) / 4 = 4 and (1·10 + 3·20) / 4 = 17.5
    assert partial.mean().tolist() == [4.0, 17.5]
    assert partial.mean().dtype == np.float32
    assert (partial.weight, partial.count) == (4.0, 2)


def test_merging_two_partials_is_adding_all_their_updates() -> None:
    left, right = Partial(1), Partial(1)
    left.add(vector(2), weight=1)
    right.add(vector(4), weight=1)
    right.add(vector(9), weight=2)
    left.merge(right)
    # (2 + 4 + 2·9) / 4 = 6
    assert left.mean().tolist() == [6.0]
    assert left.count == 3


def test_a_vector_longer_than_a_block_is_summed_to_its_end() -> None:
    size = 32768 + 3
    partial = Partial(size)
    partial.add(np.zeros(size, dtype=np.float32), weight=1)
    # Another weight than the first is scaled block by block.
    partial.add(np.arange(size, dtype=np.float32), weight=3)
    # 3·i / 4
    assert partial.mean()[[0, 32767, 32768, size - 1]].tolist() == [0, 24575.25, 24576, 24577.5]


def test_a_small_update_is_not_lost_beside_a_large_one() -> None:
    partial = Partial(1)
    for value in (1e8, 1, -1e8):
        partial.add(vector(value), weight=1)
    # In float32, 1e8 + 1 is 1e8 and the mean would be 0.
    assert partial.mean()[0] == pytest.approx(1 / 3)


def test_clearing_forgets_the_sum_and_the_weight() -> None:
    partial = Partial(1)
    partial.add(vector(7), weight=5)
    partial.clear()
    assert (partial.weight, partial.count) == (0.0, 0)
    partial.add(vector(1), weight=1)
    partial.add(vector(2), weight=3)
    # (1·1 + 3·2) / 4
    assert partial.mean().tolist() == [1.75]


def test_merging_into_and_from_an_empty_partial() -> None:
    empty, full = Partial(1), Partial(1)
    full.add(vector(6), weight=3)
    full.merge(empty)
    empty.merge(full)
    assert empty.mean().tolist() == full.mean().tolist() == [6.0]
    assert (empty.weight, empty.count) == (3.0, 1)


def test_the_mean_does_not_change_under_a_later_update() -> None:
    partial = Partial(1)
    partial.add(vector(1), weight=1)
    mean = partial.mean()
    partial.add(vector(9), weight=1)
    assert mean.tolist() == [1.0]


def test_what_does_not_fit_is_our_own_fault() -> None:
    partial = Partial(2)
    with pytest.raises(Misuse, match="3 values into a partial of 2"):
        partial.add(vector(1, 2, 3), weight=1)
    with pytest.raises(Misuse, match="a partial of 1 values into one of 2"):
        partial.merge(Partial(1))
    with pytest.raises(Misuse, match="the mean of no updates"):
        partial.mean()


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_an_update_weighs_more_than_nothing(weight: float) -> None:
    with pytest.raises(Misuse, match="weighs more than nothing"):
        Partial(1).add(vector(1), weight=weight)


def test_a_late_update_moves_less_also_when_it_is_alone() -> None:
    partial = Partial(2)
    partial.add(vector(4, 8), weight=10, scale=0.5)
    # Divided by the 10 examples it stands for, not by the 5 it counts for.
    assert partial.mean().tolist() == [2.0, 4.0]
    assert partial.weight == 10.0
    partial.add(vector(1, 1), weight=30)
    # (0.5·10·4 + 30·1) / 40 and (0.5·10·8 + 30·1) / 40.
    assert partial.mean().tolist() == [1.25, 1.75]


def test_scaled_partials_meet() -> None:
    left, right = Partial(1), Partial(1)
    left.add(vector(4), weight=10, scale=0.5)
    right.add(vector(1), weight=30)
    right.add(vector(8), weight=10, scale=0.25)
    left.merge(right)
    # (20 + 30 + 20) / 50.
    assert left.mean().tolist() == pytest.approx([1.4])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_late_update_is_worth_more_than_nothing(scale: float) -> None:
    with pytest.raises(Misuse, match="worth more than nothing"):
        Partial(1).add(vector(1), weight=1, scale=scale)
