"""Statistical tests for a share (such as an accuracy) that was counted over a number of examples."""

from __future__ import annotations

import math

#: Standard deviations that are attributed to chance.
GRANTED = 2.0


def at_least(share: float, examples: int) -> float:
    """Return the lower end of Wilson's interval for the true share, at two standard deviations.

    Evaluations over equally many examples keep the order of their shares. One over few examples does not win by luck:
    five of five are at least 56 %.
    """
    if examples < 1:
        return 0.0
    square = GRANTED**2 / examples
    spread = GRANTED * math.sqrt(share * (1 - share) / examples + square / (4 * examples))
    return max(0.0, (share + square / 2 - spread) / (1 + square))


def explained_gap(high: float, high_examples: int, low: float, low_examples: int, *, picked_from: int = 1) -> float:
    """Return how far apart two shares may be only by chance, if the higher is the best of ``picked_from``.

    It is two standard deviations of the difference of two proportions, and more for the best of many, one of which was
    lucky. With z² = 4 + 2 ln k, the probability that any of k exceeds it stays that of a single one.
    """
    total = high_examples + low_examples
    pooled = (high * high_examples + low * low_examples) / total
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / high_examples + 1 / low_examples))
    return math.sqrt(GRANTED**2 + 2 * math.log(max(1, picked_from))) * deviation
