"""The partial: a weighted sum of updates and its weight. Numpy only; knows no network and no rounds.

Merging is associative and commutative, so a star, a tree, a shard and a chain differ only in where partials
meet (MDLdroid's (W, θ) is this pair). Memory is one accumulator, however many updates went in.
"""

from __future__ import annotations

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.errors import Misuse

#: Elements handled at a time: 256 KiB of scratch stays in a core's second-level cache.
_BLOCK = 32768


class Partial:
    """Σ sᵢ·wᵢ·uᵢ and Σ wᵢ, summed in float64 so that the order of arrival does not show in a float32 model.

    The weight wᵢ is how many examples an update stands for, the scale sᵢ what a late one is worth. The mean divides by
    only the weights: if it divided by the scaled ones, a partial of one late update would be that update undamped.

    Held in units of the first s·w: most updates of a round weigh the same, and adding is cheaper than scaling.
    """

    __slots__ = ("_scratch", "_total", "_unit", "count", "weight")

    def __init__(self, size: int) -> None:
        #: Of no meaning while nothing is merged: the first update overwrites it.
        self._total = np.empty(size, dtype=np.float64)
        self._unit = 1.0
        self.weight = 0.0
        self.count = 0
        self._scratch = np.empty(min(size, _BLOCK), dtype=np.float64)

    @property
    def size(self) -> int:
        return self._total.size

    def add(self, update: np.ndarray | Sparse, *, weight: float, scale: float = 1.0) -> None:
        """Merge one update. A sparse one costs what it names."""
        if update.size != self.size:
            raise Misuse(f"an update of {update.size} values into a partial of {self.size}")
        if not weight > 0:
            raise Misuse(f"an update weighs more than nothing, not {weight}")
        if not scale > 0:
            raise Misuse(f"a late update is worth more than nothing, not {scale}")
        if isinstance(update, Sparse):
            self._add_sparse(update, weight=weight * scale)
        else:
            self._add(update, weight=weight * scale)
        self.weight += weight
        self.count += 1

    def merge(self, other: Partial) -> None:
        """Merge what another node has merged."""
        if other.size != self.size:
            raise Misuse(f"a partial of {other.size} values into one of {self.size}")
        if other.count:
            self._add(other._total, weight=other._unit)
            self.weight += other.weight
            self.count += other.count

    def mean(self) -> np.ndarray:
        """Σ sᵢ·wᵢ·uᵢ / Σ wᵢ as float32."""
        if self.count == 0:
            raise Misuse("the mean of no updates")
        out = np.empty(self.size, dtype=np.float32)
        np.multiply(self._total, self._unit / self.weight, out=out, casting="same_kind")
        return out

    def clear(self) -> None:
        """Start over in the same memory."""
        self.weight = 0.0
        self.count = 0

    def _add_sparse(self, update: Sparse, *, weight: float) -> None:
        if self.count == 0:
            self._unit = weight
            self._total[:] = 0.0
        # No place is named twice, so that adding by places loses nothing.
        self._total[update.places] += update.values.astype(np.float64) * (weight / self._unit)

    def _add(self, values: np.ndarray, *, weight: float) -> None:
        if self.count == 0:
            self._unit = weight
            self._total[:] = values
        elif weight == self._unit:
            np.add(self._total, values, out=self._total)
        else:
            for start in range(0, self.size, _BLOCK):
                total = self._total[start : start + _BLOCK]
                scaled = self._scratch[: total.size]
                # Widened first: of a float32 array and a Python number numpy makes float32, whatever ``out`` is.
                scaled[:] = values[start : start + _BLOCK]
                scaled *= weight / self._unit
                np.add(total, scaled, out=total)
