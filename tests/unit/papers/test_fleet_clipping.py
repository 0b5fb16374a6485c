"""Clipping: the same direction, no longer than the bound."""

from __future__ import annotations

import numpy as np
import pytest

from papers.fleet.clipping import clipped, clipped_rows
from shoal.errors import Misuse


def test_a_long_update_is_shortened_and_a_short_one_is_left_alone() -> None:
    long = np.array([3.0, 4.0], dtype=np.float32)
    assert clipped(long, bound=1.0).tolist() == pytest.approx([0.6, 0.8])
    assert clipped(long, bound=1.0).dtype == np.float32
    assert clipped(long, bound=5.0) is long


def test_each_row_is_clipped_by_itself_and_one_of_zeros_stays() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert clipped_rows(rows, bound=1.0) == pytest.approx(np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_a_length_that_is_none_is_refused() -> None:
    for broken in (np.array([1.0, np.inf]), np.array([np.nan, 1.0])):
        with pytest.raises(Misuse, match="infinite"):
            clipped(broken, bound=1.0)
        with pytest.raises(Misuse, match="infinite"):
            clipped_rows(broken[None], bound=1.0)
    with pytest.raises(Misuse, match="above 0"):
        clipped(np.ones(2), bound=0.0)
    with pytest.raises(Misuse, match="above 0"):
        clipped_rows(np.ones((1, 2)), bound=-1.0)
