"""Figures of trainings as words of a sealed sum: the mean comes out, within the steps of the words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.sealing.figures import decode_figures, encode_figures, words_per_figure
from shoal.sealing.fixed import FixedPoint, word_type

figure = st.floats(0.0, 1.0)


@given(
    st.lists(st.tuples(figure, figure), min_size=3, max_size=64),
    st.sampled_from([16, 32]),
    st.integers(-20, 20),
)
def test_the_sum_tells_the_mean_of_each_figure(told: list[tuple[float, float]], bits: int, bound: int) -> None:
    fixed = FixedPoint(bound, len(told), bits)
    total = np.zeros(2 * words_per_figure(bits), dtype=word_type(bits))
    for figures in told:
        total += encode_figures(figures, fixed)
    found = decode_figures(total, fixed, times=1 / len(told))
    # A step of the words that a device rounds to.
    off = 1.0 / fixed.limit ** words_per_figure(bits)
    for at in range(2):
        assert abs(found[at] - sum(each[at] for each in told) / len(told)) <= off
