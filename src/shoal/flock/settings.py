"""The settings that all peers of a flock share. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse

#: The energy to move a byte over a radio, for the sender and for the receiver: about 0.5 J per megabyte on Wi-Fi. A
#: model, not a measurement.
JOULES_PER_BYTE = 5e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class FlockSettings:
    #: Versions to make.
    rounds: int
    #: Peers to wait for before the first round. After that, the flock continues with those that are left.
    devices: int
    #: How often each peer sends its status to all others, and after how long a silence it counts as lost.
    beat_s: float = 1.0
    lost_after_s: float = 5.0
    #: How long a round waits, once all others are merged, for peers that still train or are busy: this long, or twice
    #: as long as most took if that is more.
    patience_s: float = 20.0
    #: Examples that a peer trains on in a round. 0 uses all its own.
    examples: int = 0
    #: The longest time for one training. After it the trainer counts as hung, and is killed.
    train_max_s: float = 3600.0
    #: The slowest link that a flock can use.
    bytes_per_s_least: float = 50_000.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.devices < 1:
            raise Misuse(f"rounds is {self.rounds} and devices is {self.devices}; both must be at least 1")
        for name in ("beat_s", "lost_after_s", "patience_s", "train_max_s", "bytes_per_s_least"):
            if not 0 < getattr(self, name) < math.inf:
                raise Misuse(f"{name} is {getattr(self, name)}; it must be positive")
        if self.lost_after_s < 2 * self.beat_s:
            raise Misuse(
                f"lost_after_s is {self.lost_after_s}; it must be at least twice beat_s, which is {self.beat_s}"
            )
        if self.examples < 0:
            raise Misuse(f"examples is {self.examples}; it must be 0 or more")

    def transfer_max_s(self, size_bytes: int) -> float:
        """Return how long to wait for a transfer at most."""
        return 20.0 + size_bytes / self.bytes_per_s_least
