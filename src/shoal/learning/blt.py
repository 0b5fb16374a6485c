"""Correlated noise for a sequence of sums, in which each noise takes back a part of the earlier ones.

If n sums have independent noise, their running sum has n noises. Here noise t is N_t minus a part of the earlier
noises, so that running sums have less (matrix factorisation; Denisov et al. 2022, arXiv 2202.08312). The parts decay
like a few exponentials (buffered linear Toeplitz, McMahan et al. 2024, arXiv 2408.08868), so that only one vector per
exponential must be kept. ``tools/blt_table.py`` makes the table of exponentials.

In matrices: the sums x go out as x + z·C⁻¹N with c_0 = 1 and c_j = Σ w·d^(j-1). That is what C⁻¹ makes of Cx + z·N: a
Gaussian mechanism, whose ratio follows from how far one device can move Cx.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from shoal.errors import Misuse
from shoal.learning.blt_table import TABLE, VERSIONS_MAX, Row


def row_for(versions: int) -> Row:
    """Return the table's row for this many versions, or for the next larger number that it has."""
    if not 1 <= versions <= VERSIONS_MAX:
        raise Misuse(f"noise is known for 1 to {VERSIONS_MAX} versions, not {versions}")
    return TABLE[min(size for size in TABLE if size >= versions)]


def coefficients(versions: int) -> np.ndarray:
    """c_0 = 1, c_j = Σ w·d^(j-1)   (McMahan et al. 2024, definition 3.1). They fall and are above 0."""
    row = row_for(versions)
    powers = np.array(row.decays)[None] ** np.arange(versions - 1)[:, None]
    return np.concatenate(([1.0], powers @ np.array(row.weights)))


@functools.lru_cache(maxsize=256)
def toeplitz_ratio(participations: int, apart: int, versions: int) -> float:
    """Return how far one device can move Cx with ``participations`` updates of length 1, at least ``apart`` versions
    apart.

    If coefficients fall and are above 0, the worst case is to take part in version 1 and then every ``apart`` versions
    (Kalinin and Lampert 2024, arXiv 2405.13763, theorem 2). With noise of deviation z it is z times the ratio of the
    Gaussian mechanism.
    """
    if participations < 0 or apart < 1:
        raise Misuse(f"{participations} participations, {apart} versions apart")
    column, moved = coefficients(versions), np.zeros(versions)
    for first in range(0, min(versions, participations * apart), apart):
        moved[first:] += column[: versions - first]
    return float(np.linalg.norm(moved))


def ratio_of_chains(counts: Sequence[int], apart: int, versions: int) -> float:
    """The ratio of a device that took part in several chains: ``counts`` has its participations in each. Chains are
    independent Gaussian mechanisms, so their ratios add up in quadrature (Dong, Roth and Su 2022)."""
    return math.sqrt(math.fsum(toeplitz_ratio(count, apart, versions) ** 2 for count in counts))


class ToeplitzNoise:
    """One chain: noise for one sum after the other, never the same twice. Keeps a vector for each exponential."""

    __slots__ = ("_decays", "_deviation", "_weights", "buffers", "drawn", "versions")

    def __init__(self, size: int, *, versions: int, deviation: float) -> None:
        """``deviation``: of each N, in the units of the sums."""
        if not 0 <= deviation < math.inf:
            raise Misuse(f"a deviation is a number from 0, not {deviation}")
        row = row_for(versions)
        self.versions = versions
        #: Noises so far.
        self.drawn = 0
        self._deviation = deviation
        self._decays = np.array(row.decays, dtype=np.float32)[:, None]
        self._weights = np.array(row.weights, dtype=np.float32)
        self.buffers = np.zeros((len(row.decays), size), dtype=np.float32)

    @property
    def is_over(self) -> bool:
        """Its ratio was worked out for as many versions as there were."""
        return self.drawn >= self.versions

    def next(self, normals: np.ndarray) -> np.ndarray:
        """The noise of the next sum, of normals that were drawn for it alone: y_t = N_t - Σ w·s, and s ← d·s + y_t."""
        if self.is_over:
            raise Misuse(f"this chain of noise is for {self.versions} versions, and all of them were made")
        self.drawn += 1
        noise = normals * np.float32(self._deviation)
        noise -= self._weights @ self.buffers
        self.buffers *= self._decays
        self.buffers += noise
        return noise
