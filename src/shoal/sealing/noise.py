"""Updates as integers with a bounded L2 norm, plus a noise share that only the device knows.

Noise is sampled exactly: a table has the probability of each number to 127 bits, and the random bits come from a
cipher. Noise is truncated at a value that fewer than one sample in 2^99 would exceed. So a device adds a bounded
number, and no sum ever wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.errors import Misuse

#: Noise is truncated at this many standard deviations: fewer than one sample in 2^99 is beyond. The recurrence for the
#: table starts a little further out with a guessed value, whose error vanishes after a few terms.
_DEVIATIONS = 12.0
_BEYOND = 1.2
_NEAR = 64

#: Bits per probability in a table. The first ``_FIRST_BITS`` of them decide all but a few samples.
_BITS, _FIRST_BITS = 127, 63

#: This many bits find the right table entry, or the one before it, for all but the rarest numbers.
_GUIDE_BITS = 16

#: Attempts to round an update at random within the length limit. After them it is rounded towards zero.
_TRIES_MAX = 4

#: Sums are integers from -2^31 to 2^31 - 1.
_SUM_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """Updates of norm at most ``clip``, in ``length`` steps; each value has Skellam noise of ``variance`` steps
    squared."""

    clip: float
    length: int
    variance: int
    devices: int

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf or min(self.length, self.variance, self.devices) < 1:
            raise Misuse(
                f"noise of variance {self.variance} for {self.devices} updates of {self.length} steps and clip"
                f" {self.clip}: each must be positive"
            )
        if self.devices * (self.length + largest(self.variance)) > _SUM_MOST:
            raise Misuse(
                f"the sum over {self.devices} devices with noise of variance {self.variance} wraps around:"
                " use fewer devices"
            )

    @property
    def steps(self) -> float:
        """Steps per 1.0."""
        return self.length / self.clip

    def encode(self, values: np.ndarray, *, factor: float, chance: bytes) -> np.ndarray:
        """Return these values in steps, with noise. Every device has the same weight, so ``factor`` must be 1."""
        if factor != 1:
            raise Misuse(f"the weight factor is {factor}; it must be 1, since every device has the same weight")
        # Processors differ in how they convert such a value to an integer.
        if not np.isfinite(values).all():
            raise Misuse("the update has values that are not finite: it cannot be sealed")
        rounding, noise = _keys(chance)
        words: np.ndarray = self._rounded(values, rounding) + drawn(self.variance, values.size, noise)
        return words.astype("<u4")

    def noise(self, size: int, *, chance: bytes) -> np.ndarray:
        """Return the noise that ``encode`` added with this chance."""
        return drawn(self.variance, size, _keys(chance)[1])

    def decode(self, total: np.ndarray, *, times: float) -> np.ndarray:
        """Return a sum as float32, multiplied by ``times``."""
        return (total.view("<i4").astype(np.float64) * (times / self.steps)).astype(np.float32)

    def _rounded(self, values: np.ndarray, key: bytes) -> np.ndarray:
        """Return integers whose squares sum to at most ``length`` squared, whatever the values are. Rounding is random:
        the probability of rounding up is the distance to the step below. If the result is too long, the update is
        shortened and rounded again."""
        from shoal.sealing.stream import stream

        source, most = stream(key), float(self.length) ** 2
        steps = values.astype(np.float64)
        norm = math.sqrt(float(np.dot(steps, steps)))
        steps *= self.steps if norm <= self.clip else self.length / norm
        for _ in range(_TRIES_MAX):
            below = np.floor(steps)
            chances = np.frombuffer(source.update(bytes(4 * steps.size)), dtype="<u4")
            below += (steps - below) * 2.0**32 > chances
            # Exact: the squares of a vector this short are integers below 2^53.
            squares = float(np.dot(below, below))
            if squares <= most:
                return below.astype(np.int64)
            # The expected sum of squares after rounding is convex in the scale, and 0 at 0: this scale is small enough.
            steps *= most / squares * (1 - 1e-3)
        whole = np.trunc(steps)
        while float(np.dot(whole, whole)) > most:
            whole = np.trunc(whole * (1 - 1e-6))
        return whole.astype(np.int64)


def _keys(chance: bytes) -> tuple[bytes, bytes]:
    """Return one key for rounding and one for noise. Neither reveals anything about the other."""
    from shoal.sealing.stream import stream

    both = stream(chance).update(bytes(64))
    return both[:32], both[32:]


def largest(variance: int) -> int:
    """Return the bound of noise of this variance."""
    return math.ceil(_DEVIATIONS * math.sqrt(variance)) + _NEAR


def drawn(variance: int, size: int, key: bytes) -> np.ndarray:
    """Return ``size`` Skellam samples from the stream of this key (32 bytes). The key must serve no other purpose."""
    from shoal.sealing.stream import stream

    table, source = table_of(variance), stream(key)
    bits = np.frombuffer(source.update(bytes(8 * size)), dtype="<u8")
    return picked(bits, table, more=lambda: int.from_bytes(source.update(bytes(8)), "little"))


class ChanceTable:
    """The probability that a number is at most n away from zero, for each n from 0 on, as 127-bit integers."""

    def __init__(self, first: np.ndarray, last: np.ndarray) -> None:
        """``first`` has the first 63 bits of each entry and ``last`` the other 64. The last entry is 1.0: 2^63 in
        ``first``."""
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
    """Return the number that each 64 bits select: the lowest bit is its sign, the others select the table entry. If
    they equal the first bits of an entry, ``more`` supplies the bits that decide."""
    wanted, first, last = bits >> np.uint64(1), table.first, table.last
    numbers = table.find(wanted)
    for at in np.flatnonzero(first[np.maximum(numbers, 1) - 1] == wanted):
        low, rest = int(np.searchsorted(first, wanted[at], side="left")), more()
        numbers[at] = low + int(np.searchsorted(last[low : numbers[at]], np.uint64(rest), side="right"))
    signs = (bits & np.uint64(1)).astype(np.int64)
    return np.asarray(numbers * (1 - 2 * signs))


@lru_cache(maxsize=4)
def table_of(variance: int) -> ChanceTable:
    """Return the table of Skellam numbers. Their probabilities are proportional to the modified Bessel functions I_k of
    the variance v, for which I_{k-1} = I_{k+1} + (2k/v)·I_k. The recurrence is stable downwards (Miller's algorithm);
    here it runs in integers."""
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
