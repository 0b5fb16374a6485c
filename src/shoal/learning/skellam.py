"""What whole-number noise that devices draw in shares amounts to in ε and δ. Pure arithmetic; draws nothing.

Each device adds Skellam noise (the difference of two Poisson numbers) to its whole numbers. Sums of Skellam numbers are
Skellam numbers, so that a promise about a sum follows from the noise of all devices in it. Rényi privacy of several
sums adds up, and nothing is gained from who takes part by chance. The unit is a person, and neighbours differ in
whether its device says something or nothing (zeros, with its share of noise): that it takes part is seen anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import Misuse

#: Rényi orders that are tried: the bound holds for whole ones.
_ORDERS = (*range(2, 128), *range(128, 1025, 16))

#: What one device may add to a sum is so many steps long: as a power of two, at least and at most. The more steps, the
#: less the rounding of many values lengthens an update; the fewer, the smaller the table that noise is drawn from.
_LENGTH_LEAST, _LENGTH_MOST = 12, 20

#: The deviation of one device's noise that this length is chosen for, and the most that a device can draw, in steps.
_DEVIATION = 1 << 12
DEVIATION_MOST = 1 << 15


def renyi(order: int, *, ratio: float, variance: float) -> float:
    """ε(α) = α·Δ²/(2μ) + min(((2α - 1)·Δ² + 6·Δ₁)/(4μ²), 3·Δ₁/(2μ)) of Skellam noise of variance μ   (Agarwal, Kairouz
    and Liu 2021, corollary 3.6), with Δ² = ratio²·μ, and with Δ₁ = Δ²: of whole numbers |x| is at most x². The sum of
    several such mechanisms with one variance is that of their squared ratios."""
    square = ratio * ratio
    return order * square / 2 + min((2 * order + 5) * square / (4 * variance), 1.5 * square)


def skellam_epsilon(ratio: float, *, variance: float, delta: float) -> float:
    """The ε of this δ: ε(α) + ln((α - 1)/α) - (ln δ + ln α)/(α - 1), at the best order   (Canonne, Kamath and Steinke
    2020, proposition 12)."""
    if not ratio > 0 or not variance > 0 or not 0 < delta < 1:
        raise Misuse(f"a ratio and a variance are above 0, a delta below 1, not {ratio}, {variance} and {delta}")
    return max(0.0, min(_converted(order, renyi(order, ratio=ratio, variance=variance), delta) for order in _ORDERS))


def _converted(order: int, loss: float, delta: float) -> float:
    return loss + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


@dataclass(frozen=True, slots=True)
class NoiseShares:
    """How an update becomes whole numbers and how much noise each device adds, all in steps."""

    #: The longest update. One step is the clip divided by it.
    length: int
    #: Of the noise of one device, in each value.
    variance: int


@lru_cache(maxsize=64)
def shares_for(epsilon: float, *, delta: float, participations: int, devices: int) -> NoiseShares:
    """The least shares with which a device keeps this promise that takes part so often, if the noise of so many devices
    is in every sum. Raises Misuse where that is more noise than can be drawn."""
    if participations < 1 or devices < 1:
        raise Misuse(f"{participations} participations, and the noise of {devices} devices: there is at least one each")

    def deviation_of(length: int) -> float:
        """Of the sum, by the length of an update: halving between far too little and far too much."""
        low, high = 1e-3, 1e6
        for _ in range(44):
            middle = math.sqrt(low * high)
            ratio, variance = math.sqrt(participations) / middle, (middle * length) ** 2
            keeps = skellam_epsilon(ratio, variance=variance, delta=delta) <= epsilon
            low, high = (low, middle) if keeps else (middle, high)
        return high

    rough = deviation_of(1 << _LENGTH_LEAST)
    wanted = round(math.log2(_DEVIATION * math.sqrt(devices) / rough))
    length = 1 << max(_LENGTH_LEAST, min(wanted, _LENGTH_MOST))
    variance = math.ceil((deviation_of(length) * length) ** 2 / devices)
    if variance > DEVIATION_MOST**2:
        raise Misuse(
            f"epsilon {epsilon:g} for {participations} participations needs so much noise of {devices} devices that"
            " nothing is left of what they say: have more devices in a version, fewer participations, or a larger"
            " epsilon"
        )
    return NoiseShares(length, variance)
