"""Noise: as wide as it says, and along a tree few of it in any sum."""

from __future__ import annotations

import numpy as np
import pytest

from papers.fleet.noise import TreeNoise, noised
from shoal.errors import Misuse


def test_noise_is_as_wide_as_multiplier_times_bound() -> None:
    total = np.full(200_000, 7.0, dtype=np.float32)
    out = noised(total, bound=2.0, multiplier=1.5, generator=np.random.default_rng(0))
    assert out.dtype == np.float32
    assert out.mean() == pytest.approx(7.0, abs=0.03)
    assert out.std() == pytest.approx(3.0, rel=0.01)


def test_no_multiplier_no_noise() -> None:
    total = np.arange(3.0)
    assert noised(total, bound=1.0, multiplier=0.0, generator=np.random.default_rng(0)).tolist() == [0, 1, 2]


def test_noises_of_a_tree_add_up_to_those_of_the_nodes_in_use() -> None:
    size = 50_000
    tree = TreeNoise(size=size, bound=1.0, multiplier=2.0, generator=np.random.default_rng(3))
    total = np.zeros(size)
    for count in range(1, 17):
        total += tree.next()
        assert tree.count == count
        np.testing.assert_allclose(total, tree.in_sum(), atol=1e-9)
        # One node for each binary digit of the count that is 1: 13 is three noises, 16 is one.
        assert total.std() == pytest.approx(2.0 * np.sqrt(count.bit_count()), rel=0.03)


def test_what_makes_no_sense_is_refused() -> None:
    for bound, multiplier in ((0.0, 1.0), (1.0, -1.0), (np.inf, 1.0)):
        with pytest.raises(Misuse):
            noised(np.ones(2), bound=bound, multiplier=multiplier, generator=np.random.default_rng(0))
