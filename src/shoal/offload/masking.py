"""Additive masks modulo 2^32, which hide one side of a product from each of two executors.

X is rounded to integers, R is sampled uniformly from 32 bits, and S = X - R modulo 2^32. One executor gets the 16-byte
seed of R, the other S; each multiplies by the public W, and R·W + S·W = X·W modulo 2^32, exactly.

S by itself is uniform whatever X is, so its holder learns only the shape (a one-time pad); R is independent of X. Both
together have X: they must not collude, and nobody on the way may see both. W is public. A seed must be used only once,
because two matrices under one mask reveal their difference.

R comes from a stream cipher, not from numpy's generators: ``stream`` says why.

Legend: a rows, b inner, c columns. W becomes ``limbs`` digits to the base 1024, side by side: b x (limbs·c).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.offload.field import LARGEST
from shoal.offload.stream import words

#: A digit of W is -512 to 511: 10 bits. With 31 bits and a sign of a share, that leaves 13 for the sum in float64.
DIGIT_BITS = 10
_DIGIT_HALF = 1 << (DIGIT_BITS - 1)
#: This many products of a share (2^31) and a digit (2^9) add up to at most 2^53, which float64 represents exactly.
_SUMMED = 8192
#: Two digits are 19 bits and a sign: the remaining error is that of X.
LIMBS = 2
_LIMBS_MAX = 3
_ROWS = 64
#: Powers of two beyond these are not finite in float32, or nothing.
_EXPONENT_MAX = 126


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedRight:
    """A public right side as integers: one per version, the same for all tasks."""

    #: int16, b x (limbs·c), the high digits first.
    digits: np.ndarray
    #: The numbers are W·2^exponent, rounded.
    exponent: int
    limbs: int
    #: The longest column of digits: what X may be without overflow follows from it.
    longest: float

    @property
    def columns(self) -> int:
        return int(self.digits.shape[1]) // self.limbs


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedLeft:
    """A secret left side as whole numbers. It stays at home."""

    #: int32, a x b.
    values: np.ndarray
    #: For each row, the numbers are X·2^exponent, rounded: small rows keep their digits.
    exponents: np.ndarray


def quantise_right(right: np.ndarray, *, limbs: int = LIMBS) -> FixedRight:
    """W as whole numbers with 9 bits and a sign (1 limb), 19 (2) or 29 (3), scaled to its largest entry."""
    if not 1 <= limbs <= _LIMBS_MAX:
        raise Misuse(f"{limbs} limbs: 1 (9 bits and a sign), 2 (19) or 3 (29)")
    if right.ndim != 2 or not right.size:
        raise Misuse(f"a right side is a matrix with something in it, not of shape {right.shape}")
    size = max(float(right.max()), -float(right.min()))
    if not math.isfinite(size):
        raise Misuse("a right side that is not finite cannot be made whole numbers: look where it came from")
    inner, columns = right.shape
    exponent = _exponent((_DIGIT_HALF - 1) << (DIGIT_BITS * (limbs - 1)), size)
    digits = np.empty((inner, limbs * columns), dtype=np.int16)
    squares = np.zeros(limbs * columns)
    # A few rows at a time: they stay in the processor's cache through all that is done to them.
    for start in range(0, inner, _ROWS):
        block = digits[start : start + _ROWS]
        # 29 bits and a sign at most.
        rest = np.rint(right[start : start + _ROWS] * np.float64(2.0**exponent)).astype(np.int32)
        for limb in reversed(range(limbs)):
            digit = ((rest + _DIGIT_HALF) & (2 * _DIGIT_HALF - 1)) - _DIGIT_HALF
            block[:, limb * columns : (limb + 1) * columns] = digit
            rest = (rest - digit) >> DIGIT_BITS
        whole = block.astype(np.float64)
        squares += np.einsum("ij,ij->j", whole, whole)
    longest = math.sqrt(float(squares.max()))
    return FixedRight(digits=digits, exponent=exponent, limbs=limbs, longest=longest)


def quantise_fixed(left: np.ndarray, right: FixedRight, *, exponent: int | None = None) -> FixedLeft:
    """X as whole numbers, as fine as products with W surely fit: |x·w| <= |x|·|w| < 2^30 (Cauchy and Schwarz).

    2^30 and not 2^31, so that a wrong product is told from a right one modulo a prime (``verify.FreivaldsExact``).
    With an ``exponent``, the caller says how fine all rows are; what does not fit is refused.
    """
    if left.ndim != 2 or left.shape[1] != right.digits.shape[0]:
        raise Misuse(f"a left side of shape {left.shape} does not meet a right side of {right.digits.shape[0]} rows")
    left = np.ascontiguousarray(left, dtype=np.float32)
    lengths = _lengths(left)
    if not np.isfinite(lengths).all():
        raise Misuse("a left side that is not finite cannot be made whole numbers: look where it came from")
    # Rounding makes a row longer by half a unit in each place at most.
    room = min(LARGEST / max(right.longest, 1.0), 2.0**31 - 1) - math.sqrt(left.shape[1]) / 2 - 1
    if room < 1:
        raise Misuse(f"sums of {left.shape[1]} products do not fit in 30 bits: cut the inner side of the product")
    if exponent is None:
        exponents = np.array([_exponent(room, length) for length in lengths.tolist()], dtype=np.int64)
    else:
        exponents = np.full(len(left), exponent, dtype=np.int64)
        too_long = np.flatnonzero(np.ldexp(lengths, exponents) > room)
        if len(too_long):
            raise Misuse(
                f"row {too_long[0]} is {lengths[too_long[0]]:.4g} long; at 2^{exponent} a product would not fit in 30"
                f" bits: at most {math.ldexp(room, -exponent):.4g}, or a lower exponent"
            )
    # Exact: a power of two only moves the exponent of a float32.
    scaled = left * np.exp2(exponents).astype(np.float32)[:, None]
    return FixedLeft(values=np.rint(scaled, out=scaled).astype(np.int32), exponents=exponents)


def mask(seed: bytes, shape: tuple[int, int]) -> np.ndarray:
    """R: uint32, each of the 2^32 values as likely as any other without the seed."""
    rows, inner = shape
    if rows < 0 or inner < 0:
        raise Misuse(f"there is no mask of shape {shape}")
    return words(seed, "mask", rows * inner).reshape(shape)


def masked(values: np.ndarray, seed: bytes) -> np.ndarray:
    """S = X - R modulo 2^32, of whole numbers as ``quantise_fixed`` makes them. The seed must be fresh."""
    if values.dtype != np.int32 or values.ndim != 2:
        raise Misuse(
            f"a mask hides a matrix of int32, not {values.dtype} of shape {values.shape}: quantise_fixed first"
        )
    return np.asarray(values.view(np.uint32) - mask(seed, (values.shape[0], values.shape[1])))


def share_product(share: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """R·W or S·W modulo 2^32, exactly, by float64: what each executor computes."""
    if share.dtype != np.uint32 or share.ndim != 2 or digits.ndim != 2 or share.shape[1] != digits.shape[0]:
        raise Misuse(f"a share is a uint32 matrix that meets the digits, not {share.dtype} {share.shape}")
    if digits.dtype.kind != "i" or (digits.size and not -_DIGIT_HALF <= digits.min() <= digits.max() < _DIGIT_HALF):
        raise Misuse(f"digits are whole numbers of {DIGIT_BITS} bits: -{_DIGIT_HALF} to {_DIGIT_HALF - 1}")
    signed = np.ascontiguousarray(share).view(np.int32)
    total = np.zeros((share.shape[0], digits.shape[1]), dtype=np.uint32)
    for start in range(0, share.shape[1], _SUMMED):
        stop = start + _SUMMED
        exact = signed[:, start:stop].astype(np.float64) @ digits[start:stop].astype(np.float64)
        total += exact.astype(np.int64).astype(np.uint32)
    return total


def combined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return R·W + S·W, which is X·W in integers (int32). The caller must verify it."""
    if a.shape != b.shape or a.dtype != np.uint32 or b.dtype != np.uint32:
        raise Misuse(f"two shares of one product are uint32 of one shape, not {a.dtype} {a.shape}, {b.dtype} {b.shape}")
    return np.asarray((a + b).view(np.int32))


def unmask(a: np.ndarray, b: np.ndarray, left: FixedLeft, right: FixedRight) -> np.ndarray:
    """X·W in float32 from the two products. Verify ``combined(a, b)`` first: a wrong share makes any number of it."""
    return restored(combined(a, b), left, right)


def restored(whole: np.ndarray, left: FixedLeft, right: FixedRight) -> np.ndarray:
    """From whole numbers, digits side by side, to float32."""
    columns = right.columns
    total = whole[:, :columns].astype(np.float64)
    for limb in range(1, right.limbs):
        total *= 1 << DIGIT_BITS
        total += whole[:, limb * columns : (limb + 1) * columns]
    total *= np.exp2(-(left.exponents + right.exponent).astype(np.float64))[:, None]
    return np.asarray(total, dtype=np.float32)


def liars(
    rows: np.ndarray, *, seed: bytes, share: np.ndarray, right: FixedRight, a: np.ndarray, b: np.ndarray
) -> tuple[bool, bool]:
    """Whether the holder of the seed, and the holder of the share, was wrong in these rows. Computes the rows again.

    A check of the sum says in which rows something is wrong, not whose fault it is; modulo 2^32 it could not be asked
    of one share alone. One row is enough, and costs b·c of the a·b·c multiply-adds.
    """
    of_mask = share_product(mask(seed, (share.shape[0], share.shape[1]))[rows], right.digits)
    of_share = share_product(share[rows], right.digits)
    return not np.array_equal(of_mask, a[rows]), not np.array_equal(of_share, b[rows])


def _lengths(matrix: np.ndarray) -> np.ndarray:
    """The length of each row, in float64, a few rows at a time: they stay in the processor's cache."""
    out = np.empty(len(matrix))
    for start in range(0, len(matrix), _ROWS):
        precise = matrix[start : start + _ROWS].astype(np.float64)
        np.einsum("ij,ij->i", precise, precise, out=out[start : start + _ROWS])
    return np.sqrt(out)


def _exponent(room: float, size: float) -> int:
    """The largest e with size·2^e <= room, within what float32 can tell."""
    if size <= 0:
        return 0
    exponent = math.floor(math.log2(room) - math.log2(size))
    # log2 may round up across a whole number.
    if math.ldexp(size, exponent) > room:
        exponent -= 1
    return max(-_EXPONENT_MAX, min(_EXPONENT_MAX, exponent))
