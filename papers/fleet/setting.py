"""What FLeet's experiments have in common: the network, the rates, the staleness, the users. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Table 1, MNIST: 28 x 28 -> conv 5x5x8 -> pool 3 -> conv 5x5x48 -> pool 2 -> 10, without padding: 24, 8, 4, 2 a side.
SHAPES: tuple[tuple[int, ...], ...] = ((8, 1, 5, 5), (8,), (48, 8, 5, 5), (48,), (10, 192), (10,))
PARAMETERS = sum(math.prod(shape) for shape in SHAPES)
CLASSES = 10

#: §3.2.
BATCH = 100
PAPER_RATE = 5e-4
#: The paper's rate is taken for the sum over a batch: of the mean it would be this. README.md says why.
RATE_OF_MEANS = PAPER_RATE * BATCH

#: The paper does not say how many; McMahan et al., whose split it takes, have a hundred.
USERS = 100
SHARDS_A_USER = 2
#: Clients of Figure 9 in the released code (``cppNN_backend.cpp``).
OWNER_USERS = 10

TARGET = 0.8
#: The test images that are looked at on the way, and how often; all rules see the same ones.
TEST_IMAGES = 1_000
EVALUATE_EVERY = 25
#: 80 % is reached when the mean of so many looks is there: with two labels a user one look jumps by tenths.
LOOKS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Staleness:
    """N(μ, σ), rounded, never below 0."""

    name: str
    mean: float
    deviation: float

    @property
    def threshold(self) -> float:
        """T = μ + 3σ: 99.7 % are no stragglers (§3.2)."""
        return self.mean + 3 * self.deviation


D1 = Staleness(name="D1", mean=6.0, deviation=2.0)
D2 = Staleness(name="D2", mean=12.0, deviation=4.0)
FRESH = Staleness(name="none", mean=0.0, deviation=0.0)
