"""What a private plan promises one device's person, in numbers. A value; knows no device and no plan.

The unit is a person: all that one device sends in a job. It sends at most ``participations`` updates, each at most
``clip`` long, and within one chain of noise ``apart`` versions or more from each other. A leader begins a chain, and
chains of several leaders have independent noise (``learning.blt``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.learning.accountant import epsilon_of, ratio_for
from shoal.learning.skellam import NoiseShares, shares_for, skellam_epsilon

if TYPE_CHECKING:
    from shoal.sealing.noise import NoisePoint

#: A device writes down each of them.
PARTICIPATIONS_MAX = 4096

#: Ratios are compared with this much room for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Privacy:
    epsilon: float
    delta: float
    clip: float
    #: Devices of a version. Its sum is divided by this number, however many there were.
    devices: int
    participations: int
    #: 0: any number of versions, also none.
    apart: int
    #: Versions of one chain.
    versions: int

    @property
    def ratio(self) -> float:
        """What one device may spend, as the ratio of a Gaussian mechanism."""
        return ratio_for(self.epsilon, delta=self.delta)

    @property
    def multiplier(self) -> float:
        """The deviation of fresh noise in a sum, by the length of an update: as little as keeps the promise."""
        # Here: a device without a job reads plans, and is spared numpy.
        from shoal.learning.blt import toeplitz_ratio

        return toeplitz_ratio(self.participations, self.apart, self.versions) / self.ratio

    @property
    def deviation(self) -> float:
        """The same in the units of a sum."""
        return self.multiplier * self.clip

    @property
    def mean_deviation(self) -> float:
        """In each value of the mean of a version."""
        return self.deviation / self.devices

    def spent(self, counts: Sequence[int]) -> float:
        """The ratio that a device has spent which came so often in each chain."""
        from shoal.learning.blt import ratio_of_chains

        return ratio_of_chains(counts, self.apart, self.versions) / self.multiplier

    def allows(self, counts: Sequence[int]) -> bool:
        """Whether a device may have come so often in each chain."""
        return sum(counts) <= self.participations and self.spent(counts) <= self.ratio * (1 + _ROUNDING)

    def epsilon_of(self, ratio: float) -> float:
        return epsilon_of(ratio, delta=self.delta) if ratio > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrivacy(Privacy):
    """The same where each device adds a share of the noise before it seals: fresh for each sum, so that nothing depends
    on how far apart sums are. What is spent is said as a ratio here too, and counts as Skellam noise does."""

    #: Devices in the smallest sum that is opened, less those that may tell what they know: whose noise is certain.
    certain: int

    @property
    def shares(self) -> NoiseShares:
        return shares_for(self.epsilon, delta=self.delta, participations=self.participations, devices=self.certain)

    @property
    def point(self) -> NoisePoint:
        """How updates become whole numbers with noise: devices and leader reckon it alike."""
        from shoal.sealing.noise import NoisePoint

        return NoisePoint(self.clip, self.shares.length, self.shares.variance, self.devices)

    @property
    def ratio(self) -> float:
        return self.spent([self.participations])

    @property
    def multiplier(self) -> float:
        """Of the noise that is certain: that of a whole version is more."""
        return math.sqrt(self.shares.variance * self.certain) / self.shares.length

    @property
    def mean_deviation(self) -> float:
        """In each value of the mean of a version whose devices are all there."""
        return math.sqrt(self.shares.variance / self.devices) / self.shares.length * self.clip

    def spent(self, counts: Sequence[int]) -> float:
        return math.sqrt(sum(counts)) / self.multiplier

    def allows(self, counts: Sequence[int]) -> bool:
        return sum(counts) <= self.participations

    def epsilon_of(self, ratio: float) -> float:
        variance = float(self.shares.variance * self.certain)
        return skellam_epsilon(ratio, variance=variance, delta=self.delta) if ratio > 0 else 0.0
