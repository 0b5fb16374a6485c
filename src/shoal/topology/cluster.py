"""The devices of a job, as known when its topology is chosen. Pure values; does not depend on how they were
measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.errors import Misuse


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterNode:
    """One device: the rates of its link and its training time."""

    name: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    #: Seconds to train one lease.
    compute_s: float = 0.0
    #: This node's share of the one-way delay of a message.
    latency_s: float = 0.0
    #: The medium that it shares with others, such as an access point's Wi-Fi channel, or empty if its link is its own,
    #: as on a switch. On a shared medium the rates are those that it would have by itself.
    medium: str = ""

    def __post_init__(self) -> None:
        for rate in (self.up_bytes_per_s, self.down_bytes_per_s):
            if not 0 < rate < math.inf:
                raise Misuse(f"{self.name}: the link's rate is {rate} bytes/s; it must be positive: measure it")
        if not 0 <= self.compute_s < math.inf or not 0 <= self.latency_s < math.inf:
            raise Misuse(
                f"{self.name}: compute_s is {self.compute_s} and latency_s is {self.latency_s};"
                " both must be 0 or more and finite"
            )

    @property
    def narrow_bytes_per_s(self) -> float:
        """The slower of its two directions: a leader's link carries every model both ways."""
        return min(self.up_bytes_per_s, self.down_bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The leader and the workers. A leader that also works is one of the workers."""

    leader: ClusterNode
    workers: tuple[ClusterNode, ...]
    #: Nodes that may sum updates for others and do not train.
    hubs: tuple[ClusterNode, ...] = ()

    def __post_init__(self) -> None:
        names = [worker.name for worker in self.workers]
        if not names:
            raise Misuse("a cluster without workers has no topology: wait for the first worker")
        if len(set(names)) < len(names):
            raise Misuse("two workers of a cluster have the same name")
        hubs = {hub.name for hub in self.hubs}
        if len(hubs) < len(self.hubs) or hubs.intersection((*names, self.leader.name)):
            raise Misuse("a hub must have a name of its own: it neither leads nor works")
        if any(worker.name == self.leader.name and worker != self.leader for worker in self.workers):
            raise Misuse(f"{self.leader.name} leads and works, but the two descriptions of it differ")

    @property
    def leader_works(self) -> bool:
        return self.leader in self.workers

    @property
    def nodes(self) -> dict[str, ClusterNode]:
        """All nodes by name, the leader first."""
        return {node.name: node for node in (self.leader, *self.workers, *self.hubs)}

    @property
    def slowest_s(self) -> float:
        """The longest training time of a worker."""
        return max(worker.compute_s for worker in self.workers)
