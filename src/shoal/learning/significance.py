"""What chance explains of a share that was counted over so many examples. Pure functions; knows no message."""

from __future__ import annotations

import math

#: Standard deviations that chance is granted.
GRANTED = 2.0


def at_least(share: float, examples: int) -> float:
    """The least that the true share plausibly is: the lower end of Wilson's interval, two standard deviations wide.

    Among evaluations of as many examples the order is that of their shares. One over few does not win by luck: five of
    five are at least 56 %.
    """
    if examples < 1:
        return 0.0
    square = GRANTED**2 / examples
    spread = GRANTED * math.sqrt(share * (1 - share) / examples + square / (4 * examples))
    return max(0.0, (share + square / 2 - spread) / (1 + square))


def explained_gap(high: float, high_examples: int, low: float, low_examples: int, *, picked_from: int = 1) -> float:
    """How far apart two shares may lie by chance alone, where the higher was picked as the best of so many.

    Two standard deviations of the difference of two proportions; and more where the best of many was picked, for one of
    them was lucky: with z² = 4 + 2 ln k, the chance that any of k lies beyond stays what it is for one.
    """
    total = high_examples + low_examples
    pooled = (high * high_examples + low * low_examples) / total
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / high_examples + 1 / low_examples))
    return math.sqrt(GRANTED**2 + 2 * math.log(max(1, picked_from))) * deviation
