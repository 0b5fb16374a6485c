"""Values in few bits: b-bit levels under a scale for each tensor, and words of 16 bits. Numpy only; packs no bits.

With b bits there are 2^(b-1) levels a side, and no code for zero: what rounds to zero says nothing and is not sent. The
scale is the largest magnitude over the number of levels, a power of two: nothing is lost in that division, and the
largest value of a tensor comes back as it was.

``int16`` has as many levels on each side of zero as a word of 16 bits holds, and zero is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import Misuse

BITS_MIN, BITS_MAX = 2, 8

#: Levels on each side of zero in a word of 16 bits.
INT16_MOST = (1 << 15) - 1

#: The least float32 with all its digits. A finer scale would not hold what the error bound says.
SCALE_MIN = float(np.finfo(np.float32).tiny)

#: Values at a time: what is between two steps stays in a core's second-level cache.
_BLOCK = 1 << 16

_FLOAT16_MAX = float(np.finfo(np.float16).max)
#: The largest finite bfloat16, without its sign.
_BFLOAT16_MAX = np.uint32(0x7F7F)


def levels_of(bits: int) -> int:
    """Levels on each side of zero."""
    if not BITS_MIN <= bits <= BITS_MAX:
        raise Misuse(f"values take {BITS_MIN} to {BITS_MAX} bits, not {bits}")
    return 1 << (bits - 1)


def scales_of(values: np.ndarray, counts: np.ndarray, *, bits: int) -> np.ndarray:
    """The step between two levels in each tensor; 0 where nothing is large enough to have one.

    ``values`` are those of one tensor after the other, ``counts`` how many each has.
    """
    scales = _largest(values, counts) / np.float32(levels_of(bits))
    scales[scales < SCALE_MIN] = 0
    return scales


def _largest(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the largest magnitude in each tensor, or 0 in one without values."""
    largest = np.zeros(counts.size, dtype=np.float32)
    present = np.flatnonzero(counts)
    if present.size:
        starts = (np.cumsum(counts) - counts)[present]
        largest[present] = np.maximum.reduceat(np.abs(values), starts)
    return largest


def quantise(
    values: np.ndarray, scales: np.ndarray, *, bits: int, chance: np.random.Generator | None = None
) -> np.ndarray:
    """The level of each value (int16) under its scale: the nearest; with ``chance``, on average the value itself.

    Where the scale is 0 the level is 0. A value is off by at most half a scale, or a whole one with ``chance``.
    """
    steps = np.divide(values, scales, out=np.zeros_like(values), where=scales > 0)
    if chance is None:
        np.rint(steps, out=steps)
    else:
        # Added up in float64: in float32 a draw close to 1 would be rounded up to it, and carry a whole level over.
        steps = np.floor(steps + chance.random(steps.size)).astype(np.float32)
    most = levels_of(bits)
    levels: np.ndarray = np.clip(steps, -most, most).astype(np.int16)
    return levels


def restored(levels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The values that levels stand for, in float32."""
    values: np.ndarray = levels.astype(np.float32) * scales
    return values


def int16_scales(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return the step between two words of 16 bits in each tensor, or 0 where no value is large enough to have one."""
    # Divided in float64 and rounded up, so that the largest value is not beyond the last level.
    exact = _largest(values, np.asarray(sizes, dtype=np.int64)).astype(np.float64) / INT16_MOST
    scales = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    scales[scales < SCALE_MIN] = 0
    return scales


def to_int16(values: np.ndarray, sizes: Sequence[int], scales: np.ndarray) -> np.ndarray:
    """Return the nearest level of each value under the scale of its tensor."""
    out = np.zeros(values.size, dtype=np.int16)
    start = 0
    for size, scale in zip(sizes, scales.tolist(), strict=True):
        if size and scale > 0:
            steps = np.rint(values[start : start + size] / np.float32(scale))
            out[start : start + size] = np.clip(steps, -INT16_MOST, INT16_MOST)
        start += size
    return out


def from_int16(levels: np.ndarray, sizes: Sequence[int], scales: np.ndarray) -> np.ndarray:
    """Return the float32 values that levels stand for."""
    values = levels.astype(np.float32)
    start = 0
    for size, scale in zip(sizes, scales.tolist(), strict=True):
        values[start : start + size] *= np.float32(scale)
        start += size
    return values


def to_float16(values: np.ndarray) -> np.ndarray:
    """The nearest float16; what is too large becomes the largest there is."""
    out = np.empty(values.size, dtype=np.float16)
    for start in range(0, values.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = np.clip(values[block], -_FLOAT16_MAX, _FLOAT16_MAX)
    return out


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 as bits in uint16, of two the even one; what is too large becomes the largest there is."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    out = np.empty(raw.size, dtype=np.uint16)
    for start in range(0, raw.size, _BLOCK):
        block = raw[start : start + _BLOCK]
        magnitudes = block & np.uint32(0x7FFF_FFFF)
        magnitudes += np.uint32(0x7FFF) + (magnitudes >> np.uint32(16) & np.uint32(1))
        rounded = np.minimum(magnitudes >> np.uint32(16), _BFLOAT16_MAX)
        out[start : start + _BLOCK] = rounded | (block >> np.uint32(16) & np.uint32(0x8000))
    return out


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 of each: the same bits, with sixteen zeros after them."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
