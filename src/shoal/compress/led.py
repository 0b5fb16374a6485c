"""The places (indices) that all updates of a sum have: where devices likely keep large values back, and some in turn.

The value that a device keeps back at a place grows until the place is sent. So a place's worth is its last sum per
version of waiting, times the versions since (as rAge-k weighs the values of one device by their age; Mortaheb et al.
2024). Half of the places are those with the largest worth. The other half cycles through all places, so that none waits
for ever and a place that begins to move is found.

Only opened sums choose places, never a device's own values. So the places reveal nothing about a device.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.compress.sparse import count_of, largest_places
from shoal.errors import Misuse

#: One in this many places of a sum is chosen by its worth, rounded down. The others are chosen in turn.
_AHEAD = 2

#: The cycle advances by this fraction of the vector: the golden ratio spreads any run of steps evenly.
_LEAP = (math.sqrt(5) - 1) / 2


class LedPlaces:
    """The places of the next sum. Only an opened sum changes them."""

    def __init__(self, size: int, *, share_ppm: int, seed: int) -> None:
        if size < 1:
            raise Misuse(f"size is {size}; there must be at least one value")
        self.count = count_of(size, share_ppm=share_ppm)
        self._size, self._leap = size, leap_of(size)
        #: The position of the cycle, in steps.
        self._stands = seed % size
        #: For each place, its mean in the last sum that had it, per version that it had waited. 0 if no sum had it yet.
        self._rates = np.zeros(size, dtype=np.float32)
        #: Opened sums since then.
        self._ages = np.zeros(size, dtype=np.float32)
        self._places: np.ndarray | None = None

    def next(self) -> np.ndarray:
        """Return the places of the next sum, ascending (int64). They stay the same until a sum is opened."""
        if self._places is None:
            ahead = largest_places(self._rates * (self._ages + 1), self.count // _AHEAD)
            around, self._stands = self._go_round(ahead)
            self._places = np.sort(np.concatenate((ahead, around)))
            self._places.flags.writeable = False
        return self._places

    def opened(self, mean: np.ndarray) -> None:
        """Record the mean of the opened sum over the current places."""
        places, self._places = self.next(), None
        if mean.shape != places.shape:
            raise Misuse(f"the mean has {mean.size} values for {places.size} places")
        self._ages += 1
        self._rates[places] = np.abs(mean) / self._ages[places]
        self._ages[places] = 0

    def _go_round(self, ahead: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the places of the cycle for the rest of the sum, without those in ``ahead``, and its new position."""
        wanted = self.count - ahead.size
        if not wanted:
            return np.empty(0, dtype=np.int64), self._stands
        is_free = np.ones(self._size, dtype=np.bool_)
        is_free[ahead] = False
        # The cycle skips at most every place in ``ahead``.
        met = np.arange(self._stands, self._stands + self.count, dtype=np.int64) * self._leap % self._size
        found = np.flatnonzero(is_free[met])[:wanted]
        return met[found], (self._stands + int(found[-1]) + 1) % self._size


def leap_of(size: int) -> int:
    """A leap that meets every place before it meets one again: no divisor in common with the size."""
    leap = max(1, int(size * _LEAP))
    while math.gcd(leap, size) > 1:
        leap += 1
    return leap
