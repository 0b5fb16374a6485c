"""Counts in parts come back whole from a sealed sum."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.answers import COUNT_MAX, from_parts, in_parts
from shoal.sealing.fixed import BOUND_FIRST, FixedPoint


def test_parts_are_small_and_stand_for_the_count() -> None:
    counts = np.array([0.0, 1.25, 90.0, -123_456.789, 1e9 + 0.5, COUNT_MAX])
    parts = in_parts(counts)
    assert parts.shape == (3, 6)
    assert np.abs(parts).max() <= 2.0 ** BOUND_FIRST[32]
    np.testing.assert_array_equal(from_parts(parts), counts)


@pytest.mark.parametrize("devices", [3, 64, 4096])
def test_the_words_of_a_sealed_sum_leave_whole_numbers_as_they_are(devices: int) -> None:
    fixed = FixedPoint(BOUND_FIRST[32], devices)
    counts = np.array([7.0, 8.0, 30_000.0, 16.0 * 77_777])
    parts = in_parts(counts)
    words = fixed.encode(parts.astype(np.float32).ravel(), factor=1.0, chance=bytes(32))
    back = from_parts(fixed.decode(words, times=1.0).reshape(parts.shape))
    np.testing.assert_allclose(back, counts, rtol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    for value in (2 * COUNT_MAX, np.nan, np.inf):
        with pytest.raises(Misuse, match="at most 2\\^40"):
            in_parts(np.array([value]))
