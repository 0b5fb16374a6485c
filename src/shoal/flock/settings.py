"""The settings that all peers of a flock share. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse

#: The energy to move a byte over a radio, for the sender and for the receiver: about 0.5 J a megabyte on Wi-Fi. A
#: model, not a measurement.
JOULES_PER_BYTE = 5e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class FlockSettings:
    #: Versions to make.
    rounds: int
    #: Peers to wait for before the first round. Once begun, the flock goes on with those that are left.
    devices: int
    #: How often each peer tells all others its status, and after which silence it counts as lost.
    beat_s: float = 1.0
    lost_after_s: float = 5.0
    #: How long a round waits, once all others are merged, for peers that still train or are busy: so long, or twice as
    #: long as most took, if that is more.
    patience_s: float = 20.0
    #: Examples that a peer trains on in a round; 0: all its own.
    examples: int = 0
    #: The longest that a training may take: after that the trainer counts as hung, and is killed.
    train_max_s: float = 3600.0
    #: The slowest link that a flock can use.
    bytes_per_s_least: float = 50_000.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.devices < 1:
            raise Misuse(f"a flock has rounds and devices, at least 1 of each, not {self.rounds} and {self.devices}")
        for name in ("beat_s", "lost_after_s", "patience_s", "train_max_s", "bytes_per_s_least"):
            if not 0 < getattr(self, name) < math.inf:
                raise Misuse(f"{name} is positive, not {getattr(self, name)}")
        if self.lost_after_s < 2 * self.beat_s:
            raise Misuse(f"a peer that tells how it is every {self.beat_s} s is not lost after {self.lost_after_s} s")
        if self.examples < 0:
            raise Misuse(f"examples is a number from 0, not {self.examples}")

    def transfer_max_s(self, size_bytes: int) -> float:
        """The longest that a transfer is waited for."""
        return 20.0 + size_bytes / self.bytes_per_s_least
