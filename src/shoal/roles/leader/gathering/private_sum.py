"""A version of a private job: updates are clipped, added up and given noise before anyone sees the sum.

A part of the leader, in the place where updates are weighed. Each device counts as one, whatever its examples, and the
sum is divided by a number that the plan names, not by how many came: one device then moves the sum by ``clip`` at most.
Aggregators of a tree or a shard add no noise: it is added here, once a version, whichever way updates came.
The driver draws fresh normals for each version. A leader keeps no chain for its successor: after a crash nobody knows
which versions were handed out with which noise, so each leader begins its own chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.errors import Misuse
from shoal.learning.blt import ToeplitzNoise
from shoal.learning.clipping import length_of
from shoal.learning.partial import Partial
from shoal.learning.privacy import Privacy
from shoal.roles.leader.weighing import WeighedDown

#: So many normal numbers in float32, never the same twice: those of a version are drawn for it alone.
Normals = Callable[[int], np.ndarray]

#: A partial takes no update of no weight.
_KEPT_LEAST = 1e-30


def no_chance(size: int) -> np.ndarray:
    """For a leader whose plan needs none."""
    raise Misuse("the driver of this leader gives it no chance, and a private plan needs some")


class PrivateSum:
    """A ``Weighing``."""

    def __init__(self, size: int, privacy: Privacy, normals: Normals) -> None:
        self._size, self._privacy, self._normals = size, privacy, normals
        self._partial = Partial(size)
        self._chain = ToeplitzNoise(size, versions=privacy.versions, deviation=privacy.deviation)
        #: Devices that are in this version. The device and the leader see to it that each comes once.
        self._nodes: set[str] = set()
        self.weight = 0.0

    @property
    def devices(self) -> int:
        return len(self._nodes)

    @property
    def is_over(self) -> bool:
        """The chain has as many versions as its noise is for."""
        return self._chain.is_over

    @property
    def versions(self) -> int:
        """Versions of this chain so far."""
        return self._chain.drawn

    def add(self, node: str, update: np.ndarray | Sparse, *, weight: float, scale: float) -> None:
        """A late update counts less, never more: it stays within the clip."""
        # The device has cut it. A device that lies is no longer than others either.
        factor = self._factor(update)
        self._enter([node])
        self._partial.add(update, weight=1.0, scale=max(min(scale, 1.0) * factor, _KEPT_LEAST))
        self.weight += weight

    def take(self, mean: np.ndarray, nodes: Sequence[str], *, weight: float) -> None:
        """A sum of aggregators as the mean of these devices, in which each counts as one. No mean is longer than the
        longest update: an aggregator that lies moves the sum no further than its devices could."""
        factor = self._factor(mean)
        self._enter(nodes)
        self._partial.add(mean, weight=float(len(nodes)), scale=max(factor, _KEPT_LEAST))
        self.weight += weight

    def _enter(self, nodes: Sequence[str]) -> None:
        if again := [node for node in nodes if node in self._nodes]:
            raise Misuse(f"{', '.join(again)} is in this version already: its account would not hold")
        self._nodes.update(nodes)

    def _factor(self, update: np.ndarray | Sparse) -> float:
        length = length_of(update.values if isinstance(update, Sparse) else update)
        return min(1.0, self._privacy.clip / length) if length else 1.0

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        total = self._partial.mean() * np.float32(self._partial.weight)
        total += self._noise()
        total /= np.float32(self._privacy.devices)
        return total, []

    def skip(self) -> None:
        """A version that is made of no updates, since the model goes back. Its noise is dropped, so that noises and
        versions stay in step: devices count how far apart they take part in versions."""
        if not self._chain.is_over:
            self._noise()

    def _noise(self) -> np.ndarray:
        return self._chain.next(self._normals(self._size))

    def clear(self) -> None:
        self._partial.clear()
        self._nodes.clear()
        self.weight = 0.0
