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

#: The least and the greatest length of one device's update in steps, as powers of two. With more steps, rounding many
#: values lengthens an update less; with fewer, the table from which noise is sampled is smaller.
_LENGTH_LEAST, _LENGTH_MOST = 12, 20

#: The deviation of one device's noise for which the length is chosen, and the most that a device can sample, in steps.
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
    """The rounding of updates to integers and the noise of each device, in steps."""

    #: The longest update. One step is the clip divided by it.
    length: int
    #: The variance of one device's noise in each value.
    variance: int


@lru_cache(maxsize=64)
def shares_for(epsilon: float, *, delta: float, participations: int, devices: int) -> NoiseShares:
    """Return the smallest noise shares that keep the promise for a device with this many participations, if every sum
    has the noise of this many devices. Raises Misuse if that is more noise than can be sampled."""
    if participations < 1 or devices < 1:
        raise Misuse(f"participations is {participations} and devices is {devices}; each must be at least 1")

    def deviation_of(length: int) -> float:
        """Return the deviation of the sum's noise for a length, by bisection."""
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
            f"epsilon {epsilon:g} for {participations} participations needs more noise from {devices} devices than an"
            " update can carry: use more devices per version, fewer participations, or a larger epsilon"
        )
    return NoiseShares(length, variance)
