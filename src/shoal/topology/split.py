"""EDDL's leader role splitting: chooses the aggregators of a tree and the workers of each. Pure; predicts no times.

A tree has one leader, g aggregators that also work, and the other workers under them. The leader's link carries g
models each way and an aggregator's n/g - 1, one after the other, so the sum g S/B + (n/g) S/b is least at
g = √(n B/b): about √n if all links are equal. In the paper the leader is itself one of the aggregators.

If there are hubs, they are the aggregators, and every worker is under one: b is then the rate of the hubs' links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, ClusterNode


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """An aggregator, which also works unless it is a hub, and the other workers that it leads."""

    aggregator: str
    members: tuple[str, ...]
    is_hub: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    groups: tuple[Group, ...]
    reason: str

    @property
    def workers(self) -> int:
        return sum((not group.is_hub) + len(group.members) for group in self.groups)

    @property
    def hubs(self) -> int:
        return sum(group.is_hub for group in self.groups)

    @property
    def notation(self) -> str:
        """The tree in EDDL's notation (§6.5). 1-4-16: one leader, four aggregators, sixteen workers."""
        return f"1-{len(self.groups)}-{self.workers}"


def aggregators_about(cluster: Cluster) -> int:
    """√(n B/b), with B the leader's link and b that of the nodes that would lead: the hubs, or the best √n workers."""
    workers, leading = len(cluster.workers), cluster.hubs or cluster.workers
    rates = sorted((node.narrow_bytes_per_s for node in leading), reverse=True)
    best = rates[: max(1, math.isqrt(workers))]
    typical = sum(best) / len(best)
    about = round(math.sqrt(workers * cluster.leader.narrow_bytes_per_s / typical))
    return max(1, min(about, workers, len(leading)))


def split(cluster: Cluster, *, aggregators: int | None = None, like_speeds_together: bool = False) -> Tree:
    """Return a tree for this cluster.

    The nodes with the best links lead: hubs first, then the leader itself if it works, then the fastest links. Each
    other worker goes where it is served soonest. ``like_speeds_together`` is for a tree whose aggregators do not wait
    for each other: a slow worker then delays only its own group, so slow workers share one.
    """
    count = aggregators_about(cluster) if aggregators is None else aggregators
    if not 1 <= count <= len(cluster.workers):
        raise Misuse(f"{count} aggregators are too many or too few for {len(cluster.workers)} workers: each also works")
    hubs = sorted(cluster.hubs, key=lambda node: _rank(node, cluster))[:count]
    leading = [*hubs, *sorted(cluster.workers, key=lambda node: _rank(node, cluster))[: count - len(hubs)]]
    others = sorted(
        (node for node in cluster.workers if node not in leading), key=lambda node: (node.compute_s, node.name)
    )
    sizes = _sizes(leading, len(others))
    members = _by_speed(leading, others, sizes) if like_speeds_together else _dealt(leading, others, sizes)
    # Leave out a hub whose link is too slow for even one worker.
    groups = tuple(
        Group(aggregator=node.name, members=tuple(sorted(member.name for member in under)), is_hub=node in hubs)
        for node, under in zip(leading, members, strict=True)
        if under or node not in hubs
    )
    if hubs:
        leading = [node for node in leading if any(group.aggregator == node.name for group in groups)]
        chosen = "hubs" if len(leading) <= len(hubs) else f"{len(hubs)} of them hubs"
    else:
        chosen = f"about √{len(cluster.workers)} of the workers" if aggregators is None else f"{count}, as asked"
    reason = f"{len(leading)} aggregators ({chosen}), those with the best links: {_names(leading)}"
    return Tree(groups=groups, reason=reason)


def _rank(node: ClusterNode, cluster: Cluster) -> tuple[bool, bool, float, float, str]:
    """Return the order in which nodes lead. A node on a shared medium is last: it sends everything that it receives
    again over the same medium."""
    is_leader = node.name == cluster.leader.name
    return (not is_leader, bool(node.medium), -node.narrow_bytes_per_s, node.compute_s, node.name)


def _sizes(leading: Sequence[ClusterNode], others: int) -> list[int]:
    """Return how many others each node leads, so that all have served theirs at about the same time."""
    sizes = [0] * len(leading)
    for _ in range(others):
        best = min(range(len(leading)), key=lambda i: ((sizes[i] + 1) / leading[i].narrow_bytes_per_s, leading[i].name))
        sizes[best] += 1
    return sizes


def _dealt(
    leading: Sequence[ClusterNode], others: Sequence[ClusterNode], sizes: Sequence[int]
) -> list[list[ClusterNode]]:
    """Distribute one worker to each aggregator in turn, so that fast and slow ones are spread evenly."""
    members: list[list[ClusterNode]] = [[] for _ in leading]
    waiting = list(others)
    while waiting:
        for group, size in zip(members, sizes, strict=True):
            if waiting and len(group) < size:
                group.append(waiting.pop(0))
    return members


def _by_speed(
    leading: Sequence[ClusterNode], others: Sequence[ClusterNode], sizes: Sequence[int]
) -> list[list[ClusterNode]]:
    """Assign the fastest workers to the fastest aggregator, and so on."""
    members: list[list[ClusterNode]] = [[] for _ in leading]
    waiting = list(others)
    for place in sorted(range(len(leading)), key=lambda i: (leading[i].compute_s, leading[i].name)):
        members[place], waiting = waiting[: sizes[place]], waiting[sizes[place] :]
    return members


def _names(nodes: Sequence[ClusterNode]) -> str:
    shown = ", ".join(node.name for node in nodes[:4])
    return f"{shown} and {len(nodes) - 4} more" if len(nodes) > 4 else shown
