"""The exponential mean of versions, against the sum that defines it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.version_mean import VersionMean


@given(
    decay=st.floats(0.01, 0.9999),
    versions=st.lists(st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3), min_size=1, max_size=30),
)
def test_the_mean_is_the_weighted_sum_of_the_versions(decay: float, versions: list[list[float]]) -> None:
    mean = VersionMean(np.full(3, 100.0, np.float32))
    for version in versions:
        mean = mean.after(np.array(version, np.float32), decay=decay)
    weights = np.array([decay**age for age in range(len(versions))])[::-1]
    expected = (weights[:, None] * np.array(versions)).sum(0) / weights.sum()
    # The first model has no weight, however different it is.
    np.testing.assert_allclose(mean.values, expected, atol=1e-5)
    assert mean.weight == pytest.approx(weights.sum())
    assert mean.values.dtype == np.float32


def test_the_first_version_is_its_own_mean_and_no_array_changes_later() -> None:
    first, second = np.float32([1, 3]), np.float32([3, 0])
    one = VersionMean(np.zeros(2, np.float32)).after(first, decay=0.5)
    assert one.values is first
    # Weights 1/2 and 1, so a third of the first and two of the second.
    two = one.after(second, decay=0.5)
    np.testing.assert_allclose(two.values, [7 / 3, 1])
    assert one.values.tolist() == [1, 3]
    with pytest.raises(ValueError, match="read-only"):
        two.values[0] = 9
