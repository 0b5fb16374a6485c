"""Randomness that can be replayed: one seed, and a stream of numbers for every purpose and node.

What one node draws never shifts what another draws, so a change in one place of a simulation does not change the draws
everywhere else. The numbers come from splitmix64, as the order of batches does: they are the same under every
numpy, platform and hash seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

from shoal.errors import Misuse
from shoal.scheduling.batches import GAMMA, MASK

_T = TypeVar("_T")

_UNIT = 2.0**-53


class Stream:
    """Numbers for one purpose."""

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = key & MASK

    @property
    def state(self) -> int:
        """The state of the stream: ``Stream(state)`` continues from there."""
        return self._state

    def copy(self) -> Stream:
        return Stream(self._state)

    def random(self) -> float:
        """Draw a number in [0, 1)."""
        # As ``splitmix64``, which also adds GAMMA first; written out, because every message of a fleet draws one.
        self._state = mixed = (self._state + GAMMA) & MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * _UNIT

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def happens(self, probability: float) -> bool:
        return self.random() < probability

    def below(self, count: int) -> int:
        """Draw an integer in [0, count)."""
        if count < 1:
            raise Misuse(f"there is no whole number below {count} to draw")
        return int(self.random() * count)

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def normal(self) -> float:
        """Draw a normal number with mean 0 and deviation 1 (Box and Muller 1958)."""
        return math.sqrt(-2.0 * math.log1p(-self.random())) * math.cos(2.0 * math.pi * self.random())

    def lognormal(self, median: float, sigma: float) -> float:
        return median * math.exp(sigma * self.normal())


class Rng:
    """The seed of all randomness."""

    __slots__ = ("seed",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, purpose: str, node: str = "") -> Stream:
        """Return the numbers of one purpose on one node. Each call begins them again."""
        digest = hashlib.blake2b(f"{self.seed}\0{purpose}\0{node}".encode(), digest_size=8).digest()
        return Stream(int.from_bytes(digest, "little"))
