"""Figures of a training as words of the sealed sum: the leader learns their mean over the group. Knows no masks.

A figure of one device is an oracle on its examples: with a crafted model, the loss of one lease tells a value of one
example. So the loss and whether the training diverged are words of the sum, and other figures are not told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.sealing.fixed import FixedPoint, word_type

#: The figures: the mean loss of an example as a part of ``LOSS_MAX``, and whether the training diverged.
FIGURES = 2

#: A mean loss above this is told as this.
LOSS_MAX = 64.0

#: What a figure takes in a sum.
FIGURE_BYTES = 4


def words_per_figure(bits: int) -> int:
    """A word of 16 bits is too coarse for a loss in a sum of many devices, so that a figure takes two."""
    return 8 * FIGURE_BYTES // bits


def encode_figures(figures: Sequence[float], fixed: FixedPoint) -> np.ndarray:
    """Figures from 0 to 1 as words: of 16 bits, the whole steps and then the rest. Devices count alike: with weights
    that the leader knows, a sum of figures that are 0 or 1 would tell whose they are."""
    limit, words = fixed.limit, []
    for figure in figures:
        steps = min(max(figure, 0.0), 1.0) * limit
        if words_per_figure(fixed.bits) == 1:
            words.append(round(steps))
        else:
            words += [int(steps), round((steps - int(steps)) * limit)]
    return np.asarray(words, dtype=word_type(fixed.bits))


def decode_figures(total: np.ndarray, fixed: FixedPoint, *, times: float) -> list[float]:
    """The figures of a sum, each multiplied by ``times``."""
    limit, sums = fixed.limit, [int(word) for word in fixed.signed(total)]
    if words_per_figure(fixed.bits) == 1:
        return [times * one / limit for one in sums]
    return [times * (whole + rest / limit) / limit for whole, rest in zip(sums[::2], sums[1::2], strict=True)]
