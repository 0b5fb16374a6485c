"""EDDL's leader role splitting: how many sub-leaders, which, and who works under whom. Pure; predicts no times.

A tree has one leader, g sub-leaders that also work, and the other workers under them. The leader's link carries g
models each way and a sub-leader's n/g - 1, one after the other, so the sum g S/B + (n/g) S/b is least at
g = √(n B/b): about √n if the links are alike. In the paper the leader is itself one of the sub-leaders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.topology.cluster import Cluster, Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A sub-leader, which also works, and the workers it leads besides."""

    sub_leader: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    groups: tuple[Group, ...]
    reason: str

    @property
    def workers(self) -> int:
        return sum(1 + len(group.members) for group in self.groups)

    @property
    def notation(self) -> str:
        """1-4-16: one leader, four sub-leaders, sixteen workers (EDDL §6.5)."""
        return f"1-{len(self.groups)}-{self.workers}"


def sub_leaders_about(cluster: Cluster) -> int:
    """√(n B/b), with B the leader's link and b that of the workers who would lead: the best √n of them."""
    workers = len(cluster.workers)
    rates = sorted((worker.narrow_bytes_per_s for worker in cluster.workers), reverse=True)
    best = rates[: max(1, math.isqrt(workers))]
    typical = sum(best) / len(best)
    about = round(math.sqrt(workers * cluster.leader.narrow_bytes_per_s / typical))
    return max(1, min(about, workers))


def split(cluster: Cluster, *, sub_leaders: int | None = None, like_speeds_together: bool = False) -> Tree:
    """A tree for this cluster.

    The best links lead: the leader itself if it works, then the widest. Each other worker goes where it is served
    soonest. ``like_speeds_together`` is for a tree whose sub-leaders do not wait for each other: a slow worker then
    holds up its own group alone, so slow ones are put in one.
    """
    count = sub_leaders_about(cluster) if sub_leaders is None else sub_leaders
    if not 1 <= count <= len(cluster.workers):
        raise Misuse(f"{count} sub-leaders for {len(cluster.workers)} workers: each of them is a worker too")
    leading = sorted(cluster.workers, key=lambda node: _rank(node, cluster))[:count]
    others = sorted(
        (node for node in cluster.workers if node not in leading), key=lambda node: (node.compute_s, node.name)
    )
    sizes = _sizes(leading, len(others))
    members = _by_speed(leading, others, sizes) if like_speeds_together else _dealt(leading, others, sizes)
    groups = tuple(
        Group(sub_leader=node.name, members=tuple(sorted(member.name for member in under)))
        for node, under in zip(leading, members, strict=True)
    )
    chosen = f"about √{len(cluster.workers)} of the workers" if sub_leaders is None else f"{count}, as asked"
    reason = f"{count} sub-leaders ({chosen}), those with the best links: {_names(leading)}"
    return Tree(groups=groups, reason=reason)


def _rank(node: Node, cluster: Cluster) -> tuple[bool, bool, float, float, str]:
    """Whose turn it is to lead. A node on shared air leads last: all it receives it also sends, over the same air."""
    is_leader = node.name == cluster.leader.name
    return (not is_leader, bool(node.medium), -node.narrow_bytes_per_s, node.compute_s, node.name)


def _sizes(leading: Sequence[Node], others: int) -> list[int]:
    """How many each leads besides itself, so that all have served theirs at about the same time."""
    sizes = [0] * len(leading)
    for _ in range(others):
        best = min(range(len(leading)), key=lambda i: ((sizes[i] + 1) / leading[i].narrow_bytes_per_s, leading[i].name))
        sizes[best] += 1
    return sizes


def _dealt(leading: Sequence[Node], others: Sequence[Node], sizes: Sequence[int]) -> list[list[Node]]:
    """One each, round and round: fast and slow are spread evenly."""
    members: list[list[Node]] = [[] for _ in leading]
    waiting = list(others)
    while waiting:
        for group, size in zip(members, sizes, strict=True):
            if waiting and len(group) < size:
                group.append(waiting.pop(0))
    return members


def _by_speed(leading: Sequence[Node], others: Sequence[Node], sizes: Sequence[int]) -> list[list[Node]]:
    """The fastest workers to the fastest sub-leader, and so on."""
    members: list[list[Node]] = [[] for _ in leading]
    waiting = list(others)
    for place in sorted(range(len(leading)), key=lambda i: (leading[i].compute_s, leading[i].name)):
        members[place], waiting = waiting[: sizes[place]], waiting[sizes[place] :]
    return members


def _names(nodes: Sequence[Node]) -> str:
    shown = ", ".join(node.name for node in nodes[:4])
    return f"{shown} and {len(nodes) - 4} more" if len(nodes) > 4 else shown
