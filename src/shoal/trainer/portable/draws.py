"""Random numbers that are the same on any device, from a seed. A library's generator may change with its next release.

SplitMix64 (Steele, Lea and Flood, 2014) over a counter, so that numbers can be drawn in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import Corrupt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KINDS = ("uniform", "normal", "integers", "permutation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """Random numbers that a graph takes. Each dimension of ``shape`` has a size per example and a constant to add."""

    name: str
    kind: str
    shape: tuple[tuple[int, int], ...]
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS or (self.kind == "integers" and not self.low < self.high):
            raise Corrupt(f"a graph asks for random numbers of an unknown kind: {self.kind[:40]!r}")

    def sizes(self, examples: int) -> tuple[int, ...]:
        return tuple(each * examples + more for each, more in self.shape)

    def draw(self, examples: int, seed: int) -> np.ndarray[Any, Any]:
        """Return the numbers for a batch. ``seed`` differs by batch, and by draw within it."""
        shape = self.sizes(examples)
        count = math.prod(shape)
        match self.kind:
            case "uniform":
                return _uniform(count, seed).astype(np.float32).reshape(shape)
            case "normal":
                # Box and Muller, 1958.
                radius = np.sqrt(-2 * np.log1p(-_uniform(count, seed)))
                angle = 2 * math.pi * _uniform(count, seed ^ 1)
                return np.asarray(radius * np.cos(angle), np.float32).reshape(shape)
            case "integers":
                spread = (_uniform(count, seed) * (self.high - self.low)).astype(np.int64)
                return np.asarray(self.low + spread).reshape(shape)
        return np.argsort(_bits(count, seed), kind="stable").astype(np.int64).reshape(shape)


def draw_all(draws: Sequence[Drawn], examples: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    return {draw.name: draw.draw(examples, seed + 2 * number) for number, draw in enumerate(draws)}


def _bits(count: int, seed: int) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        start = np.uint64(seed % (1 << 64)) * np.uint64(0xD1342543DE82EF95)
        z = start + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _uniform(count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers in [0, 1), with the 24 bits that float32 keeps exactly."""
    return (_bits(count, seed) >> np.uint64(40)).astype(np.float64) / (1 << 24)
