"""What noise amounts to in ε and δ, with no assumption on how examples were drawn. Pure arithmetic.

The moments accountant (Abadi et al. 2016) multiplies the privacy of a step by the chance
of being in it, and that is right only if each example tossed its own coin for each step. Devices that come when they
like toss no coins. Here nothing is gained from chance: what counts is **in how many updates one example (or one
person) took part at most**. The leader deals out batches, so it can bound and check that number.

Unit: the thing whose presence is hidden. Where gradients of single examples are clipped it is an example, where whole
updates are clipped it is a person's update. Neighbours differ by one unit more or less, so that a sum of parts of at
most C changes by C; with noise of deviation z·C each participation is a Gaussian mechanism of ratio μ = 1/z.

Gaussian mechanisms one after the other, each chosen after seeing the others, are together one of μ = √m/z (Dong, Roth
and Su 2022), whose δ(ε) is known exactly (Balle and Wang 2018). Zero-concentrated privacy (Bun and Steinke 2016), a
little looser, is here as a check: ρ = μ²/2.
"""

from __future__ import annotations

import functools
import math

from shoal.errors import Misuse

#: ε is looked for up to here: beyond, there is no privacy to speak of.
EPSILON_MAX = 1e6

#: Answers that are remembered: a leader and its devices ask for the same few again with every report.
_KEPT = 1024


def delta_of(ratio: float, *, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ), exactly   (Balle and Wang 2018)."""
    if not ratio > 0:
        raise Misuse(f"a ratio is above 0, not {ratio}")
    if not epsilon >= 0:
        raise Misuse(f"an epsilon is 0 or more, not {epsilon}")
    first = _log_normal(ratio / 2 - epsilon / ratio)
    second = epsilon + _log_normal(-ratio / 2 - epsilon / ratio)
    # In logarithms: e^ε overflows long before the product does.
    return max(0.0, math.exp(first) - math.exp(min(second, first)))


@functools.lru_cache(maxsize=_KEPT)
def epsilon_of(ratio: float, *, delta: float) -> float:
    """The smallest ε of this δ, by halving; infinite if it is beyond anything one would call private."""
    if not 0 < delta < 1:
        raise Misuse(f"a delta is between 0 and 1, not {delta}")
    if delta_of(ratio, epsilon=0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(ratio, epsilon=high) > delta:
        low, high = high, 2 * high
        if high > EPSILON_MAX:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(ratio, epsilon=middle) > delta else (low, middle)
    return high


@functools.lru_cache(maxsize=_KEPT)
def ratio_for(epsilon: float, *, delta: float) -> float:
    """The largest ratio of this ε and δ, by halving: what a plan may spend."""
    if not 0 < epsilon <= EPSILON_MAX or not 0 < delta < 1:
        raise Misuse(f"an epsilon is above 0 and a delta between 0 and 1, not {epsilon} and {delta}")
    low, high = 0.0, 1.0
    while delta_of(high, epsilon=epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle, epsilon=epsilon) > delta else (middle, high)
    return low


def _log_normal(value: float) -> float:
    """ln Φ(x); far below zero by Mills' ratio, where Φ itself is too small to be written."""
    if value > -30:
        return math.log(0.5 * math.erfc(-value / math.sqrt(2)))
    square = value * value
    return -square / 2 - math.log(-value * math.sqrt(2 * math.pi)) + math.log1p(-1 / square + 3 / square**2)
