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
    #: Devices per version. Its sum is divided by this number, however many took part.
    devices: int
    participations: int
    #: The least number of versions between two participations. 0 if there is no minimum.
    apart: int
    #: Versions in one noise sequence.
    versions: int

    @property
    def workers_least(self) -> int:
        """Return the fewest workers with which each device can rest for as many versions as it must."""
        return max(1, self.apart) * self.devices

    @property
    def ratio(self) -> float:
        """One device's privacy budget, as the ratio of a Gaussian mechanism."""
        return ratio_for(self.epsilon, delta=self.delta)

    @property
    def multiplier(self) -> float:
        """The least deviation of fresh noise in a sum that keeps the promise, relative to the length of an update."""
        # Imported here because a device without a job reads plans, and does not need numpy for that.
        from shoal.learning.blt import toeplitz_ratio

        return toeplitz_ratio(self.participations, self.apart, self.versions) / self.ratio

    @property
    def deviation(self) -> float:
        """The deviation of fresh noise, in the units of a sum."""
        return self.multiplier * self.clip

    @property
    def mean_deviation(self) -> float:
        """The noise's deviation in each value of a version's mean."""
        return self.deviation / self.devices

    def spent(self, counts: Sequence[int]) -> float:
        """Return the ratio that a device has used, from its number of participations in each noise sequence."""
        from shoal.learning.blt import ratio_of_chains

        return ratio_of_chains(counts, self.apart, self.versions) / self.multiplier

    def allows(self, counts: Sequence[int]) -> bool:
        """Whether a device may take part this often in each noise sequence."""
        return sum(counts) <= self.participations and self.spent(counts) <= self.ratio * (1 + _ROUNDING)

    def epsilon_of(self, ratio: float) -> float:
        return epsilon_of(ratio, delta=self.delta) if ratio > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrivacy(Privacy):
    """A promise for sealed sums: each device adds a share of the noise before it seals. The noise is fresh for each
    sum, so the distance between participations does not matter. The budget is a ratio here too, computed for Skellam
    noise."""

    #: Devices in the smallest sum that is opened, minus those that may reveal their noise.
    certain: int

    @property
    def shares(self) -> NoiseShares:
        return shares_for(self.epsilon, delta=self.delta, participations=self.participations, devices=self.certain)

    @property
    def point(self) -> NoisePoint:
        """The settings by which updates become integers with noise. Devices and the leader compute the same ones."""
        from shoal.sealing.noise import NoisePoint

        return NoisePoint(self.clip, self.shares.length, self.shares.variance, self.devices)

    @property
    def ratio(self) -> float:
        return self.spent([self.participations])

    @property
    def multiplier(self) -> float:
        """The deviation of the noise of the ``certain`` devices, relative to an update. A complete version has more."""
        return math.sqrt(self.shares.variance * self.certain) / self.shares.length

    @property
    def mean_deviation(self) -> float:
        """The noise's deviation in each value of the mean of a complete version."""
        return math.sqrt(self.shares.variance / self.devices) / self.shares.length * self.clip

    def spent(self, counts: Sequence[int]) -> float:
        return math.sqrt(sum(counts)) / self.multiplier

    def allows(self, counts: Sequence[int]) -> bool:
        return sum(counts) <= self.participations

    def epsilon_of(self, ratio: float) -> float:
        variance = float(self.shares.variance * self.certain)
        return skellam_epsilon(ratio, variance=variance, delta=self.delta) if ratio > 0 else 0.0
