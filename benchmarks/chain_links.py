"""How long a merge between two devices takes, computed or from a table: the links of drawn rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import Misuse
from shoal.topology.cluster import ClusterNode


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualLinks:
    """Every merge takes the same time."""

    each_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.each_s < math.inf:
            raise Misuse(f"each_s is {self.each_s}; a merge takes 0 s or more")

    def merge_s(self, sender: str, receiver: str) -> float:
        return self.each_s


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLinks:
    """Computed from each device's own link: the slower of the sender's uplink and the receiver's downlink, plus
    latencies.

    Merges do not share links: a device is in one at a time.
    """

    nodes: Mapping[str, ClusterNode]
    size_bytes: float
    #: Seconds to add the sums, once everything has arrived.
    add_s: float = 0.0

    def merge_s(self, sender: str, receiver: str) -> float:
        source, target = self.nodes[sender], self.nodes[receiver]
        rate = min(source.up_bytes_per_s, target.down_bytes_per_s)
        return self.size_bytes / rate + source.latency_s + target.latency_s + self.add_s


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TableLinks:
    """Measured pair by pair: ``seconds[i, j]`` from the i-th name to the j-th."""

    names: Sequence[str]
    seconds: np.ndarray
    _places: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.names)
        if self.seconds.shape != (count, count):
            raise Misuse(
                f"seconds has the shape {self.seconds.shape} for {count} devices: give one row and column per device"
            )
        if not (np.isfinite(self.seconds).all() and (self.seconds >= 0).all()):
            raise Misuse("a merge takes 0 s or more, and a finite time: leave out a device that cannot be reached")
        self._places.update((name, place) for place, name in enumerate(self.names))

    def merge_s(self, sender: str, receiver: str) -> float:
        return float(self.seconds[self._places[sender], self._places[receiver]])
