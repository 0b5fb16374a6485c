"""Compare what Shoal computes with other people's code: epsilons with dp-accounting, and Shamir's secret sharing with
PyCryptodome. A comparison whose package is not installed counts as skipped, never as passed. A part of
``benchmarks.trust``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import combinations

from benchmarks.privacy_ratios import gaussian_ratio
from shoal.learning.accountant import epsilon_of
from shoal.learning.skellam import skellam_epsilon
from shoal.sealing.shamir import CHANCE_BYTES, PRIME, SECRET_BYTES, join, split
from testbed.results import say

DELTA = 1e-5
#: Deviations and participations at which epsilons are compared.
MECHANISMS = ((1.0, 1), (4.0, 16), (5.0, 100), (20.0, 1000))
#: Skellam noise of this variance is Gaussian noise but for less than the comparison sees.
VARIANCE_LARGE = 1e12
#: Shares that are made, and of these how many are needed.
SHARES = ((3, 2), (5, 3), (9, 6))

#: The largest difference that still counts as the same: dp-accounting rounds losses to a grid, and so a little up.
EPSILON_OFF_MOST = 1e-3


def gaussian_off() -> float:
    """Return how far our epsilon of Gaussian noise is from that of dp-accounting's privacy loss distributions."""
    import dp_accounting
    from dp_accounting import pld

    off = []
    for multiplier, often in MECHANISMS:
        theirs = pld.PLDAccountant()
        theirs.compose(dp_accounting.GaussianDpEvent(multiplier), often)
        ours = epsilon_of(gaussian_ratio(multiplier=multiplier, participations=often), delta=DELTA)
        off.append(abs(theirs.get_epsilon(DELTA) / ours - 1))
    return float(max(off))


def renyi_off() -> float:
    """Return how far our epsilon of Skellam noise is, where that is Gaussian, from dp-accounting's by Rényi orders."""
    import dp_accounting
    from dp_accounting import rdp

    off = []
    for multiplier, often in MECHANISMS:
        theirs = rdp.RdpAccountant(orders=list(range(2, 128)))
        theirs.compose(dp_accounting.GaussianDpEvent(multiplier), often)
        ratio = gaussian_ratio(multiplier=multiplier, participations=often)
        ours = skellam_epsilon(ratio, variance=VARIANCE_LARGE, delta=DELTA)
        off.append(abs(theirs.get_epsilon(DELTA) / ours - 1))
    return float(max(off))


def shamir_off() -> float:
    """Return how many times sharing a secret differs from PyCryptodome.

    Its Shamir is over another field (of 2^128 elements; ours is modulo 2^130 - 5), so no share of one fits the other.
    This compares each of our shares with the polynomial's value in PyCryptodome's numbers. Then it joins every choice
    of shares, and does the same with PyCryptodome's Shamir and the same secret: both must give the secret back if there
    are enough shares, and neither may if one is missing.
    """
    from Crypto.Math.Numbers import Integer
    from Crypto.Protocol.SecretSharing import Shamir

    differ = 0
    for made, needed in SHARES:
        secret, chance = _bytes(SECRET_BYTES, made), _bytes(CHANCE_BYTES * (needed - 1), needed)
        ours = dict(enumerate(split(secret, range(1, made + 1), needed=needed, chance=chance), start=1))
        theirs = dict(Shamir.split(needed, made, secret))
        parts = [chance[at : at + CHANCE_BYTES] for at in range(0, len(chance), CHANCE_BYTES)]
        coefficients = [Integer.from_bytes(part) for part in (secret, *parts)]
        for place, share in ours.items():
            value = sum((factor * Integer(place) ** power for power, factor in enumerate(coefficients)), Integer(0))
            differ += int(value % Integer(PRIME)) != int.from_bytes(share, "big")
        for count, is_enough in ((needed, True), (needed - 1, False)):
            for places in combinations(ours, count):
                by_us = join({place: ours[place] for place in places}) == secret
                by_them = Shamir.combine([(place, theirs[place]) for place in places]) == secret
                differ += not by_us == by_them == is_enough
    return float(differ)


def _bytes(count: int, number: int) -> bytes:
    return hashlib.shake_256(f"oracle {number}".encode()).digest(count)


#: Name -> how far off we are, and how far we may be.
ORACLES: dict[str, tuple[Callable[[], float], float]] = {
    "gaussian": (gaussian_off, EPSILON_OFF_MOST),
    "renyi": (renyi_off, EPSILON_OFF_MOST),
    "shamir": (shamir_off, 0.0),
}


def measure() -> dict[str, object]:
    """Return how far off we are by each oracle, and how many agree, disagree and were skipped."""
    result: dict[str, object] = {}
    skipped, disagree = 0, 0
    for name, (off, most) in ORACLES.items():
        try:
            found = off()
        except ImportError as error:
            say(f"oracle {name}: skipped, {error}")
            skipped += 1
            continue
        result[f"oracle_{name}_off"] = found
        disagree += found > most
    return result | {
        "oracles_compared": len(ORACLES) - skipped,
        "oracles_disagree": disagree,
        "oracles_skipped": skipped,
    }
