"""Gaussian noise for sums of clipped updates: afresh for each, or shared along a tree. Chance is an argument.

Noise afresh is simple and may be added where the update is made. Along a tree (Dwork et al. 2010, Chan et al. 2011;
DP-FTRL, Kairouz et al. 2021) it is added by whoever sums: the noise in the sum of t updates then grows with log t, not
with t, and no assumption is made on who comes when.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import Misuse


def noised(total: np.ndarray, *, bound: float, multiplier: float, generator: np.random.Generator) -> np.ndarray:
    """A sum of parts that are each at most ``bound`` long, plus N(0, (z·C)²) in every value."""
    deviation = _deviation(bound, multiplier)
    return (total + generator.normal(0.0, deviation, total.shape)).astype(total.dtype, copy=False)


class TreeNoise:
    """What to add to each of a run of updates, so that every sum of the first t carries at most ⌈log₂(t+1)⌉ noises.

    Update t (from 1) is a leaf of a binary tree; each node has one noise, and the sum of the first t carries those of
    the nodes that the binary digits of t name. The difference from the sum before is what update t is given.
    """

    def __init__(self, *, size: int, bound: float, multiplier: float, generator: np.random.Generator) -> None:
        self._deviation = _deviation(bound, multiplier)
        self._generator = generator
        self._size = size
        self._count = 0
        #: The noise of the node in use at each level; None where the digit is 0.
        self._nodes: list[np.ndarray | None] = []

    @property
    def count(self) -> int:
        return self._count

    def next(self) -> np.ndarray:
        """The noise of the next update. Those of all before and this one add up to the nodes in use."""
        self._count += 1
        change = np.zeros(self._size)
        level = 0
        # As a binary counter carries: full nodes give way to the one above them.
        while level < len(self._nodes) and (full := self._nodes[level]) is not None:
            change -= full
            self._nodes[level] = None
            level += 1
        if level == len(self._nodes):
            self._nodes.append(None)
        fresh = self._generator.normal(0.0, self._deviation, self._size)
        self._nodes[level] = fresh
        return change + fresh

    def in_sum(self) -> np.ndarray:
        """The noise in the sum of all updates so far."""
        return sum((node for node in self._nodes if node is not None), np.zeros(self._size))


def _deviation(bound: float, multiplier: float) -> float:
    if not 0 < bound < math.inf:
        raise Misuse(f"noise is measured against a length above 0, not {bound}")
    if not 0 <= multiplier < math.inf:
        raise Misuse(f"a noise multiplier is 0 or more, not {multiplier}")
    return bound * multiplier
