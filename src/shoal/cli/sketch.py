"""A fleet as one sketches it before it is there, of devices that are alike: which topology it would have. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.roles.leader.gathering.policy import LEAST, SHARD_MOST
from shoal.topology.choose import TOPOLOGIES, Choice, choose
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.trust import Trust

#: Every transfer of a batch is played through, so that a large fleet takes long; and it adds nothing to know.
DEVICES_MAX = 256

_AIR = "the access point's air"


def refusal_of(plan: Plan, topology: str) -> str | None:
    """Return why this plan cannot have this topology, or None if it can."""
    try:
        replace(plan, topology=topology)
    except Misuse as problem:
        return str(problem)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sketch:
    devices: int
    #: On shared Wi-Fi, the rate of a device while no other one sends.
    link_bytes_per_s: float
    leader_bytes_per_s: float
    model_bytes: float
    train_s: float
    shared_air: bool = False
    trust: str = "identity"
    #: Nodes that sum up and train nothing, and what the link of each carries.
    hubs: int = 0
    hub_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= DEVICES_MAX:
            raise Misuse(
                f"topologies are estimated for 1 to {DEVICES_MAX} devices, not {self.devices}:"
                " `shoal plan capacity` estimates larger fleets"
            )
        if not 0 <= self.hubs <= self.devices:
            raise Misuse(f"{self.hubs} hubs for {self.devices} devices: a hub sums up for one device at least")
        for what, value in (
            ("a link", self.link_bytes_per_s),
            ("the leader's link", self.leader_bytes_per_s),
            ("a model", self.model_bytes),
            ("the link of a hub", self.hub_bytes_per_s if self.hubs else 1.0),
        ):
            if not 0 < value < math.inf:
                raise Misuse(f"{what} has a size above 0, not {value:g} bytes")
        if not 0 <= self.train_s < math.inf:
            raise Misuse(f"a device trains for 0 s or more, not {self.train_s:g} s")
        # Refuses an unknown trust.
        _ = self.plan

    def plan_in(self, topology: str) -> Plan:
        """The plan of the topology that was chosen: trust has another price there than in a star."""
        return replace(self.plan, topology=topology)

    @property
    def plan(self) -> Plan:
        """Return the plan for a star, which every trust can have."""
        if (sealed := Trust.parse(self.trust).sealed) is not None:
            least = sealed.least
            return Plan(topology="star", trust=self.trust, data="local", workers_min=least, workers_max=max(least, 64))
        return Plan(topology="star", trust=self.trust)

    @property
    def cluster(self) -> Cluster:
        leader, link = self.leader_bytes_per_s, self.link_bytes_per_s
        return Cluster(
            leader=ClusterNode(name="the leader", up_bytes_per_s=leader, down_bytes_per_s=leader),
            workers=tuple(
                ClusterNode(
                    name=f"device-{number}",
                    up_bytes_per_s=link,
                    down_bytes_per_s=link,
                    compute_s=self.train_s,
                    medium=_AIR if self.shared_air else "",
                )
                for number in range(1, self.devices + 1)
            ),
            # On a wire, as the leader.
            hubs=tuple(
                ClusterNode(
                    name=f"hub-{number}", up_bytes_per_s=self.hub_bytes_per_s, down_bytes_per_s=self.hub_bytes_per_s
                )
                for number in range(1, self.hubs + 1)
            ),
        )

    @property
    def left_out(self) -> dict[str, str]:
        """Shapes that a leader would not take for so many, and why."""
        why = {topology: f"takes at least {least} workers" for topology, least in LEAST.items() if self.devices < least}
        if self.devices > SHARD_MOST:
            why["shard"] = f"for at most {SHARD_MOST} workers: each is connected with every other"
        if self.plan.believes.rule == "nearest":
            why["tree"] = "robust compares devices in a star or a shard"
        for topology in TOPOLOGIES:
            if topology not in why and (refused := refusal_of(self.plan, topology)) is not None:
                why[topology] = refused
        return why

    def choose(self) -> Choice:
        """Choose as the leader of a job with ``topology = "auto"`` would after measuring this cluster."""
        topologies = tuple(topology for topology in TOPOLOGIES if topology not in self.left_out)
        return choose(self.cluster, model_bytes=self.model_bytes, topologies=topologies)
