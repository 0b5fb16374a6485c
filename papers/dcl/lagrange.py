"""Lagrange coded computing (Yu et al. 2019): K blocks in N shares; late, lying and curious executors. Unused by roles.

A polynomial u of degree K+T-1 goes through the K blocks at the points 1 to K, and through T random matrices at the T
points after. A share is u at a further point. Any T shares together are uniform whatever the blocks are; a function f
of degree d of a share (times a public matrix: 1; a product of two coded sides: 2) is f(u), a polynomial of degree
(K+T-1)·d, so that any (K+T-1)·d + 1 results give f of every block. Results that are no points of it give liars away,
as wrong letters of a Reed-Solomon word: with 2 results more for each.

    N >= (K+T-1)·d + S + 2A + 1        K blocks, T colluders, S stragglers, A liars, d the degree.

All of it modulo the prime 2^31 - 1, exactly: products must be below 2^30 in size to be read as numbers with a sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from papers.dcl.residues import centred, inverse, residues
from shoal.errors import Misuse, PeerViolation
from shoal.offload import field
from shoal.offload.field import PRIME

#: Independent looks for liars: each misses one with a chance of 2^-31.
_LOOKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Coding:
    """The numbers of blocks, colluders, stragglers and liars; refused if they cannot work."""

    blocks: int
    shares: int
    colluders: int = 1
    stragglers: int = 0
    liars: int = 0
    degree: int = 1

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.degree < 1 or min(self.colluders, self.stragglers, self.liars) < 0:
            raise Misuse("a coding has at least one block and degree 1; colluders, stragglers, liars are 0 or more")
        wanted = self.needed + self.stragglers + 2 * self.liars
        if self.shares < wanted:
            raise Misuse(
                f"{self.shares} shares are too few: (K+T-1)·d + S + 2A + 1 = ({self.blocks}+{self.colluders}-1)·"
                f"{self.degree} + {self.stragglers} + 2·{self.liars} + 1 = {wanted}; ask more executors, or take fewer"
                " blocks"
            )
        if self.blocks + self.colluders + self.shares >= PRIME:
            raise Misuse("there are not so many points")

    @property
    def needed(self) -> int:
        """Results that give the whole, if none of them is wrong."""
        return (self.blocks + self.colluders - 1) * self.degree + 1

    @property
    def anchors(self) -> list[int]:
        """Where the blocks and the random matrices are."""
        return list(range(1, self.blocks + self.colluders + 1))

    def point(self, share: int) -> int:
        """Where a share is: at none of the anchors, or it would be a block."""
        return self.blocks + self.colluders + 1 + share


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """The function of every block, as residues, and which shares came back wrong."""

    blocks: np.ndarray
    liars: tuple[int, ...]

    @property
    def signed(self) -> np.ndarray:
        """The same as numbers with a sign, if they are below 2^30 in size."""
        return centred(self.blocks)


def encode(blocks: np.ndarray, coding: Coding, *, seed: bytes, side: str = "left") -> np.ndarray:
    """Whole numbers, K x rows x columns, to N x rows x columns residues, one matrix for each executor.

    The seed must be fresh and secret. Two sides of one product may share it, under different names.
    """
    if blocks.ndim != 3 or len(blocks) != coding.blocks or blocks.dtype.kind not in "iu":
        raise Misuse(f"{coding.blocks} blocks of whole numbers, all of one shape, not {blocks.dtype} {blocks.shape}")
    _, rows, columns = blocks.shape
    drawn = residues(seed, f"lagrange {side}", coding.colluders * rows * columns)
    anchored = np.concatenate(
        [field.reduced(blocks).reshape(coding.blocks, -1), drawn.reshape(coding.colluders, rows * columns)]
    )
    points = [coding.point(share) for share in range(coding.shares)]
    return field.matmul(_weights(coding.anchors, points), anchored).reshape(coding.shares, rows, columns)


def compute(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """What an executor does with its share: a product modulo the prime."""
    return field.matmul(left, right)


def decode(results: Mapping[int, np.ndarray], coding: Coding, *, seed: bytes) -> Decoded:
    """f of every block, from enough results by share. The seed, which no executor knows, finds the liars.

    n results find (n - needed)/2 liars. Fewer than ``liars`` results to spare are refused before; more liars than that
    are noticed (PeerViolation) unless they work together, which the number of liars in the coding is to rule out.
    """
    shares = sorted(results)
    wanted = coding.needed + 2 * coding.liars
    if len(shares) < wanted:
        raise Misuse(f"{len(shares)} results are too few: wait for {wanted} of {coding.shares}, or ask again")
    if shares and not 0 <= shares[0] <= shares[-1] < coding.shares:
        raise Misuse(f"shares are numbered 0 to {coding.shares - 1}, not {shares}")
    shape = results[shares[0]].shape
    if any(results[share].shape != shape for share in shares):
        raise Misuse("results of one coding have one shape: refuse others where they arrive")
    word = field.reduced(np.stack([results[share].reshape(-1) for share in shares]))
    liars = _liars(word, [coding.point(share) for share in shares], coding, seed)
    used = [place for place in range(len(shares)) if place not in liars][: coding.needed]
    points = [coding.point(shares[place]) for place in used]
    weights = _weights(points, coding.anchors[: coding.blocks])
    blocks = field.matmul(weights, word[used]).reshape(coding.blocks, *shape)
    return Decoded(blocks=blocks, liars=tuple(shares[place] for place in sorted(liars)))


def _liars(word: np.ndarray, points: list[int], coding: Coding, seed: bytes) -> set[int]:
    """Places whose results are no points of the polynomial.

    Each result is projected to one number by a random vector: those of honest results lie on a polynomial of the same
    degree, a wrong one does so with a chance of 1/p.
    """
    found: set[int] = set()
    if len(points) == coding.needed:
        return found
    for look in range(_LOOKS):
        vector = residues(seed, f"lagrange look {look}", word.shape[1]).reshape(-1, 1)
        letters = [int(letter) for letter in field.matmul(word, vector)[:, 0]]
        found |= _wrong_letters(letters, points, coding)
    return found


def _wrong_letters(letters: list[int], points: list[int], coding: Coding) -> set[int]:
    """Berlekamp and Welch (1986): E·(letter - P) = 0 at every point, E being 0 where a letter is wrong."""
    if _on_polynomial(letters, points, coding.needed):
        return set()
    for wrong in range(1, (len(points) - coding.needed) // 2 + 1):
        # Unknown: Q = E·P with needed + wrong coefficients, E with wrong of them below its leading 1.
        rows = []
        for letter, point in zip(letters, points, strict=True):
            powers = [pow(point, power, PRIME) for power in range(coding.needed + wrong)]
            locator = [-letter * power % PRIME for power in powers[:wrong]]
            rows.append([*powers, *locator, letter * pow(point, wrong, PRIME) % PRIME])
        solved = _solve(rows, coding.needed + 2 * wrong)
        if solved is None:
            continue
        locator = [*solved[coding.needed + wrong :], 1]
        bad = {place for place, point in enumerate(points) if _value(locator, point) == 0}
        good = [place for place in range(len(points)) if place not in bad]
        if len(good) >= coding.needed and _on_polynomial(
            [letters[place] for place in good], [points[place] for place in good], coding.needed
        ):
            return bad
    most = (len(points) - coding.needed) // 2
    raise PeerViolation(f"more than {most} of {len(points)} results are wrong: compute at home, or ask others")


def _on_polynomial(letters: list[int], points: list[int], needed: int) -> bool:
    """Do all points lie on the polynomial through the first ones?"""
    if len(points) == needed:
        return True
    weights = _weights(points[:needed], points[needed:])
    rest = field.matmul(weights, np.array(letters[:needed], dtype=np.int64).reshape(-1, 1))[:, 0]
    return bool(rest.tolist() == letters[needed:])


def _weights(known: list[int], wanted: list[int]) -> np.ndarray:
    """Lagrange's weights: row by row, how a polynomial at a wanted point is made of its values at the known ones."""
    if any(a == b for a, b in pairwise(sorted(known))):
        raise Misuse("a polynomial is known at different points")
    out = np.zeros((len(wanted), len(known)), dtype=np.int64)
    for row, at in enumerate(wanted):
        for column, point in enumerate(known):
            above, below = 1, 1
            for other in known:
                if other != point:
                    above = above * (at - other) % PRIME
                    below = below * (point - other) % PRIME
            out[row, column] = above * inverse(below) % PRIME
    return out


def _value(coefficients: list[int], point: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * point + coefficient) % PRIME
    return total


def _solve(rows: list[list[int]], unknown: int) -> list[int] | None:
    """Any solution of a linear system modulo PRIME, the last column being its right side; None if there is none."""
    rows = [row[:] for row in rows]
    pivots: list[int] = []
    for column in range(unknown):
        at = next((i for i in range(len(pivots), len(rows)) if rows[i][column]), None)
        if at is None:
            continue
        top = len(pivots)
        rows[top], rows[at] = rows[at], rows[top]
        scale = inverse(rows[top][column])
        rows[top] = [value * scale % PRIME for value in rows[top]]
        for i, row in enumerate(rows):
            if i != top and row[column]:
                factor = row[column]
                rows[i] = [(value - factor * above) % PRIME for value, above in zip(row, rows[top], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    solution = [0] * unknown
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[-1]
    return solution
