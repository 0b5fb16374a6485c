"""Training figures as words of the sealed sum, so that the leader learns only their mean over the group.

A figure of one device leaks its examples: with a crafted model, the loss of one lease reveals a value of one example.
So the loss and whether the training diverged are words of the sum. The device sends no other figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.sealing.fixed import FixedPoint, word_type

#: The figures: the mean loss per example divided by ``LOSS_MAX``, and whether the training diverged.
FIGURES = 2

#: A device reports a larger mean loss as this value.
LOSS_MAX = 64.0

#: Bytes per figure in a sum.
FIGURE_BYTES = 4


def words_per_figure(bits: int) -> int:
    """Return how many words a figure takes: two of 16 bits, since one is too coarse for a loss in a sum of many
    devices."""
    return 8 * FIGURE_BYTES // bits


def encode_figures(figures: Sequence[float], fixed: FixedPoint) -> np.ndarray:
    """Encode figures from 0 to 1 as words. With 16 bits, the first word has the integer steps and the second the rest.
    Devices have equal weights: with weights that the leader knows, a sum of figures that are 0 or 1 would reveal which
    devices they belong to."""
    limit, words = fixed.limit, []
    for figure in figures:
        steps = min(max(figure, 0.0), 1.0) * limit
        if words_per_figure(fixed.bits) == 1:
            words.append(round(steps))
        else:
            words += [int(steps), round((steps - int(steps)) * limit)]
    return np.asarray(words, dtype=word_type(fixed.bits))


def decode_figures(total: np.ndarray, fixed: FixedPoint, *, times: float) -> list[float]:
    """Return the figures of a sum, each multiplied by ``times``."""
    limit, sums = fixed.limit, [int(word) for word in fixed.signed(total)]
    if words_per_figure(fixed.bits) == 1:
        return [times * one / limit for one in sums]
    return [times * (whole + rest / limit) / limit for whole, rest in zip(sums[::2], sums[1::2], strict=True)]
