"""What is known of the devices of a job when its topology is chosen. Pure values; knows no measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    """One device: what its link carries and how long it trains."""

    name: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    #: Training one lease.
    compute_s: float = 0.0
    #: This node's share of the one-way delay of a message.
    latency_s: float = 0.0
    #: The air it shares with others, such as an access point's; empty: a link of its own, as on a switch. On shared air
    #: the rates are those it would have alone.
    medium: str = ""

    def __post_init__(self) -> None:
        for rate in (self.up_bytes_per_s, self.down_bytes_per_s):
            if not 0 < rate < math.inf:
                raise Misuse(f"{self.name}: a link carries a positive number of bytes a second, not {rate}: measure it")
        if not 0 <= self.compute_s < math.inf or not 0 <= self.latency_s < math.inf:
            raise Misuse(f"{self.name}: {self.compute_s} s of training, {self.latency_s} s of delay: 0 or more, finite")

    @property
    def narrow_bytes_per_s(self) -> float:
        """Of its two directions the slower: a leader's link carries every model both ways."""
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Who leads and who works. A leader that also works is named among the workers."""

    leader: ClusterNode
    workers: tuple[ClusterNode, ...]
    #: Nodes that may sum up for others, and train nothing.
    hubs: tuple[ClusterNode, ...] = ()

    def __post_init__(self) -> None:
        names = [worker.name for worker in self.workers]
        if not names:
            raise Misuse("a cluster without workers has no topology: wait for the first")
        if len(set(names)) < len(names):
            raise Misuse("two workers of a cluster have the same name")
        hubs = {hub.name for hub in self.hubs}
        if len(hubs) < len(self.hubs) or hubs.intersection((*names, self.leader.name)):
            raise Misuse("a hub has a name of its own: it neither leads nor works")
        if any(worker.name == self.leader.name and worker != self.leader for worker in self.workers):
            raise Misuse(f"{self.leader.name} leads and works, but is described in two ways")

    @property
    def leader_works(self) -> bool:
        return self.leader in self.workers

    @property
    def nodes(self) -> dict[str, ClusterNode]:
        """Everyone by name, the leader first."""
        return {node.name: node for node in (self.leader, *self.workers, *self.hubs)}

    @property
    def slowest_s(self) -> float:
        """The longest that one of the workers trains."""
        return max(worker.compute_s for worker in self.workers)
