"""One formation: its aggregators, their parts and members, how far it is set up, which updates arrived. Pure state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.roles.leader.gathering.comparing import ComparedRound
from shoal.roles.leader.weighing import WeightsGiven
from shoal.scheduling.ledger import Lease
from shoal.wire.messages import Hop, Update


@dataclass(slots=True)
class AggregatorShare:
    """An aggregator: its part of the model, and the members that send it their updates of that part."""

    node: str
    start: int
    stop: int
    members: list[str]
    #: It is a hub and does not train, so it is not one of its members.
    is_hub: bool = False
    #: Where its members dial it, once it is set up.
    endpoint: str = ""
    #: The leases it was asked to sum up, or None if it was not asked.
    asked: tuple[int, ...] | None = None
    asked_s: float = 0.0
    #: The newest version it was given to pass on.
    passed: int = -1

    @property
    def hop(self) -> Hop:
        return Hop(node=self.node, endpoint=self.endpoint, start=self.start, stop=self.stop)


@dataclass(frozen=True, slots=True)
class ArrivedUpdate:
    """An update that the aggregators have, each its piece."""

    lease: Lease
    update: Update
    scale: float
    #: In a tree, the aggregator that has it: the worker may be gone before it is summed up.
    at: str = ""


@dataclass(slots=True)
class Formation:
    number: int
    #: ``tree`` or ``shard``.
    kind: str
    shares: list[AggregatorShare]
    reason: str
    begun_s: float
    #: How long it may take to be set up.
    patience_s: float
    #: Workers that reach every aggregator of their route.
    routed: set[str] = field(default_factory=set)
    #: Other workers, and the aggregators that each of them does not reach.
    unreached: dict[str, tuple[str, ...]] = field(default_factory=dict)
    routes_told: bool = False
    #: Why its aggregators can sum up nothing any more, or None if they can; and the node at fault, if one is.
    broken: str | None = None
    broken_by: str | None = None
    #: Updates that are with the aggregators and in no version yet, by lease.
    arrived: dict[int, ArrivedUpdate] = field(default_factory=dict)
    #: In a shard, by aggregator: its part of the mean of the next version, and how its part moved if that was coded.
    sums: dict[str, tuple[np.ndarray, np.ndarray | Sparse | None]] = field(default_factory=dict)
    #: In a shard of a robust plan: how the updates that are being summed up were compared.
    comparison: ComparedRound | None = None
    #: In a tree whose updates are cut, by lease: since when its aggregator is asked how far it is from the centre, and
    #: how much of it is kept.
    measured_s: dict[int, float] = field(default_factory=dict)
    verdicts: dict[int, WeightsGiven] = field(default_factory=dict)

    def has_answered(self, node: str) -> bool:
        """Whether an aggregator of a shard has said what it was asked for."""
        weighs = self.comparison if self.comparison is not None and self.comparison.verdict is None else None
        return node in (self.sums if weighs is None else weighs.parts)

    def reaches(self, node: str) -> bool:
        """Whether this worker reaches the aggregators of its route, and the formation is whole."""
        return not self.broken and node in self.routed

    @property
    def members(self) -> list[str]:
        return list(dict.fromkeys(member for share in self.shares for member in share.members))

    @property
    def aggregators(self) -> list[str]:
        return [share.node for share in self.shares]

    def shares_of(self, worker: str) -> list[AggregatorShare]:
        """Where its update goes: in a tree to one, in a shard to all."""
        return [share for share in self.shares if worker in share.members]

    def share_led_by(self, node: str) -> AggregatorShare | None:
        return next((share for share in self.shares if share.node == node), None)

    def hops_of(self, worker: str) -> tuple[Hop, ...]:
        return tuple(share.hop for share in self.shares_of(worker))

    @property
    def is_formed(self) -> bool:
        return all(share.endpoint for share in self.shares)

    @property
    def is_routed(self) -> bool:
        return all(member in self.routed for member in self.members)

    @property
    def is_mostly_routed(self) -> bool:
        """Members that do not reach their aggregator go straight to the leader in a tree; in a shard they must wait."""
        return sum(member not in self.routed for member in self.members) * 4 <= len(self.members)

    @property
    def notation(self) -> str:
        if self.kind == "tree":
            hubs = sum(share.is_hub for share in self.shares)
            led = f"tree 1-{len(self.shares)}-{len(self.members)}"
            return f"{led} with {hubs} {'hub' if hubs == 1 else 'hubs'}" if hubs else led
        return f"shard over {len(self.shares)} of {len(self.members)} workers"
