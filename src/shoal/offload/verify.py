"""Checks that a product was computed correctly: Freivalds' check for floats and for integers, and votes.

Freivalds (1977): Y = X·W is checked by Y·r = X·(W·r) for random r, with ab + ac multiply-adds instead of abc once W·r
is known, which depends only on the version of W. It checks a result; it hides nothing.

The executor must not know r: the owner of the data seeds ``chance`` from the system's entropy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.offload import field

#: A wrong product passes with a chance of at most 2^-40.
BITS = 40
#: Trials over floats: 8 draw from 32 values each, 40 from 2. Fewer are faster, more see smaller errors.
TRIALS = 8
#: Trials over whole numbers: each misses with a chance of 2^-31 at most.
TRIALS_EXACT = 2

#: Unit roundoff of float32 and float64.
U32, U64 = 2.0**-24, 2.0**-53
#: How many usual roundings a row may be off before it is looked at again. Too low costs time, never an honest result.
SLACK = 4.0
#: Rows that are looked at to see how much of a product cancels out.
_SAMPLED = 16
#: The library has a fast way for products of at most this many multiply-adds; a thin one is cut to fit.
_SMALL_PRODUCT = 1_000_000
#: Columns of a row that are proved at a time: memory stays bounded, whatever the width.
_PROVED_COLUMNS = 1024
#: Rows that are made float64 at a time: they stay in the processor's cache.
_ROWS = 64
_LARGEST32 = float(np.finfo(np.float32).max)
#: What a processor may make 0 of.
_TINY32 = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Whether a result holds, and why not."""

    holds: bool
    reason: str
    #: Rows that were computed again here, to be sure.
    rows_proved: int = 0


class Freivalds:
    """The check for one version of ``right``, in float32, in two looks.

    *First look.* Each r is a column of odd whole numbers, evenly spread over 2^(40/trials) values: {-1, +1} with 40
    trials, {-31, -29, ..., +31} with 8. A row i is suspected if |Y·r - X·(W·r)| is more than
    s_i = SLACK · u · √(b+c) · √(mean over trials of (X·W·r)_i²), a few times what rounding usually leaves, in the
    product and in the check itself.

    *Second look.* A suspected row is computed here in float64, and each entry is held against the rounding bound of
    its own sum, γ_b · (|X|·|W|)_ij with γ_b = b·u / (1 - b·u), which holds for any order of adding (Higham 2002, §3.1).
    Only an entry beyond it is a wrong one.

    *Never an honest result refused.* By the bound; nothing is assumed of how rounding falls. (To hold the first look
    against γ_b·|X|·|W|·|r| alone would be as sound, and useless: it adds up the bounds of all c columns. At
    b = c = 1000 a wrong entry could be as large as the right one.)

    *A wrong one is caught* with a chance of 1 - 2^-40 at least, if some entry is off by more than ``catches`` says:
    2·s_i, and its own rounding bound, below which nobody can tell a lie from rounding. Take r at all places but that
    of the entry as given: the m values of r there put Y·r - X·(W·r) at m points more than 4·s_i apart; at
    most one of them lies within s_i of 0, with s_i of room for the check's own rounding. So a trial misses with a
    chance of 1/m at most, whatever else is wrong in the row, and all of them with m^-trials <= 2^-40. An entry that is
    wrong alone is caught in every trial, since no r is 0.

    *Griefing.* A result with noise within the bound is not refused but looked at twice, which costs the owner a row at
    home each: ``rows_proved`` says how many.
    """

    def __init__(self, right: np.ndarray, *, trials: int = TRIALS, chance: np.random.Generator) -> None:
        if right.ndim != 2 or not right.size:
            raise Misuse(f"the right side of a product is a matrix with something in it, not of shape {right.shape}")
        if not 1 <= trials <= BITS:
            raise Misuse(f"{trials} trials: 1 to {BITS}; {TRIALS} are usual, {BITS} see the smallest errors")
        inner, columns = right.shape
        if inner * U32 >= 0.5:
            raise Misuse(f"sums of {inner} floats have no useful rounding bound: cut the inner side of the product")
        # A copy: the owner's next step may change its weights in place while results of this version are still coming.
        self._right = np.array(right, dtype=np.float32, order="C")
        self.trials = trials
        #: How many values each number of r may have.
        self.values = math.ceil(2 ** (BITS / trials))
        draws = 2.0 * chance.integers(0, self.values, size=(columns, trials)) - (self.values - 1)
        with np.errstate(all="ignore"):
            self._probes = draws.astype(np.float32)
            # Summed in float64 once per version, so that its rounding does not affect a check.
            self._known = np.empty((inner, trials), dtype=np.float32)
            squares = 0.0
            for start in range(0, inner, _ROWS):
                precise = self._right[start : start + _ROWS].astype(np.float64)
                self._known[start : start + _ROWS] = precise @ draws
                squares += float(np.vdot(precise, precise))
            self._spread = math.sqrt(squares / inner)
        self._usual = SLACK * U32 * math.sqrt(inner + columns)

    def holds(self, left: np.ndarray, result: np.ndarray) -> bool:
        """Whether ``result`` may be ``left @ right`` in float32."""
        return self.judge(left, result).holds

    def judge(self, left: np.ndarray, result: np.ndarray) -> Judgement:
        inner, columns = self._right.shape
        if left.ndim != 2 or left.shape[1] != inner:
            raise Misuse(f"a left side of shape {left.shape} does not meet a right side of {self._right.shape}")
        if result.shape != (left.shape[0], columns):
            return Judgement(
                holds=False, reason=f"the result has the shape {result.shape}, not {(left.shape[0], columns)}"
            )
        if result.dtype != np.float32:
            return Judgement(holds=False, reason=f"the result is {result.dtype}, not float32")
        with np.errstate(all="ignore"):
            expected = _thin(left, self._known)
            gap = np.abs(_thin(result, self._probes) - expected).max(axis=1, initial=0.0)
            # A gap that is no number is suspect too.
            suspects = np.flatnonzero(~(gap <= self._tolerances(left, expected)))
            return self._proved(left, result, suspects)

    def catches(self, left: np.ndarray) -> np.ndarray:
        """For each entry, the error beyond which it is caught with a chance of 1 - 2^-40 at least."""
        with np.errstate(all="ignore"):
            tolerances = self._tolerances(left, _thin(left, self._known))
            bounds = rounding_bound(left, self._right)
        return np.asarray(np.maximum(2.0 * tolerances[:, None], 2.0 * bounds))

    def _tolerances(self, left: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """s_i, from what is known here: nothing that came back may widen it."""
        sizes = np.sqrt(np.einsum("ij,ij->i", expected, expected, dtype=np.float64) / self.trials)
        # Where sums run far up and down again, rounding is as large as they were: seen from a few rows.
        sampled = slice(None, None, max(1, len(left) // _SAMPLED))
        walk = np.linalg.norm(left[sampled].astype(np.float64), axis=1) * self._spread
        walk *= math.sqrt((self.values**2 - 1) / 3)
        cancels = float(np.median(walk / np.maximum(sizes[sampled], _TINY32))) if len(left) else 1.0
        return np.asarray(sizes * (self._usual * min(max(1.0, cancels), 1 / U32)))

    def _proved(self, left: np.ndarray, result: np.ndarray, suspects: np.ndarray) -> Judgement:
        # A few at a time, since one wrong row is enough; then more, since the cost is in reading the right side.
        done = 0
        step = 4
        while done < len(suspects):
            rows = suspects[done : done + step]
            done += len(rows)
            step *= 4
            for start in range(0, result.shape[1], _PROVED_COLUMNS):
                stop = start + _PROVED_COLUMNS
                wrong = _beyond(left[rows], self._right[:, start:stop], result[rows, start:stop])
                if wrong.any():
                    row, column = np.argwhere(wrong)[0]
                    return Judgement(
                        holds=False,
                        reason=f"row {rows[row]}, column {start + column} is beyond any rounding of the product",
                        rows_proved=done,
                    )
        reason = f"{done} of {len(left)} rows were off and proved to be rounding" if done else "every trial agrees"
        return Judgement(holds=True, reason=reason, rows_proved=done)


class FreivaldsExact:
    """The check for one version of ``right`` in whole numbers: right or wrong, with no tolerance.

    Modulo the prime p = 2^31 - 1, with each number of r drawn from all p: if Y is not X·W modulo p, at most one value
    of r at a wrong place makes up for it, so a trial misses with a chance of 1/p at most, and all of them with
    2^(-30.9·trials). It must be a prime: modulo 2^32 there are numbers that are not 0 whose product is (2^31 · 2), and
    an error of 2^31 would pass every other time.

    An error of p itself cannot be seen modulo p. Results are therefore at most (p-1)/2 = 2^30 - 1 in size, and whatever
    is larger is wrong at once: two numbers of that size differ by less than p. ``masking`` makes products that fit.
    """

    def __init__(self, right: np.ndarray, *, trials: int = TRIALS_EXACT, chance: np.random.Generator) -> None:
        if right.ndim != 2 or not right.size or right.dtype.kind not in "iu":
            raise Misuse(f"the right side is a matrix of whole numbers, not {right.dtype} of shape {right.shape}")
        if trials < 1:
            raise Misuse(f"{trials} trials check nothing: at least 1, usually {TRIALS_EXACT}")
        self._shape = right.shape
        self._probes = field.uniform((right.shape[1], trials), chance)
        self._known = field.matmul(right.astype(np.int64), self._probes)

    def holds(self, left: np.ndarray, result: np.ndarray) -> bool:
        """Is ``result`` exactly ``left @ right``?"""
        return result.shape == (left.shape[0], self._shape[1]) and not len(self.wrong_rows(left, result))

    def wrong_rows(self, left: np.ndarray, result: np.ndarray) -> np.ndarray:
        """The rows in which something is wrong."""
        if left.ndim != 2 or left.shape[1] != self._shape[0] or result.shape != (left.shape[0], self._shape[1]):
            raise Misuse(f"{left.shape} times {self._shape} is not of shape {result.shape}")
        gap = field.matmul(result, self._probes) != field.matmul(left, self._known)
        too_large = (result.max(axis=1) > field.LARGEST) | (result.min(axis=1) < -field.LARGEST)
        return np.flatnonzero(gap.any(axis=1) | too_large)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """The answer of most executors, bit for bit; None if no answer has more than half of the votes."""

    value: np.ndarray | None
    #: Indices of the executors that agree with it, and of the others.
    agree: tuple[int, ...]
    differ: tuple[int, ...]


def majority(results: Sequence[np.ndarray]) -> Vote:
    """Replicas of one task, compared bit for bit. It fails when more than half of the executors lie together."""
    said: dict[tuple[str, tuple[int, ...], bytes], list[int]] = {}
    for place, result in enumerate(results):
        said.setdefault((result.dtype.str, result.shape, result.tobytes()), []).append(place)
    for places in said.values():
        if 2 * len(places) > len(results):
            differ = tuple(place for place in range(len(results)) if place not in places)
            return Vote(value=results[places[0]], agree=tuple(places), differ=differ)
    return Vote(value=None, agree=(), differ=tuple(range(len(results))))


def rounding_bound(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """γ_b·|X|·|W|: how far a float32 product may be off, in whatever order it was added up (Higham 2002, §3.1)."""
    return _bound(np.abs(left.astype(np.float64)) @ np.abs(right.astype(np.float64)), right.shape[0])


def _bound(sizes: np.ndarray, inner: int) -> np.ndarray:
    # Products that are too small for float32 are lost one by one; and the truth here is a float64 sum itself.
    gamma = inner * U32 / (1 - inner * U32) + 2 * inner * U64
    return np.asarray(gamma * sizes + inner * _TINY32)


def _beyond(left: np.ndarray, right: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Which entries no float32 product can have. Where a sum may have overflowed, anything infinite is honest."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    sizes = np.abs(left) @ np.abs(right)
    close = np.abs(result - left @ right) <= _bound(sizes, right.shape[0])
    may_overflow = ~(sizes * (1 + right.shape[0] * U32) < _LARGEST32)
    return np.asarray(~close & ~(may_overflow & ~np.isfinite(result)))


def _thin(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A product with a few columns, some rows at a time: one whole would copy the large side first."""
    out = np.empty((matrix.shape[0], columns.shape[1]), dtype=np.float32)
    height = max(1, _SMALL_PRODUCT // max(1, columns.size))
    for start in range(0, len(matrix), height):
        np.matmul(matrix[start : start + height], columns, out=out[start : start + height])
    return out
