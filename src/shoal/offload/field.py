"""Integers modulo the prime 2^31 - 1, and exact products of matrices over them by float64.

A float64 represents every integer up to 2^53. Numbers are therefore cut into limbs so short that no sum of products of
a limb by the other side exceeds it. Each limb is one fast product of the linear algebra library.
"""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse

#: A Mersenne prime: what lies above bit 31 is folded onto the rest, without a division.
PRIME = 2**31 - 1
#: The largest size of a residue that is as near to 0 as can be.
LARGEST = PRIME // 2
_BITS = 31
#: Whole numbers up to 2^53 are exact in float64.
_EXACT_BITS = 53
#: One side of a product is cut into 16-bit limbs if both are long: 2^16 · 2^31 leaves 6 bits for the sum.
_HALF_BITS = 16
#: Rows of the left side that are made floats at a time: they stay in the processor's cache.
_ROWS = 64


def reduced(values: np.ndarray) -> np.ndarray:
    """Any whole numbers of int64, as 0 to PRIME - 1."""
    values = np.asarray(values, dtype=np.int64)
    # 63 bits and a sign become 33, then at most 2 off the residues, then residues.
    for _ in range(3):
        values = (values & PRIME) + (values >> _BITS)
    return np.where(values == PRIME, 0, values)


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``left @ right`` modulo PRIME, exactly, of whole numbers in int64."""
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise Misuse(f"{left.shape} times {right.shape}: two matrices whose inner sides are equal make a product")
    left = _short(left)
    if _limb_bits(left) < 8:
        # Both sides are long: left in two halves, each against limbs of the right side.
        high, low = left >> _HALF_BITS, left & ((1 << _HALF_BITS) - 1)
        return reduced(reduced(_by_limbs(high, right) << _HALF_BITS) + _by_limbs(low, right))
    return _by_limbs(left, right)


def uniform(shape: tuple[int, ...], chance: np.random.Generator) -> np.ndarray:
    """Each number as likely as any other."""
    return chance.integers(0, PRIME, size=shape, dtype=np.int64)


def _by_limbs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    bits = _limb_bits(left)
    if bits < 1:
        half = left.shape[1] // 2
        return reduced(matmul(left[:, :half], right[:half]) + matmul(left[:, half:], right[half:]))
    rest = reduced(right)
    limbs = []
    for _ in range(-(-_BITS // bits)):
        limbs.append((rest & ((1 << bits) - 1)).astype(np.float64))
        rest = rest >> bits
    columns = right.shape[1]
    # All limbs side by side: the left side, which is the large one in a check, is read once, a few rows at a time.
    beside = np.concatenate(limbs, axis=1)
    sums = np.empty((left.shape[0], beside.shape[1]), dtype=np.int64)
    for start in range(0, len(left), _ROWS):
        sums[start : start + _ROWS] = left[start : start + _ROWS].astype(np.float64) @ beside
    total = np.zeros((left.shape[0], columns), dtype=np.int64)
    for place in reversed(range(len(limbs))):
        total = reduced((total << bits) + reduced(sums[:, place * columns : (place + 1) * columns]))
    return total


def _short(values: np.ndarray) -> np.ndarray:
    """The numbers themselves if they are short, their residues otherwise."""
    values = np.asarray(values)
    return values if _bits(values) <= _BITS else reduced(values)


def _bits(values: np.ndarray) -> int:
    if not values.size:
        return 1
    return max(int(values.max()).bit_length(), (-int(values.min())).bit_length(), 1)


def _limb_bits(left: np.ndarray) -> int:
    """Return how many bits a limb of the other side may have: with those of a number and of the count, at most 53."""
    return min(_EXACT_BITS - _bits(left) - int(left.shape[1]).bit_length(), _BITS)
