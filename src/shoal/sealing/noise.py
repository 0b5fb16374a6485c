"""Updates as whole numbers of a bounded length, with a share of noise that nobody else knows. Knows no masks.

Noise is drawn exactly: a table has the chance of each number to 127 bits, and the chance comes from a cipher. Numbers
that less than one draw in 2^99 would exceed do not occur, so that a device adds a bounded number and no sum ever
wraps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.errors import Misuse

#: Values are cut off beyond so many deviations: less than one draw in 2^99. The table begins a little further out,
#: where it is guessed: what is wrong with the guess is gone after a few terms.
_DEVIATIONS = 12.0
_BEYOND = 1.2
_NEAR = 64

#: A table stores its chances in so many bits. Their first ``_FIRST_BITS`` decide all but a few draws.
_BITS, _FIRST_BITS = 127, 63

#: So many bits find a place in a table that is right, or right but for one, for all but the rarest numbers.
_GUIDE_BITS = 16

#: Tries to round an update so that it stays as short as it has to be. Then it is rounded towards zero.
_TRIES_MAX = 4

#: Sums are of numbers from -2^31 to 2^31 - 1.
_SUM_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """Updates of at most ``clip``, in ``length`` steps, each value with Skellam noise of ``variance`` steps squared."""

    clip: float
    length: int
    variance: int
    devices: int

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf or min(self.length, self.variance, self.devices) < 1:
            raise Misuse(f"noise of {self.variance} for {self.devices} updates of {self.length} steps or {self.clip}")
        if self.devices * (self.length + largest(self.variance)) > _SUM_MOST:
            raise Misuse(f"a sum of {self.devices} devices with noise of {self.variance} wraps")

    @property
    def steps(self) -> float:
        """How many steps the value 1 has."""
        return self.length / self.clip

    def encode(self, values: np.ndarray, *, factor: float, chance: bytes) -> np.ndarray:
        """These values in steps, with noise. Every device counts alike: ``factor`` is 1."""
        if factor != 1:
            raise Misuse(f"a weight of {factor}, where every device counts alike")
        # What becomes of such a value as a whole number differs between processors.
        if not np.isfinite(values).all():
            raise Misuse("the update has values that are not finite: it cannot be sealed")
        rounding, noise = _keys(chance)
        words: np.ndarray = self._rounded(values, rounding) + drawn(self.variance, values.size, noise)
        return words.astype("<u4")

    def noise(self, size: int, *, chance: bytes) -> np.ndarray:
        """The noise in what was encoded with this chance."""
        return drawn(self.variance, size, _keys(chance)[1])

    def decode(self, total: np.ndarray, *, times: float) -> np.ndarray:
        """A sum as float32, multiplied by ``times``."""
        return (total.view("<i4").astype(np.float64) * (times / self.steps)).astype(np.float32)

    def _rounded(self, values: np.ndarray, key: bytes) -> np.ndarray:
        """Whole numbers whose squares add up to ``length`` squared at most, whatever the values are. Each is rounded up
        as likely as it is far from the step below; where that makes the update too long it is shortened first."""
        from shoal.sealing.stream import stream

        source, most = stream(key), float(self.length) ** 2
        steps = values.astype(np.float64)
        norm = math.sqrt(float(np.dot(steps, steps)))
        steps *= self.steps if norm <= self.clip else self.length / norm
        for _ in range(_TRIES_MAX):
            below = np.floor(steps)
            chances = np.frombuffer(source.update(bytes(4 * steps.size)), dtype="<u4")
            below += (steps - below) * 2.0**32 > chances
            # Exact: the squares of a vector this short are whole numbers below 2^53.
            squares = float(np.dot(below, below))
            if squares <= most:
                return below.astype(np.int64)
            # What is expected of the squares of rounded numbers is convex, and 0 for none: this much is enough.
            steps *= most / squares * (1 - 1e-3)
        whole = np.trunc(steps)
        while float(np.dot(whole, whole)) > most:
            whole = np.trunc(whole * (1 - 1e-6))
        return whole.astype(np.int64)


def _keys(chance: bytes) -> tuple[bytes, bytes]:
    """One for rounding and one for noise: neither tells anything of the other."""
    from shoal.sealing.stream import stream

    both = stream(chance).update(bytes(64))
    return both[:32], both[32:]


def largest(variance: int) -> int:
    """No noise of this variance is larger."""
    return math.ceil(_DEVIATIONS * math.sqrt(variance)) + _NEAR


def drawn(variance: int, size: int, key: bytes) -> np.ndarray:
    """So many Skellam numbers, by the stream of this key (32 bytes), which is used for nothing else."""
    from shoal.sealing.stream import stream

    table, source = table_of(variance), stream(key)
    bits = np.frombuffer(source.update(bytes(8 * size)), dtype="<u8")
    return picked(bits, table, more=lambda: int.from_bytes(source.update(bytes(8)), "little"))


class ChanceTable:
    """The chance that a number is no further from zero than each number, from 0 on, as whole numbers of 127 bits."""

    def __init__(self, first: np.ndarray, last: np.ndarray) -> None:
        """``first`` 63 bits of each, and the ``last`` 64. The last number has all: 2^63."""
        self.first, self.last = first, last
        begins = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(_FIRST_BITS - _GUIDE_BITS)
        self.guide = np.searchsorted(first, begins, side="right")

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Count the entries at or below each of these values, by their first bits."""
        numbers = self.guide[wanted >> np.uint64(_FIRST_BITS - _GUIDE_BITS)]
        numbers += self.first[numbers] <= wanted
        rare = np.flatnonzero(self.first[numbers] <= wanted)
        numbers[rare] = np.searchsorted(self.first, wanted[rare], side="right")
        return np.asarray(numbers)


def picked(bits: np.ndarray, table: ChanceTable, *, more: Callable[[], int]) -> np.ndarray:
    """The number of each 64 bits: the lowest is its sign, the others say where in the table it is. Where these are no
    more than the beginning of an entry, ``more`` decides."""
    wanted, first, last = bits >> np.uint64(1), table.first, table.last
    numbers = table.find(wanted)
    for at in np.flatnonzero(first[np.maximum(numbers, 1) - 1] == wanted):
        low, rest = int(np.searchsorted(first, wanted[at], side="left")), more()
        numbers[at] = low + int(np.searchsorted(last[low : numbers[at]], np.uint64(rest), side="right"))
    signs = (bits & np.uint64(1)).astype(np.int64)
    return np.asarray(numbers * (1 - 2 * signs))


@lru_cache(maxsize=4)
def table_of(variance: int) -> ChanceTable:
    """Of Skellam numbers. Their chances are as modified Bessel functions I_k of the variance v, for which I_{k-1} =
    I_{k+1} + (2k/v)·I_k: stable downwards (Miller's algorithm), here in whole numbers."""
    most = largest(variance)
    above, here = 0, 1 << 128
    chances = [0] * (most + 1)
    for number in range(math.ceil(_BEYOND * most), -1, -1):
        if number <= most:
            chances[number] = here
        above, here = here, above + 2 * number * here // variance
    whole = 2 * sum(chances) - chances[0]
    summed, first, last = 0, np.empty(most + 1, dtype=np.uint64), np.empty(most + 1, dtype=np.uint64)
    for number, chance in enumerate(chances):
        summed += chance if number == 0 else 2 * chance
        share = (summed << _BITS) // whole
        first[number], last[number] = share >> (_BITS - _FIRST_BITS), share & (1 << 64) - 1
    return ChanceTable(first, last)
