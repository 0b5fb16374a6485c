"""Places that all devices of a sum agree on: where devices likely hold much back, and some that go round. Numpy only.

What a device holds back at a place grows until the place is sent. So a place is worth what came of it a version when it
was sent last, times the versions since (as rAge-k weighs the values of one device by their age; Mortaheb et al. 2024).
Half of the places are those of the largest worth. The other half goes round through all of them: none waits for ever,
and a place that begins to move is found.

All that is known here are sums that were opened. No device's own values choose a place, and so no place tells anything
of a device.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.compress.sparse import count_of, largest_places
from shoal.errors import Misuse

#: Of the places of a sum, one in so many is of the largest worth. The others go round: a single one does.
_AHEAD = 2

#: The way round leaps by this part of the vector: the golden ratio spreads any run of leaps evenly.
_LEAP = (math.sqrt(5) - 1) / 2


class LedPlaces:
    """Which places the next sum has. It changes with each sum that was opened, and with nothing else."""

    def __init__(self, size: int, *, share_ppm: int, seed: int) -> None:
        if size < 1:
            raise Misuse(f"places of at least one value, not {size}")
        self.count = count_of(size, share_ppm=share_ppm)
        self._size, self._leap = size, leap_of(size)
        #: Where the way round stands, in leaps.
        self._stands = seed % size
        #: What came of a place for each version that it had waited, in the last sum with it; 0: it was in none.
        self._rates = np.zeros(size, dtype=np.float32)
        #: Sums that were opened since then.
        self._ages = np.zeros(size, dtype=np.float32)
        self._places: np.ndarray | None = None

    def next(self) -> np.ndarray:
        """The places of the next sum, ascending (int64); the same until one was opened."""
        if self._places is None:
            ahead = largest_places(self._rates * (self._ages + 1), self.count // _AHEAD)
            around, self._stands = self._go_round(ahead)
            self._places = np.sort(np.concatenate((ahead, around)))
            self._places.flags.writeable = False
        return self._places

    def opened(self, mean: np.ndarray) -> None:
        """The sum over these places was opened, and this is its mean."""
        places, self._places = self.next(), None
        if mean.shape != places.shape:
            raise Misuse(f"{mean.size} values at {places.size} places")
        self._ages += 1
        self._rates[places] = np.abs(mean) / self._ages[places]
        self._ages[places] = 0

    def _go_round(self, ahead: np.ndarray) -> tuple[np.ndarray, int]:
        """As many places as are left to choose, none of those ahead; and where the way round stands then."""
        wanted = self.count - ahead.size
        if not wanted:
            return np.empty(0, dtype=np.int64), self._stands
        is_free = np.ones(self._size, dtype=np.bool_)
        is_free[ahead] = False
        # At most every place ahead is met on the way and passed over.
        met = np.arange(self._stands, self._stands + self.count, dtype=np.int64) * self._leap % self._size
        found = np.flatnonzero(is_free[met])[:wanted]
        return met[found], (self._stands + int(found[-1]) + 1) % self._size


def leap_of(size: int) -> int:
    """A leap that meets every place before it meets one again: no divisor in common with the size."""
    leap = max(1, int(size * _LEAP))
    while math.gcd(leap, size) > 1:
        leap += 1
    return leap
