"""Ascending indices ("places") as Rice-coded gaps, and back.

A gap g (how many indices are skipped) is g >> p in unary, that many zeros and a one, and its p low bits unchanged.
All unary parts come first and all low bits after them, so that both are read without a loop: the ones by their
positions. Gaps between values chosen at one density are nearly geometric, for which Rice codes are within some 2 % of
the optimum.

The unary parts of ``count`` places below ``size`` take at most ``count + (size >> p)`` bits, whatever the gaps. Longer
data is refused before it is unpacked, and decoded places always ascend because a gap is never negative.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.wire.bits import pack, packed_bytes, unpack

#: The most low bits per gap: places are below 2^28, the largest model.
PARAMETER_MAX = 28


def parameter_for(count: int, size: int) -> int:
    """Return the parameter with the lowest bound on the length. It depends only on the density."""
    return min(range(PARAMETER_MAX + 1), key=lambda p: _bits_max(count, size, p))


def coded_bytes_max(count: int, size: int) -> int:
    """Return the most bytes that any ``count`` places below ``size`` take."""
    parameter = parameter_for(count, size)
    return _unary_bytes_max(count, size, parameter) + packed_bytes(count, parameter)


def encode(places: np.ndarray, size: int) -> tuple[int, np.ndarray]:
    """Return the parameter and the bytes. Places are int64, ascending, below ``size``."""
    if places.size == 0:
        return 0, np.empty(0, dtype=np.uint8)
    gaps = np.diff(places, prepend=-1) - 1
    if int(gaps.min()) < 0 or int(places[-1]) >= size or size > 1 << PARAMETER_MAX:
        raise Misuse(f"places must ascend and be below {size}")
    parameter = _shortest(gaps, size)
    high = gaps >> parameter
    ends = np.cumsum(high + 1)
    unary = np.zeros(int(ends[-1]), dtype=np.uint8)
    unary[ends - 1] = 1
    low = pack(gaps & ((1 << parameter) - 1), parameter)
    return parameter, np.concatenate((np.packbits(unary), low))


def decode(data: np.ndarray, *, count: int, size: int, parameter: int) -> np.ndarray:
    """Return the places from exactly their bytes. Raises PeerViolation if ``encode`` cannot have written ``data``."""
    if not 0 <= count <= size or not 0 <= parameter <= PARAMETER_MAX:
        raise PeerViolation(
            f"{count} places of {size} are coded with parameter {parameter}; there are at most {size} places, and the"
            f" parameter is at most {PARAMETER_MAX}"
        )
    unary_bytes = data.size - packed_bytes(count, parameter)
    if count == 0:
        if data.size:
            raise PeerViolation(f"{data.size} bytes were sent for no places")
        return np.empty(0, dtype=np.int64)
    if not 0 < unary_bytes <= _unary_bytes_max(count, size, parameter):
        raise PeerViolation(f"{count} places of {size} cannot take {data.size} bytes with parameter {parameter}")
    unary = np.unpackbits(data[:unary_bytes])
    # Counted before they are listed: a place takes eight bytes, and all bits might be ones.
    if (ones := int(np.count_nonzero(unary))) != count:
        raise PeerViolation(f"{ones} places were sent, but {count} were announced")
    ends = np.flatnonzero(unary)
    if int(ends[-1]) < 8 * (unary_bytes - 1):
        raise PeerViolation("the data has bytes after the last place")
    # Each end is the sum of the high parts up to it and of the ones before it.
    high = ends - np.arange(count)
    places: np.ndarray = (np.diff(high, prepend=0) << parameter) + unpack(data[unary_bytes:], count, parameter)
    np.cumsum(places, out=places)
    places += np.arange(count)
    if int(places[-1]) >= size:
        raise PeerViolation(f"the last place is {int(places[-1])}; it must be below {size}")
    return places


def _shortest(gaps: np.ndarray, size: int) -> int:
    """Return the parameter that the density suggests, or a neighbour of it if that codes these gaps in fewer bytes."""
    near = parameter_for(gaps.size, size)
    tried = range(max(0, near - 1), min(PARAMETER_MAX, near + 1) + 1)
    return min(tried, key=lambda p: _coded_bytes(gaps, p))


def _coded_bytes(gaps: np.ndarray, parameter: int) -> int:
    return (gaps.size + int((gaps >> parameter).sum()) + 7) // 8 + packed_bytes(gaps.size, parameter)


def _bits_max(count: int, size: int, parameter: int) -> int:
    return count + (size >> parameter) + count * parameter


def _unary_bytes_max(count: int, size: int, parameter: int) -> int:
    return (count + (size >> parameter) + 7) // 8
