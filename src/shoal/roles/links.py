"""What the links of a job's workers carry, from what they say and from how long their leases took. Pure state.

A worker says what a download gave it, which is less than its link carries while others download too. How long its
leases take beyond their training says more, and again it may be the leader's link that they waited for. So a star is
played through: with which link of the leader, all others being as good, would the ways there and back be as long as
they were? But not all ways are the leader's doing. Served in turn or all at once, one worker is back soon after the
other; where there is a gap, those behind it wait for slow links of their own. Their uplink is taken to be the slow one,
for that is what homes are short of. (Where it is the downlink, or both, the sum is the same, and so is what is made of
it: such a one leads nothing, and is waited for as long.)

In a star of many a slow link is hidden: by the time that all others are through the leader's, so is it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, median_high

from shoal.roles.crew import Member
from shoal.topology import predict
from shoal.topology.cluster import Cluster, Node
from shoal.workload.placement import LINK_ASSUMED_BYTES_PER_S

#: One who is back this much later than the one before, in shares of the way, is behind a gap; unless there would be one
#: as large where all links are alike, or the leader makes it (``_gap``).
GAP = 0.1

#: Rates within this factor of what is usual are taken to be alike.
ALIKE = 2.0

#: No link that trains a model is slower, and none of interest faster.
SLOWEST_BYTES_PER_S = 1e3
FASTEST_BYTES_PER_S = 1.25e9

#: A star of more is played through with so many of them, and with as much of the leader's link.
PLAYED_MOST = 64

#: A way is nearly the inverse of a rate: so often is enough to find one from the other.
TRIES = 8

LEADER = "the leader"


@dataclass(frozen=True, slots=True)
class Seen:
    """What leases in a star showed of one worker."""

    node: str
    #: Beyond its training: the way of a model there and of an update back.
    way_s: float
    train_s: float


class Links:
    def __init__(self, *, model_bytes: float) -> None:
        self._model_bytes = model_bytes
        #: The leader's link; 0: no round of a star was seen.
        self._leader_bytes_per_s = 0.0
        #: Workers with a slow link of their own -> what they send.
        self._slow: dict[str, float] = {}

    def observe(self, workers: Sequence[Member]) -> None:
        """Rounds of a star, in each of which all of them trained one lease."""
        known = [worker for worker in workers if worker.durations_s and worker.trainings_s]
        if not known:
            return
        seen = [_seen(worker) for worker in known]
        # Whoever was served first was back first.
        seen.sort(key=lambda one: (one.way_s, one.node))
        count = min(len(seen), PLAYED_MOST)
        played = [seen[place * len(seen) // count] for place in range(count)]
        share = count / len(seen)
        slow = seen[_gap([one.way_s for one in seen], usual=self._usual_gap(played, share)) :]
        self._leader_bytes_per_s, self._slow = self._explain(played, slow, share)

    def _usual_gap(self, played: Sequence[Seen], share: float) -> float:
        """The largest in a star of even links, in which the way in the middle is as long as it was."""
        rate, middle = LINK_ASSUMED_BYTES_PER_S, (len(played) - 1) // 2
        told_s: list[float] = []
        for _ in range(TRIES):
            told_s = sorted(self._ways_s(played, rate, share, {}).values())
            rate = _bounded(rate * told_s[middle] / played[middle].way_s)
        return max((later / before - 1 for before, later in pairwise(told_s[middle:])), default=0.0)

    def _explain(self, played: Sequence[Seen], slow: Sequence[Seen], share: float) -> tuple[float, dict[str, float]]:
        """The leader's link with which the others are back when they were, and what the slow ones then send."""
        rate = LINK_ASSUMED_BYTES_PER_S
        # At first: half of the way is the way back.
        ups = {one.node: _bounded(2 * self._model_bytes / one.way_s) for one in slow}
        longest_s = max(one.way_s for one in played if one.node not in ups)
        for _ in range(TRIES):
            told_s = self._ways_s(played, rate, share, ups)
            rate = _bounded(rate * max(told_s[node] for node in told_s if node not in ups) / longest_s)
            for one in slow:
                ups[one.node] = min(rate, _bounded(ups[one.node] * told_s.get(one.node, one.way_s) / one.way_s))
        return rate, ups

    def _ways_s(self, played: Sequence[Seen], rate: float, share: float, ups: Mapping[str, float]) -> dict[str, float]:
        nodes = tuple(
            Node(
                name=one.node,
                up_bytes_per_s=ups.get(one.node, rate),
                down_bytes_per_s=rate,
                compute_s=one.train_s,
            )
            for one in played
        )
        leader = Node(name=LEADER, up_bytes_per_s=rate * share, down_bytes_per_s=rate * share)
        ways_s = predict.star_ways_s(Cluster(leader=leader, workers=nodes), model_bytes=self._model_bytes)
        return {one.node: way_s for one, way_s in zip(played, ways_s, strict=True)}

    def cluster(self, workers: Sequence[Member]) -> Cluster:
        """What is known of these workers and of their leader, in the order of their names."""
        times = [median(worker.trainings_s) for worker in workers if worker.trainings_s]
        typical_s = median(times) if times else 0.0
        nodes = _evened([self._node(worker, typical_s) for worker in sorted(workers, key=lambda worker: worker.node)])
        usual = median(node.down_bytes_per_s for node in nodes)
        rate = self._leader_bytes_per_s or max(usual, LINK_ASSUMED_BYTES_PER_S)
        return Cluster(leader=Node(name=LEADER, up_bytes_per_s=rate, down_bytes_per_s=rate), workers=nodes)

    def _node(self, worker: Member, typical_s: float) -> Node:
        shared = self._leader_bytes_per_s or LINK_ASSUMED_BYTES_PER_S
        known = self._leader_bytes_per_s or not worker.down_bytes_per_s
        down = max(worker.down_bytes_per_s, shared) if known else worker.down_bytes_per_s
        up = worker.up_bytes_per_s or self._slow.get(worker.node, down)
        return Node(
            name=worker.node,
            up_bytes_per_s=max(up, SLOWEST_BYTES_PER_S),
            down_bytes_per_s=max(down, SLOWEST_BYTES_PER_S),
            compute_s=median(worker.trainings_s) if worker.trainings_s else typical_s,
            medium=worker.medium,
        )


def _evened(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Rates that are about alike are alike: what was measured while others were busy differs more than links do."""
    up = median_high(node.up_bytes_per_s for node in nodes)
    down = median_high(node.down_bytes_per_s for node in nodes)
    return tuple(
        replace(
            node,
            up_bytes_per_s=up if up / ALIKE <= node.up_bytes_per_s <= up * ALIKE else node.up_bytes_per_s,
            down_bytes_per_s=down if down / ALIKE <= node.down_bytes_per_s <= down * ALIKE else node.down_bytes_per_s,
        )
        for node in nodes
    )


def _seen(worker: Member) -> Seen:
    train_s = median(worker.trainings_s)
    return Seen(worker.node, max(1e-4, median(worker.durations_s) - train_s), train_s)


def _gap(ways_s: Sequence[float], *, usual: float) -> int:
    """How many of these, in order, are before the first gap. At least half of them are.

    A leader has room for so many updates at a time: once n models are out and all but m updates in, these m have their
    turn, and are back later by m of what were 2n - m.
    """
    count = len(ways_s)
    for place in range((count + 1) // 2, count):
        behind = count - place
        least = GAP + max(usual, behind / (2 * count - behind))
        if ways_s[place] > (1 + least) * ways_s[place - 1]:
            return place
    return count


def _bounded(rate: float) -> float:
    return min(max(rate, SLOWEST_BYTES_PER_S), FASTEST_BYTES_PER_S)
