"""A partial for large models: the sum lies in the memory of the first two updates. Numpy only.

A float64 sum takes two models of memory next to the updates. Here the upper and the lower 32 bits of its values replace
the values of the first two updates, and the mean replaces the upper ones. Nothing of a model's size is allocated.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse

#: Elements handled at a time: the scratch of a block stays in a core's second-level cache.
BLOCK = 32768

#: Where the upper half of a float64 is, in pairs of 32 bits.
_UPPER, _LOWER = (1, 0) if np.little_endian else (0, 1)


class PairedSum:
    """What ``Partial`` comes to, bit for bit. The updates are given away: their arrays are overwritten."""

    __slots__ = ("_halves", "_scratch", "_unit", "_wide", "count", "size", "weight")

    def __init__(self, size: int) -> None:
        self.size = size
        #: The memory of the first two updates.
        self._halves: list[np.ndarray] = []
        self._unit = 1.0
        self.weight = 0.0
        self.count = 0
        self._wide = np.empty(min(size, BLOCK), dtype=np.float64)
        self._scratch = np.empty(min(size, BLOCK), dtype=np.float64)

    def add(self, update: np.ndarray, *, weight: float, scale: float = 1.0) -> None:
        """Merge one update. The first two are kept, and must not be read by anybody else afterwards."""
        if update.shape != (self.size,) or update.dtype != np.float32:
            raise Misuse(f"an update of {update.dtype} {update.shape} into a sum of {self.size} values")
        if not weight > 0 or not scale > 0:
            raise Misuse(f"an update weighs more than nothing, not {weight} times {scale}")
        if self.count == 0:
            self._halves, self._unit = [_own(update)], weight * scale
        else:
            if self.count == 1:
                self._halves.append(_own(update))
            self._add(update, factor=weight * scale / self._unit)
        self.weight += weight
        self.count += 1

    def take_mean(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return Σ sᵢ·wᵢ·uᵢ / Σ wᵢ as float32, and an array of the same size to write to, or None after one update.

        The sum starts over: both arrays are the caller's.
        """
        if self.count == 0:
            raise Misuse("the mean of no updates")
        mean, factor = self._halves[0], self._unit / self.weight
        for block in self._blocks():
            wide = self._widened(block)
            np.multiply(wide, factor, out=mean[block], casting="same_kind")
        spare = self._halves[1] if self.count > 1 else None
        self.clear()
        return mean, spare

    def clear(self) -> None:
        """Start over. The memory of the updates goes."""
        self._halves = []
        self.weight = 0.0
        self.count = 0

    def _add(self, update: np.ndarray, *, factor: float) -> None:
        upper, lower = (half.view(np.uint32) for half in self._halves)
        for block in self._blocks():
            wide = self._widened(block)
            if factor == 1.0:
                wide += update[block]
            else:
                # Widened first: of a float32 array and a Python number numpy makes float32.
                scaled = self._scratch[: wide.size]
                scaled[:] = update[block]
                scaled *= factor
                wide += scaled
            pairs = wide.view(np.uint32)
            upper[block] = pairs[_UPPER::2]
            lower[block] = pairs[_LOWER::2]

    def _widened(self, block: slice) -> np.ndarray:
        """Return the sum of a block as float64, in memory that the next block uses again."""
        wide = self._wide[: block.stop - block.start]
        if self.count == 1:
            wide[:] = self._halves[0][block]
            return wide
        pairs = wide.view(np.uint32)
        pairs[_UPPER::2] = self._halves[0][block].view(np.uint32)
        pairs[_LOWER::2] = self._halves[1][block].view(np.uint32)
        return wide

    def _blocks(self) -> list[slice]:
        return [slice(start, min(start + BLOCK, self.size)) for start in range(0, self.size, BLOCK)]


def _own(update: np.ndarray) -> np.ndarray:
    """Return an array that may be written to: the update itself if it allows that."""
    return update if update.flags.writeable and update.flags.c_contiguous else update.copy()
