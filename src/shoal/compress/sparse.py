"""The largest values of each tensor, and their indices ("places").

A flat vector is tensors back to back; only their sizes are needed here. Magnitudes are compared as integers: the bits
of a float32 without its sign are in the order of its magnitude, with infinities and NaN above all else. So a value that
is not finite is always among the largest, and checking those checks all values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: Shares are in parts per million.
WHOLE_PPM = 1_000_000

_MAGNITUDE = np.uint32(0x7FFF_FFFF)

#: Values per block: 256 KiB of scratch memory stays in a core's second-level cache.
_BLOCK = 1 << 16

#: Values in the sample that is taken first from a tensor of at least twice this size.
_SAMPLE = 1 << 14


@dataclass(frozen=True, slots=True)
class Sparse:
    """Some values of a flat vector of ``size``: ``places`` ascend (int64), ``values`` are float32. The rest is zero."""

    size: int
    places: np.ndarray
    values: np.ndarray

    def dense(self) -> np.ndarray:
        """Return all values, including zeros."""
        flat = np.zeros(self.size, dtype=np.float32)
        flat[self.places] = self.values
        return flat

    def part(self, start: int, stop: int) -> Sparse:
        """Return the values from ``start`` to ``stop``, with places counted from ``start``."""
        if not 0 <= start <= stop <= self.size:
            raise Misuse(f"a part from {start} to {stop} is not within a vector of {self.size} values")
        first, last = np.searchsorted(self.places, (start, stop))
        return Sparse(stop - start, self.places[first:last] - start, self.values[first:last])


def add_to(flat: np.ndarray, change: np.ndarray | Sparse) -> None:
    """Add a change to a vector in place. No place occurs twice, so that adding by places loses nothing."""
    if isinstance(change, Sparse):
        flat[change.places] += change.values
    else:
        flat += change


def take_from(flat: np.ndarray, change: np.ndarray | Sparse) -> None:
    """Subtract a change from a vector in place. With float32, this undoes ``add_to`` up to rounding."""
    if isinstance(change, Sparse):
        flat[change.places] -= change.values
    else:
        flat -= change


def count_of(size: int, *, share_ppm: int) -> int:
    """Return how many values of a tensor to send: the share rounded down, but at least one if it is not empty."""
    return min(size, max(1, size * share_ppm // WHOLE_PPM))


def largest(update: np.ndarray, sizes: Sequence[int], *, share_ppm: int) -> Sparse:
    """Return the values of each tensor with the largest magnitude, the first of equal ones. Zeros are left out."""
    if update.dtype != np.float32 or update.shape != (sum(sizes),):
        raise Misuse(f"the update is {update.dtype} {update.shape}; the tensors have float32 ({sum(sizes)},)")
    if not 1 <= share_ppm <= WHOLE_PPM:
        raise Misuse(f"a share is 1 to {WHOLE_PPM} parts per million, not {share_ppm}")
    raw = np.ascontiguousarray(update).view(np.uint32)
    found, start = [], 0
    for size in sizes:
        places = _largest(raw[start : start + size], count_of(size, share_ppm=share_ppm))
        places += start
        found.append(places)
        start += size
    places = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
    return Sparse(update.size, places, update[places])


def largest_places(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the ``count`` largest of these float32 values, as ``largest`` chooses them. There are fewer
    if the others are zero."""
    if not count:
        return np.empty(0, dtype=np.int64)
    return _largest(np.ascontiguousarray(values, dtype=np.float32).view(np.uint32), count)


def _largest(raw: np.ndarray, count: int) -> np.ndarray:
    """Return the exact places, whatever the sample: a bad guess only costs time."""
    floor = _guess(raw, count)
    near = _at_least(raw, floor)
    if near.size < count and floor > 1:
        near = _at_least(raw, 1)
    if near.size <= count:
        return near
    magnitudes = raw[near] & _MAGNITUDE
    edge = np.partition(magnitudes, near.size - count)[near.size - count]
    chosen = magnitudes > edge
    equal = np.flatnonzero(magnitudes == edge)
    chosen[equal[: count - int(np.count_nonzero(chosen))]] = True
    places: np.ndarray = near[chosen]
    return places


def _guess(raw: np.ndarray, count: int) -> int:
    """A magnitude that a few more than ``count`` values very likely reach; 1, the least above zero, where unsure."""
    if raw.size < 2 * _SAMPLE:
        return 1
    sample = raw[:: raw.size // _SAMPLE] & _MAGNITUDE
    expected = count * sample.size / raw.size
    # Of that many hits the standard deviation is the root: four of them are missed once in thirty thousand.
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank >= sample.size:
        return 1
    return max(1, int(np.partition(sample, sample.size - rank)[sample.size - rank]))


def _at_least(raw: np.ndarray, floor: int) -> np.ndarray:
    """Where the magnitude reaches ``floor``, ascending."""
    scratch = np.empty(min(raw.size, _BLOCK), dtype=np.uint32)
    found = []
    for start in range(0, raw.size, _BLOCK):
        block = raw[start : start + _BLOCK]
        places = np.flatnonzero(np.bitwise_and(block, _MAGNITUDE, out=scratch[: block.size]) >= np.uint32(floor))
        places += start
        found.append(places)
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
