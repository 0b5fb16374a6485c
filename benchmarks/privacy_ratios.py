"""Ratios μ of other mechanisms, and concentrated privacy: what the accountant is held against."""

from __future__ import annotations

import math

from shoal.errors import Misuse


def gaussian_ratio(*, multiplier: float, participations: int) -> float:
    """μ = √m / z of m participations with noise afresh for each."""
    _check(multiplier, participations)
    return math.sqrt(participations) / multiplier


def tree_ratio(*, multiplier: float, participations: int, updates: int) -> float:
    """μ of m participations anywhere among ``updates`` with noise along a tree.

    A unit is in one node of each of ⌊log₂ T⌋ + 1 levels for every participation. At a level of nodes of s updates no
    node has more than min(m, s) of its parts, and all of them together m, so that the squares sum to at most
    m·min(m, s): for m = 1 that is the number of levels (Kairouz et al. 2021), for more it is a bound.
    """
    _check(multiplier, participations)
    if updates < participations:
        raise Misuse(f"{participations} participations in {updates} updates: there are at least as many updates")
    levels = updates.bit_length()
    squares = sum(participations * min(participations, 2**level) for level in range(levels))
    return math.sqrt(squares) / multiplier


def concentrated(ratio: float) -> float:
    """ρ = μ²/2 of zero-concentrated privacy; those of several mechanisms add up   (Bun and Steinke 2016)."""
    return ratio * ratio / 2


def epsilon_of_concentrated(rho: float, *, delta: float) -> float:
    """ε = ρ + 2·√(ρ·ln(1/δ)): never below the exact one   (Bun and Steinke 2016, proposition 1.3)."""
    if not 0 < delta < 1 or not rho >= 0:
        raise Misuse(f"a delta is between 0 and 1 and rho is 0 or more, not {delta} and {rho}")
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _check(multiplier: float, participations: int) -> None:
    if not 0 < multiplier < math.inf:
        raise Misuse(f"a noise multiplier is above 0, not {multiplier}")
    if participations < 1:
        raise Misuse(f"a unit takes part at least once, not {participations} times")
